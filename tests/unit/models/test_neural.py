from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import nn
from typing_extensions import override

from securevfl import job
from securevfl.errors import ConfigError, DataError
from securevfl.models import local_model
from securevfl.models.local_model import MakeModule
from securevfl.models.neural import ACTIVATIONS, NeuralModel, loaded_network, mlp, neural_start

ROWS = np.random.default_rng(1).standard_normal((40, 6))


def started(seed: int = 0, outputs: int = 1, make: MakeModule | None = None) -> NeuralModel:
    return neural_start(make or mlp((5, 4), "tanh"), ROWS, outputs, np.random.default_rng(seed))


def test_activations_are_named_alike_everywhere() -> None:
    assert set(get_args(job.Activation)) == set(get_args(local_model.Activation))
    assert set(get_args(job.Activation)) == set(ACTIVATIONS)


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_an_mlp_is_dense_layers_with_activations_between(activation: str) -> None:
    module = mlp((5, 4), activation)(6, 3)
    kinds = [nn.Linear, ACTIVATIONS[activation], nn.Linear, ACTIVATIONS[activation], nn.Linear]
    assert [type(layer) for layer in module.children()] == kinds
    assert NeuralModel(module).weights.shape == (6 * 5 + 5 + 5 * 4 + 4 + 4 * 3 + 3, 1)


@pytest.mark.parametrize("outputs", [1, 3])
def test_a_start_spreads_predictions_by_one(outputs: int) -> None:
    spread = np.std(started(outputs=outputs).predict(ROWS), axis=0)
    assert spread.shape == (outputs,)
    assert spread.mean() == pytest.approx(1)


def test_a_start_is_the_generators_and_leaves_torchs_alone() -> None:
    before = torch.get_rng_state()
    first, same, other = started(0), started(0), started(1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(7)
    assert np.array_equal(first.weights, started(0).weights)
    assert np.array_equal(first.weights, same.weights)
    assert not np.array_equal(first.weights, other.weights)


def test_a_start_has_more_than_the_32_bits_of_torchs_own_seeds() -> None:
    """Two generators that agree in the first word, which is all that a seed sets."""

    class Words(np.random.Generator):
        def __init__(self, last: int) -> None:
            super().__init__(np.random.PCG64(0))
            self._last = last

        @override
        def integers(self, *bounds: Any, **settings: Any) -> Any:
            assert bounds[:3] == (0, 1 << 32, 624)  # of the Mersenne twister, each whole
            words = np.random.default_rng(5).integers(*bounds, **settings)
            words[-1] = self._last
            return words

    make = mlp((64,), "relu")
    wide = np.random.default_rng(2).standard_normal((40, 67))
    one, two = (neural_start(make, wide, 1, Words(last)) for last in (1, 2**32 - 1))
    assert not np.array_equal(one.weights, two.weights)


@pytest.mark.parametrize("outputs", [1, 3])
def test_the_jacobian_is_the_derivative_of_every_prediction(outputs: int) -> None:
    model = started(outputs=outputs)
    jacobian = model.tangent(ROWS)()
    assert jacobian.shape == (40 * outputs, model.weights.size)
    start, step = model.weights, 1e-6
    for index in range(0, start.size, 7):
        move = np.zeros_like(start)
        move[index] = step
        ends = []
        for sign in (1, -1):
            model.weights = start + sign * move
            ends.append(model.predict(ROWS))
        numeric = (ends[0] - ends[1]).ravel() / (2 * step)
        assert np.allclose(jacobian[:, index], numeric, rtol=0, atol=1e-8)


@pytest.mark.parametrize("outputs", [1, 3])
def test_pulling_back_is_the_jacobian_transposed(outputs: int) -> None:
    model = started(outputs=outputs)
    residuals = np.random.default_rng(3).standard_normal((40, outputs))
    predictions, pull_back = model.linearize(ROWS)
    assert np.array_equal(predictions, model.predict(ROWS))
    expected = model.tangent(ROWS)().T @ residuals.reshape(-1, 1)
    assert np.allclose(pull_back(residuals), expected, rtol=0, atol=1e-12)


def test_a_jacobian_in_pieces_is_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = started(outputs=3).tangent(ROWS)()
    monkeypatch.setattr("securevfl.models.neural.JACOBIAN_ROWS", 7)
    assert np.allclose(started(outputs=3).tangent(ROWS)(), whole, rtol=0, atol=1e-12)


def test_a_tangent_stays_at_the_weights_it_was_taken_at() -> None:
    model = started()
    tangent = model.tangent(ROWS)
    expected = started().tangent(ROWS)()
    model.weights = model.weights + 1
    assert np.array_equal(tangent(), expected)
    assert tangent() is tangent()


def test_the_penalty_leaves_biases_alone() -> None:
    model = NeuralModel(mlp((2,), "relu")(3, 1))
    penalized = model.penalty_gradient(0.5) / (0.5 * model.weights)
    assert penalized.ravel().tolist() == [1] * 6 + [0] * 2 + [1] * 2 + [0]


def test_parameters_that_need_no_gradient_stay() -> None:
    def make(features: int, outputs: int) -> nn.Module:
        module = mlp((4,), "tanh")(features, outputs)
        module.get_parameter("0.weight").requires_grad_(False)
        return module

    model = started(make=make)
    assert model.weights.shape == (4 + 4 + 1, 1)
    assert model.tangent(ROWS)().shape == (40, 9)
    assert list(model.state()) == ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_a_network_comes_back_from_its_state() -> None:
    model = started(outputs=2)
    model.weights = model.weights * 1.5
    back = loaded_network(mlp((5, 4), "tanh"), 6, 2, model.state())
    assert np.array_equal(back.weights, model.weights)
    assert np.array_equal(back.predict(ROWS), model.predict(ROWS))


def test_the_state_of_another_module_is_refused() -> None:
    with pytest.raises(DataError, match=r"does not fit its module: .*size mismatch"):
        loaded_network(mlp((5, 3), "tanh"), 6, 1, started().state())


class Fixed(nn.Module):
    """A linear layer whose predictions are brought to the same size again."""

    def __init__(self, features: int, outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(features, outputs)

    @override
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        predictions: torch.Tensor = torch.tanh(self.layer(inputs))
        return predictions


class Centred(Fixed):
    @override
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        predictions: torch.Tensor = self.layer(inputs)
        return predictions - predictions.mean(dim=0)


@pytest.mark.parametrize(
    ("make", "separates"),
    [
        (lambda f, c: nn.Sequential(nn.Linear(f, c), nn.Dropout()), "are random or depend"),
        (lambda f, c: nn.Sequential(nn.BatchNorm1d(f), nn.Linear(f, c)), "are random or depend"),
        (Centred, "are random or depend on other rows"),
        (lambda f, c: nn.Linear(f, c + 1), r"predictions \(4, 2\) .* expected \(4, 1\)"),
        (lambda f, c: nn.Linear(f + 1, c), r"the module fails on features \(4, 6\)"),
        (Fixed, "end it with a linear layer"),
    ],
    ids=["dropout", "batch norm", "rows that mix", "outputs", "features", "bounded"],
)
def test_a_module_that_does_not_fit_is_reported(make: MakeModule, separates: str) -> None:
    with pytest.raises(ConfigError, match=separates):
        started(make=make)
