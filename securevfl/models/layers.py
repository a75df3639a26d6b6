"""Layers in NumPy: one dense layer as a local model, and an mlp on sparse rows.

The mlp's first layer multiplies stored cells only. Its parameters have the names and shapes of the
mlp in `models.neural`, so that either can load the other's model file.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
from typing_extensions import override

from securevfl.arrays import FloatArray
from securevfl.models.linear import LEAST_SPREAD, LinearModel
from securevfl.models.local_model import Activation, Network, PullBack, StateDict
from securevfl.sparse import Matrix, SparseRows, dense

BOUNDED = ("tanh", "sigmoid")
LARGEST_SLOPE = {"tanh": 1.0, "sigmoid": 0.25, "relu": 1.0}
Slopes = tuple[FloatArray, FloatArray]


def _sigmoid(x: FloatArray) -> FloatArray:
    # tanh cannot overflow.
    values: FloatArray = 0.5 * (1 + np.tanh(0.5 * x))
    return values


def _relu(x: FloatArray) -> Slopes:
    return np.maximum(x, 0.0), (x > 0).astype(np.float64)


def _tanh(x: FloatArray) -> Slopes:
    units = np.tanh(x)
    return units, 1 - units**2


def _logistic(x: FloatArray) -> Slopes:
    units = _sigmoid(x)
    return units, units * (1 - units)


def _silu(x: FloatArray) -> Slopes:
    share = _sigmoid(x)
    return x * share, share * (1 + x * (1 - share))


def _gelu(x: FloatArray) -> Slopes:
    from scipy.special import erf  # noqa: PLC0415  # slow to import

    below = 0.5 * (1 + erf(x / np.sqrt(2)))
    return x * below, below + x * np.exp(-0.5 * x**2) / np.sqrt(2 * np.pi)


ACTIVATIONS: Mapping[str, Callable[[FloatArray], Slopes]] = {
    "relu": _relu,
    "tanh": _tanh,
    "sigmoid": _logistic,
    "gelu": _gelu,
    "silu": _silu,
}
"""Functions that return a(x) and a′(x)."""


@dataclass
class DenseLayer(LinearModel):
    """A hidden layer, shape (P, w) with biases last, whose units are the local predictions."""

    intercept: bool = True
    is_linear: bool = False
    activation: Activation = "tanh"

    @override
    def predict(self, inputs: Matrix) -> FloatArray:
        """u, shape (S, w)."""
        return self.with_slopes(inputs)[0]

    def with_slopes(self, inputs: Matrix) -> tuple[FloatArray, FloatArray]:
        """The units and a′, each of shape (S, w)."""
        return ACTIVATIONS[self.activation](inputs @ self.weights)

    @override
    def linearize(self, inputs: Matrix) -> tuple[FloatArray, PullBack]:
        """The units at W, and d ↦ Xᵀ(a′∘d)."""
        units, slopes = self.with_slopes(inputs)
        return units, lambda residuals: inputs.T @ (slopes * residuals)

    @override
    def tangent(self, inputs: Matrix) -> Callable[[], FloatArray]:
        """∂u/∂W at the current weights, shape (S·w, P·w)."""
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

    It does not depend on the data: for standardized, uncorrelated columns units have a deviation of
    1 before activation.
    """
    columns = features.shape[1]
    weights = generator.standard_normal((columns + 1, units)) / np.sqrt(columns)
    weights[-1] = 0.0
    return DenseLayer(weights, activation=activation)


class NetworkModel(ABC):
    """A network; θ concatenates its arrays, shape (p, 1).

    Arrays have the names that torch gives them: names within a layer agree up to the last dot. L2
    excludes biases, the arrays of one dimension.
    """

    intercept = False
    is_linear = False

    def __init__(self, arrays: StateDict) -> None:
        self._shapes = {name: each.shape for name, each in arrays.items()}
        self._sizes = [each.size for each in arrays.values()]
        self.weights: FloatArray = np.concatenate([each.ravel() for each in arrays.values()])[
            :, None
        ]
        penalized = [each.ndim > 1 for each in arrays.values()]
        self._penalized = np.repeat(penalized, self._sizes)[:, None]

    @abstractmethod
    def predict(self, inputs: Matrix) -> FloatArray:
        """Local predictions H_k, shape (S, C)."""

    def inputs(self, features: Matrix) -> Matrix:
        """The features."""
        return features

    def penalty_gradient(self, l2: float) -> FloatArray:
        """Gradient of ½·l2·‖θ‖² without the biases."""
        return l2 * np.where(self._penalized, self.weights, 0.0)

    def arrays(self) -> dict[str, FloatArray]:
        """The parts of θ by name, in their shapes."""
        found, flat, end = {}, self.weights[:, 0], 0
        for (name, shape), size in zip(self._shapes.items(), self._sizes, strict=True):
            start, end = end, end + size
            found[name] = flat[start:end].reshape(shape)
        return found

    def spread(self, inputs: Matrix) -> bool:
        """Scale the last layer to std(H) = 1 over the rows; False if all predictions are the same.

        They are if features do not vary or units are saturated.
        """
        predictions = self.predict(inputs)
        deviation = float(np.std(predictions, axis=0).mean())
        if deviation <= LEAST_SPREAD * np.abs(predictions).max():
            return False
        layers = [name.rpartition(".")[0] for name in self._shapes]
        factors = np.where([layer == layers[-1] for layer in layers], 1 / deviation, 1.0)
        self.weights = self.weights * np.repeat(factors, self._sizes)[:, None]
        return True


