"""Signals, which an exchange gives a party in a round, and the local steps that follow them.

For loss f with f″ ≤ c (`curvature`), a party at θ⁰ with predictions H⁰ steps with

- `ResidualSignal` d⁰: d(θ) = d⁰ + c·(H(θ) − H⁰), gradient J(θ)ᵀd(θ)/S;
- `GradientSignal` G⁰ = J⁰ᵀd⁰/S: G(θ) = G⁰ + (c/S)·J⁰ᵀJ⁰(θ − θ⁰);
- `PredictionsSignal`: the exact loss at ΣH of the others plus its own fresh H(θ), at the label
  party, and at all parties under `local_rule = "exact"`;
- under a head, `ThroughHeadSignal` (d⁰, θ_k): the first signal for H(θ) = u_k(θ)·θ_k, and at the
  label party `BesideOthersSignal`: another signal over its own columns and the others' u.

J is ∂H/∂θ, which is X for a linear model: then the first two signals agree. For a network they
agree at θ⁰, and everywhere under `local_rule = "gauss-newton"`, which takes H(θ) = H⁰ + J⁰(θ − θ⁰).
c = 0 freezes the residual, as common implementations do (`local_rule = "frozen"`).
Source: Liu et al. 2019. Their equation (7) and Theorem 2 describe the exact rule, and their
equation (51) the frozen one. By default feature parties, which learn less, use neither: they step
on a majorizer of (7) that agrees with it in the first step
(docs/decisions/0023-departures-from-fedbcd.md; for networks 0007-local-steps-of-networks.md).

*Exact steps* (`local_steps = "exact"`) go to the minimum of the quadratic that local steps of the
curvature rule approach, over all rows of the party: θ = θ⁰ − (γΓ + μI)⁻¹(G + λθ⁰) from the
exchanged point θ⁰, with Γ = c·XᵀX/N + λI; *signed* ones to its minimum among weights of given signs
(docs/decisions/0071-monotone-columns.md). With γ ≥ K, blocks that move together majorize any loss
with f″ ≤ c; early stopping finds smaller γ that suffice (`session.early_stopping`).

*Acceleration* exchanges at θ + α(θ − θ_before), α from Nesterov's sequence.

Batches of S of N rows leave noise in G of about ζ = (P/S)(1 − S/N) in units of the step, with P
the columns of all parties. So γ grows by ζ(1 + i/5) at round i, or by ζ where η falls anyway, and
α stays below 1 − 2√ζ. *Plain gradient steps* replace P by γ times the intrinsic dimension of the
party's columns, and FDML 1 + i/5 by √(1 + i/5).
Source: docs/explanation/exact-steps.md; docs/decisions/0015-exact-block-steps.md; for plain steps
docs/decisions/0048-derived-steps-of-fdml.md, 0049-derived-steps-of-fedsgd.md.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np

from securevfl.arrays import FloatArray, Labels
from securevfl.errors import TrainingDiverged
from securevfl.models.curvature import Curvature, largest_curvature
from securevfl.models.linear import soft_threshold
from securevfl.models.local_model import LocalModel
from securevfl.models.losses import Loss
from securevfl.models.sign_constraints import signed_minimum
from securevfl.protocols.session.early_stopping import Decision
from securevfl.sparse import Matrix

NOISE_GROWTH = 1 / 5
MOMENTUM_MARGIN = 2.0


@dataclass(frozen=True)
class Block:
    """One party's side of an exchange, as its local steps start from it.

    Attributes:
        model: the local model; its weights θ move with the steps.
        inputs: X of the batch, shape (S, P).
        start: θ⁰.
        predictions: H⁰, shape (S, C).
        tangent: computes J⁰, shape (S·C, p), or X of a linear model.
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
        """The signal's gradient with the others' u fixed."""
        inputs = np.hstack([block.inputs, self.others])
        return self.signal.gradient(replace(block, inputs=inputs, predictions=self.predictions))


Signal = (
    ResidualSignal | GradientSignal | PredictionsSignal | ThroughHeadSignal | BesideOthersSignal
)


