"""The training loss beside every scoring: what the label party sees anyway, and no more."""

import pytest

from bench.objective import Objective
from securevfl.job import Job
from tests.jobs import breast_cancer, run_job

ROUNDS, STEPS = 4, 5
COMMON: dict[str, object] = {
    "rounds": ROUNDS,
    "local_steps": STEPS,
    "batch_size": "full",
    "learning_rate": 0.1,
    "start": "zero",
    "allow_label_leak": True,
}


@pytest.mark.parametrize(("scheme", "parties"), [("plain", 2), ("masked", 3), ("bfv", 2)], ids=str)
def test_it_is_the_loss_at_each_round_s_exchange(scheme: str, parties: int) -> None:
    dataset = breast_cancer(parties)
    objective = Objective.of(dataset)
    path = objective.follow(Job.of(job={**COMMON, "eval_every": 0}))
    exchanged = [objective.loss(path[index * STEPS]) for index in range(ROUNDS)]
    result = run_job(dataset, {"scheme": scheme}, eval_every=1, **COMMON)
    assert [score.training_loss for score in result.scores] == pytest.approx(exchanged, abs=1e-5)
    pairs = run_job(dataset, {"scheme": scheme}, eval_every=2, **COMMON)
    means = [sum(exchanged[:2]) / 2, sum(exchanged[2:]) / 2]
    assert [score.training_loss for score in pairs.scores] == pytest.approx(means, abs=1e-5)


def test_there_is_none_where_both_sides_are_hidden() -> None:
    exchange = {"scheme": "bfv", "hide": "both"}
    dataset = breast_cancer()
    result = run_job(dataset, exchange, eval_every=1, loss="taylor-logistic", **COMMON)
    assert [score.training_loss for score in result.scores] == [None] * ROUNDS


def test_there_is_none_where_predictions_are_noisy() -> None:
    settings = {"rounds": 6, "batch_size": 114, "eval_every": 2}
    result = run_job(breast_cancer(), "dp", privacy={"noise_multiplier": 1.0}, **settings)
    assert [score.training_loss for score in result.scores] == [None] * 3
