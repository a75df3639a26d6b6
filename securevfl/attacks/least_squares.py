"""Least squares for attacks: ridge regression with a chosen penalty, and a fit within bounds."""

import numpy as np
from scipy.sparse import csr_array

from securevfl.arrays import FloatArray

GRID = np.concatenate([[0.0], np.logspace(-30, 2, 129)])
RANK_TOLERANCE = 1e-14
MAX_ITERATIONS = 400
STEP_TOLERANCE = 1e-4


def shrinkage(scales: FloatArray, projected: FloatArray, outside: float, rows: int) -> float:
    """λ ≥ 0 with the least generalized cross-validation score (Golub, Heath and Wahba 1979).

    Coefficients are scale/(scale² + λ); λ = 0 if the matrix is not taller than wide. `projected` is
    the right sides in the singular basis, shape (scales, right sides), and `outside` the squared
    length of their part outside the matrix's range.
    """
    if rows <= len(scales):
        return 0.0
    squares = scales**2
    best, least = 0.0, np.inf
    energy = np.sum(projected**2, axis=1)
    for share in GRID:
        kept = squares / (squares + share * squares[0])
        residual = outside + float(np.sum((1 - kept) ** 2 * energy))
        score = residual / (rows - float(kept.sum())) ** 2
        if score < least:
            best, least = float(share * squares[0]), score
    return best


def ridge_solution(matrix: FloatArray, target: FloatArray) -> FloatArray:
    """The ridge solution of matrix · x = target, its penalty chosen by `shrinkage`."""
    left, scales, right = np.linalg.svd(matrix, full_matrices=False)
    kept = scales > RANK_TOLERANCE * scales[0]
    left, scales, right = left[:, kept], scales[kept], right[kept]
    projected = left.T @ target
    outside = float(np.sum((target - left @ projected) ** 2))
    penalty = shrinkage(scales, projected, outside, len(matrix))
    return np.asarray(right.T @ (projected * (scales / (scales**2 + penalty))[:, None]))


def box_least_squares(
    matrix: csr_array,
    target: FloatArray,
    visits: FloatArray,
    box: tuple[FloatArray, FloatArray],
    prior: tuple[FloatArray, FloatArray],
) -> FloatArray:
    """Minimize ‖matrix·found − target‖² + Σ precision·(found − mean)² within a box; shape (N, C).

    Accelerated projected gradient with restarts (Beck & Teboulle 2009; O'Donoghue & Candès 2015).

    The matrix, shape (equations, N), consists of blocks of orthonormal rows; `visits`, shape (N,),
    counts the blocks that touch each column. A block's projection is at most 1 on the columns that
    it touches, so matrixᵀ·matrix ≤ diag(visits). The prior is mean and precision, shapes (N, C).
    Where a bound is active, the result lies beyond it by as much as the equations push, which ranks
    rows at the same bound. Clipped to the box, the result is the minimum.
    """
    mean, precision = prior
    steps = 1 / (visits[:, None] + precision)
    found = np.clip(mean, *box)
    extrapolated, unclipped, momentum = found, found, 1.0
    for _ in range(MAX_ITERATIONS):
        slope = matrix.T @ (matrix @ extrapolated - target) + precision * (extrapolated - mean)
        unclipped = extrapolated - steps * slope
        following = np.clip(unclipped, *box)
        moved = following - found
        if np.max(np.abs(moved)) < STEP_TOLERANCE:
            break
        if np.sum((extrapolated - following) * moved / steps) > 0:
            extrapolated, momentum = following, 1.0
        else:
            grown = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
            extrapolated = following + (momentum - 1) / grown * moved
            momentum = grown
        found = following
    return unclipped
