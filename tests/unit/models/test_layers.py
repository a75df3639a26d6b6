from typing import Any, get_args

import numpy as np
import pytest
import torch

from securevfl.models.layers import (
    ACTIVATIONS,
    LARGEST_SLOPE,
    DenseLayer,
    Multilayer,
    dense_start,
    multilayer_start,
)
from securevfl.models.local_model import Activation, Network
from securevfl.models.neural import NeuralModel, mlp
from tests.sparse_data import sparse_rows

TORCH: dict[str, Any] = {"tanh": torch.tanh, "sigmoid": torch.sigmoid, "relu": torch.relu}


@pytest.mark.parametrize("activation", ["tanh", "sigmoid", "relu"])
def test_units_and_derivatives_are_those_of_torch(
    generator: np.random.Generator, activation: Activation
) -> None:
    model = DenseLayer(generator.standard_normal((4, 3)), activation=activation)
    inputs, residuals = (generator.standard_normal((6, n)) for n in (4, 3))

    def units(weights: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = TORCH[activation](torch.tensor(inputs) @ weights)
        return found

    weights = torch.tensor(model.weights)
    predictions, pull_back = model.linearize(inputs)
    np.testing.assert_allclose(predictions, units(weights).numpy(), atol=1e-14)
    found = torch.autograd.functional.jacobian(units, weights)  # type: ignore[no-untyped-call]
    jacobian = found.reshape(18, 12).numpy()
    np.testing.assert_allclose(model.tangent(inputs)(), jacobian, atol=1e-14)
    expected = (jacobian.T @ residuals.ravel()).reshape(4, 3)
    np.testing.assert_allclose(pull_back(residuals), expected, atol=1e-13)


@pytest.mark.parametrize("activation", ["tanh", "sigmoid", "relu"])
def test_no_slope_is_beyond_the_largest(activation: Activation) -> None:
    model = DenseLayer(np.ones((1, 1)), activation=activation)
    units, slopes = model.with_slopes(np.linspace(-800, 800, 4001)[:, None])
    assert np.isfinite(units).all()
    assert slopes.min() >= 0
    assert slopes.max() == pytest.approx(LARGEST_SLOPE[activation], abs=1e-12)


def test_a_start_depends_on_no_row_and_has_no_biases(generator: np.random.Generator) -> None:
    first, second = (
        dense_start(features, 64, "tanh", np.random.default_rng(3))
        for features in generator.standard_normal((2, 5, 16))
    )
    np.testing.assert_array_equal(first.weights, second.weights)
    assert first.weights.shape == (17, 64)
    assert (first.weights[-1] == 0).all()
    assert first.weights[:-1].std() == pytest.approx(1 / 4, rel=0.1)
    assert (first.penalty_gradient(1.0)[-1] == 0).all()


GENERATOR = np.random.default_rng(4)
TABLE = np.where(GENERATOR.random((30, 6)) < 0.4, GENERATOR.standard_normal((30, 6)), 0.0)
ROWS = sparse_rows(TABLE).standardized(np.full(6, 0.3), np.full(6, 0.7))
SCALED = ROWS.toarray()


def twins(activation: Activation, *, represents: bool = False) -> tuple[Multilayer, NeuralModel]:
    network = Network("mlp", (5, 4), activation, represents=represents)
    theirs = NeuralModel(mlp((5, 4), activation, represents=represents)(6, 2))
    return Multilayer(network, theirs.state()), theirs


def in_torch_order(ours: Multilayer, gradient: np.ndarray) -> np.ndarray:
    weights, ours.weights = ours.weights, gradient
    parts = [each.ravel() for each in ours.state().values()]
    ours.weights = weights
    return np.concatenate(parts)[:, None]


def test_every_activation_is_there() -> None:
    assert set(ACTIVATIONS) == set(get_args(Activation))


@pytest.mark.parametrize("activation", get_args(Activation))
@pytest.mark.parametrize("represents", [False, True])
def test_predictions_and_gradients_are_those_of_torch(
    activation: Activation, represents: bool
) -> None:
    ours, theirs = twins(activation, represents=represents)
    np.testing.assert_allclose(ours.predict(ROWS), theirs.predict(SCALED), rtol=0, atol=1e-12)
    predictions, pull_back = ours.linearize(ROWS)
    np.testing.assert_allclose(predictions, theirs.predict(SCALED), rtol=0, atol=1e-12)
    residuals = np.random.default_rng(0).standard_normal((30, 2))
    _, theirs_back = theirs.linearize(SCALED)
    gradient = in_torch_order(ours, pull_back(residuals))
    np.testing.assert_allclose(gradient, theirs_back(residuals), rtol=0, atol=1e-12)
    jacobian = ours.tangent(ROWS)()
    np.testing.assert_allclose(
        jacobian.T @ residuals.reshape(-1, 1), pull_back(residuals), rtol=0, atol=1e-12
    )
    penalty = in_torch_order(ours, ours.penalty_gradient(0.1))
    np.testing.assert_allclose(penalty, theirs.penalty_gradient(0.1), rtol=0, atol=1e-12)


def test_a_state_is_read_back_as_it_was() -> None:
    ours, theirs = twins("tanh")
    state = ours.state()
    assert {name: each.shape for name, each in state.items()} == {
        name: each.shape for name, each in theirs.state().items()
    }
    again = Multilayer(Network("mlp", (5, 4), "tanh"), state)
    assert np.array_equal(again.weights, ours.weights)


def test_a_start_spreads_predictions_by_one_or_depends_on_no_row() -> None:
    network = Network("mlp", (5,), "relu")
    model = multilayer_start(network, ROWS, 1, np.random.default_rng(0))
    assert np.std(model.predict(ROWS)) == pytest.approx(1)
    starts = [
        multilayer_start(network, rows, 1, np.random.default_rng(0), data_independent=True)
        for rows in (ROWS, ROWS[:4])
    ]
    assert np.array_equal(starts[0].weights, starts[1].weights)


def test_weights_are_replaced_never_changed_in_place() -> None:
    ours, _ = twins("relu")
    before = ours.weights
    kept = before.copy()
    ours.spread(ROWS)
    assert np.array_equal(before, kept)
    assert np.array_equal(ours.weights[:-10], kept[:-10])
    ratios = ours.weights[-10:] / kept[-10:]  # of the last layer: 4 x 2, and 2 biases
    assert ratios == pytest.approx(ratios[0, 0])
    assert ratios[0, 0] != 1
