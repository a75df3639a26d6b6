"""The minimum of a quadratic over one party's weights under sign constraints, by pivoting."""

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.errors import TrainingDiverged

RIDGE = 1e-9
ROUNDING = 1e-10
BLOCK_TRIES = 3
MOST_PIVOTS = 10_000


def signed_minimum(
    bends: FloatArray, gradient: FloatArray, weights: FloatArray, signs: FloatArray
) -> FloatArray:
    """The θ + δ with signs_j·(θ_j + δ_j) ≥ 0 that minimizes gᵀδ + ½δᵀAδ, with exact zeros.

    A (`bends`) is positive semidefinite, of shape (P, P); all others have shape (P,), and `signs`
    are -1, 0 (free) or 1. A's diagonal counts 1 + `RIDGE` times, so that there is one minimum.

    Weights change between 0 and free until no free one has the wrong sign, and no other a slope
    that would free it (block principal pivoting: Júdice and Pires, Computers and Operations
    Research 21, 1994). Where blocks do not help, the last wrong one changes alone, which ends
    (Murty, Linear Algebra and its Applications 7, 1974), but for rounding: a TrainingDiverged.
    """
    diagonal = np.diagonal(bends)
    # Units in which the diagonal is 1 and constrained weights are positive.
    units = np.where(signs < 0, -1.0, 1.0) / np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    matrix = units[:, None] * bends * units + RIDGE * np.eye(len(units))
    start, slopes, wanted = weights / units, gradient * units, signs != 0
    few = ROUNDING * max(np.abs(start).max(), np.abs(slopes).max())
    held, fewest, tries = np.zeros_like(wanted), len(start) + 1, BLOCK_TRIES
    for _ in range(MOST_PIVOTS):
        moved, free = np.where(held, -start, 0.0), ~held
        pull = (slopes + matrix @ moved)[free]
        moved[free] = -np.linalg.solve(matrix[np.ix_(free, free)], pull)
        wrong = wanted & (np.where(held, slopes + matrix @ moved, start + moved) < -few)
        count = int(np.count_nonzero(wrong))
        if not count:
            found = start + moved
            minimum: FloatArray = units * np.where(wanted, np.maximum(found, 0.0), found) + 0.0
            return minimum  # without negative zeros
        tries = BLOCK_TRIES if count < fewest else tries - 1
        fewest = min(count, fewest)
        if tries < 0:
            wrong[: np.flatnonzero(wrong)[-1]] = False
        held ^= wrong
    raise TrainingDiverged("training diverged: pivots of monotone columns did not end")
