"""One dense layer of units with a bias, as a local model: u = a(XW)."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from securevfl.arrays import FloatArray
from securevfl.models.linear import LinearModel
from securevfl.models.local_model import Activation, PullBack
from securevfl.sparse import Matrix, dense

BOUNDED = ("tanh", "sigmoid")
LARGEST_SLOPE = {"tanh": 1.0, "sigmoid": 0.25, "relu": 1.0}


@dataclass
class DenseLayer(LinearModel):
    """A hidden layer whose units are the local predictions.

    Attributes:
        weights: W, shape (P, w), the bias' row last.
        activation: a.
    """

    intercept: bool = True
    is_linear: bool = False
    activation: Activation = "tanh"

    @override
    def predict(self, inputs: Matrix) -> FloatArray:
        """u, shape (S, w)."""
        return self.with_slopes(inputs)[0]

    def with_slopes(self, inputs: Matrix) -> tuple[FloatArray, FloatArray]:
        """The units and a′, each of shape (S, w)."""
        before = inputs @ self.weights
        if self.activation == "relu":
            return np.maximum(before, 0.0), (before > 0).astype(np.float64)
        if self.activation == "tanh":
            units = np.tanh(before)
            return units, 1 - units**2
        # By way of tanh nothing overflows.
        units = 0.5 * (1 + np.tanh(0.5 * before))
        return units, units * (1 - units)

    @override
    def linearize(self, inputs: Matrix) -> tuple[FloatArray, PullBack]:
        """The units at W, and d ↦ Xᵀ(a′∘d)."""
        units, slopes = self.with_slopes(inputs)
        return units, lambda residuals: inputs.T @ (slopes * residuals)

    @override
    def tangent(self, inputs: Matrix) -> Callable[[], FloatArray]:
        """∂u/∂W at the weights now, shape (S·w, P·w)."""
        _, slopes = self.with_slopes(inputs)
        rows, units = slopes.shape

        features = dense(inputs)

        def jacobian() -> FloatArray:
            blocks: FloatArray = np.einsum("sa,sf,ab->safb", slopes, features, np.eye(units))
            return blocks.reshape(rows * units, -1)

        return jacobian


def dense_start(
    features: Matrix, units: int, activation: Activation, generator: np.random.Generator
) -> DenseLayer:
    """A private random start: normal weights of deviation 1/√F, biases 0.

    It depends on no row: standardized columns that are not correlated give units a deviation of 1
    before activation.
    """
    columns = features.shape[1]
    weights = generator.standard_normal((columns + 1, units)) / np.sqrt(columns)
    weights[-1] = 0.0
    return DenseLayer(weights, activation=activation)
