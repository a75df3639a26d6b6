"""Least squares with as much shrinkage as noise asks for (generalized cross-validation)."""

import numpy as np

from securevfl.arrays import FloatArray

GRID = np.concatenate([[0.0], np.logspace(-30, 2, 129)])
RANK_TOLERANCE = 1e-14


def shrinkage(scales: FloatArray, projected: FloatArray, outside: float, rows: int) -> float:
    """λ that minimizes the generalized cross-validation score (Golub, Heath and Wahba 1979).

    Args:
        scales: singular values of the matrix.
        projected: the right sides in the singular basis, shape (scales, right sides).
        outside: squared length of what of the right sides is outside the matrix's range.
        rows: of the matrix.

    Returns:
        λ ≥ 0 relative to nothing: coefficients are scale/(scale² + λ). 0 where the matrix
        is not taller than wide.
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
    """What the matrix takes to the target, nearly; shrunk where the data are noisy.

    Args:
        matrix: shape (equations, unknowns).
        target: shape (equations, right sides).

    Returns:
        Shape (unknowns, right sides).
    """
    left, scales, right = np.linalg.svd(matrix, full_matrices=False)
    kept = scales > RANK_TOLERANCE * scales[0]
    left, scales, right = left[:, kept], scales[kept], right[kept]
    projected = left.T @ target
    outside = float(np.sum((target - left @ projected) ** 2))
    penalty = shrinkage(scales, projected, outside, len(matrix))
    solution: FloatArray = right.T @ (projected * (scales / (scales**2 + penalty))[:, None])
    return solution
