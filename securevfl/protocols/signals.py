"""What an exchange hands a party in a round, and the local steps that follow from it.

For loss f with f″ ≤ c (`curvature`), a party at θ⁰ with predictions H⁰ steps with

- `ResidualSignal` d⁰: d(θ) = d⁰ + c·(H(θ) − H⁰), gradient Xᵀd/S;
- `GradientSignal` G⁰ = Xᵀd⁰/S: G(θ) = G⁰ + (c/S)·XᵀX(θ − θ⁰), the same for a linear model;
- `PredictionsSignal` (label party): its exact loss at ΣH of the others plus its own fresh H(θ).

c = 0 freezes the residual, as common implementations do (`local_rule = "frozen"`).
Source: design protocols.md section 1; the FedBCD-p update of Liu et al. 2019, Algorithm 1.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from securevfl.errors import TrainingDiverged
from securevfl.models.linear import LinearModel
from securevfl.models.losses import Loss

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Block:
    """One party's side of an exchange, as its local steps start from it.

    Attributes:
        inputs: X of the batch, shape (S, P).
        weights: θ⁰, shape (P, C).
        predictions: H⁰ = Xθ⁰, shape (S, C).
        loss: f.
        curvature: c, or 0 under the frozen rule.
    """

    inputs: FloatArray
    weights: FloatArray
    predictions: FloatArray
    loss: Loss
    curvature: float


@dataclass(frozen=True)
class ResidualSignal:
    """d⁰, shape (S, C)."""

    residuals: FloatArray

    def gradient(self, block: Block, weights: FloatArray) -> FloatArray:
        """Xᵀ(d⁰ + c·(Xθ − H⁰))/S."""
        moved = block.inputs @ weights - block.predictions
        residuals = self.residuals + block.curvature * moved
        return block.inputs.T @ residuals / len(block.inputs)


@dataclass(frozen=True)
class GradientSignal:
    """G⁰ = Xᵀd⁰/S, shape (P, C)."""

    value: FloatArray

    def gradient(self, block: Block, weights: FloatArray) -> FloatArray:
        """G⁰ + (c/S)·XᵀX(θ − θ⁰)."""
        moved = block.inputs.T @ (block.inputs @ (weights - block.weights))
        return self.value + block.curvature / len(block.inputs) * moved


@dataclass(frozen=True)
class PredictionsSignal:
    """The other parties' summed predictions with the labels, shapes (S, C) and (S,)."""

    others: FloatArray
    labels: IntArray

    def gradient(self, block: Block, weights: FloatArray) -> FloatArray:
        """Xᵀf′(ΣH, y)/S with the party's own fresh predictions: exact, no majorizer."""
        residuals = block.loss.residuals(self.others + block.inputs @ weights, self.labels)
        return block.inputs.T @ residuals / len(block.inputs)


Signal = ResidualSignal | GradientSignal | PredictionsSignal


@dataclass(frozen=True)
class LocalRule:
    """How a party steps between two exchanges.

    Attributes:
        loss: f.
        local_steps: Q.
        l2: λ of ½λ‖θ‖².
        proximal: μ of ½μ‖θ − θ⁰‖² (FedPBCD; 0 is off).
        frozen: leave the residual as it was exchanged (c = 0).
    """

    loss: Loss
    local_steps: int
    l2: float = 0.0
    proximal: float = 0.0
    frozen: bool = False

    def apply(
        self,
        model: LinearModel,
        inputs: FloatArray,
        *,
        predictions: FloatArray,
        signal: Signal,
        step_size: float,
    ) -> None:
        """Take Q gradient steps in place from the exchanged signal.

        Args:
            model: the party's model at θ⁰.
            inputs: X, shape (S, P).
            predictions: H⁰ = Xθ⁰, shape (S, C), as it was exchanged.
            signal: what the exchange gave.
            step_size: η of this round.

        Raises:
            TrainingDiverged: the new weights are not finite.
        """
        start = model.weights
        curvature = 0.0 if self.frozen else self.loss.curvature
        block = Block(inputs, start, predictions, self.loss, curvature)
        with np.errstate(over="ignore", invalid="ignore"):
            for _ in range(self.local_steps):
                step = signal.gradient(block, model.weights) + model.penalty_gradient(self.l2)
                step += self.proximal * (model.weights - start)
                model.weights = model.weights - step_size * step
        if not np.isfinite(model.weights).all():
            raise TrainingDiverged(
                f"training diverged at learning rate {step_size:g}: use a smaller one"
            )
