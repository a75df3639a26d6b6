"""What an attacker reads of the labels with its own columns and no leak: the bar for label attacks.

Training is *for* making predictions of the label from features, and hands every party its part of
the model. So a label attack has shown something only where it reads more than the best model of
the attacker's own columns does.

The bar is a logistic regression of these columns on all true labels, scored on the same rows. It is
what the *sum* of all gradients gives away whatever the sampling: Xᵀ(σ(H) − y) over all rows fixes
Xᵀy, which is all that such a fit depends on. Fitted in sample it is a high bar, as the attacker
needs no generalization either. `known` gives the bar of an attacker that was told some labels.
"""

from dataclasses import dataclass

import numpy as np
from sklearn.linear_model import LogisticRegression

from securevfl.arrays import FloatArray, IntArray
from securevfl.attacks.label_estimate import LabelEstimate
from securevfl.audit.scoring import LabelScore, score

MAX_ITERATIONS = 5000


@dataclass(frozen=True, eq=False)
class OwnModel:
    """A model of one party's columns.

    Attributes:
        estimate: what it says of the rows that it is scored on.
        score: how well.
        probabilities: of every row, shape (N,) for class 1 or (N, C).
    """

    estimate: LabelEstimate
    score: LabelScore
    probabilities: FloatArray

    def score_on(self, rows: IntArray, labels: IntArray) -> LabelScore:
        """How well on some of the rows that its estimate is of, where it is of all of them."""
        return score(LabelEstimate(rows, self.estimate.scores[rows]), labels)


def own_model(inputs: FloatArray, labels: IntArray, known: IntArray | None = None) -> OwnModel:
    """Fit scikit-learn's logistic regression to the attacker's own columns.

    Args:
        inputs: its X, shape (N, P), scaled as in training.
        labels: shape (N,), of which it uses those known.
        known: rows whose labels are known; then the others are scored. All by default, scored on
            the same rows.
    """
    told = np.arange(len(labels)) if known is None else known
    rows = told if known is None else np.setdiff1d(np.arange(len(labels)), known)
    model = LogisticRegression(max_iter=MAX_ITERATIONS).fit(inputs[told], labels[told])
    decision = model.decision_function(inputs)
    if decision.ndim == 1:
        decision = decision[:, None]
    probabilities: FloatArray = model.predict_proba(inputs)
    estimate = LabelEstimate(rows, decision[rows])
    return OwnModel(
        estimate=estimate,
        score=score(estimate, labels),
        probabilities=probabilities[:, 1:] if decision.shape[1] == 1 else probabilities,
    )
