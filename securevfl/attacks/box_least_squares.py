"""Least squares within a box, near a prior: how far equations move what one believed of labels.

Accelerated projected gradient with restarts (Beck & Teboulle 2009; O'Donoghue & Candès 2015).
"""

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from securevfl.arrays import FloatArray

MAX_ITERATIONS = 400
STEP_TOLERANCE = 1e-4


@dataclass(frozen=True, eq=False)
class Box:
    """lower ≤ found ≤ upper, shapes (N, C)."""

    lower: FloatArray
    upper: FloatArray

    def nearest(self, values: FloatArray) -> FloatArray:
        """The point of the box next to these values."""
        return np.clip(values, self.lower, self.upper)


@dataclass(frozen=True, eq=False)
class Prior:
    """What is believed of the unknowns before the equations.

    Attributes:
        mean: shape (N, C).
        precision: shape (N, C): weight of (found − mean)² beside the equations'
            ‖matrix·found − target‖².
    """

    mean: FloatArray
    precision: FloatArray


def box_least_squares(
    matrix: csr_array, target: FloatArray, visits: FloatArray, box: Box, prior: Prior
) -> FloatArray:
    """Minimize ‖matrix·found − target‖² + Σ precision·(found − mean)² within the box.

    Args:
        matrix: shape (equations, N), blocks of orthonormal rows below one another.
        target: shape (equations, C).
        visits: shape (N,): blocks that touch each column. As a block's projection is no larger
            than 1 on what it touches, matrixᵀ·matrix ≤ diag(visits).
        box: bounds.
        prior: what the unknowns are near to where the equations leave it free.

    Returns:
        Shape (N, C): where a bound holds, beyond it by as much as the equations press, so that rows
        at the same bound keep an order; the minimum is what of the box is nearest.
    """
    steps = 1 / (visits[:, None] + prior.precision)
    found = box.nearest(prior.mean)
    ahead, pressed, momentum = found, found, 1.0
    for _ in range(MAX_ITERATIONS):
        slope = matrix.T @ (matrix @ ahead - target) + prior.precision * (ahead - prior.mean)
        pressed = ahead - steps * slope
        following = box.nearest(pressed)
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
