"""Whose label changed between two jobs on the same rows, from what a feature party sees of both.

From the same θ⁰ and the same row offsets both jobs begin with the same H. The difference of their
first gradients is then −zᵢ(y′ᵢ − yᵢ)/N for a single changed label of row i: one row of X, up to its
sign. Final parameters do not depend on the start. Whatever hides the rounds, they differ by about
the inverse of the Hessian times zᵢ. The attacker takes its own block of the Hessian, at its own
predictions.
"""

from dataclasses import dataclass

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.models.losses import sigmoid


@dataclass(frozen=True)
class ChangedLabel:
    """A guess: which row, and whether its label rose; None where the attack reads no direction."""

    row: int
    rose: bool | None = None


def from_first_gradients(inputs: FloatArray, before: FloatArray, after: FloatArray) -> ChangedLabel:
    """The row nearest to the difference of two gradients Xᵀd/N, of shape (P, 1), of all rows."""
    moved = (before - after)[:, 0] * len(inputs)
    signs = np.sign(inputs @ moved)
    row = int(np.argmin(np.sum((inputs * signs[:, None] - moved) ** 2, axis=1)))
    return ChangedLabel(row, rose=bool(signs[row] > 0))


def from_ends(inputs: FloatArray, before: FloatArray, after: FloatArray, l2: float) -> ChangedLabel:
    """The row whose H⁻¹z points most nearly as the difference of final θ, shape (P, 1).

    H is XᵀWX/N + λ, with W the curvature of the logistic loss at the attacker's own predictions.
    """
    likely = sigmoid(inputs @ before)
    hessian = (inputs * likely * (1 - likely)).T @ inputs / len(inputs)
    directions = inputs @ np.linalg.pinv(hessian + l2 * np.eye(len(hessian)))
    lengths = np.linalg.norm(directions, axis=1)
    along = np.abs(directions @ (after - before)[:, 0])
    return ChangedLabel(int(np.argmax(along / np.where(lengths > 0, lengths, np.inf))))
