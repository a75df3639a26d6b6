"""Whether one model is better than another, on the same held-out rows.

Both are scored on the same rows, so what counts is how their difference varies from row to row.
"""

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import FloatArray, Labels


def auc_difference(first: FloatArray, second: FloatArray, labels: Labels) -> tuple[float, float]:
    """How much larger the AUC of the first is, and the standard error of that.

    Source: DeLong, DeLong, Clarke-Pearson, Biometrics 44 (1988).

    Args:
        first: predictions, shape (S,).
        second: those of another model, shape (S,).
        labels: 0 or 1, shape (S,), at least two of each.
    """
    ones, zeros = labels == 1, labels == 0
    above = _shares(first, ones, zeros) - _shares(second, ones, zeros)
    error = np.sqrt(above[ones].var(ddof=1) / ones.sum() + above[zeros].var(ddof=1) / zeros.sum())
    return float(above[ones].mean()), float(error)


def accuracy_difference(
    first: FloatArray, second: FloatArray, labels: Labels
) -> tuple[float, float]:
    """How much larger the accuracy of the first is, and the standard error of that.

    Args:
        first: predictions, shape (S, C), C > 1.
        second: those of another model, shape (S, C).
        labels: class numbers, shape (S,), at least two.
    """
    right = [(each.argmax(axis=1) == labels).astype(np.float64) for each in (first, second)]
    apart = right[0] - right[1]
    return float(apart.mean()), float(apart.std(ddof=1) / np.sqrt(len(labels)))


def r2_difference(first: FloatArray, second: FloatArray, targets: Labels) -> tuple[float, float]:
    """How much larger R² of the first is, and the standard error of that.

    Args:
        first: predictions, shape (S, 1).
        second: those of another model, shape (S, 1).
        targets: real, shape (S,), not all the same.
    """
    squares = [(each[:, 0] - targets) ** 2 for each in (first, second)]
    gained = (squares[1] - squares[0]) / float(np.var(targets.astype(np.float64)))
    return float(gained.mean()), float(gained.std(ddof=1) / np.sqrt(len(targets)))


def _shares(
    predictions: FloatArray, ones: NDArray[np.bool_], zeros: NDArray[np.bool_]
) -> FloatArray:
    """Of every row the share of the other class that it is on the right side of, ties half."""
    shares = np.empty(len(predictions))
    for own, others, sign in ((ones, zeros, 1.0), (zeros, ones, -1.0)):
        ordered = np.sort(sign * predictions[others])
        below = np.searchsorted(ordered, sign * predictions[own], "left")
        upto = np.searchsorted(ordered, sign * predictions[own], "right")
        shares[own] = (below + upto) / (2 * len(ordered))
    return shares
