"""What a model's predictions H say of classes: a probability each where the loss has one.

A loss has one where the H that minimizes its expected value is a function of P(y = 1): σ⁻¹(p) of
the logistic loss, p of the squared, 4(p − ½) of taylor-logistic, 2p − 1 of the squared hinge. What
lies outside [0, 1] is brought to its edge. The hinge's is the sign of p − ½ alone.
Source: Zhang, Annals of Statistics 32 (2004).
"""

from collections.abc import Callable

import numpy as np

from securevfl.arrays import FloatArray, IntArray


def _logistic(predictions: FloatArray) -> FloatArray:
    decay = np.exp(-np.abs(predictions))
    sigmoid: FloatArray = np.where(predictions >= 0, 1.0, decay) / (1.0 + decay)
    return sigmoid


_OF_SECOND_CLASS: dict[str, Callable[[FloatArray], FloatArray]] = {
    "logistic": _logistic,
    "squared": lambda predictions: predictions,
    "taylor-logistic": lambda predictions: 0.5 + 0.25 * predictions,
    "squared-hinge": lambda predictions: 0.5 + 0.5 * predictions,
}


def has_probabilities(loss: str) -> bool:
    """Whether a loss's predictions are probabilities in another scale."""
    return loss == "multinomial" or loss in _OF_SECOND_CLASS


def probabilities(loss: str, predictions: FloatArray) -> FloatArray:
    """The probability of every class, shape (rows, classes).

    Args:
        loss: by name, one that has them.
        predictions: H, shape (rows, C).
    """
    if predictions.shape[1] > 1:
        odds = np.exp(predictions - predictions.max(axis=1, keepdims=True))
        shares: FloatArray = odds / odds.sum(axis=1, keepdims=True)
        return shares
    second = np.clip(_OF_SECOND_CLASS[loss](predictions), 0.0, 1.0)
    return np.hstack([1.0 - second, second])


def class_numbers(loss: str, predictions: FloatArray) -> IntArray:
    """The most likely class of every row, shape (rows,).

    Args:
        loss: by name.
        predictions: H, shape (rows, C).
    """
    if predictions.shape[1] > 1:
        return np.asarray(predictions.argmax(axis=1), np.int64)
    threshold = 0.5 if loss == "squared" else 0.0
    return np.asarray(predictions[:, 0] > threshold, np.int64)
