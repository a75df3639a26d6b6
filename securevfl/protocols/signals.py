"""What an exchange hands a party in a round, and the local steps that follow from it.

For loss f with f″ ≤ c (`curvature`), a party at θ⁰ with predictions H⁰ steps with

- `ResidualSignal` d⁰: d(θ) = d⁰ + c·(H(θ) − H⁰), gradient J(θ)ᵀd(θ)/S;
- `GradientSignal` G⁰ = J⁰ᵀd⁰/S: G(θ) = G⁰ + (c/S)·J⁰ᵀJ⁰(θ − θ⁰);
- `PredictionsSignal`: the exact loss at ΣH of the others plus its own fresh H(θ), at the label
  party, and at all parties under `local_rule = "exact"`;
- under a head, `ThroughHeadSignal` d⁰, θ_k: the first for H(θ) = u_k(θ)·θ_k, and at the label party
  `BesideOthersSignal`: one of the others over its own columns and the others' u.

J is ∂H/∂θ: X of a linear model, for which the first two are the same; of a network they are at
θ⁰, and again everywhere under `local_rule = "gauss-newton"`, which takes H(θ) = H⁰ + J⁰(θ − θ⁰).
c = 0 freezes the residual, as common implementations do (`local_rule = "frozen"`).
Source: of Liu et al. 2019, equation (7) and Theorem 2 mean the exact rule, and equation (51) the
frozen one. The default is neither at feature parties, who are told less: a majorizer of (7) that
agrees with it in the first step (docs/decisions/0023-departures-from-fedbcd.md). For networks
docs/decisions/0007-local-steps-of-networks.md.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from securevfl.arrays import FloatArray, Labels
from securevfl.errors import TrainingDiverged
from securevfl.models.linear import soft_threshold
from securevfl.models.local_model import LocalModel
from securevfl.models.losses import Loss
from securevfl.sparse import Matrix


@dataclass(frozen=True)
class Block:
    """One party's side of an exchange, as its local steps start from it.

    Attributes:
        model: the local model; its weights θ move with the steps.
        inputs: X of the batch, shape (S, P).
        start: θ⁰.
        predictions: H⁰, shape (S, C).
        tangent: computes J⁰, shape (S·C, p), or X of a linear model.
        loss: f.
        curvature: c, or 0 under the frozen rule.
        linearized: step on H⁰ + J⁰(θ − θ⁰) in place of H(θ).
    """

    model: LocalModel
    inputs: Matrix
    start: FloatArray
    predictions: FloatArray
    tangent: Callable[[], Matrix]
    loss: Loss
    curvature: float
    linearized: bool


@dataclass(frozen=True)
class ResidualSignal:
    """d⁰, shape (S, C)."""

    residuals: FloatArray

    def gradient(self, block: Block) -> FloatArray:
        """J(θ)ᵀ(d⁰ + c·(H(θ) − H⁰))/S."""
        if block.linearized:
            matrix = block.tangent()
            moved = (matrix @ (block.model.weights - block.start)).reshape(self.residuals.shape)
            residuals = self.residuals + block.curvature * moved
            return matrix.T @ residuals.reshape(-1, 1) / len(block.inputs)
        predictions, pull_back = block.model.linearize(block.inputs)
        residuals = self.residuals + block.curvature * (predictions - block.predictions)
        return pull_back(residuals) / len(block.inputs)


@dataclass(frozen=True)
class GradientSignal:
    """G⁰ = J⁰ᵀd⁰/S, in the shape of θ."""

    value: FloatArray

    def gradient(self, block: Block) -> FloatArray:
        """G⁰ + (c/S)·J⁰ᵀJ⁰(θ − θ⁰)."""
        matrix = block.tangent()
        moved = matrix.T @ (matrix @ (block.model.weights - block.start))
        return self.value + block.curvature / len(block.inputs) * moved


@dataclass(frozen=True)
class PredictionsSignal:
    """The other parties' summed predictions with the labels, shapes (S, C) and (S,)."""

    others: FloatArray
    labels: Labels

    def gradient(self, block: Block) -> FloatArray:
        """J(θ)ᵀf′(ΣH, y)/S with the party's own fresh predictions: exact, no majorizer."""
        predictions, pull_back = block.model.linearize(block.inputs)
        residuals = block.loss.residuals(self.others + predictions, self.labels)
        return pull_back(residuals) / len(block.inputs)


