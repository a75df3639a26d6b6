"""Residuals of chosen rows, from a selection matrix in the place of X.

Nobody who decrypts Xᵀd + r can tell what X was. With rows of the identity in its columns every
visit of a batch hands out as many residuals as the cheater has columns, and their signs are labels;
the next visit can take the next rows. Who counts distinct batches sees one batch.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from securevfl.arrays import FloatArray, IntArray
from securevfl.attacks.label_estimate import LabelEstimate
from securevfl.attacks.labels_from_residuals import ScheduleKnowledge, labels_from_residuals


@dataclass(frozen=True, eq=False)
class SelectionKnowledge:
    """Side knowledge: the public schedule, and what the cheater multiplied by.

    Attributes:
        batches: the row numbers of every answered round, in order.
        entry: what stood in place of 1.
        own_model: probabilities of all rows by the best model of the cheater's columns, shape
            (N, 1) for class 1 or (N, C): for rows fitted so well that no sign shows.
        resolution: the largest residual whose sign means nothing: 0, or an approximate scheme's.
    """

    batches: Sequence[IntArray]
    entry: float
    own_model: FloatArray
    resolution: float


def chosen(rows: int, columns: int, visit: int) -> IntArray:
    """The places within a batch of S rows that a visit reads, at most P of them: the next ones."""
    return (visit * columns + np.arange(min(rows, columns))) % rows


def selection(shape: tuple[int, int], visit: int, entry: int) -> IntArray:
    """What a visit multiplies by: column j holds `entry` at the j-th chosen row, shape (S, P)."""
    matrix = np.zeros(shape, np.int64)
    places = chosen(*shape, visit)
    matrix[places, np.arange(len(places))] = entry
    return matrix


def rows_read(batches: Iterable[IntArray], columns: int) -> list[IntArray]:
    """The row numbers that each visit reads, one array a round.

    A batch starts where its number says, so that batches that never come again read other places.
    """
    visits: dict[bytes, int] = {}
    found = []
    for rows in batches:
        visit = visits.setdefault(rows.tobytes(), len(visits))
        found.append(rows[chosen(len(rows), columns, visit)])
        visits[rows.tobytes()] += 1
    return found


def labels_from_selections(
    gradients: Sequence[FloatArray], knowledge: SelectionKnowledge
) -> LabelEstimate:
    """Labels of all rows that were chosen, by the signs of their residuals.

    Args:
        gradients: what came back in place of Xᵀd/S, one a round, shapes (P, C).
        knowledge: see there.

    Raises:
        ConfigError: no gradients, or more than batches.
    """
    columns = len(gradients[0]) if gradients else 0
    read = rows_read(knowledge.batches, columns)
    expected = (0.5 - knowledge.own_model) * np.finfo(np.float64).tiny
    residuals = []
    for gradient, places, rows in zip(gradients, read, knowledge.batches, strict=False):
        seen = gradient[: len(places)] * (len(rows) / knowledge.entry)
        residuals.append(np.where(np.abs(seen) <= knowledge.resolution, expected[places], seen))
    return labels_from_residuals(residuals, ScheduleKnowledge(len(expected), read))
