"""The interface of a party's local model H_k = h_k(X_k; θ_k), linear or not."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, Protocol

from numpy.typing import NDArray
from pydantic import ConfigDict

from securevfl.arrays import FloatArray
from securevfl.errors import ConfigError
from securevfl.sparse import Matrix

if TYPE_CHECKING:
    import torch

PullBack = Callable[[FloatArray], FloatArray]
MakeModule = Callable[[int, int], "torch.nn.Module"]
"""Makes a network from the numbers of features F and outputs C."""
StateDict = Mapping[str, NDArray[Any]]
Activation = Literal["relu", "tanh", "sigmoid", "gelu", "silu"]
Precision = Literal["double", "single"]
KERNEL = 3
"""Side of a cnn's convolutions."""


@dataclass(frozen=True)
class Network:
    """The architecture of a party's network.

    Attributes:
        kind: mlp, cnn, custom for a user's module, or dense: a single layer of units.
        hidden: units of each hidden layer of an mlp, of a cnn's dense layers, or of the layer.
        activation: between the layers, or of the layer's units.
        channels: of each 3 x 3 convolution of a cnn, without padding.
        image_width: pixels per row of a cnn's image; its columns are row after row.
        represents: whether its output goes to a head, so that an activation follows the last layer.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    kind: Literal["mlp", "cnn", "custom", "dense"]
    hidden: tuple[int, ...] = ()
    activation: Activation = "relu"
    channels: tuple[int, ...] = ()
    image_width: int = 0
    precision: Precision = "double"
    represents: bool = False


def require_torch(what: str = "networks") -> None:
    """A ConfigError if torch is not installed; does not import it."""
    if find_spec("torch") is None:
        raise ConfigError(f"{what} need torch: pip install 'securevfl[networks]'")


def pixels_left(columns: int, image_width: int, convolutions: int) -> int:
    """Pixels of a feature map after this many convolutions; 0 if columns are no such image."""
    if image_width < 1 or columns % image_width:
        return 0
    lost = (KERNEL - 1) * convolutions
    sides = columns // image_width - lost, image_width - lost
    return sides[0] * sides[1] if min(sides) > 0 else 0


class LocalModel(Protocol):
    """One party's part of a model.

    Attributes:
        weights: θ_k: shape (P, C) of a linear model, (p, 1) of a network. Steps replace the
            array and never change it in place.
        is_linear: whether ∂H/∂θ is X for every θ.
        intercept: whether the inputs end with a constant column.
    """

    weights: FloatArray
    is_linear: bool
    intercept: bool

    def inputs(self, features: Matrix) -> Matrix:
        """Features of shape (S, F) in the form that the model expects."""

    def predict(self, inputs: Matrix) -> FloatArray:
        """Local predictions H_k, shape (S, C)."""

    def linearize(self, inputs: Matrix) -> tuple[FloatArray, PullBack]:
        """H at θ, and d ↦ Σ_s (∂H_s/∂θ)ᵀd_s for d of shape (S, C), in the shape of θ."""

    def tangent(self, inputs: Matrix) -> Callable[[], Matrix]:
        """J in H(θ) ≈ H⁰ + J(θ − θ⁰), with θ⁰ the current weights; computed on the first call.

        X for a linear model, shape (S, P); the Jacobian of a network, shape (S·C, p).
        """

    def state(self) -> StateDict | None:
        """A network's state dict at θ; None for a linear model."""

    def penalty_gradient(self, l2: float) -> FloatArray:
        """Gradient of ½·l2·‖θ‖² without intercepts and biases, in the shape of θ."""
