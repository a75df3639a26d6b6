"""Neural local models: any `torch.nn.Module` from rows of features to rows of predictions.

A network is a function of one row at a time and of its parameters, which are kept outside the
module as one vector θ of shape (p, 1), in the order of `named_parameters`. θ and all outputs are
float64; computations use float64, or float32 on request, on the GPU if there is one. Only this
module and `flat_module` need torch, and it is imported only for networks.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import pairwise

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, jacrev, vmap
from typing_extensions import override

from securevfl.arrays import FloatArray
from securevfl.errors import ConfigError, DataError
from securevfl.models.layers import NetworkModel, layers_start
from securevfl.models.local_model import (
    KERNEL,
    MakeModule,
    Network,
    Precision,
    PullBack,
    StateDict,
    pixels_left,
)
from securevfl.shown import first_line
from securevfl.sparse import Matrix, dense

ACTIVATIONS: Mapping[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
}
DTYPES: Mapping[Precision, torch.dtype] = {"double": torch.float64, "single": torch.float32}
JACOBIAN_ROWS = 512
# Feature maps of all rows at once could fill memory.
PREDICTED_ROWS = 256
_CHECKED_ROWS = 4
# Words of the Mersenne twister in the state of torch's generator (CPUGeneratorImplStateLegacy).
_TWISTER = slice(3, 627)


def mlp(hidden: Sequence[int], activation: str, *, represents: bool = False) -> MakeModule:
    """Dense layers with biases and an activation after each but the last, or after all."""

    def make(features: int, outputs: int) -> nn.Module:
        return nn.Sequential(*_dense([features, *hidden, outputs], activation, represents))

    return make


def cnn(
    image_width: int,
    channels: Sequence[int],
    hidden: Sequence[int],
    activation: str,
    *,
    represents: bool = False,
) -> MakeModule:
    """3 x 3 convolutions without padding or pooling, an activation after each, then an mlp.

    Source: the MNIST-CNN of Liu et al. 2019: two of 64 channels and a dense layer of 256.
    """

    def make(features: int, outputs: int) -> nn.Module:
        pixels = pixels_left(features, image_width, len(channels))
        if not pixels:
            raise ConfigError(
                f"model = 'cnn': {features} columns are not an image with rows of {image_width} "
                f"pixels that is large enough for {len(channels)} convolutions of "
                f"{KERNEL} x {KERNEL}"
            )
        layers: list[nn.Module] = [nn.Unflatten(1, (1, features // image_width, image_width))]
        for before, after in pairwise([1, *channels]):
            layers += [nn.Conv2d(before, after, KERNEL), ACTIVATIONS[activation]()]
        dense = _dense([channels[-1] * pixels, *hidden, outputs], activation, represents)
        return nn.Sequential(*layers, nn.Flatten(), *dense)

    return make


def _dense(sizes: Sequence[int], activation: str, ends_active: bool) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), ACTIVATIONS[activation]()]
    return layers if ends_active else layers[:-1]


def maker_of(network: Network, custom: MakeModule | None) -> MakeModule:
    """The function that makes a network's module; a ConfigError if a custom one is missing."""
    shape = network.hidden, network.activation
    if network.kind == "mlp":
        return mlp(*shape, represents=network.represents)
    if network.kind == "cnn":
        return cnn(network.image_width, network.channels, *shape, represents=network.represents)
    if custom is None:
        raise ConfigError("model = 'custom' needs a module from Python")
    return custom


