"""Labels from gradients of hinge losses, in which every round of a batch is a new equation.

Write d = d₀(H) − w(H)·y, with d₀ the residual of class 0 and w > 0 by how much class 1 lowers it.
For losses with d = s(H) − y the weight w is 1, and all gradients of a batch show the same Xᵀy. For
hinges w depends on H, so rounds show Xᵀ(w(H)∘y) with other weights each time: their rank grows with
every round, far beyond P.

The attacker is granted every prediction H. That bounds what it could read by guessing them.
"""

from collections.abc import Sequence

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.attacks import LabelEstimate
from securevfl.attacks.adversary_view import Visit
from securevfl.models.losses import Loss

ERROR = 1e-8  # variance of an equation's error; the labels' own is p(1 − p)
LEAST = 0.02  # bound on the own model's probabilities
EQUATIONS = 1500  # more are thinned out evenly: the solution takes their square in memory


def labels_from_hinges(
    visits: Sequence[Visit], predictions: Sequence[FloatArray], loss: Loss, own_model: FloatArray
) -> LabelEstimate:
    """Labels of all N people as the mean of a Gaussian posterior around the own model.

    Args:
        visits: of batches, each with basisᵀd.
        predictions: H of every visit, shape (S, 1).
        loss: of the job, with one output.
        own_model: probabilities of class 1 by the best model of the attacker's columns, (N, 1).
    """
    ranks = sum(visit.space.rank for visit in visits)
    kept = np.linspace(0, len(visits) - 1, max(1, len(visits) * EQUATIONS // max(ranks, EQUATIONS)))
    weighted, seen = [], []
    for place in kept.astype(int):
        visit, basis = visits[place], visits[place].space.basis
        zeros = np.zeros(len(visit.rows), dtype=np.int64)
        of_zero = loss.residuals(predictions[place], zeros)
        weights = of_zero - loss.residuals(predictions[place], zeros + 1)
        rows = np.zeros((basis.shape[1], len(own_model)))
        rows[:, visit.rows] = (basis * weights).T
        weighted.append(rows)
        seen.append((basis.T @ of_zero - visit.seen)[:, 0])
    matrix, expected = np.vstack(weighted), own_model[:, 0]
    likely = np.clip(expected, LEAST, 1 - LEAST)
    moved = (likely * (1 - likely))[:, None] * matrix.T
    unexplained = np.concatenate(seen) - matrix @ expected
    system = matrix @ moved + ERROR * np.eye(len(matrix))
    labels = expected + moved @ np.linalg.solve(system, unexplained)
    return LabelEstimate(np.arange(len(labels)), labels[:, None] - 0.5)
