"""One dense layer as a local model, against torch's."""

from typing import Any

import numpy as np
import pytest
import torch

from securevfl.models.layers import LARGEST_SLOPE, DenseLayer, dense_start
from securevfl.models.local_model import Activation

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
