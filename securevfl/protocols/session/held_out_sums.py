"""Scores from sums over the held-out rows of a class, or over all of real targets."""

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import FloatArray, Labels, RingArray, is_real
from securevfl.data.tables import as_classes
from securevfl.errors import ConfigError
from securevfl.models.scores import binormal_accuracy, binormal_auc
from securevfl.protocols.session.scoring import Score

CLASSES, COLUMNS = 2, 2
FEWEST_ROWS = 10


def require_many_rows(labels: Labels, alternatives: str) -> None:
    """Check that no sum is of a few rows.

    Args:
        labels: of the held-out rows.
        alternatives: what a job can do without sums, for the error.

    Raises:
        ConfigError: a class of fewer than ten rows, or real targets that few of make up.
    """
    if is_real(labels):
        weights = np.abs(labels)
        rows = weights.sum() ** 2 / np.sum(weights**2)
        if rows < FEWEST_ROWS:
            raise ConfigError(
                f"held-out rows: their targets weigh as much as {rows:.1f} rows would, at "
                f"least {FEWEST_ROWS} expected, as the score is a sum over all; {alternatives}"
            )
        return
    counts = np.bincount(as_classes(labels), minlength=CLASSES)
    if counts.min() < FEWEST_ROWS:
        raise ConfigError(
            f"held-out rows: {counts.min()} of class {counts.argmin()}, at least {FEWEST_ROWS} "
            f"expected, as scores are of sums over classes; {alternatives}"
        )


def groups_of(labels: Labels) -> NDArray[np.uint8]:
    """Which rows are summed over together, as 0/1: two classes, or all rows of real targets."""
    if is_real(labels):
        return np.ones((len(labels), 1), np.uint8)
    classes: NDArray[np.bool_] = labels[:, None] == np.arange(CLASSES)
    return classes.astype(np.uint8)


def combined(values: RingArray) -> RingArray:
    """Products or their masks, added up to what the label party may know of them.

    Args:
        values: by vector (t_g of every group g, then t_g·H_A) and column (H_B, H_B²), shape
            (4, 2), or (2, 2) of real targets.

    Returns:
        By class: Σ_g H_B, and Σ_g (H_B² + 2·H_A·H_B), shape (2, 2), modulo 2^64; of real targets
        Σ (H_B² + 2·e·H_B) alone, shape (1, 1).
    """
    groups = len(values) // 2
    found = values[:groups].copy()
    found[:, 1] += np.uint64(2) * values[groups:, 0]
    return found if groups == CLASSES else found[:, 1:]


def binormal_score(predictions: FloatArray, labels: Labels, middle: float) -> Score:
    """By sums over classes, as `score_of_classes`, of predictions that are at hand, shape (N,)."""
    groups = groups_of(labels).astype(np.float64)
    sums = np.stack([predictions @ groups, predictions**2 @ groups])
    return score_of_classes(0, sums, groups.sum(axis=0), middle)


def score_of_classes(
    rounds: int, sums: NDArray[np.float64], counts: NDArray[np.float64], middle: float
) -> Score:
    """That of two normal distributions which have the classes' means and variances.

    Args:
        rounds: done.
        sums: Σ_g H and Σ_g H² of both classes, shape (2, classes).
        counts: their rows, shape (classes,).
        middle: the loss's.
    """
    means = sums[0] / counts
    variances = np.maximum(sums[1] / counts - means**2, 0.0)
    return Score(
        rounds,
        binormal_auc(means, variances),
        binormal_accuracy(means - middle, variances, counts),
        binormal=True,
    )
