"""Quality of predictions on held-out rows: scores, calibration, and comparisons of two models.

*Brier score*: the mean of Σ_k (p_k − t_k)² over classes k, with t the true class as 0/1; for two
classes only class 1 counts, which gives half as much. *Log loss*: the mean of −log p of the true
class. Both are minimized in expectation by the true probabilities, and penalize poor ranking as
well as poor calibration. The *reliability curve* is about calibration only: rows in bins of about
equal size, with the mean prediction of each against the observed frequency; for more than two
classes it is about the most likely class of each row. Its *expected error* is the mean distance of
the two over rows.
Source: Brier, Monthly Weather Review 78 (1950); Guo, Pleiss, Sun, Weinberger, ICML 2017, with bins
of equal counts instead of equal widths.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import FloatArray, IntArray, Labels
from securevfl.models.losses import softmax

BINS = 10
LEAST = float(np.finfo(np.float64).eps)
"""Smaller probabilities of the true class count as this one, so that logarithms are finite."""


def auc(predictions: FloatArray, labels: Labels) -> float:
    """Area under the ROC curve of predictions, shape (S, C).

    For more than two classes the mean over classes that occur, each against the rest.
    """
    if predictions.shape[1] == 1:
        return _area(predictions[:, 0], labels == 1)
    probabilities = softmax(predictions)
    present = np.unique(labels)
    return float(np.mean([_area(probabilities[:, k], labels == k) for k in present]))


def _area(scores: FloatArray, positive: NDArray[np.bool_]) -> float:
    """The fraction of pairs in the right order, ties counting half: Mann and Whitney's U / (n₁·n₀).

    A single sort takes a twentieth of the time of a library's ROC curve, and every round is scored.
    """
    others = np.sort(scores[~positive])
    own = np.sort(scores[positive])  # searching sorted values is faster
    if not (len(own) and len(others)):
        raise ValueError("an AUC takes rows of both classes")
    sides = [np.searchsorted(others, own, side).mean() for side in ("left", "right")]
    return float(sum(sides) / (2 * len(others)))


def auc_error(labels: Labels, area: float = 0.5) -> float:
    """The standard error of an AUC; √((n + 1)/(12·n₁·n₀)) for uninformative scores, whose AUC is ½.

    For more than two classes the smallest over classes. Source: Hanley and McNeil, Radiology 143
    (1982), equation 1 with their approximation for exponential scores.
    """
    _, counts = np.unique(labels, return_counts=True)
    rows = len(labels)
    pairs = counts * (rows - counts)
    own = int(counts[np.flatnonzero(pairs == pairs.max())[-1]])  # of two classes the second
    others = rows - own
    above = (own - 1) * (area / (2 - area) - area**2)
    below = (others - 1) * (2 * area**2 / (1 + area) - area**2)
    return float(np.sqrt((area * (1 - area) + above + below) / (own * others)))


def accuracy(predictions: FloatArray, labels: Labels, middle: float = 0.0) -> float:
    """Fraction of rows whose class is predicted; of two, the second one where H > `middle`."""
    if predictions.shape[1] == 1:
        return float(np.mean((predictions[:, 0] > middle) == (labels == 1)))
    return float(np.mean(predictions.argmax(axis=1) == labels))


def r2(predictions: FloatArray, targets: Labels) -> float:
    """R² = 1 − Σ(H − y)²/Σ(y − ȳ)², with ȳ the mean of these targets, which must differ."""
    return r2_of(mean_squared_error(predictions, targets), targets)


def r2_of(mean_squared: float, targets: Labels) -> float:
    """R² from the mean squared error."""
    return 1 - mean_squared / float(np.var(targets.astype(np.float64)))


def mean_squared_error(predictions: FloatArray, targets: Labels) -> float:
    """Mean of (H − y)²."""
    return float(np.mean((predictions[:, 0] - targets) ** 2))


def mean_absolute_error(predictions: FloatArray, targets: Labels) -> float:
    """Mean of |H − y|."""
    return float(np.mean(np.abs(predictions[:, 0] - targets)))


def r2_error(rows: int) -> float:
    """A bound on the R² of uninformative predictions that one in twenty exceeds: 4/n.

    R² is at most the squared correlation, whose standard error is then 1/√n.
    """
    return 4 / rows


def binormal_auc(means: FloatArray, variances: FloatArray) -> float:
    """Area under the ROC curve of two normal distributions, Φ((μ₁ − μ₀)/√(σ₀² + σ₁²)).

    They are the distributions of class 0's and class 1's predictions. ½ if they are equal.
    Source: Hanley and McNeil, Radiology 143 (1982).
    """
    apart, variance = float(means[1] - means[0]), float(variances.sum())
    if variance <= 0:
        return float(np.heaviside(apart, 0.5))
    return NormalDist().cdf(apart / sqrt(variance))


def auc_difference(first: FloatArray, second: FloatArray, labels: Labels) -> tuple[float, float]:
    """The AUC of the first minus that of the second, and its standard error, on the same rows.

    Predictions have shape (S,); there are at least two rows of either class.
    Source: DeLong, DeLong, Clarke-Pearson, Biometrics 44 (1988).
    """
    ones, zeros = labels == 1, labels == 0
    above = pair_shares(first, ones) - pair_shares(second, ones)
    error = np.sqrt(above[ones].var(ddof=1) / ones.sum() + above[zeros].var(ddof=1) / zeros.sum())
    return float(above[ones].mean()), float(error)


def accuracy_difference(
    first: FloatArray, second: FloatArray, labels: Labels
) -> tuple[float, float]:
    """The accuracy of the first minus that of the second, and its standard error; C > 1."""
    right = [(each.argmax(axis=1) == labels).astype(np.float64) for each in (first, second)]
    apart = right[0] - right[1]
    return float(apart.mean()), float(apart.std(ddof=1) / np.sqrt(len(labels)))


def r2_difference(first: FloatArray, second: FloatArray, targets: Labels) -> tuple[float, float]:
    """R² of the first minus that of the second, and its standard error; predictions (S, 1)."""
    squares = [(each[:, 0] - targets) ** 2 for each in (first, second)]
    gained = (squares[1] - squares[0]) / float(np.var(targets.astype(np.float64)))
    return float(gained.mean()), float(gained.std(ddof=1) / np.sqrt(len(targets)))


def pair_shares(predictions: FloatArray, ones: NDArray[np.bool_]) -> FloatArray:
    """For every row, the fraction of the other class on the right side of it, ties half."""
    shares = np.empty(len(predictions))
    for own, others, sign in ((ones, ~ones, 1.0), (~ones, ones, -1.0)):
        ordered = np.sort(sign * predictions[others])
        below = np.searchsorted(ordered, sign * predictions[own], "left")
        upto = np.searchsorted(ordered, sign * predictions[own], "right")
        shares[own] = (below + upto) / (2 * len(ordered))
    return shares


@dataclass(frozen=True)
class Bin:
    """Rows with similar predictions: their number, mean prediction, and observed frequency."""

    rows: int
    predicted: float
    observed: float


@dataclass(frozen=True)
class Calibration:
    """Calibration of a set of rows; the curve's predictions rise, and the log loss is in nats."""

    brier: float
    log_loss: float
    curve: Sequence[Bin]

    @property
    def expected_error(self) -> float:
        """The mean of |predicted − observed| over rows."""
        distances = [abs(each.predicted - each.observed) for each in self.curve]
        return float(np.average(distances, weights=[each.rows for each in self.curve]))


def calibration(probabilities: FloatArray, labels: IntArray) -> Calibration:
    """Calibration of class probabilities, shape (n, classes), given the classes, shape (n,).

    Rows with the same prediction share one of at most `BINS` bins, none of them empty.
    """
    rows = np.arange(len(labels))
    true = np.zeros_like(probabilities)
    true[rows, labels] = 1.0
    squares = np.sum((probabilities - true) ** 2, axis=1)
    log_losses = -np.log(np.maximum(probabilities[rows, labels], LEAST))
    binary = probabilities.shape[1] == 2  # noqa: PLR2004
    likeliest = np.ones_like(labels) if binary else probabilities.argmax(axis=1)
    given, came_true = probabilities[rows, likeliest], labels == likeliest
    edges = np.unique(np.quantile(given, np.linspace(0, 1, BINS + 1)[1:-1]))
    places = np.searchsorted(edges, given, side="right")
    curve = tuple(
        Bin(int(chosen.sum()), float(given[chosen].mean()), float(came_true[chosen].mean()))
        for chosen in (places == place for place in np.unique(places))
    )
    brier = float(squares.mean()) / (2 if binary else 1)
    return Calibration(brier, float(log_losses.mean()), curve)
