"""How good predictions are, on held-out rows."""

from math import sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import Labels


def auc(predictions: NDArray[np.float64], labels: Labels) -> float:
    """Area under the ROC curve.

    Beyond two classes the mean over the classes that occur, each against the rest.

    Args:
        predictions: H, shape (S, C).
        labels: class numbers, shape (S,).
    """
    if predictions.shape[1] == 1:
        return _area(predictions[:, 0], labels == 1)
    odds = np.exp(predictions - predictions.max(axis=1, keepdims=True))
    probabilities = odds / odds.sum(axis=1, keepdims=True)
    present = np.unique(labels)
    return float(np.mean([_area(probabilities[:, k], labels == k) for k in present]))


def _area(scores: NDArray[np.float64], positive: NDArray[np.bool_]) -> float:
    """The share of pairs that are in order, ties as half: Mann and Whitney's U / (n₁·n₀).

    Sorting once takes a twentieth of a library's whole curve, and rounds are scored one by one.
    """
    others = np.sort(scores[~positive])
    own = np.sort(scores[positive])  # in order, their places are found quickly
    if not (len(own) and len(others)):
        raise ValueError("an AUC takes rows of both classes")
    sides = [np.searchsorted(others, own, side).mean() for side in ("left", "right")]
    return float(sum(sides) / (2 * len(others)))


def auc_error(labels: Labels, area: float = 0.5) -> float:
    """The standard error of an AUC; of a half, of scores that say nothing, √((n + 1)/(12·n₁·n₀)).

    Beyond two classes that of the class where it is least. Source: Hanley and McNeil, Radiology 143
    (1982), equation 1 with their approximation for exponential scores.

    Args:
        labels: class numbers, shape (n,); at least two classes.
        area: the AUC.
    """
    _, counts = np.unique(labels, return_counts=True)
    rows = len(labels)
    pairs = counts * (rows - counts)
    own = int(counts[np.flatnonzero(pairs == pairs.max())[-1]])  # of two classes the second
    others = rows - own
    above = (own - 1) * (area / (2 - area) - area**2)
    below = (others - 1) * (2 * area**2 / (1 + area) - area**2)
    return float(np.sqrt((area * (1 - area) + above + below) / (own * others)))


def accuracy(predictions: NDArray[np.float64], labels: Labels, middle: float = 0.0) -> float:
    """Share of rows whose most likely class is theirs: of two the second where H > `middle`."""
    if predictions.shape[1] == 1:
        return float(np.mean((predictions[:, 0] > middle) == (labels == 1)))
    return float(np.mean(predictions.argmax(axis=1) == labels))


def r2(predictions: NDArray[np.float64], targets: Labels) -> float:
    """R² = 1 − Σ(H − y)²/Σ(y − ȳ)², ȳ the mean of these targets.

    Args:
        predictions: H, shape (n, 1).
        targets: y, shape (n,), not all the same.
    """
    return r2_of(mean_squared_error(predictions, targets), targets)


def r2_of(mean_squared: float, targets: Labels) -> float:
    """R² where only the mean squared error is known."""
    return 1 - mean_squared / float(np.var(targets.astype(np.float64)))


def mean_squared_error(predictions: NDArray[np.float64], targets: Labels) -> float:
    """Mean of (H − y)²."""
    return float(np.mean((predictions[:, 0] - targets) ** 2))


def mean_absolute_error(predictions: NDArray[np.float64], targets: Labels) -> float:
    """Mean of |H − y|."""
    return float(np.mean(np.abs(predictions[:, 0] - targets)))


def r2_error(rows: int) -> float:
    """What R² predictions that say nothing have at most, but for one in twenty: 4/n.

    R² is never above the square of the correlation, whose standard error is then 1/√n.
    """
    return 4 / rows


def binormal_auc(means: NDArray[np.float64], variances: NDArray[np.float64]) -> float:
    """Area under the ROC curve of two normal distributions, Φ((μ₁ − μ₀)/√(σ₀² + σ₁²)).

    Source: Hanley and McNeil, Radiology 143 (1982). Half where nothing tells them apart.

    Args:
        means: of the predictions of class 0 and of class 1, shape (2,).
        variances: the same.
    """
    return float(_share_above(means[1] - means[0], variances.sum()))


def binormal_accuracy(
    means: NDArray[np.float64], variances: NDArray[np.float64], counts: NDArray[np.float64]
) -> float:
    """Share of rows whose predictions have the sign of their class, were both classes normal.

    Args:
        means: as in `binormal_auc`.
        variances: the same.
        counts: rows of both classes, shape (2,).
    """
    signed = np.array([-1.0, 1.0]) * means
    shares = [_share_above(*each) for each in zip(signed, variances, strict=True)]
    return float(np.average(shares, weights=counts))


def _share_above(mean: float, variance: float) -> float:
    """How much of a normal distribution is above zero."""
    if variance <= 0:
        return float(np.heaviside(mean, 0.5))
    return NormalDist().cdf(mean / sqrt(variance))
