"""How well an attack read labels: beside guessing, and beside what the model gives anyway."""

from dataclasses import dataclass

import numpy as np

from securevfl.arrays import FloatArray, IntArray
from securevfl.models import scores


@dataclass(frozen=True, eq=False)
class LabelEstimate:
    """What an attack says about the labels.

    Attributes:
        rows: which rows it speaks of, shape (n,), each once.
        scores: shape (n, C): two classes, one column, positive for class 1; more classes, the
            largest column names the class.
    """

    rows: IntArray
    scores: FloatArray


@dataclass(frozen=True)
class LabelScore:
    """An estimate against the truth; only the auditor has it.

    Attributes:
        rows: how many rows were estimated.
        accuracy: share of them read rightly.
        auc: area under the ROC curve, which a majority class does not flatter.
        chance: accuracy of guessing the most frequent class.
    """

    rows: int
    accuracy: float
    auc: float
    chance: float


def score(estimate: LabelEstimate, labels: IntArray) -> LabelScore:
    """Compare an estimate with all labels, shape (N,)."""
    truth = labels[estimate.rows]
    return LabelScore(
        rows=len(truth),
        accuracy=scores.accuracy(estimate.scores, truth),
        auc=scores.auc(estimate.scores, truth),
        chance=float(np.bincount(truth).max() / len(truth)),
    )
