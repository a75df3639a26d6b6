"""What a noise sweep says of how far noise may go."""

from typing import cast

import pytest

from securevfl.reports.rows import NoiseRow
from securevfl.reports.sweep import by_own_prediction, highest_gain


def level(noise: float, released: float, own: str | None = None, exact: float = 0.9) -> NoiseRow:
    """A level where the best party alone has an AUC of 0.7."""
    row = {
        "noise_multiplier": noise,
        "auc_noisy_mean": released,
        "auc_mean": exact,
        "auc_local_only": 0.7,
        "own_prediction": own,
    }
    return cast("NoiseRow", row)


@pytest.mark.parametrize(
    ("aucs", "highest"),
    [
        ({0: 0.9, 1: 0.8, 2: 0.6}, "together better up to z = 1"),
        ({2: 0.6, 0: 0.9, 1: 0.8}, "together better up to z = 1"),  # in whatever order
        ({0: 0.9, 1: 0.6, 2: 0.8}, "together better up to z = 0"),  # not what comes after by chance
        ({0: 0.9, 1: 0.8}, "together better up to z = 1 at least"),
        ({0: 0.7, 1: 0.9}, "together no better than it at any level"),
        ({0: float("nan"), 1: 0.9}, "together no better than it at any level"),
    ],
)
def test_the_level_up_to_which_training_together_is_better(
    aucs: dict[float, float], highest: str
) -> None:
    ((_, levels),) = by_own_prediction([level(*each) for each in aucs.items()]).items()
    assert highest_gain(levels) == highest


def test_exact_predictions_that_nobody_gets_recommend_no_level() -> None:
    levels = [level(0, 0.75, exact=0.76), level(1, 0.65, exact=0.76), level(2, 0.6, exact=0.68)]
    assert highest_gain(levels) == "together better up to z = 0"
    assert highest_gain(levels, "auc_mean") == "together better up to z = 1"


def test_levels_are_those_of_one_own_prediction() -> None:
    rows = [level(1, 0.9, "exact"), level(0, 0.6, "noisy"), level(0, 0.9, "exact")]
    found = by_own_prediction(rows)
    assert {own: highest_gain(levels) for own, levels in found.items()} == {
        "exact": "together better up to z = 1 at least",
        "noisy": "together no better than it at any level",
    }
