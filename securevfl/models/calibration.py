"""Whether predicted probabilities are what they say, on held-out rows.

*Brier score*: the mean of Σ_k (p_k − t_k)² over classes k, t the true one as 0/1; between two
classes that of class 1 alone, half as much. *Log loss*: the mean of −log p of the true class. Both
are least in expectation at the true probabilities, and charge for ranking and calibration alike.
The *reliability curve* is of calibration alone: rows in bins of about as many, the mean of what was
predicted in each against the share observed. Beyond two classes it is of the likeliest class of
each row. Its *expected error* is the mean distance of the two over rows.

Source: Brier, Monthly Weather Review 78 (1950); Guo, Pleiss, Sun, Weinberger, ICML 2017, with bins
of equal counts in place of equal widths.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from securevfl.arrays import FloatArray, IntArray

BINS = 10
LEAST = float(np.finfo(np.float64).eps)
"""What a probability of the true class counts as where it is less: its logarithm is finite."""


@dataclass(frozen=True)
class Bin:
    """Rows of about the same prediction: how many, its mean, and the share that came true."""

    rows: int
    predicted: float
    observed: float


@dataclass(frozen=True)
class Calibration:
    """The figures of one set of rows.

    Attributes:
        brier: the Brier score.
        log_loss: in nats.
        curve: the reliability curve, predictions rising.
    """

    brier: float
    log_loss: float
    curve: Sequence[Bin]

    @property
    def expected_error(self) -> float:
        """The mean of |predicted − observed| over rows."""
        return float(
            np.average(
                [abs(each.predicted - each.observed) for each in self.curve],
                weights=[each.rows for each in self.curve],
            )
        )


def calibration(probabilities: FloatArray, labels: IntArray, bins: int = BINS) -> Calibration:
    """Of a probability for every class, shape (n, classes), and classes, shape (n,)."""
    rows = np.arange(len(labels))
    true = np.zeros_like(probabilities)
    true[rows, labels] = 1.0
    squares = np.sum((probabilities - true) ** 2, axis=1)
    log_losses = -np.log(np.maximum(probabilities[rows, labels], LEAST))
    binary = probabilities.shape[1] == 2  # noqa: PLR2004
    likeliest = np.ones_like(labels) if binary else probabilities.argmax(axis=1)
    curve = reliability_curve(probabilities[rows, likeliest], labels == likeliest, bins)
    brier = float(squares.mean()) / (2 if binary else 1)
    return Calibration(brier, float(log_losses.mean()), curve)


def reliability_curve(
    probabilities: FloatArray, came_true: np.ndarray[tuple[int], np.dtype[np.bool_]], bins: int
) -> tuple[Bin, ...]:
    """Rows of the same prediction fall into the same of at most so many bins, none empty."""
    edges = np.unique(np.quantile(probabilities, np.linspace(0, 1, bins + 1)[1:-1]))
    places = np.searchsorted(edges, probabilities, side="right")
    return tuple(
        Bin(int(chosen.sum()), float(probabilities[chosen].mean()), float(came_true[chosen].mean()))
        for chosen in (places == place for place in np.unique(places))
    )
