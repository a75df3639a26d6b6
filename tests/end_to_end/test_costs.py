"""The cost law: under encryption a round's homomorphic work does not depend on Q."""

import pytest

from securevfl.job import ExchangeSettings, Job, JobSettings
from securevfl.runtime.costs import FixedCosts
from securevfl.training import Environment, TrainingResult, train
from tests.jobs import SmallKeys, all_weights, breast_cancer, run_job

FIXED = {"local": 1e-4, "encrypt": 2e-3, "evaluate": 5e-3, "decrypt": 1e-3, "scoring": 7.0}


def operations(result: TrainingResult) -> dict[str, int]:
    """Homomorphic operations of all parties."""
    return {
        name: sum(ledger.operations[name] for ledger in result.ledgers.values())
        for name in ("encryptions", "products", "decryptions")
    }


@pytest.mark.parametrize("scheme", ["paillier", "ckks"])
@pytest.mark.parametrize("hide", ["residuals", "both"])
def test_homomorphic_operations_a_round_do_not_depend_on_local_steps(
    scheme: str, hide: str
) -> None:
    counts, rows = [], 0
    for local_steps in (1, 5, 50):
        result = run_job(
            breast_cancer(),
            {"scheme": scheme, "hide": hide},
            rounds=3,
            batch_size=114,
            local_steps=local_steps,
            learning_rate=0.01,
            loss="taylor-logistic",
        )
        counts.append(operations(result))
        rows = sum(len(result.plan.schedule.batch(index)) for index in range(3))
    assert counts[0] == counts[1] == counts[2]
    assert counts[0]["encryptions"] == rows * (2 if hide == "both" else 1)
    # 15 columns at the feature party; the label party has 15 and a constant one.
    assert counts[0]["products"] == counts[0]["decryptions"] == 3 * (31 if hide == "both" else 15)


def test_more_local_steps_reach_the_target_in_less_encrypted_time_at_the_same_step_size() -> None:
    """With fixed costs a section: what counts is how many encrypted rounds a run takes."""
    totals = []
    for local_steps in (1, 5, 10):
        job = Job(
            job=JobSettings(
                rounds=150,
                batch_size=64,
                local_steps=local_steps,
                learning_rate=0.05,
                target_auc=0.985,
            ),
            exchange=ExchangeSettings(scheme="paillier"),
        )
        environment = Environment(keys=SmallKeys(), stopwatch=FixedCosts(FIXED))
        result = train(job, breast_cancer(), environment)
        assert result.scores[-1].auc >= 0.985
        totals.append(result.costs().total_s)
    assert totals[0] > 2 * totals[1] > 2 * totals[2]


@pytest.mark.parametrize("scheme", ["plain", "masked", "paillier"])
def test_with_fixed_costs_a_run_repeats_to_the_bit(scheme: str) -> None:
    def run() -> TrainingResult:
        job = Job(
            job=JobSettings(rounds=4, batch_size=64, seed=9),
            exchange=ExchangeSettings(scheme=scheme),
        )
        environment = Environment(keys=SmallKeys(), stopwatch=FixedCosts(FIXED))
        return train(job, breast_cancer(3), environment)

    first, second = run(), run()
    assert all_weights(first).tobytes() == all_weights(second).tobytes()
    assert first.scores == second.scores
    assert first.costs() == second.costs()
    for name, ledger in first.ledgers.items():
        other = second.ledgers[name]
        assert ledger.path == other.path
        assert (ledger.messages, ledger.bytes_sent) == (other.messages, other.bytes_sent)


@pytest.mark.parametrize("scheme", ["plain", "paillier"])
def test_scoring_takes_no_time_of_the_job(scheme: str) -> None:
    def total(eval_every: int) -> float:
        job = Job(
            job=JobSettings(rounds=6, batch_size=64, eval_every=eval_every),
            exchange=ExchangeSettings(scheme=scheme),
        )
        environment = Environment(keys=SmallKeys(), stopwatch=FixedCosts(FIXED))
        return train(job, breast_cancer(), environment).costs().total_s

    assert total(1) == pytest.approx(total(0), rel=1e-12)


def test_compute_and_communication_add_up_to_the_total() -> None:
    result = run_job(breast_cancer(), {"scheme": "ckks"}, rounds=5, batch_size=64)
    costs = result.costs()
    assert costs.compute_s + costs.communication_s == costs.total_s
    assert sum(costs.compute_by_phase_s.values()) == pytest.approx(costs.compute_s)
    last = max(sum(ledger.path.values()) for ledger in result.ledgers.values())
    assert costs.total_s + costs.setup_s == pytest.approx(last)
