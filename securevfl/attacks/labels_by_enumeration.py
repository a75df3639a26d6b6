"""Labels from one gradient whose residuals are known but for the label and row offsets.

d = σ(H + e) − y with H and the distribution of e known. Xᵀσ(H + e) is then nearly normal, with
mean Xᵀm and covariance Xᵀdiag(v)X for the mean m and variance v of σ(H_i + e_i), and every
labeling of the batch has a likelihood. All 2^S are tried: within that normality no attack reads
more, integer relations and lattices included.
"""

from dataclasses import dataclass

import numpy as np
from numpy.polynomial.hermite_e import hermegauss

from securevfl.arrays import FloatArray
from securevfl.errors import ConfigError
from securevfl.models.losses import Loss

LARGEST_BATCH = 20
NODES = 40
# Of the largest direction's: what the fixed point leaves of a column is no equation.
ROUNDING = 1e-6


@dataclass(frozen=True, eq=False)
class OffsetKnowledge:
    """Side knowledge: the attacker's columns, all predictions, and how offsets are drawn.

    Attributes:
        matrix: X of the batch, shape (S, P).
        predictions: H, shape (S,).
        deviation: of e.
        loss: f, of two classes.
        positives: the share of class 1.
    """

    matrix: FloatArray
    predictions: FloatArray
    deviation: float
    loss: Loss
    positives: float


def labels_by_enumeration(gradient: FloatArray, knowledge: OffsetKnowledge) -> FloatArray:
    """The chance that each row is of class 1, given Xᵀd/S, shape (S,).

    Args:
        gradient: Xᵀd/S, shape (P,).
        knowledge: see there.

    Raises:
        ConfigError: a batch of more than `LARGEST_BATCH` rows.
    """
    matrix, rows = knowledge.matrix, len(knowledge.matrix)
    if rows > LARGEST_BATCH:
        raise ConfigError(f"{rows} rows: all labelings are tried of {LARGEST_BATCH} at most")
    nodes, weights = hermegauss(NODES)
    weights = weights / weights.sum()
    shifted = knowledge.predictions[:, None] + knowledge.deviation * nodes
    zeros = np.zeros(shifted.size, dtype=np.int64)
    # d of class 0; that of class 1 is less by one.
    residuals = knowledge.loss.residuals(shifted.reshape(-1, 1), zeros).reshape(shifted.shape)
    means = residuals @ weights
    variances = (residuals - means[:, None]) ** 2 @ weights
    values, vectors = np.linalg.eigh(matrix.T @ (variances[:, None] * matrix))
    largest = np.linalg.eigvalsh(matrix.T @ matrix)[-1]
    spread = np.sqrt(np.clip(values, 0, None) + ROUNDING**2 * largest)
    mixed = matrix @ vectors / spread
    target = (matrix.T @ means - gradient * rows) @ vectors / spread
    numbers = np.arange(1 << rows)
    labelings = (numbers[:, None] >> np.arange(rows) & 1).astype(np.float64)
    missed = labelings @ mixed - target
    odds = np.log(knowledge.positives / (1 - knowledge.positives))
    likelihood = labelings.sum(axis=1) * odds - 0.5 * np.sum(missed**2, axis=1)
    chance = np.exp(likelihood - likelihood.max())
    found: FloatArray = chance @ labelings / chance.sum()
    return found
