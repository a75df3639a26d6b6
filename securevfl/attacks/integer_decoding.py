"""Labels from a gradient whose residuals are known except for the label.

If all parties start at θ⁰ = 0, or predictions are known otherwise, a residual has one of two
values. The first gradient is then equivalent to Xᵀy: P columns of b bits give P·b bits about S
binary labels.

- *meeting in the middle*: the sums of all labelings of each half of the rows, 2^(S/2) each, are
  sorted and matched by one random combination of the columns; a match has to fit every column.
- *categories*: a column with two values gives the number of positives among the rows of each value.
  If this is none or all of them, it reveals their labels, which may settle other rows.

Larger batches would need lattice reduction, which is not tried here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from securevfl.arrays import FloatArray, IntArray
from securevfl.errors import ConfigError

LARGEST_BATCH = 44
MOST_MATCHES = 1 << 20
UNKNOWN = -1
LEAST = 1e-6


@dataclass(frozen=True, eq=False)
class IntegerKnowledge:
    """Side knowledge: the attacker's columns, and the residual of each class."""

    matrix: FloatArray  # X of the batch, rounded to the job's fixed point, shape (S, P)
    residuals: tuple[float, float]  # of a row of class 0, and of a row of class 1
    tolerance: float  # the largest error of an entry of Xᵀd

    def sums(self, gradient: FloatArray) -> tuple[FloatArray, float]:
        """Xᵀy from Xᵀd/S, shape (P,), and its largest error."""
        negative, positive = self.residuals
        total = gradient * len(self.matrix) - negative * self.matrix.sum(axis=0)
        step = positive - negative
        return total / step, self.tolerance / abs(step)


def labels_by_meeting(
    gradient: FloatArray, knowledge: IntegerKnowledge, own_model: FloatArray
) -> FloatArray:
    """The mean of all labelings that fit, shape (S,).

    Labelings are weighted by `own_model`, the probabilities of class 1 by the best model of the
    attacker's columns, shape (S,). The mean is exactly 0 or 1 where all labelings agree.

    Raises:
        ConfigError: the batch is too large, or too many labelings fit, or none.
    """
    matrix, rows = knowledge.matrix, len(knowledge.matrix)
    if rows > LARGEST_BATCH:
        raise ConfigError(
            f"the first batch has {rows} rows: meeting in the middle supports {LARGEST_BATCH}"
        )
    target, tolerance = knowledge.sums(gradient)
    mix = np.random.default_rng(0).standard_normal(matrix.shape[1])
    mixed, goal = matrix @ mix, float(target @ mix)
    near = float(np.abs(mix).sum()) * tolerance
    half = rows // 2
    wanted, there = goal - _subset_sums(mixed[:half]), _subset_sums(mixed[half:])
    # Both are sorted: looking values up in order is many times faster.
    lefts, rights = np.argsort(wanted), np.argsort(there)
    wanted, there = wanted[lefts], there[rights]
    first = np.searchsorted(there, wanted - near)
    count = np.searchsorted(there, wanted + near) - first
    matches = int(count.sum())
    if matches > MOST_MATCHES:
        raise ConfigError(f"{matches} labelings fit: these columns have too few bits")
    steps = np.arange(matches) - np.repeat(np.cumsum(count) - count, count)
    found = np.repeat(lefts, count), rights[np.repeat(first, count) + steps]
    labelings = np.hstack([_bits(found[0], half), _bits(found[1], rows - half)])
    labelings = labelings[(np.abs(labelings @ matrix - target) <= tolerance).all(axis=1)]
    if not len(labelings):
        raise ConfigError("no labeling fits the first gradient: the residuals differ from theory")
    inside = np.clip(own_model, LEAST, 1 - LEAST)
    likelihood = labelings @ np.log(inside / (1 - inside))
    weights = np.exp(likelihood - likelihood.max())
    mean: FloatArray = weights @ labelings / weights.sum()
    return np.where(np.ptp(labelings, axis=0) == 0, labelings[0], mean)


@dataclass(frozen=True, eq=False)
class Category:
    """The places of rows in a batch that share a value, and how many of them are class 1."""

    rows: IntArray
    positives: int


def count_categories(gradient: FloatArray, knowledge: IntegerKnowledge) -> list[Category]:
    """The number of positives for each value of the columns that have two values.

    For values a and b an entry of Xᵀy is a·T + (b − a)·n, with T positives in the batch and n among
    the rows of b. T must make every n an integer; with a = 0 n does not depend on T.
    """
    target, tolerance = knowledge.sums(gradient)
    rows = len(knowledge.matrix)
    totals, possible = np.arange(rows + 1), np.ones(rows + 1, dtype=np.bool_)
    columns = []
    for values, total in zip(knowledge.matrix.T, target, strict=True):
        both = np.unique(values)
        if len(both) == 2:  # noqa: PLR2004
            base, other = sorted(both, key=abs)
            members = values == other
            counts = (total - base * totals) / (other - base)
            whole = np.abs(counts - np.rint(counts)) <= tolerance / abs(other - base)
            counts, size = np.rint(counts), int(members.sum())
            rest = totals - counts
            possible &= whole & (counts >= 0) & (counts <= size) & (rest >= 0)
            possible &= rest <= rows - size
            columns.append((members, counts))
    (left,) = np.nonzero(possible)
    found = []
    for members, counts in columns:
        seen = np.unique(counts[left])
        if len(seen) == 1:
            found.append(Category(np.flatnonzero(members), int(seen[0])))
        if len(left) == 1:
            found.append(Category(np.flatnonzero(~members), int(left[0] - seen[0])))
    return found


def certain_labels(categories: Sequence[Category], rows: int) -> IntArray:
    """Labels that follow from counts of positives, shape (S,); `UNKNOWN` otherwise."""
    labels = np.full(rows, UNKNOWN)
    before = -1
    while before != (before := int(np.count_nonzero(labels == UNKNOWN))):
        for each in categories:
            unknown = each.rows[labels[each.rows] == UNKNOWN]
            positive = each.positives - int(np.count_nonzero(labels[each.rows] == 1))
            if positive in {0, len(unknown)}:
                labels[unknown] = int(positive > 0)
    return labels


def _subset_sums(values: FloatArray) -> FloatArray:
    """The sums of all subsets, numbered by the subsets' bits."""
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums, sums + value])
    return sums


def _bits(numbers: IntArray, count: int) -> FloatArray:
    return np.asarray(numbers[:, None] >> np.arange(count) & 1, np.float64)