@dataclass(frozen=True)
class ThroughHeadSignal:
    """d⁰, shape (S, C), and θ_k of the label party's head, shape (w, C)."""

    residuals: FloatArray
    head: FloatArray

    def gradient(self, block: Block) -> FloatArray:
        """J(θ)ᵀ(d⁰ + c·(u(θ) − u⁰)θ_k)θ_kᵀ/S, J of u."""
        representations, pull_back = block.model.linearize(block.inputs)
        moved = (representations - block.predictions) @ self.head
        residuals = self.residuals + block.curvature * moved
        return pull_back(residuals @ self.head.T) / len(block.inputs)


@dataclass(frozen=True)
class BesideOthersSignal:
    """A signal for a model of the party's inputs and the others' u, with H⁰ of both.

    Attributes:
        signal: without others' predictions: H is the model's own.
        others: their u side by side, shape (S, (K − 1)·w).
        predictions: H⁰, shape (S, C).
    """

    signal: ResidualSignal | PredictionsSignal
    others: FloatArray
    predictions: FloatArray

    def gradient(self, block: Block) -> FloatArray:
        """As the signal says, the others' u as they are."""
        inputs = np.hstack([block.inputs, self.others])
        return self.signal.gradient(replace(block, inputs=inputs, predictions=self.predictions))


Signal = (
    ResidualSignal | GradientSignal | PredictionsSignal | ThroughHeadSignal | BesideOthersSignal
)


@dataclass(frozen=True)
class LocalRule:
    """What a party does between two exchanges.

    The label party steps with the loss itself wherever it sees H. Feature parties step with a
    majorizer of it, with the first residual again and again (`frozen`, equation (51) of Liu et
    al.), or with the loss too (`own_loss`, their equation (7), which Theorem 2 is about).

    Attributes:
        loss: f.
        local_steps: Q; of no account for exact steps.
        l2: λ of ½λ‖θ‖².
        l1: λ₁ of λ₁‖θ‖₁: a soft threshold after every gradient step, for linear models.
        proximal: μ of ½μ‖θ − θ⁰‖² (FedPBCD; 0 is off).
        frozen: leave the residual as it was exchanged (c = 0).
        gauss_newton: step on a network's linearization from residuals too.
        own_loss: step with the loss itself at every party, which are told what it takes (plain).
        exact: take the minimum that local steps go towards (`local_steps`).
        accelerated: exchange at points extrapolated from the last two rounds.
    """

    loss: Loss
    local_steps: int
    l2: float = 0.0
    l1: float = 0.0
    proximal: float = 0.0
    frozen: bool = False
    gauss_newton: bool = False
    own_loss: bool = False
    exact: bool = False
    accelerated: bool = False

    @property
    def curvature(self) -> float:
        """c, or 0 under the frozen rule."""
        return 0.0 if self.frozen else self.loss.curvature

    def block(
        self,
        model: LocalModel,
        inputs: Matrix,
        predictions: FloatArray,
        tangent: Callable[[], Matrix],
    ) -> Block:
        """One party's side of an exchange at the weights now; see `Block`."""
        return Block(
            model=model,
            inputs=inputs,
            start=model.weights,
            predictions=predictions,
            tangent=tangent,
            loss=self.loss,
            curvature=self.curvature,
            linearized=self.gauss_newton and not model.is_linear,
        )

    def apply(
        self,
        model: LocalModel,
        inputs: Matrix,
        *,
        predictions: FloatArray,
        signal: Signal,
        step_size: float,
        tangent: Callable[[], Matrix] | None = None,
        scale: float = 1.0,
    ) -> None:
        """Take Q gradient steps in place from the exchanged signal.

        Args:
            model: the party's model at θ⁰.
            inputs: X, shape (S, P).
            predictions: H⁰, shape (S, C), as it was exchanged.
            signal: what the exchange gave.
            step_size: η.
            tangent: computes J⁰, where the exchange already has; the model's own by default.
            scale: what the curvature that steps follow is multiplied by.

        Raises:
            TrainingDiverged: the new weights are not finite.
        """
        start = model.weights
        block = self.block(model, inputs, predictions, tangent or model.tangent(inputs))
        bent = replace(block, curvature=scale * block.curvature)
        with np.errstate(over="ignore", invalid="ignore"):
            for _ in range(self.local_steps):
                step = signal.gradient(bent) + model.penalty_gradient(self.l2)
                step += self.proximal * (model.weights - start)
                stepped = model.weights - step_size * step
                if self.l1:
                    stepped = soft_threshold(model, stepped, step_size * self.l1)
                model.weights = stepped
        if not np.isfinite(model.weights).all():
            raise TrainingDiverged(
                f"training diverged at learning rate {step_size:g}: use a smaller one"
            )
