"""X itself from X up to a rotation, for who knows some rows (orthogonal Procrustes)."""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import orthogonal_procrustes

from securevfl.arrays import FloatArray, IntArray

INDEPENDENT = 1e-3


@dataclass(frozen=True, eq=False)
class AnchorKnowledge:
    """Side knowledge: some people's features.

    Attributes:
        rows: which rows, shape (anchors,).
        features: their X, shape (anchors, P).
    """

    rows: IntArray
    features: FloatArray


def features_from_anchors(factor: FloatArray, knowledge: AnchorKnowledge) -> FloatArray:
    """F times the matrix with orthonormal rows that maps the anchors nearest to what is known.

    Exact as soon as the anchors span the range: rank X rows in general position.

    Args:
        factor: F with FFᵀ = XXᵀ, shape (N, rank), rank ≤ P.
        knowledge: the anchors; none leave F as it is.

    Returns:
        Shape (N, P).
    """
    missing = knowledge.features.shape[1] - factor.shape[1]
    padded = np.pad(factor, ((0, 0), (0, max(missing, 0))))
    if not len(knowledge.rows):
        return padded[:, : knowledge.features.shape[1]]
    rotation = orthogonal_procrustes(padded[knowledge.rows], knowledge.features)[0]
    estimate: FloatArray = padded @ rotation
    return estimate


def spread_anchors(factor: FloatArray, count: int, generator: np.random.Generator) -> IntArray:
    """Random rows, the first of them independent, as many as F has; shape (count,)."""
    chosen: list[int] = []
    rest: list[int] = []
    basis = np.empty((0, factor.shape[1]))
    for row in generator.permutation(len(factor)):
        vector = factor[row]
        left = vector - basis.T @ (basis @ vector)
        length, whole = float(np.linalg.norm(left)), float(np.linalg.norm(vector))
        if len(basis) < factor.shape[1] and length > INDEPENDENT * whole:
            basis = np.vstack([basis, left / length])
            chosen.append(int(row))
        else:
            rest.append(int(row))
    return np.array((chosen + rest)[:count], dtype=np.int64)
