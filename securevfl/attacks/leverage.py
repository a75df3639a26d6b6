"""How much of the labels' space aggregated gradients span: no run and no labels are needed.

A feature party computes all of it from its own columns and the public schedule of batches, before
a job: rows of leverage 1, whose residual one gradient shows as it is,
and the rank of everything that is shown over the number of rows.
"""

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.linalg import lsmr

from securevfl.arrays import FloatArray, IntArray
from securevfl.attacks.row_spaces import LEVERAGE_ONE, RowSpace, distinct, stacked
from securevfl.data.partition import BatchSchedule

EXACT_ROWS = 1500
PROBES = 4
PROBE_ITERATIONS = 200


@dataclass(frozen=True)
class Exposure:
    """What the gradients of some epochs show of one party's batches.

    Attributes:
        epochs: how many, of floor(N / S) rounds each.
        leakage_ratio: distinct batches × P / N, the label guard's ratio for this party.
        rank_share: rank of the stacked row spaces over N.
        max_leverage: largest leverage of a row in a batch.
        exposed_rows: rows with leverage 1 in some batch: no ratio covers them.
    """

    epochs: int
    leakage_ratio: float
    rank_share: float
    max_leverage: float
    exposed_rows: int


def exposure(inputs: FloatArray, schedule: BatchSchedule, epochs: int) -> Exposure:
    """What a linear model's gradients show over some epochs.

    Args:
        inputs: the party's X, shape (N, P).
        schedule: the public one.
        epochs: how many; under "partition" an epoch is floor(N / S) draws.
    """
    batches = scheduled(schedule, epochs)
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
            float(np.linalg.matrix_rank(equations.toarray())) if exact else probed_rank(equations)
        )
    return Exposure(
        epochs=epochs,
        leakage_ratio=len(batches) * inputs.shape[1] / len(inputs),
        rank_share=rank / len(inputs),
        max_leverage=float(leverages.max()),
        exposed_rows=len(np.unique(visited[leverages > LEVERAGE_ONE])),
    )


def scheduled(schedule: BatchSchedule, epochs: int) -> list[IntArray]:
    """The distinct batches of the first epochs."""
    return distinct([schedule.batch(index) for index in range(epochs * schedule.batches)])


def probed_rank(matrix: csr_array) -> float:
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
