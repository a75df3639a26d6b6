"""The label party's head: a trainable layer over every party's representation of a row.

H = Σ_k u_k·θ_k + b, where u_k ∈ R^w is the output of party k's local model for the row. The label
party holds θ = (θ_1 … θ_K) and b beside its own local model, and trains them jointly.
Source: the MNIST-CNN experiment of FedBCD (Liu et al. 2019).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.models.local_model import LocalModel, PullBack, StateDict
from securevfl.sparse import Matrix, require_dense


@dataclass(frozen=True, eq=False)
class Head:
    """θ and, in the last row, b, shape (K·w + 1, C), without the models below.

    `names` are the parties in the order of θ, the label party first.
    """

    names: tuple[str, ...]
    values: FloatArray

    @property
    def width(self) -> int:
        """Length w of each party's representation."""
        return (len(self.values) - 1) // len(self.names)

    def part(self, name: str) -> FloatArray:
        """θ_k of a party, shape (w, C)."""
        part: FloatArray = self.values[self.names.index(name) * self.width :][: self.width]
        return part

    def together(self, parts: Mapping[str, FloatArray]) -> FloatArray:
        """H from the label party's own part of it and the other parties' u."""
        total = parts[self.names[0]]
        for name in self.names[1:]:
            total = total + parts[name] @ self.part(name)
        return total


class HeadedModel:
    """The label party's local model with the head on top: (X | other parties' u, concatenated) ↦ H.

    Without the other parties' u it predicts its own part of H, u_K·θ_K + b. The local model
    computes u_K, shape (S, w), from the first `columns` inputs and keeps its own weights; names and
    head are those of `Head`.
    """

    is_linear = False
    intercept = False

    def __init__(
        self, model: LocalModel, columns: int, names: Sequence[str], head: FloatArray
    ) -> None:
        self.model, self.head, self.names = model, head, tuple(names)
        self.width = Head(self.names, head).width
        self._columns = columns

    @property
    def weights(self) -> FloatArray:
        """The local model's, then θ and b, one after another, shape (p, 1)."""
        return np.concatenate([self.model.weights.ravel(), self.head.ravel()])[:, None]

    @weights.setter
    def weights(self, value: FloatArray) -> None:
        own = self.model.weights
        self.model.weights = value[: own.size].reshape(own.shape)
        self.head = value[own.size :].reshape(self.head.shape)

    def part(self, name: str) -> FloatArray:
        """θ_k of a party, shape (w, C)."""
        return Head(self.names, self.head).part(name)

    def inputs(self, features: Matrix) -> Matrix:
        """Like those of the local model."""
        return self.model.inputs(features)

    def predict(self, inputs: Matrix) -> FloatArray:
        """H, or the label party's part of it, shape (S, C)."""
        return self._top(self.model.predict(self._own(inputs)), inputs) @ self.head

    def linearize(self, inputs: Matrix) -> tuple[FloatArray, PullBack]:
        """H, and d ↦ Σ_s (∂H_s/∂θ)ᵀd_s, shape (p, 1)."""
        own, pull_own = self.model.linearize(self._own(inputs))
        top, through = self._top(own, inputs), self.head[: self.width].T

        def pull_back(residuals: FloatArray) -> FloatArray:
            parts = pull_own(residuals @ through), top.T @ residuals
            return np.concatenate([part.ravel() for part in parts])[:, None]

        return top @ self.head, pull_back

    def tangent(self, inputs: Matrix) -> Callable[[], FloatArray]:
        """The Jacobian at the current weights, shape (S·C, p)."""
        weights = self.model.weights, self.head

        @cache
        def jacobian() -> FloatArray:
            now = self.model.weights, self.head
            self.model.weights, self.head = weights
            shape = len(inputs), self.head.shape[1]
            units = np.eye(shape[0] * shape[1]).reshape(-1, *shape)
            # linearize may only be pulled back once.
            rows = [self.linearize(inputs)[1](unit) for unit in units]
            self.model.weights, self.head = now
            return np.hstack(rows).T

        return jacobian

    def state(self) -> StateDict | None:
        """The local model's state dict."""
        return self.model.state()

    def penalty_gradient(self, l2: float) -> FloatArray:
        """Gradient of ½·l2·‖θ‖² without biases."""
        head = l2 * self.head
        head[-1] = 0.0
        own = self.model.penalty_gradient(l2)
        return np.concatenate([own.ravel(), head.ravel()])[:, None]

    def _own(self, inputs: Matrix) -> FloatArray:
        return require_dense(inputs, "a head")[:, : self._columns]

    def _top(self, own: FloatArray, inputs: Matrix) -> FloatArray:
        """All parties' u side by side, 0 if absent, and a 1: shape (S, K·w + 1)."""
        top = np.zeros((len(inputs), len(self.head)))
        top[:, -1] = 1.0
        top[:, : self.width] = own
        others = require_dense(inputs, "a head")[:, self._columns :]
        top[:, self.width : self.width + others.shape[1]] = others
        return top


def head_start(
    parties: int, width: int, outputs: int, generator: np.random.Generator
) -> FloatArray:
    """θ uniform within ±1/√(K·w), as torch starts a dense layer, and b = 0; shape (K·w + 1, C)."""
    bound = 1 / np.sqrt(parties * width)
    head: FloatArray = generator.uniform(-bound, bound, (parties * width + 1, outputs))
    head[-1] = 0.0
    return head
