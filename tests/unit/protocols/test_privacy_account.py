from math import inf, sqrt
from typing import Any

import numpy as np
import pytest

from securevfl.errors import ConfigError
from securevfl.job import PrivacySettings
from securevfl.protocols.session.privacy_account import PrivacyAccount, Visits, one_release

ROUNDS, ROWS = 6, 4


def account(label: float = 0.0, mechanism: str = "gaussian", **more: Any) -> PrivacyAccount:  # noqa: ANN401
    settings = {"noise_multiplier": 1.0, "label_noise_multiplier": label, "mechanism": mechanism}
    fixed: dict[str, Any] = {
        "rounds": ROUNDS,
        # The first row is in every batch, each other one in two.
        "batch": lambda index: np.array([0, 1 + index % 3]),
        "total_rows": ROWS,
        "scorings": lambda rounds: rounds,
    }
    privacy = PrivacySettings.model_validate(settings)
    return PrivacyAccount(privacy, Visits(1, 1, 1), **fixed, **more)


def test_the_sample_that_is_in_most_batches_counts() -> None:
    found = account(label=1.0)
    assert [found.after(rounds).releases for rounds in (6, 3, 1)] == [6, 3, 1]
    assert found.after(ROUNDS).label_releases == ROUNDS


@pytest.mark.parametrize(
    ("mechanism", "outputs", "length"),
    [("gaussian", 1, 1.0), ("gaussian", 3, sqrt(2)), ("laplace", 1, 1.0), ("laplace", 3, 2.0)],
)
def test_a_label_of_several_classes_moves_two_residuals(
    mechanism: str, outputs: int, length: float
) -> None:
    noise = account(2.0, mechanism, outputs=outputs, label_change=0.5).label_noise
    assert noise is not None
    assert (noise.name, noise.noise_multiplier, noise.clip) == (mechanism, 2.0, length / 4)


def test_a_label_that_moves_residuals_without_bound_gets_no_noise() -> None:
    with pytest.raises(ConfigError, match="without bound"):
        _ = account(1.0, label_change=inf).label_noise
    assert account(0.0, label_change=inf).label_noise is None


def test_new_rows_without_a_multiplier_or_a_budget_get_no_noise() -> None:
    with pytest.raises(ConfigError, match=r"needs privacy\.noise_multiplier, or a budget"):
        one_release(PrivacySettings(), 1)
