"""A job resolved: the exchanges of a round, step sizes, and what is refused beforehand."""

from typing import Any

import pytest

from securevfl.errors import BudgetExhausted, ConfigError
from securevfl.protocols.plan import StepSize
from securevfl.protocols.session.party import Step
from securevfl.protocols.vertical.fedbcd import steps_of
from tests.plans import NAMES, plan_of


def test_in_fedbcd_p_all_parties_exchange_once_a_round() -> None:
    assert list(steps_of(plan_of(parties=3), 4)) == [Step(4, NAMES, NAMES)]


def test_in_fedbcd_s_the_label_party_begins_and_each_sees_all_earlier_turns() -> None:
    plan = plan_of(parties=3, job={"algorithm": "fedbcd-s"})
    assert list(steps_of(plan, 2)) == [
        Step(6, ("bank",), NAMES),
        Step(7, ("shop",), ("bank",)),
        Step(8, ("lab",), ("shop",)),
    ]


def test_no_two_exchanges_of_a_job_share_a_number() -> None:
    plan = plan_of(parties=3, job={"algorithm": "fedbcd-s"})
    assert [step.index for t in range(5) for step in steps_of(plan, t)] == list(range(15))


def test_step_sizes_are_constant_or_fall_with_the_root_of_rounds() -> None:
    assert [StepSize(0.6).at(t) for t in (0, 3, 8)] == [0.6, 0.6, 0.6]
    assert [StepSize(0.6, decays=True).at(t) for t in (0, 3, 8)] == pytest.approx([0.6, 0.3, 0.2])
    assert StepSize(0.6, decays=True, parties=9).at(3) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("job", "decays"),
    [
        ({}, False),
        ({"schedule": "inverse-sqrt"}, True),
        ({"algorithm": "fdml"}, True),
        ({"algorithm": "fdml", "schedule": "constant"}, False),
        ({"algorithm": "fdml", "learning_rate": "auto"}, False),
        ({"algorithm": "fdml", "learning_rate": "auto", "model": "mlp", "hidden": [2]}, True),
        ({"algorithm": "fdml", "learning_rate": "auto", "schedule": "inverse-sqrt"}, True),
    ],
)
def test_a_schedule_is_the_jobs_or_else_the_algorithms(
    job: dict[str, object], decays: bool
) -> None:
    assert plan_of(job={"learning_rate": 0.1, **job}).step_size.decays == decays


@pytest.mark.parametrize(
    ("algorithm", "steps"), [("fedsgd", 1), ("fedbcd-p", 7), ("fedbcd-s", 7), ("fdml", 1)]
)
def test_local_steps_in_force_are_the_algorithms(algorithm: str, steps: int) -> None:
    assert plan_of(job={"algorithm": algorithm, "local_steps": 7}).local_steps == steps


@pytest.mark.parametrize(
    ("local_rule", "follows"),
    [
        ("curvature", {}),
        ("frozen", {"frozen": True}),
        ("gauss-newton", {"gauss_newton": True}),
        ("exact", {"own_loss": True}),
    ],
)
def test_the_rule_of_local_steps_is_the_jobs(local_rule: str, follows: dict[str, bool]) -> None:
    network = {"model": "mlp"} if local_rule == "gauss-newton" else {}
    rule = plan_of(job={"local_rule": local_rule, "learning_rate": 0.1, **network}).rule
    usual = {"frozen": False, "gauss_newton": False, "own_loss": False}
    assert {name: getattr(rule, name) for name in usual} == {**usual, **follows}
    assert rule.curvature == (0.0 if rule.frozen else 0.25)


def test_the_largest_batch_is_known_before_it_comes() -> None:
    plan = plan_of(rows=100, job={"batch_size": 30})
    assert max(len(plan.schedule.batch(index)) for index in range(20)) == plan.most_batch_rows
    shuffled = plan_of(rows=100, job={"batch_size": 30, "sampling": "shuffle"})
    # The remainder is spread.
    assert shuffled.most_batch_rows == 34
    assert max(len(shuffled.schedule.batch(index)) for index in range(20)) == 34


def test_networks_are_those_of_the_parties_that_have_one() -> None:
    party = [
        {"name": "shop", "role": "feature", "model": "mlp", "hidden": [3]},
        {"name": "bank", "role": "label"},
    ]
    plan = plan_of(party=party)
    assert {name: network.hidden for name, network in plan.networks.items()} == {"shop": (3,)}


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        ({"job": {"algorithm": "fedbcd"}}, "algorithm = 'fedbcd': unknown; nearest is 'fedbcd-"),
        (
            {"parties": 3, "job": {"algorithm": "fdml"}, "exchange": {"predictions": "masked"}},
            "not with exchange 'plain' as it is set",
        ),
        ({"exchange": {"scheme": "pailier"}}, "nearest is 'paillier'"),
        ({"fdml": {"staleness": 3}}, r"\[fdml\] is for algorithm 'fdml', not 'fedbcd-p'"),
        ({"privacy": {"noise_multiplier": 1.0}}, "for exchanges that add noise, not 'plain'"),
        ({"exchange": {"scheme": "dp"}}, r"needs privacy\.noise_multiplier"),
        ({"network": {"preset": "moon"}}, "network = 'moon'"),
        ({"job": {"batch_size": 65}}, "batch_size: 65"),
        ({"job": {"model": "custom"}}, "needs a module"),
        ({"job": {"model": "mlp", "start": "zero"}}, "gives a network no gradient"),
    ],
)
def test_a_job_that_cannot_be_run_is_refused(sections: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        plan_of(**sections)


def test_a_budget_that_would_be_passed_is_refused_before_any_work() -> None:
    privacy = {"noise_multiplier": 1.0, "release_budget": 0.5}
    with pytest.raises(BudgetExhausted):
        plan_of(exchange={"scheme": "dp"}, privacy=privacy)


def test_an_algorithms_own_section_has_defaults_and_is_checked() -> None:
    assert plan_of(job={"algorithm": "fdml"}).job.own == {}
    with pytest.raises(ConfigError, match=r"fdml\.staleness = -1"):
        plan_of(job={"algorithm": "fdml"}, fdml={"staleness": -1})
    with pytest.raises(ConfigError, match=r"unknown key 'fdml\.stale': nearest known key is"):
        plan_of(job={"algorithm": "fdml"}, fdml={"stale": 1})


@pytest.mark.parametrize(
    ("job", "start"),
    [
        ({"algorithm": "fdml"}, "zero"),
        ({"algorithm": "fdml", "start": "random"}, "random"),
        ({"algorithm": "fdml", "model": "mlp"}, "random"),
        ({"algorithm": "fedsgd"}, "random"),
    ],
)
def test_a_start_is_random_where_it_hides_something_or_breaks_a_symmetry(
    job: dict[str, Any], start: str
) -> None:
    assert plan_of(job=job).job.job.start == start


def test_the_hash_covers_an_algorithms_own_section() -> None:
    hashes = {
        plan_of(job={"algorithm": "fdml"}, fdml={"staleness": limit}).hash for limit in (0, 1)
    }
    assert len(hashes) == 2
