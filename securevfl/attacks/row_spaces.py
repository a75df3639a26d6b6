"""The row spaces that aggregated gradients show, stacked over visits of batches.

A visit of a batch shows Jᵀd of its residuals d, with J the features of its rows (or a network's
Jacobian). With J = basis·diag(scales)·directions that is exactly basisᵀd, rank J numbers; stacked
over visits they are linear equations in what belongs to the rows. How much of the labels' space
these span, a feature party knows before a job (`exposure`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.linalg import lsmr

from securevfl.arrays import FloatArray, IntArray
from securevfl.data.partition import BatchSchedule

# Singular values below this share of the largest carry rounding errors, not residuals.
RANK_TOLERANCE = 1e-5
LEVERAGE_ONE = 1 - 1e-6
# Ranks of more rows are probed: random directions, and iterations for each.
EXACT_ROWS, PROBES, PROBE_ITERATIONS = 1500, 4, 200


@dataclass(frozen=True, eq=False)
class RowSpace:
    """The thin singular value decomposition of J, null directions left out."""

    basis: FloatArray  # shape (S, rank)
    scales: FloatArray  # shape (rank,)
    directions: FloatArray  # shape (rank, P)

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
        return np.asarray(np.einsum("ij,ij->i", self.basis, self.basis))

    def coordinates(self, product: FloatArray) -> FloatArray:
        """basisᵀd from Jᵀd: shapes (P, C) to (rank, C)."""
        return np.asarray(self.directions @ product / self.scales[:, None])


def stacked(rows: int, visits: Iterable[tuple[IntArray, FloatArray]]) -> csr_array:
    """All bases, transposed, below one another over all N rows: shape (sum of ranks, N).

    A visit is its row numbers, shape (S,), and its basis, shape (S, rank).
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


@dataclass(frozen=True)
class Exposure:
    """What the gradients of some epochs show of one party's batches."""

    epochs: int  # how many, of floor(N / S) rounds each
    leakage_ratio: float  # distinct batches × P / N, the label guard's ratio for this party
    rank_share: float  # rank of the stacked row spaces over N
    max_leverage: float  # largest leverage of a row in a batch
    exposed_rows: int  # rows with leverage 1 in some batch: no ratio covers them


def exposure(inputs: FloatArray, schedule: BatchSchedule, epochs: int) -> Exposure:
    """What a linear model's gradients show of X, shape (N, P); an epoch is floor(N / S) rounds."""
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
        leakage_ratio=len(batches) * inputs.shape[1] / len(inputs),
        rank_share=rank / len(inputs),
        max_leverage=float(leverages.max()),
        exposed_rows=len(np.unique(visited[leverages > LEVERAGE_ONE])),
    )


def _probed_rank(matrix: csr_array) -> float:
    """The rank of a large matrix, within a percent or so.

    A random ±1 vector has as much of its squared length in the row space, on average, as the space
    has dimensions. The solver comes nearer from below: directions of tiny weight may be missed.
    """
    probes = np.random.default_rng(0).choice([-1.0, 1.0], size=(PROBES, matrix.shape[1]))
    lengths = []
    for probe in probes:
        weights = lsmr(matrix.T, probe, atol=1e-8, btol=1e-8, maxiter=PROBE_ITERATIONS)[0]
        lengths.append(float(np.sum((matrix.T @ weights) ** 2)))
    return float(np.mean(lengths))
