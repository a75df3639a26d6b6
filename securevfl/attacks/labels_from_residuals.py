"""Labels from residuals in clear, as `plain`, `masked` and `dp` send them.

For logistic loss d = σ(H) − y is at most 0 where y = 1 and at least 0 where y = 0, whatever the
model: one look tells the label. A multinomial residual is negative in the column of its class
alone. With noise on d, several visits of a row average it away. Those of hinges are on their
label's side too, or 0 beyond the margin: a row within it at one visit is told.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from securevfl.arrays import FloatArray, IntArray
from securevfl.attacks.label_estimate import LabelEstimate
from securevfl.errors import ConfigError


@dataclass(frozen=True, eq=False)
class ScheduleKnowledge:
    """Side knowledge: the public schedule.

    Attributes:
        rows: N.
        batches: the row numbers of every round, in order.
        zeros_tell: whether a residual of 0 is class 1's, as it is of logistic losses.
    """

    rows: int
    batches: Sequence[IntArray]
    zeros_tell: bool = True


def labels_from_residuals(
    residuals: Sequence[FloatArray], knowledge: ScheduleKnowledge
) -> LabelEstimate:
    """Read labels off the signs of residuals.

    Args:
        residuals: as they were received, one a round, shapes (S, C).
        knowledge: which rows they belong to.

    Raises:
        ConfigError: residuals that do not fit the batches.
    """
    rows, means = _row_means(residuals, knowledge)
    if not knowledge.zeros_tell:
        told = means.any(axis=1)
        return LabelEstimate(rows[told], -means[told])
    # σ(H) − 1 is exactly 0 from H = 37 on, σ(H) only below H = −745: a zero means y = 1.
    return LabelEstimate(rows, np.where(means == 0, np.finfo(np.float64).tiny, -means))


def labels_from_magnitudes(
    residuals: Sequence[FloatArray], knowledge: ScheduleKnowledge, rare_class: int
) -> LabelEstimate:
    """Rank two classes by |d| alone, as if signs were hidden.

    A model fits the frequent class better, so that rows of the other have the larger |d|.

    Args:
        residuals: as they were received, one a round, shapes (S, 1).
        knowledge: which rows they belong to.
        rare_class: 0 or 1, side knowledge too.

    Raises:
        ConfigError: residuals that do not fit the batches.
    """
    rows, means = _row_means([np.abs(values) for values in residuals], knowledge)
    sizes = means - 0.5
    return LabelEstimate(rows, sizes if rare_class == 1 else -sizes)


def _row_means(
    residuals: Sequence[FloatArray], knowledge: ScheduleKnowledge
) -> tuple[IntArray, FloatArray]:
    """The rows that were visited, and the mean of what was seen of each, shape (n, C)."""
    if not residuals or len(residuals) > len(knowledge.batches):
        raise ConfigError(
            f"residuals: {len(residuals)} rounds, expected 1 to {len(knowledge.batches)}"
        )
    sums = np.zeros((knowledge.rows, residuals[0].shape[1]))
    visits = np.zeros(knowledge.rows)
    for batch, values in zip(knowledge.batches, residuals, strict=False):
        if values.shape != (len(batch), sums.shape[1]):
            raise ConfigError(
                f"residuals of shape {values.shape}, expected {(len(batch), sums.shape[1])}"
            )
        sums[batch] += values
        visits[batch] += 1
    rows = np.flatnonzero(visits)
    return rows, sums[rows] / visits[rows, None]
