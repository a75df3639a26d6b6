from itertools import pairwise

import pytest

from securevfl.benchmarks.tradeoff import MOST_POINTS, curve_of
from securevfl.protocols.session.scoring import Score


def scores(count: int, every: int = 1) -> list[Score]:
    return [
        Score(every * (index + 1), index / 1000, 0.5, training_loss=float(index))
        for index in range(count)
    ]


def test_a_short_curve_has_every_scoring() -> None:
    assert curve_of(scores(3, every=5)) == [
        {"rounds": 5, "training_loss": 0.0, "auc": 0.0},
        {"rounds": 10, "training_loss": 1.0, "auc": 0.001},
        {"rounds": 15, "training_loss": 2.0, "auc": 0.002},
    ]


@pytest.mark.parametrize("count", [MOST_POINTS, MOST_POINTS + 1, 7 * MOST_POINTS + 3])
def test_a_long_one_is_thinned_evenly_and_ends_with_the_last(count: int) -> None:
    points = curve_of(scores(count))
    assert MOST_POINTS / 2 < len(points) <= MOST_POINTS
    assert points[-1]["rounds"] == count
    apart = {b["rounds"] - a["rounds"] for a, b in pairwise(points)}
    assert len(apart) == 1
    (step,) = apart
    # The mean over all rounds since the point before, not that round's alone.
    assert points[-1]["training_loss"] == pytest.approx(count - 1 - (step - 1) / 2)


def test_a_loss_that_nobody_sees_stays_away() -> None:
    (point,) = curve_of([Score(1, 0.5, 0.5)])
    assert point["training_loss"] is None
