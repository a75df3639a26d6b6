"""Real targets from residuals or aggregated gradients, of squared loss: d = H − y.

A feature party knows its own H_k of every round, as it can repeat its training (`replay`). From
residuals in clear y is H − d, of which it lacks the others' H alone: what of y their columns do not
say is read as it is. From gradients it has basisᵀd of every batch (`row_spaces`), with a guess of H
as many equations in the targets of the batch, as `labels_from_gradients` has them of classes.
The guess is what its own best model says of y, moved by how far its part was from its end; the
answer is the targets nearest to that model that fit the equations as far as they are trusted.
"""

from collections.abc import Sequence

import numpy as np
from scipy.sparse.linalg import lsqr

from securevfl.arrays import FloatArray
from securevfl.attacks.gradient_visits import TrainingKnowledge, Visit, replay
from securevfl.attacks.row_spaces import stacked

# The least variance of a guess of H in any direction, of targets of variance 1.
GUESSED = 0.01
# What visits of the same batch are weighted by.
NEAR = 1e-4


def targets_from_residuals(
    residuals: Sequence[FloatArray], gradients: Sequence[FloatArray], knowledge: TrainingKnowledge
) -> FloatArray:
    """Read targets off residuals, shape (N,).

    Args:
        residuals: as they were received, one a round, shapes (S, 1).
        gradients: Xᵀd/S of these.
        knowledge: what else the attacker has.

    Raises:
        ConfigError: gradients that do not fit the batches or the features.
    """
    visits, _ = replay(gradients, knowledge)
    targets = knowledge.own_model[:, 0].copy()
    for visit, values in zip(visits, residuals, strict=True):
        # The last look counts: others' H is then nearest to what their columns say of y.
        targets[visit.rows] = (visit.predictions - values)[:, 0]
    return targets


def targets_from_gradients(
    gradients: Sequence[FloatArray], knowledge: TrainingKnowledge
) -> FloatArray:
    """Read targets off all gradients of a job, Xᵀd/S as one a round, shape (N,).

    Raises:
        ConfigError: gradients that do not fit the batches or the features.
    """
    visits, last = replay(gradients, knowledge)
    own = knowledge.own_model
    sums: dict[int, tuple[Visit, FloatArray, float]] = {}
    for visit in visits:
        beyond = visit.predictions - last[visit.rows]
        missed = visit.space.basis.T @ beyond - visit.seen
        weight = 1 / (NEAR + float(np.mean(beyond**2)))
        _, total, weights = sums.get(id(visit.space), (visit, np.zeros_like(missed), 0.0))
        sums[id(visit.space)] = visit, total + weight * missed, weights + weight
    batches = [(visit.rows, visit.space.basis) for visit, _, _ in sums.values()]
    missed = np.concatenate([total / weights for _, total, weights in sums.values()])
    matrix = stacked(len(own), batches)
    # What equations miss by is what the own model leaves of y, and how far guesses of H are off.
    left = max(1 - float(np.var(own)), GUESSED)
    off = max(float(np.mean(missed**2)) - left, GUESSED)
    moved = lsqr(matrix, missed[:, 0], damp=np.sqrt(off / left))[0]
    targets: FloatArray = own[:, 0] + moved
    return targets
