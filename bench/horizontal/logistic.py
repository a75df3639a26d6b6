"""Logistic regression with several classes, whose least loss is known (FedBCGD, Figure 8)."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from securevfl.arrays import FloatArray, IntArray, RealArray

CLOSE = 1e-5
"""Of the gradient at the optimum, its largest entry."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of some clients; θ is weights of shape (features, classes), row by row, then biases.

    Attributes:
        inputs: shape (n, features), float32.
        targets: of each row 1 at its class and 0 elsewhere, shape (n, classes), float32.
    """

    inputs: NDArray[np.float32]
    targets: NDArray[np.float32]

    @property
    def rows(self) -> int:
        """How many there are."""
        return len(self.inputs)

    def gradient(self, weights: RealArray, rows: IntArray) -> RealArray:
        """The mean cross entropy's, shape (p,)."""
        inputs = self.inputs[rows]
        off = (softmax(self._scores(weights, inputs), axis=1) - self.targets[rows]) / len(rows)
        return np.append((inputs.T @ off).ravel(), off.sum(0)).astype(weights.dtype)

    def loss(self, weights: RealArray) -> float:
        """The mean cross entropy of all rows."""
        logs = log_softmax(self._scores(weights, self.inputs), axis=1)
        return float(-np.mean(np.sum(logs * self.targets, 1, dtype=np.float64)))

    def _scores(self, weights: RealArray, inputs: NDArray[np.float32]) -> RealArray:
        classes = self.targets.shape[1]
        return inputs @ weights[:-classes].reshape(-1, classes) + weights[-classes:]


class Logistic:
    """All rows together under L2: what training should come to.

    Args:
        inputs: shape (n, …), as many numbers a row; their means are subtracted.
        labels: from 0 on, shape (n,).
        decay: the objective is the mean cross entropy plus decay/2·‖θ‖².
    """

    def __init__(self, inputs: FloatArray, labels: IntArray, classes: int, decay: float) -> None:
        flat = inputs.reshape(len(inputs), -1).astype(np.float32)
        flat -= flat.mean(0, dtype=np.float64).astype(np.float32)
        self.all = Rows(flat, np.eye(classes, dtype=np.float32)[labels])
        self.sizes = {"weight": flat.shape[1] * classes, "bias": classes}
        self.decay = decay

    def weights(self) -> NDArray[np.float32]:
        """Zeros, where training starts."""
        return np.zeros(sum(self.sizes.values()), np.float32)

    def problem(self, rows: IntArray) -> Rows:
        """A client's."""
        return Rows(self.all.inputs[rows], self.all.targets[rows])

    def objective(self, weights: RealArray) -> float:
        """Of all rows at θ."""
        return self.all.loss(weights) + self.decay / 2 * float(weights @ weights)

    @cached_property
    def least(self) -> float:
        """The least objective, by L-BFGS."""
        every = np.arange(self.all.rows)

        def both(weights: FloatArray) -> tuple[float, FloatArray]:
            slope = self.all.gradient(weights, every) + self.decay * weights
            return self.objective(weights), slope

        start = self.weights().astype(np.float64)
        options = {"maxiter": 2000, "gtol": CLOSE, "ftol": 0.0}
        return float(minimize(both, start, jac=True, method="L-BFGS-B", options=options).fun)

    def way(self, weights: RealArray) -> float:
        """The share of the way from the objective at zero down to the least one."""
        start = self.objective(self.weights())
        return (start - self.objective(weights)) / (start - self.least)