@dataclass(frozen=True)
class _Pass:
    """What backpropagation needs of a forward pass: weights, inputs and slopes by layer, and H."""

    weights: list[FloatArray]
    inputs: list[Matrix]
    slopes: list[FloatArray | None]
    predictions: FloatArray


class Multilayer(NetworkModel):
    """One party's mlp on sparse rows: H = a(…a(XW₁ + b₁)…)W + b, from a saved state.

    A layer's weights in θ have the shape (inputs, outputs), its biases (outputs,). A network that
    represents ends with an activation.
    """

    def __init__(self, network: Network, state: StateDict) -> None:
        arrays: dict[str, FloatArray] = {}
        for place in range(0, 2 * len(network.hidden) + 1, 2):
            arrays[f"{place}.weight"] = state[f"{place}.weight"].T
            arrays[f"{place}.bias"] = state[f"{place}.bias"]
        super().__init__(arrays)
        self._activation, self._represents = ACTIVATIONS[network.activation], network.represents

    @override
    def predict(self, inputs: Matrix) -> FloatArray:
        if not isinstance(inputs, SparseRows):
            return self._forward(inputs).predictions
        blocks = [self._forward(block).predictions for _, block in inputs.blocks()]
        return np.concatenate(blocks)

    def linearize(self, inputs: Matrix) -> tuple[FloatArray, PullBack]:
        """H at θ, and d ↦ Σ_s J_sᵀd_s, shape (p, 1)."""
        run = self._forward(inputs)

        def pull_back(residuals: FloatArray) -> FloatArray:
            parts = [
                part.ravel()
                for given, change in self._back(run, residuals)
                for part in (given.T @ change, change.sum(axis=0))
            ]
            return np.concatenate(parts)[:, None]

        return run.predictions, pull_back

    def tangent(self, inputs: Matrix) -> Callable[[], FloatArray]:
        """The Jacobian at the current weights, shape (S·C, p), row by row."""
        run = self._forward(inputs)

        @cache
        def jacobian() -> FloatArray:
            rows, outputs = run.predictions.shape
            found: FloatArray = np.empty((rows, outputs, len(self.weights)))
            for output in range(outputs):
                one = np.zeros((rows, outputs))
                one[:, output] = 1.0
                found[:, output] = np.hstack(
                    [
                        part.reshape(rows, -1)
                        for given, change in self._back(run, one)
                        for part in (np.einsum("si,sj->sij", dense(given), change), change)
                    ]
                )
            return found.reshape(rows * outputs, -1)

        return jacobian

    def state(self) -> StateDict:
        """Weights and biases as torch's layers have them."""
        return {name: each.T.copy() for name, each in self.arrays().items()}

    def _forward(self, inputs: Matrix) -> _Pass:
        given: list[Matrix] = []
        slopes: list[FloatArray | None] = []
        values: Matrix = inputs
        arrays = list(self.arrays().values())
        all_weights, all_biases = arrays[::2], arrays[1::2]
        for weights, biases in zip(all_weights, all_biases, strict=True):
            given.append(values)
            values = values @ weights + biases
            slope = None
            if len(given) < len(all_weights) or self._represents:
                values, slope = self._activation(values)
            slopes.append(slope)
        return _Pass(all_weights, given, slopes, dense(values))

    def _back(self, run: _Pass, residuals: FloatArray) -> list[tuple[Matrix, FloatArray]]:
        """Each layer's inputs, and the gradient with respect to its output before activation."""
        changes: list[FloatArray] = []
        change = residuals
        for weights, slope in zip(reversed(run.weights), reversed(run.slopes), strict=True):
            change = change if slope is None else slope * change
            changes.append(change)
            if len(changes) < len(run.weights):
                change = change @ weights.T
        return list(zip(run.inputs, reversed(changes), strict=True))


def multilayer_start(
    network: Network,
    features: SparseRows,
    outputs: int,
    generator: np.random.Generator,
    *,
    data_independent: bool = False,
) -> Multilayer:
    """A private random θ⁰ with std(H⁰) = 1 over the rows, or independent of the data."""
    model = Multilayer(network, layers_start(features.shape[1], network.hidden, outputs, generator))
    if not data_independent:
        model.spread(features)
    return model


def layers_start(
    columns: int, hidden: Sequence[int], outputs: int, generator: np.random.Generator
) -> StateDict:
    """Random weights and biases of all layers of an mlp.

    Names and shapes are torch's, (outputs, inputs) for a layer's weights; values are uniform within
    ±1/√(a layer's inputs), like the default start of torch's linear layers.
    """
    state = {}
    for place, (before, after) in enumerate(pairwise((columns, *hidden, outputs))):
        bound = 1 / np.sqrt(before)
        numbers = generator.uniform(-bound, bound, (before + 1, after))
        state[f"{2 * place}.weight"] = numbers[:-1].T
        state[f"{2 * place}.bias"] = numbers[-1]
    return state