@dataclass(frozen=True)
class LocalRule:
    """What a party does between two exchanges.

    The label party steps on the loss itself wherever it sees H. Feature parties step on a majorizer
    of it, with the exchanged residual throughout (`frozen`, equation (51) of Liu et al.), or on the
    loss too (`own_loss`, their equation (7)).

    Attributes:
        local_steps: Q; ignored by exact steps.
        l2: λ of ½λ‖θ‖².
        l1: λ₁ of λ₁‖θ‖₁: a soft threshold after every gradient step, for linear models.
        proximal: μ of ½μ‖θ − θ⁰‖² (FedPBCD; 0 is off).
        frozen: do not update the exchanged residual (c = 0).
        gauss_newton: step on a network's linearization.
        own_loss: every party steps on the loss itself, for which `plain` sends ΣH.
        exact: go to the minimum that local steps approach.
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
        tangent: Callable[[], Matrix] | None = None,
        scale: float = 1.0,
    ) -> Block:
        """The `Block` of a party at its current weights.

        `tangent` computes J⁰ where the exchange has it already; `scale` multiplies the curvature.
        """
        return Block(
            model=model,
            inputs=inputs,
            start=model.weights,
            predictions=predictions,
            tangent=tangent or model.tangent(inputs),
            loss=self.loss,
            curvature=scale * self.curvature,
            linearized=self.gauss_newton and not model.is_linear,
        )

    def descend(
        self, model: LocalModel, gradient: Callable[[], FloatArray], step_size: float
    ) -> None:
        """Take Q steps of size η in place; a TrainingDiverged if weights are not finite."""
        start = model.weights
        with np.errstate(over="ignore", invalid="ignore"):
            for _ in range(self.local_steps):
                step = gradient() + model.penalty_gradient(self.l2)
                step += self.proximal * (model.weights - start)
                stepped = model.weights - step_size * step
                if self.l1:
                    stepped = soft_threshold(model, stepped, step_size * self.l1)
                model.weights = stepped
        if not np.isfinite(model.weights).all():
            raise TrainingDiverged(
                f"training diverged at learning rate {step_size:g}: use a smaller one"
            )


@dataclass(frozen=True)
class Pace:
    """Step sizes, as all parties know them.

    Attributes:
        scale: γ before any backtracking.
        most: upper bound on γ: exact steps on full batches majorize at K.
        columns: P of all parties together; 0 ignores the noise of batches.
        rows: N.
        step_size: η by round.
        derived: whether η is in units of 1 over each party's largest curvature.
        growth: noise at round i counts (1 + i/5) to this power.
        plain: whether steps are plain gradient steps, which noise affects along few directions.
    """

    scale: float
    most: float
    columns: int
    rows: int
    step_size: Callable[[int], float]
    derived: bool
    growth: float = 1.0
    plain: bool = False

    def noise(self, batch_rows: int, columns: float | None = None) -> float:
        """ζ of batches of S rows, for all columns or for this number."""
        counted = self.columns if columns is None else columns
        return counted / batch_rows * (1 - batch_rows / self.rows)


@dataclass(frozen=True, eq=False)
class Planned:
    """A round's step, fixed before training: θ⁺ = θ − T(G + λθ), then extrapolation.

    Attributes:
        matrix: T, shape (P, P).
        beta: α of θ⁺ + α(θ⁺ − θ_before), where the next exchange takes place.
        pace: public figures that determine T together with the batch's rows.
    """

    matrix: FloatArray
    beta: float
    pace: tuple[float, ...]


class LocalSteps:
    """One party's steps and their state from round to round.

    Steps move the weights of the model, which is at θ⁰; X of all its rows has shape (N, P).

    Attributes:
        gained: the total decrease of the quadratics that its exact steps minimized.
        signs: that exact steps keep, see `LinearModel`.
    """

    def __init__(self, model: LocalModel, inputs: Matrix, rule: LocalRule, pace: Pace) -> None:
        self._model, self.rule, self.pace = model, rule, pace
        self._scale = pace.scale
        self._momentum, self._beta = 1.0, 0.0
        self._iterate = self._before = model.weights
        self._best = model.weights
        self._best_gradient: FloatArray | None = None
        self._is_best = False
        self._round = 0
        self._noise = 0.0
        self.gained = 0.0
        self._curvature: Curvature | None = None
        self._largest: float | None = None
        self.signs: FloatArray | None = getattr(model, "signs", None)  # linear models only
        if model.is_linear and pace.derived:
            self._curvature = Curvature(model, inputs, rule.loss.curvature, rule.l2)

    def _noise_of(self, batch_rows: int) -> float:
        if self.pace.plain and self._curvature is not None:
            as_if = self.pace.scale * self._curvature.intrinsic_dimension
            return self.pace.noise(batch_rows, as_if)
        return self.pace.noise(batch_rows)

    @property
    def majorizes(self) -> bool:
        """Whether steps are so short that they cannot raise the penalized loss on any data."""
        return self._scale >= self.pace.most

    def begin(self, round_index: int, batch_rows: int, *, moves: bool = True) -> None:
        """Move the model to the extrapolated point of the exchange, unless it has stopped."""
        self._round = round_index
        self._noise = self._noise_of(batch_rows)
        self._iterate = self._model.weights
        if self._beta > 0 and moves:
            ahead = self._iterate + self._beta * (self._iterate - self._before)
            if self.signs is not None:  # the nearest point with them
                ahead = self._minimum(ahead, np.zeros_like(ahead))
            self._model.weights = ahead

    def mark_best(self) -> None:
        """Remember this point as the best so far."""
        self._best, self._best_gradient, self._is_best = self._model.weights, None, True

    def _back(self) -> None:
        """Return to the best point and halve the step from there."""
        self._scale = min(2 * self._scale, self.pace.most)
        self._momentum, self._beta = 1.0, 0.0
        self._model.weights = self._before = self._best
        if self._best_gradient is not None:
            self._model.weights = self._minimum(self._best, self._best_gradient)

    def take(
        self, decision: Decision, inputs: Matrix, *, predictions: FloatArray, signal: Signal
    ) -> None:
        """All of a round after `begin`, for algorithms whose parties step together."""
        if not (decision.backtrack or decision.stop):
            if decision.best:
                self.mark_best()
            self.apply(inputs, predictions=predictions, signal=signal)
        self.follow(decision)

    def follow(self, decision: Decision) -> None:
        """End a round as the label party decided."""
        if decision.stop:
            self._model.weights = self._best if decision.backtrack else self._iterate
        elif decision.backtrack:
            self._back()

    def apply(
        self,
        inputs: Matrix,
        *,
        predictions: FloatArray,
        signal: Signal,
        tangent: Callable[[], Matrix] | None = None,
    ) -> None:
        """Take the steps of a signal; arguments as `LocalRule.block`, errors as `descend`."""
        model, rule = self._model, self.rule
        scaled = self.pace.derived and not rule.exact
        scale = self._scale_now if scaled else 1.0
        block = rule.block(model, inputs, predictions, tangent, scale)
        if rule.exact:
            with np.errstate(over="ignore", invalid="ignore"):
                gradient = signal.gradient(block) + model.penalty_gradient(rule.l2)
                model.weights = self._minimum(block.start, gradient)
                moved = model.weights - block.start
                # Without signs the bends are as steep as the gradient, downwards.
                bends = -gradient if self.signs is None else self._bends @ moved
                self.gained -= float(np.sum(moved * (gradient + 0.5 * bends)))
            if self._is_best:
                self._best_gradient = gradient
            if not np.isfinite(model.weights).all():
                raise TrainingDiverged("training diverged: the signal is not finite")
        else:
            rule.descend(model, lambda: signal.gradient(block), self.step_size(inputs))
        self._is_best = False
        self._before = self._iterate
        self._momentum, self._beta = self._next_momentum()

    def next_point(self, inputs: Matrix) -> tuple[FloatArray, FloatArray]:
        """The point of the next exchange as a function of this one's gradient, for linear models.

        Returns:
            A and b with the next point b − A·G, shapes (P, P) and (P, C).

        Raises:
            TrainingDiverged: steps that leave float64.
        """
        rule, point = self.rule, self._model.weights
        with np.errstate(over="ignore", invalid="ignore"):
            moves = self._inverse() if rule.exact else self._moves(inputs)
            _, beta = self._next_momentum()
            matrix = (1 + beta) * moves
            pull = self._model.penalty_gradient(rule.l2)
            constant = (1 + beta) * (point - moves @ pull) - beta * self._iterate
        if not (np.isfinite(matrix).all() and np.isfinite(constant).all()):
            raise TrainingDiverged("training diverged: use a smaller learning rate")
        return matrix, constant

    def planned(self, round_index: int, inputs: Matrix) -> Planned:
        """A round's step of a linear model without early stopping; call once per round, in order.

        As no party sees the loss, derived steps stay short enough to majorize their batch.
        """
        self._round, self._noise = round_index, self._noise_of(len(inputs))
        derived = self.pace.derived
        matrix = self._inverse() if self.rule.exact else self._moves(inputs, majorize=derived)
        self._momentum, self._beta = self._next_momentum()
        return Planned(matrix, self._beta, (self._scale_now, self.pace.step_size(round_index)))

    def arrays(self) -> dict[str, FloatArray]:
        """The state beside the weights, by name."""
        numbers = [self._scale, self._momentum, self._beta, self.gained, self._largest or 0.0]
        best = {} if self._best_gradient is None else {"kept gradient": self._best_gradient}
        return {"before": self._before, "kept": self._best, "numbers": np.array(numbers), **best}

    def restore(self, arrays: Mapping[str, FloatArray]) -> None:
        """Return to a state."""
        self._before, self._best = arrays["before"], arrays["kept"]
        self._best_gradient = arrays.get("kept gradient")
        self._scale, self._momentum, self._beta, self.gained, largest = map(
            float, arrays["numbers"]
        )
        self._largest = largest or None

    @property
    def _scale_now(self) -> float:
        grown: float = (1 + NOISE_GROWTH * self._round) ** self.pace.growth
        return self._scale + self._noise * grown

    def _next_momentum(self) -> tuple[float, float]:
        # This round's noise: the point of the next exchange is set before its batch is known.
        if not self.rule.accelerated:
            return 1.0, 0.0
        following = (1 + sqrt(1 + 4 * self._momentum**2)) / 2
        most = max(0.0, 1 - MOMENTUM_MARGIN * sqrt(self._noise))
        return following, min((self._momentum - 1) / following, most)

    def _minimum(self, point: FloatArray, gradient: FloatArray) -> FloatArray:
        """Where the quadratic of exact steps with this gradient at a point is least."""
        if self.signs is None:
            return point - self._inverse() @ gradient
        minimum = signed_minimum(self._bends, gradient[:, 0], point[:, 0], self.signs)
        return minimum[:, None]

    @property
    def _bends(self) -> FloatArray:
        assert self._curvature is not None  # noqa: S101
        matrix = self._curvature.matrix
        return self._scale_now * matrix + self.rule.proximal * np.eye(len(matrix))

    def _inverse(self) -> FloatArray:
        assert self._curvature is not None  # noqa: S101
        return self._curvature.inverse(self._scale_now, self.rule.proximal)

    def step_size(self, inputs: Matrix) -> float:
        """η of this round: the job's, or in units of 1 over the largest curvature."""
        eta = self.pace.step_size(self._round)
        if not self.pace.derived:
            return eta
        rule = self.rule
        if self._curvature is not None:
            largest = self._curvature.largest
        else:
            # A network's curvature changes with θ: computed again at rounds 0, 1, 2, 4, 8, ...
            if self._largest is None or self._round & (self._round - 1) == 0:
                bound = largest_curvature(self._model, inputs, rule.loss.curvature)
                self._largest = bound + rule.l2
            largest = self._largest
        steepest = self._scale_now * largest + rule.proximal
        return eta / steepest if steepest > 0 else 0.0

    def _moves(self, inputs: Matrix, *, majorize: bool = False) -> FloatArray:
        """A of the point θ − A·(G + λθ) that Q steps lead to.

        `majorize` keeps η below 1 over the largest curvature of this batch.
        """
        rule, rows = self.rule, len(inputs)
        eta = self.step_size(inputs)
        identity = np.eye(inputs.shape[1])
        bend = rule.curvature * (self._scale_now if self.pace.derived else 1.0)
        penalty = np.full(len(identity), rule.l2)
        if self._model.intercept:
            penalty[-1] = 0.0
        curved = bend / rows * (inputs.T @ inputs) + np.diag(penalty + rule.proximal)
        if majorize:
            eta = min(eta, 1 / max(float(np.linalg.eigvalsh(curved)[-1]), 1e-300))
        moves = np.zeros_like(identity)
        for _ in range(rule.local_steps):
            moves = eta * identity + moves - eta * (curved @ moves)
        return moves
