"""The row spaces that aggregated gradients show, stacked over visits of batches.

A visit of a batch shows Jᵀd of its residuals d, with J the features of its rows (or a network's
Jacobian). With J = basis·diag(scales)·directions that is exactly basisᵀd, rank J numbers; stacked
over visits they are linear equations in what belongs to the rows.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from securevfl.arrays import FloatArray, IntArray

# Singular values below this share of the largest carry rounding errors, not residuals.
RANK_TOLERANCE = 1e-5
LEVERAGE_ONE = 1 - 1e-6


@dataclass(frozen=True, eq=False)
class RowSpace:
    """The thin singular value decomposition of J, null directions left out.

    Attributes:
        basis: shape (S, rank).
        scales: shape (rank,).
        directions: shape (rank, P).
    """

    basis: FloatArray
    scales: FloatArray
    directions: FloatArray

    @classmethod
    def of(cls, matrix: FloatArray) -> "RowSpace":
        """That of J, shape (S, P)."""
        basis, scales, directions = np.linalg.svd(matrix, full_matrices=False)
        kept = scales > RANK_TOLERANCE * scales[:1]
        return cls(basis[:, kept], scales[kept], directions[kept])

    @property
    def rank(self) -> int:
        """How many directions are left."""
        return len(self.scales)

    @property
    def leverages(self) -> FloatArray:
        """Shape (S,): how much of each row's residual Jᵀd shows; at 1 all of it."""
        leverages: FloatArray = np.einsum("ij,ij->i", self.basis, self.basis)
        return leverages

    def coordinates(self, product: FloatArray) -> FloatArray:
        """basisᵀd from Jᵀd: shapes (P, C) to (rank, C)."""
        coordinates: FloatArray = self.directions @ product / self.scales[:, None]
        return coordinates


def stacked(rows: int, visits: Iterable[tuple[IntArray, FloatArray]]) -> csr_array:
    """All bases, transposed, below one another as one sparse matrix over all rows.

    Args:
        rows: N.
        visits: the row numbers of each, shape (S,), and its basis, shape (S, rank).

    Returns:
        Shape (sum of ranks, N).
    """
    pairs = list(visits)
    lengths = [np.full(basis.shape[1], len(of)) for of, basis in pairs]
    pointers = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
    columns = np.concatenate([np.tile(of, basis.shape[1]) for of, basis in pairs])
    values = np.concatenate([basis.T.ravel() for _, basis in pairs])
    return csr_array((values, columns, pointers), shape=(len(pointers) - 1, rows))


def distinct(batches: Sequence[IntArray]) -> list[IntArray]:
    """Batches without repetitions, in order of their first visit."""
    return list({batch.tobytes(): batch for batch in batches}.values())
