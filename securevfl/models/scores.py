"""How good predictions are, on held-out rows."""

import numpy as np
from numpy.typing import NDArray


def auc(predictions: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    """Area under the ROC curve.

    Beyond two classes the mean over the classes that occur, each against the rest.

    Args:
        predictions: H, shape (S, C).
        labels: class numbers, shape (S,).
    """
    from sklearn.metrics import roc_auc_score  # noqa: PLC0415  # slow to import

    if predictions.shape[1] == 1:
        return float(roc_auc_score(labels, predictions[:, 0]))
    odds = np.exp(predictions - predictions.max(axis=1, keepdims=True))
    probabilities = odds / odds.sum(axis=1, keepdims=True)
    present = np.unique(labels)
    return float(np.mean([roc_auc_score(labels == k, probabilities[:, k]) for k in present]))


def auc_error(labels: NDArray[np.int64]) -> float:
    """The standard error of the AUC of scores that say nothing, √((n + 1)/(12·n₁·n₀)).

    Beyond two classes that of the class where it is least. Source: Hanley and McNeil, Radiology 143
    (1982), where the area is a half.

    Args:
        labels: class numbers, shape (n,); at least two classes.
    """
    _, counts = np.unique(labels, return_counts=True)
    rows = len(labels)
    return float(np.sqrt((rows + 1) / (12 * np.max(counts * (rows - counts)))))


def accuracy(predictions: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    """Share of rows whose most likely class is theirs."""
    if predictions.shape[1] == 1:
        return float(np.mean((predictions[:, 0] > 0) == (labels == 1)))
    return float(np.mean(predictions.argmax(axis=1) == labels))
