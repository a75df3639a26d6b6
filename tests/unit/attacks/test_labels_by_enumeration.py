"""All labelings of a small batch, against gradients with and without row offsets."""

import numpy as np
import pytest

from securevfl.arrays import FloatArray, IntArray
from securevfl.attacks.labels_by_enumeration import (
    LARGEST_BATCH,
    OffsetKnowledge,
    labels_by_enumeration,
)
from securevfl.errors import ConfigError
from securevfl.models.losses import loss_for
from securevfl.models.scores import auc
from securevfl.protocols.plan import ROW_OFFSETS

# As many columns as the guard lets full batches of balanced labels have.
ROWS, COLUMNS, DRAWS = 16, 2, 40
LOSS = loss_for("logistic", 2)


def attacked(
    deviation: float, seed: int, granted: float | None = None
) -> tuple[FloatArray, IntArray]:
    """What is found over many batches, and the truth; `granted`: what the attacker takes e for."""
    generator, found, truth = np.random.default_rng(seed), [], []
    for _ in range(DRAWS):
        matrix = generator.standard_normal((ROWS, COLUMNS))
        predictions = generator.standard_normal(ROWS)
        labels = generator.integers(2, size=ROWS)
        offsets = deviation * generator.standard_normal(ROWS)
        residuals = LOSS.residuals((predictions + offsets)[:, None], labels)[:, 0]
        known = OffsetKnowledge(
            matrix, predictions, deviation if granted is None else granted, LOSS, 0.5
        )
        found.append(labels_by_enumeration(matrix.T @ residuals / ROWS, known))
        truth.append(labels)
    return np.concatenate(found), np.concatenate(truth).astype(np.int64)


def test_without_offsets_two_real_columns_tell_sixteen_labels() -> None:
    found, truth = attacked(0.0, 1)
    assert np.mean((found > 0.5) == truth) > 0.99


def test_with_offsets_it_reads_no_more_than_sums_of_normal_labels_tell() -> None:
    """Separation ρ = P/(S·v) = 1/2: an AUC of 0.69."""
    found, truth = attacked(ROW_OFFSETS, 2)
    assert 0.58 < auc(found[:, None], truth) < 0.74
    certain = np.abs(found - 0.5) > 0.49
    assert certain.mean() < 0.05


def test_it_says_how_sure_it_may_be() -> None:
    found, truth = attacked(ROW_OFFSETS, 3)
    likely = found > 0.7
    assert likely.sum() > 20
    assert np.mean(truth[likely]) == pytest.approx(np.mean(found[likely]), abs=0.12)


def test_large_batches_are_refused() -> None:
    rows = LARGEST_BATCH + 1
    known = OffsetKnowledge(np.ones((rows, 1)), np.zeros(rows), 0.5, LOSS, 0.5)
    with pytest.raises(ConfigError, match="all labelings"):
        labels_by_enumeration(np.zeros(1), known)
