"""What the algorithm asks of a party's local model H_k = h_k(X_k; θ_k), linear or not."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from numpy.typing import NDArray
from pydantic import ConfigDict

from securevfl.arrays import FloatArray

if TYPE_CHECKING:
    import torch

PullBack = Callable[[FloatArray], FloatArray]
MakeModule = Callable[[int, int], "torch.nn.Module"]
"""Makes a network from its numbers of features F and of outputs C."""
StateDict = Mapping[str, NDArray[Any]]
Activation = Literal["relu", "tanh", "sigmoid", "gelu", "silu"]


@dataclass(frozen=True)
class Network:
    """Which network a party trains.

    Attributes:
        kind: mlp, custom for a module that somebody wrote, or dense: one layer of units.
        hidden: units of each hidden layer of an mlp, or of the layer.
        activation: between the layers of an mlp, or of the layer's units.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    kind: Literal["mlp", "custom", "dense"]
    hidden: tuple[int, ...] = ()
    activation: Activation = "relu"


class LocalModel(Protocol):
    """One party's part of a model.

    Attributes:
        weights: θ_k: shape (P, C) of a linear model, (p, 1) of a network. Steps replace the
            array and never change it in place.
        is_linear: whether ∂H/∂θ is X whatever θ is.
        intercept: whether a constant column belongs to the inputs.
    """

    weights: FloatArray
    is_linear: bool
    intercept: bool

    def inputs(self, features: FloatArray) -> FloatArray:
        """Features of shape (S, F) as the model takes them."""

    def predict(self, inputs: FloatArray) -> FloatArray:
        """Local predictions H_k, shape (S, C)."""

    def linearize(self, inputs: FloatArray) -> tuple[FloatArray, PullBack]:
        """H at θ, and d ↦ Σ_s (∂H_s/∂θ)ᵀd_s for d of shape (S, C), in the shape of θ."""

    def tangent(self, inputs: FloatArray) -> Callable[[], FloatArray]:
        """J in H(θ) ≈ H⁰ + J(θ − θ⁰) with θ⁰ the weights now, computed when first called.

        X of a linear model, shape (S, P); the Jacobian of a network, shape (S·C, p).
        """

    def state(self) -> StateDict | None:
        """A network's state dict at θ; None where θ says all."""

    def penalty_gradient(self, l2: float) -> FloatArray:
        """Gradient of ½·l2·‖θ‖² without intercepts and biases, in the shape of θ."""
