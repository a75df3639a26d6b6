"""Least squares as attacks need them: shrunk as far as noise asks for, or within bounds."""

import numpy as np
from scipy.sparse import csr_array

from securevfl.arrays import FloatArray

GRID = np.concatenate([[0.0], np.logspace(-30, 2, 129)])
RANK_TOLERANCE = 1e-14
MAX_ITERATIONS = 400
STEP_TOLERANCE = 1e-4


def shrinkage(scales: FloatArray, projected: FloatArray, outside: float, rows: int) -> float:
    """λ ≥ 0 of the least generalized cross-validation score (Golub, Heath and Wahba 1979).

    Coefficients are scale/(scale² + λ); λ = 0 where the matrix is not taller than wide. Right sides
    come in the singular basis, shape (scales, right sides), with the squared length of what of them
    is outside the matrix's range.
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
    """What takes a matrix (equations, unknowns) nearly to the target, shrunk where noisy."""
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

    The matrix, shape (equations, N), is blocks of orthonormal rows below one another, `visits`,
    shape (N,), the blocks that touch each column: as a block's projection is no larger than 1 on
    what it touches, matrixᵀ·matrix ≤ diag(visits). The prior is mean and precision, shapes (N, C).
    Where a bound holds the result is beyond it by as much as the equations press, so that rows at
    the same bound keep an order; the minimum is what of the box is nearest.
    """
    mean, precision = prior
    steps = 1 / (visits[:, None] + precision)
    found = np.clip(mean, *box)
    ahead, pressed, momentum = found, found, 1.0
    for _ in range(MAX_ITERATIONS):
        slope = matrix.T @ (matrix @ ahead - target) + precision * (ahead - mean)
        pressed = ahead - steps * slope
        following = np.clip(pressed, *box)
        moved = following - found
        if np.max(np.abs(moved)) < STEP_TOLERANCE:
            break
        if np.sum((ahead - following) * moved / steps) > 0:
            ahead, momentum = following, 1.0
        else:
            grown = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
            ahead = following + (momentum - 1) / grown * moved
            momentum = grown
        found = following
    return pressed
