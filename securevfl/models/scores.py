"""How good predictions are, on held-out rows."""

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score


def auc(predictions: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    """Area under the ROC curve; macro-averaged one class against the rest beyond two classes.

    Args:
        predictions: H, shape (S, C).
        labels: class numbers, shape (S,).
    """
    if predictions.shape[1] == 1:
        return float(roc_auc_score(labels, predictions[:, 0]))
    odds = np.exp(predictions - predictions.max(axis=1, keepdims=True))
    probabilities = odds / odds.sum(axis=1, keepdims=True)
    return float(roc_auc_score(labels, probabilities, multi_class="ovr"))


def accuracy(predictions: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    """Share of rows whose most likely class is theirs."""
    if predictions.shape[1] == 1:
        return float(np.mean((predictions[:, 0] > 0) == (labels == 1)))
    return float(np.mean(predictions.argmax(axis=1) == labels))
