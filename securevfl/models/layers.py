"""Layers in numpy: one dense layer as a local model, and an mlp on sparse rows.

The mlp's first layer multiplies stored cells only. Its numbers, their names and their shapes in a
model file are those of `models.neural`'s mlp, so that either reads what the other wrote.
"""

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
    # By way of tanh nothing overflows.
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
"""Each gives a(x) and a′(x)."""


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


@dataclass(frozen=True)
class _Pass:
    """What a pass back needs of one forward: inputs and slopes of every layer, and H."""

    inputs: list[Matrix]
    slopes: list[FloatArray | None]
    predictions: FloatArray


class Multilayer:
    """One party's mlp on sparse rows: H = a(…a(XW₁ + b₁)…)W + b.

    θ has every layer's weights and biases one after another, shape (p, 1); those of a layer have
    the shapes (before, after) and (after,). A network that represents ends with an activation.
    """

    intercept = False
    is_linear = False

    def __init__(
        self,
        layers: Sequence[tuple[FloatArray, FloatArray]],
        activation: str,
        *,
        represents: bool = False,
    ) -> None:
        self._shapes = [weights.shape for weights, _ in layers]
        self._activation, self._represents = ACTIVATIONS[activation], represents
        flat = [each.ravel() for layer in layers for each in layer]
        self.weights: FloatArray = np.concatenate(flat)[:, None]
        are_biases = [np.full(each.size, each.ndim == 1) for layer in layers for each in layer]
        self._are_biases = np.concatenate(are_biases)[:, None]

    @classmethod
    def of_state(cls, network: Network, state: StateDict) -> "Multilayer":
        """A network as it was saved."""
        places = range(0, 2 * len(network.hidden) + 1, 2)
        layers = [(state[f"{place}.weight"].T, state[f"{place}.bias"]) for place in places]
        return cls(layers, network.activation, represents=network.represents)

    def inputs(self, features: Matrix) -> Matrix:
        """The features."""
        return features

    def predict(self, inputs: Matrix) -> FloatArray:
        """Local predictions H_k, shape (S, C)."""
        if not isinstance(inputs, SparseRows):
            return self._forward(inputs).predictions
        blocks = [self._forward(block).predictions for _, block in inputs.blocks()]
        return np.concatenate(blocks)

    def linearize(self, inputs: Matrix) -> tuple[FloatArray, PullBack]:
        """H at θ, and d ↦ Σ_s J_sᵀd_s, shape (p, 1)."""
        layers, run = self._layers(), self._forward(inputs)

        def pull_back(residuals: FloatArray) -> FloatArray:
            parts = [
                part.ravel()
                for given, change in self._back(layers, run, residuals)
                for part in (given.T @ change, change.sum(axis=0))
            ]
            return np.concatenate(parts)[:, None]

        return run.predictions, pull_back

    def tangent(self, inputs: Matrix) -> Callable[[], FloatArray]:
        """The Jacobian at the weights now, shape (S·C, p): the outputs of a row stay together."""
        layers, run = self._layers(), self._forward(inputs)

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
                        for given, change in self._back(layers, run, one)
                        for part in (np.einsum("si,sj->sij", dense(given), change), change)
                    ]
                )
            return found.reshape(rows * outputs, -1)

        return jacobian

    def state(self) -> StateDict:
        """Weights and biases as torch's layers have them."""
        named = {}
        for place, (weights, biases) in enumerate(self._layers()):
            named[f"{2 * place}.weight"] = np.ascontiguousarray(weights.T)
            named[f"{2 * place}.bias"] = biases.copy()
        return named

    def penalty_gradient(self, l2: float) -> FloatArray:
        """Gradient of ½·l2·‖θ‖² without the biases."""
        gradient: FloatArray = l2 * np.where(self._are_biases, 0.0, self.weights)
        return gradient

    def scale_last_layer(self, factor: float) -> None:
        """Multiply its weights and biases."""
        before, after = self._shapes[-1]
        weights = self.weights.copy()
        weights[-(before + 1) * after :] *= factor
        self.weights = weights

    def _layers(self) -> list[tuple[FloatArray, FloatArray]]:
        layers, rest = [], self.weights[:, 0]
        for before, after in self._shapes:
            weights, biases, rest = np.split(rest, [before * after, (before + 1) * after])
            layers.append((weights.reshape(before, after), biases))
        return layers

    def _forward(self, inputs: Matrix) -> _Pass:
        given: list[Matrix] = []
        slopes: list[FloatArray | None] = []
        values: Matrix = inputs
        for weights, biases in self._layers():
            given.append(values)
            values = values @ weights + biases
            slope = None
            if len(given) < len(self._shapes) or self._represents:
                values, slope = self._activation(values)
            slopes.append(slope)
        return _Pass(given, slopes, dense(values))

    def _back(
        self, layers: list[tuple[FloatArray, FloatArray]], run: _Pass, residuals: FloatArray
    ) -> list[tuple[Matrix, FloatArray]]:
        """Of every layer what it took, and the change of the loss with what it gave before a."""
        changes: list[FloatArray] = []
        change = residuals
        for place in reversed(range(len(layers))):
            slope = run.slopes[place]
            change = change if slope is None else slope * change
            changes.append(change)
            if place:
                change = change @ layers[place][0].T
        return list(zip(run.inputs, reversed(changes), strict=True))


def multilayer_start(
    network: Network,
    features: SparseRows,
    outputs: int,
    generator: np.random.Generator,
    *,
    whatever_the_rows: bool = False,
) -> Multilayer:
    """A private random θ⁰ with std(H⁰) = 1 over the rows, or that depends on no row."""
    state = layers_start(features.shape[1], network.hidden, outputs, generator)
    model = Multilayer.of_state(network, state)
    if whatever_the_rows:
        return model
    predictions = model.predict(features)
    spread = float(np.std(predictions, axis=0).mean())
    # Features without variation cannot be spread, nor can saturated units.
    if spread > LEAST_SPREAD * np.abs(predictions).max():
        model.scale_last_layer(1 / spread)
    return model


def layers_start(
    columns: int, hidden: Sequence[int], outputs: int, generator: np.random.Generator
) -> StateDict:
    """Random weights and biases of all layers of an mlp, whatever computes it.

    They have the names and shapes that torch gives them, (outputs, inputs) of a layer's weights,
    and are uniform within ±1/√(a layer's inputs), as torch's linear layers begin.
    """
    state = {}
    for place, (before, after) in enumerate(pairwise((columns, *hidden, outputs))):
        bound = 1 / np.sqrt(before)
        numbers = generator.uniform(-bound, bound, (before + 1, after))
        state[f"{2 * place}.weight"] = numbers[:-1].T
        state[f"{2 * place}.bias"] = numbers[-1]
    return state
