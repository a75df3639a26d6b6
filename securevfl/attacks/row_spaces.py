"""The row spaces that aggregated gradients reveal, stacked over visits of batches.

A visit of a batch shows Jᵀd, with d its residuals and J the features of its rows (or a network's
Jacobian). With J = basis·diag(scales)·directions this is equivalent to basisᵀd, rank J numbers.
Stacked over visits they are linear equations in values of the rows. A feature party can compute
before a job how much of the labels' space these equations span (`exposure`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.linalg import lsmr

from securevfl.arrays import FloatArray, IntArray
from securevfl.data.partition import BatchSchedule

# Directions with smaller singular values, relative to the largest, carry only rounding errors.
RANK_TOLERANCE = 1e-5
LEVERAGE_ONE = 1 - 1e-6
# With more rows the rank is estimated from random directions, with so many iterations for each.
EXACT_ROWS, PROBES, PROBE_ITERATIONS = 1500, 4, 200


@dataclass(frozen=True, eq=False)
class RowSpace:
    """The thin singular value decomposition of J, without null directions."""

    basis: FloatArray  # shape (S, rank)
    scales: FloatArray  # shape (rank,)
    directions: FloatArray  # shape (rank, P)

    @classmethod
    def of(cls, matrix: FloatArray) -> "RowSpace":
        """Decompose J, shape (S, P)."""
        basis, scales, directions = np.linalg.svd(matrix, full_matrices=False)
        kept = scales > RANK_TOLERANCE * scales[:1]
        return cls(basis[:, kept], scales[kept], directions[kept])

    @property
    def rank(self) -> int:
        """The rank of J."""
        return len(self.scales)

    @property
    def leverages(self) -> FloatArray:
        """How much of each row's residual Jᵀd shows, shape (S,); at 1 all of it."""
        return np.asarray(np.einsum("ij,ij->i", self.basis, self.basis))

    def coordinates(self, product: FloatArray) -> FloatArray:
        """basisᵀd from Jᵀd: shapes (P, C) to (rank, C)."""
        return np.asarray(self.directions @ product / self.scales[:, None])


def stacked(rows: int, visits: Iterable[tuple[IntArray, FloatArray]]) -> csr_array:
    """All transposed bases, stacked over all N rows: shape (sum of ranks, N).

    A visit is its row numbers, shape (S,), and its basis, shape (S, rank).
    """
    pairs = list(visits)
    lengths = [np.full(basis.shape[1], len(of)) for of, basis in pairs]
    pointers = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
    columns = np.concatenate([np.tile(of, basis.shape[1]) for of, basis in pairs])
    values = np.concatenate([basis.T.ravel() for _, basis in pairs])
    return csr_array((values, columns, pointers), shape=(len(pointers) - 1, rows))


def distinct(batches: Sequence[IntArray]) -> list[IntArray]:
    """Batches without repetitions, in the order of their first visits."""
    return list({batch.tobytes(): batch for batch in batches}.values())


@dataclass(frozen=True)
class Exposure:
    """What one party's gradients of some epochs reveal."""

    epochs: int  # of floor(N / S) rounds each
    rank_share: float  # rank of the stacked row spaces over N
    max_leverage: float  # largest leverage of a row in a batch
    exposed_rows: int  # rows with leverage 1 in some batch, which no ratio protects


def exposure(inputs: FloatArray, schedule: BatchSchedule, epochs: int) -> Exposure:
    """What gradients of a linear model of X, shape (N, P), reveal in some epochs."""
    batches = distinct([schedule.batch(index) for index in range(epochs * schedule.batches)])
    spaces = [RowSpace.of(inputs[batch]) for batch in batches]
    leverages = np.concatenate([space.leverages for space in spaces])
    visited = np.concatenate(batches)
    if len(np.unique(visited)) == len(visited):
        rank = float(sum(space.rank for space in spaces))
    else:
        visits = [(batch, space.basis) for batch, space in zip(batches, spaces, strict=True)]
        equations = stacked(len(inputs), visits)
        exact = len(inputs) <= EXACT_ROWS
        rank = (
            float(np.linalg.matrix_rank(equations.toarray())) if exact else _probed_rank(equations)
        )
    return Exposure(
        epochs=epochs,
        rank_share=rank / len(inputs),
        max_leverage=float(leverages.max()),
        exposed_rows=len(np.unique(visited[leverages > LEVERAGE_ONE])),
    )


def _probed_rank(matrix: csr_array) -> float:
    """The rank of a large matrix, to about a percent.

    A random ±1 vector's projection on the row space has, on average, the space's dimension as its
    squared length. The solver approaches it from below and may miss directions of tiny weight.
    """
    probes = np.random.default_rng(0).choice([-1.0, 1.0], size=(PROBES, matrix.shape[1]))
    lengths = []
    for probe in probes:
        weights = lsmr(matrix.T, probe, atol=1e-8, btol=1e-8, maxiter=PROBE_ITERATIONS)[0]
        lengths.append(float(np.sum((matrix.T @ weights) ** 2)))
    return float(np.mean(lengths))
