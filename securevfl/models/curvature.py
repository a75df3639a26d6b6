"""How the loss bends along one party's weights, from its own columns alone."""

from dataclasses import dataclass

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.models.local_model import LocalModel

NULL_SPACE = 1e-9
JACOBIAN_VALUES = 1 << 22
POWER_ITERATIONS = 20


@dataclass(frozen=True)
class Curvature:
    """M = c·XᵀX/N + λI over all rows of a linear model, by its eigenvectors.

    c bounds f″, so that no loss bends more along the block (Böhning and Lindsay 1988). Directions
    that M bends less than `NULL_SPACE` times its most are none of the data's: collinear columns
    without L2, along which steps do not move.

    Attributes:
        values: eigenvalues, shape (rank,).
        vectors: shape (P, rank).
    """

    values: FloatArray
    vectors: FloatArray

    @classmethod
    def of(cls, model: LocalModel, inputs: FloatArray, curvature: float, l2: float) -> "Curvature":
        """That of a linear model.

        Args:
            model: says which column is an intercept, which L2 leaves alone.
            inputs: X of all rows, shape (N, P).
            curvature: c.
            l2: λ.
        """
        penalty = np.full(inputs.shape[1], l2)
        if model.intercept:
            penalty[-1] = 0.0
        values, vectors = np.linalg.eigh(
            curvature / len(inputs) * (inputs.T @ inputs) + np.diag(penalty)
        )
        kept = values > NULL_SPACE * values[-1]
        return cls(values[kept], vectors[:, kept])

    @property
    def largest(self) -> float:
        """The largest eigenvalue; 0 where no column says anything."""
        return float(self.values[-1]) if self.values.size else 0.0

    def inverse(self, scale: float, proximal: float) -> FloatArray:
        """(scale·M + μI)⁻¹, shape (P, P), 0 along directions of the null space."""
        inverse: FloatArray = self.vectors / (scale * self.values + proximal) @ self.vectors.T
        return inverse


def largest_curvature(model: LocalModel, inputs: FloatArray, curvature: float) -> float:
    """The largest eigenvalue of c·JᵀJ/S at the weights now.

    By power iteration over as many rows as memory is for; fewer rows give more, if anything.

    Args:
        model: linear or not.
        inputs: X of a batch, shape (S, P).
        curvature: c.
    """
    outputs = model.predict(inputs[:1]).size
    rows = max(1, JACOBIAN_VALUES // (model.weights.size * outputs))
    tangent = model.tangent(inputs[:rows])()
    direction = tangent.sum(axis=0)
    largest = 0.0
    for _ in range(POWER_ITERATIONS):
        length = float(np.linalg.norm(direction))
        if length == 0:
            break
        moved = tangent @ (direction / length)
        largest = float(moved @ moved)
        direction = tangent.T @ moved
    return curvature * largest / min(rows, len(inputs))