class NeuralModel(NetworkModel):
    """One party's network.

    The module maps (S, F) to (S, C), row by row; it is taken over and used in evaluation mode.
    Parameters that require no gradient stay as they are.
    """

    def __init__(self, module: nn.Module, precision: Precision = "double") -> None:
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._dtype = DTYPES[precision]
        module = module.to(torch.float64)
        super().__init__(
            {name: _array(p) for name, p in module.named_parameters() if p.requires_grad}
        )
        self._module = module.to(self._device, self._dtype).eval().requires_grad_(False)

    @override
    def predict(self, inputs: Matrix) -> FloatArray:
        parameters = self._parameters(self.weights)
        pieces = self._pieces(inputs, PREDICTED_ROWS)
        return np.concatenate([_array(self._forward(parameters, piece)) for piece in pieces])

    def linearize(self, inputs: Matrix) -> tuple[FloatArray, PullBack]:
        """H at θ, and d ↦ Σ_s J_sᵀd_s, shape (p, 1), by one pass back through the network."""
        parameters = self._parameters(self.weights)
        for each in parameters.values():
            each.requires_grad_()
        predictions = self._forward(parameters, self._tensor(dense(inputs)))

        def pull_back(residuals: FloatArray) -> FloatArray:
            gradients = torch.autograd.grad(
                predictions,
                list(parameters.values()),
                self._tensor(residuals),
                allow_unused=True,
                materialize_grads=True,
            )
            return _array(torch.cat([each.reshape(-1) for each in gradients])[:, None])

        return _array(predictions), pull_back

    def tangent(self, inputs: Matrix) -> Callable[[], FloatArray]:
        """The Jacobian at the weights now, shape (S·C, p): the outputs of a row stay together."""
        weights = self.weights
        return cache(lambda: self._jacobian(weights, inputs))

    def state(self) -> StateDict:
        """The module's state dict at θ."""
        self._module.load_state_dict(self._parameters(self.weights), strict=False)
        state = {
            name: _array(each) if each.is_floating_point() else each.cpu().numpy()
            for name, each in self._module.state_dict().items()
        }
        # The parameters as they are kept, not as they are computed with.
        state |= self.arrays()
        return {name: each.copy() for name, each in state.items()}

    def _jacobian(self, weights: FloatArray, inputs: Matrix) -> FloatArray:
        def of_row(parameters: dict[str, torch.Tensor], row: torch.Tensor) -> torch.Tensor:
            return self._forward(parameters, row[None])[0]

        parameters = self._parameters(weights)
        of_rows = vmap(jacrev(of_row), (None, 0))
        pieces = []
        for rows in self._pieces(inputs, JACOBIAN_ROWS):
            found = of_rows(parameters, rows)
            # (rows, C, shape of the parameter) each
            flat = [found[name].flatten(2).flatten(0, 1) for name in self._shapes]
            pieces.append(_array(torch.cat(flat, dim=1)))
        return np.concatenate(pieces)

    def _forward(self, parameters: dict[str, torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
        predictions: torch.Tensor = functional_call(self._module, parameters, (inputs,))
        return predictions

    def _parameters(self, weights: FloatArray) -> dict[str, torch.Tensor]:
        flat = self._tensor(weights[:, 0])
        parts = zip(torch.split(flat, self._sizes), self._shapes.items(), strict=True)
        return {name: part.reshape(shape) for part, (name, shape) in parts}

    def _pieces(self, inputs: Matrix, rows: int) -> Iterator[torch.Tensor]:
        for first in range(0, len(inputs), rows):
            yield self._tensor(dense(inputs[first : first + rows]))

    def _tensor(self, values: FloatArray) -> torch.Tensor:
        return torch.tensor(values, dtype=self._dtype, device=self._device)


def neural_start(
    make: MakeModule,
    inputs: Matrix,
    outputs: int,
    generator: np.random.Generator,
    *,
    hidden: Sequence[int] | None = None,
    precision: Precision = "double",
    data_independent: bool = False,
) -> NeuralModel:
    """A private random θ⁰ with std(H⁰) = 1: the module's own start, with its last layer scaled.

    Torch's global generator is left unchanged. An mlp with given `hidden` layers starts like one on
    sparse rows. If `data_independent`, as end-to-end differential privacy requires, the module's
    own start is not scaled.

    Raises:
        ConfigError: a module that is not a function of single rows, or whose last layer does not
            scale its predictions.
    """
    columns = inputs.shape[1]
    if hidden is None:
        with _private_draws(generator):
            module = make(columns, outputs).to(torch.float64)
    else:
        state = layers_start(columns, hidden, outputs, generator)
        module = _loaded_module(make, columns, outputs, state)
    _require_function_of_rows(module, dense(inputs[:_CHECKED_ROWS]), outputs)
    model = NeuralModel(module, precision)
    if data_independent or not model.spread(inputs):
        return model
    if not np.isclose(np.std(model.predict(inputs), axis=0).mean(), 1):
        raise ConfigError(
            "the module's last layer does not scale its predictions, so they cannot start with a "
            "deviation of 1: end it with a linear layer"
        )
    return model


def loaded_network(
    make: MakeModule,
    features: int,
    outputs: int,
    state: StateDict,
    precision: Precision = "double",
) -> NeuralModel:
    """A network with a saved state; a DataError for the state of another module."""
    return NeuralModel(_loaded_module(make, features, outputs, state), precision)


def _loaded_module(make: MakeModule, features: int, outputs: int, state: StateDict) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        module = make(features, outputs).to(torch.float64)
    try:
        module.load_state_dict({name: torch.tensor(values) for name, values in state.items()})
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise DataError(f"a saved network does not fit its module: {reason}") from error
    return module


def _require_function_of_rows(module: nn.Module, rows: FloatArray, outputs: int) -> None:
    """Check that a module is deterministic and treats each row independently."""
    inputs = torch.tensor(rows, dtype=torch.float64)
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            in_training = copy.deepcopy(module).train()(inputs)
            together = module.eval()(inputs)
            alone = torch.cat([module(row[None]) for row in inputs])
    except RuntimeError as error:
        raise ConfigError(
            f"the module fails on features {tuple(inputs.shape)}: {first_line(error)}"
        ) from error
    if together.shape != (len(rows), outputs):
        raise ConfigError(
            f"the module gives predictions {tuple(together.shape)} for features "
            f"{tuple(inputs.shape)}, expected {(len(rows), outputs)}"
        )
    if not (torch.allclose(together, in_training) and torch.allclose(together, alone)):
        raise ConfigError(
            "the module's predictions of a row are random or depend on other rows: remove "
            "dropout and batch normalization"
        )


@contextmanager
def _private_draws(generator: np.random.Generator) -> Iterator[None]:
    """Make torch draw from the given generator, and restore its own afterwards.

    `manual_seed` takes only 32 bits: a start that can be guessed is not private.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        state = torch.get_rng_state().numpy()
        words = state.view(np.uint64)[_TWISTER]
        words[:] = generator.integers(0, 1 << 32, words.size, np.uint64)
        torch.set_rng_state(torch.from_numpy(state))
        yield


def _array(tensor: torch.Tensor) -> FloatArray:
    values: FloatArray = tensor.detach().cpu().to(torch.float64).numpy()
    return values
