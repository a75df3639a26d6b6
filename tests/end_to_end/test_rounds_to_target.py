"""What local steps buy on real data, as rounds (figures: docs and README say more)."""

from collections.abc import Callable

import pytest

from securevfl.benchmarks.tradeoff import rounds_to
from securevfl.data.tables import VerticalDataset
from tests.jobs import run_job

LoadReal = Callable[..., VerticalDataset]


def test_five_local_steps_need_at_most_a_quarter_of_the_rounds_on_a9a(real_data: LoadReal) -> None:
    dataset = real_data("a9a")
    common = {"batch_size": 256, "learning_rate": 0.1, "start": "zero"}
    common |= {"target_auc": 0.9, "eval_every": 5}
    bcd = run_job(dataset, local_steps=5, rounds=400, **common)
    sgd = run_job(dataset, algorithm="fedsgd", rounds=1500, **common)
    bcd_rounds, sgd_rounds = rounds_to(bcd, 0.9), rounds_to(sgd, 0.9)
    assert bcd_rounds is not None
    assert sgd_rounds is not None
    assert bcd_rounds <= sgd_rounds / 4


def test_a9a_ends_near_the_centralized_auc(real_data: LoadReal) -> None:
    """Centralized logistic regression reaches 0.9022, the best party alone 0.8856."""
    steps = {"batch_size": 256, "local_steps": 5, "schedule": "inverse-sqrt", "start": "zero"}
    result = run_job(real_data("a9a"), rounds=3000, learning_rate=1.0, eval_every=0, **steps)
    assert 0.901 <= result.scores[-1].auc <= 0.903


@pytest.mark.parametrize("parties", [5, pytest.param(17, marks=pytest.mark.slow)])
def test_more_parties_need_hardly_more_rounds_on_intensive_care_data(
    real_data: LoadReal, parties: int
) -> None:
    common = {"batch_size": 256, "local_steps": 5, "learning_rate": 0.001, "start": "zero"}
    common |= {"rounds": 300, "target_auc": 0.82}
    two = rounds_to(run_job(real_data("icu2012-714"), **common), 0.82)
    many = rounds_to(run_job(real_data("icu2012-714", parties=parties), **common), 0.82)
    assert two is not None
    assert many is not None
    assert many <= 1.5 * two
