"""How a party moves between exchanges: the point it exchanges at, and where it goes from there.

*Exact steps* (`local_steps = "exact"`) take the minimum of the quadratic that local steps of the
curvature rule go towards, over all rows of the party: θ = θ⁰ − (γΓ + μI)⁻¹(G + λθ⁰) from
the exchanged point θ⁰, with Γ = c·XᵀX/N + λI. For γ ≥ K blocks that move together majorize any loss
with f″ ≤ c; how much less does, the label party's watch finds out (`session.early_stopping`).

*Acceleration* exchanges at θ + α(θ − θ_before), α from Nesterov's sequence.

Batches of S of N rows leave noise in G of about ζ = (P/S)(1 − S/N) in units of the step, P the
columns of all: γ grows by ζ(1 + i/5) at round i, by ζ alone where η falls by itself, and α stays
below 1 − 2√ζ. *Plain gradient steps* have the intrinsic dimension of the party's columns times γ in
place of P; of FDML √(1 + i/5).
Source: docs/exact-steps.md; docs/decisions/0015-exact-block-steps.md; of plain steps
docs/decisions/0048-derived-steps-of-fdml.md, 0049-derived-steps-of-fedsgd.md.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import sqrt

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.errors import TrainingDiverged
from securevfl.models.curvature import Curvature, largest_curvature
from securevfl.models.local_model import LocalModel
from securevfl.protocols.session.early_stopping import Course
from securevfl.protocols.signals import LocalRule, Signal
from securevfl.sparse import Matrix

__all__ = ["Course", "LocalSteps", "Pace"]

NOISE_GROWTH = 1 / 5
MOMENTUM_MARGIN = 2.0


@dataclass(frozen=True)
class Pace:
    """What parties know in common of how far to go.

    Attributes:
        scale: γ, before anyone is told to go less far.
        most: γ never grows beyond it: exact steps on full batches majorize at K.
        columns: P of all parties together; 0 leaves noise out of account.
        rows: N.
        step_size: η by round.
        derived: whether η is in units of what each party's curvature allows.
        growth: noise at round i counts (1 + i/5) to this power.
        plain: whether steps are plain gradient steps, to which noise matters along few directions.
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
        """ζ of batches of S rows, of all columns or as if there were so many."""
        counted = self.columns if columns is None else columns
        return counted / batch_rows * (1 - batch_rows / self.rows)


@dataclass(frozen=True, eq=False)
class Planned:
    """A round's step, known before any of its gradients: θ⁺ = θ − T(G + λθ), then extrapolation.

    Attributes:
        matrix: T, shape (P, P).
        beta: α of θ⁺ + α(θ⁺ − θ_before), where the next exchange takes place.
        pace: what T follows from beside the batch's rows; known to all.
    """

    matrix: FloatArray
    beta: float
    pace: tuple[float, ...]


class LocalSteps:
    """One party's steps, with what they keep from round to round.

    Args:
        model: its model at θ⁰; steps move its weights.
        inputs: X of all its rows, shape (N, P).
        rule: what a step is.
        pace: how far it goes.

    Attributes:
        gained: by how much its exact steps have made their quadratics fall.
    """

    def __init__(self, model: LocalModel, inputs: Matrix, rule: LocalRule, pace: Pace) -> None:
        self._model, self.rule, self.pace = model, rule, pace
        self._scale = pace.scale
        self._momentum, self._beta = 1.0, 0.0
        self._iterate = self._before = model.weights
        self._kept = model.weights
        self._kept_gradient: FloatArray | None = None
        self._keeps = False
        self._round = 0
        self._noise = 0.0
        self.gained = 0.0
        self._curvature: Curvature | None = None
        self._largest: float | None = None
        if model.is_linear and pace.derived:
            self._curvature = Curvature(model, inputs, rule.loss.curvature, rule.l2)

    def _noise_of(self, batch_rows: int) -> float:
        if self.pace.plain and self._curvature is not None:
            as_if = self.pace.scale * self._curvature.intrinsic_dimension
            return self.pace.noise(batch_rows, as_if)
        return self.pace.noise(batch_rows)

    @property
    def majorizes(self) -> bool:
        """Whether steps are so short that they cannot raise the penalized loss of any data."""
        return self._scale >= self.pace.most

    def begin(self, round_index: int, batch_rows: int, *, moves: bool = True) -> None:
        """Put the model where the round's exchange takes place, unless it no longer moves."""
        self._round = round_index
        self._noise = self._noise_of(batch_rows)
        self._iterate = self._model.weights
        if self._beta > 0 and moves:
            self._model.weights = self._iterate + self._beta * (self._iterate - self._before)

    def keep(self) -> None:
        """Remember this point: it is the best so far."""
        self._kept, self._kept_gradient, self._keeps = self._model.weights, None, True

    def _back(self) -> None:
        """Go back to the best point, and from there half as far as last time."""
        self._scale = min(2 * self._scale, self.pace.most)
        self._momentum, self._beta = 1.0, 0.0
        self._model.weights = self._before = self._kept
        if self._kept_gradient is not None:
            self._model.weights = self._kept - self._inverse() @ self._kept_gradient

    def take(
        self, course: Course, inputs: Matrix, *, predictions: FloatArray, signal: Signal
    ) -> None:
        """A whole round of an algorithm whose parties step together, once it has begun."""
        if not (course.back or course.stop):
            if course.keep:
                self.keep()
            self.apply(inputs, predictions=predictions, signal=signal)
        self.follow(course)

    def follow(self, course: Course) -> None:
        """End a round as the label party says."""
        if course.stop:
            self._model.weights = self._kept if course.back else self._iterate
        elif course.back:
            self._back()

    def apply(
        self,
        inputs: Matrix,
        *,
        predictions: FloatArray,
        signal: Signal,
        tangent: Callable[[], Matrix] | None = None,
    ) -> None:
        """Move the weights as the exchanged signal says.

        Args:
            inputs: X of the batch, shape (S, P).
            predictions: H of it, shape (S, C), as exchanged.
            signal: what the exchange gave.
            tangent: computes J there, where the exchange already has; the model's own by default.

        Raises:
            TrainingDiverged: the new weights are not finite.
        """
        model, rule = self._model, self.rule
        if rule.exact:
            block = rule.block(model, inputs, predictions, tangent or model.tangent(inputs))
            with np.errstate(over="ignore", invalid="ignore"):
                gradient = signal.gradient(block) + model.penalty_gradient(rule.l2)
                model.weights = model.weights - self._inverse() @ gradient
            self.gained += 0.5 * float(np.sum(gradient * (block.start - model.weights)))
            if self._keeps:
                self._kept_gradient = gradient
            if not np.isfinite(model.weights).all():
                raise TrainingDiverged("training diverged: the signal is not finite")
        else:
            rule.apply(
                model,
                inputs,
                predictions=predictions,
                signal=signal,
                step_size=self.step_size(inputs),
                tangent=tangent,
                scale=self._scale_now if self.pace.derived else 1.0,
            )
        self._keeps = False
        self._before = self._iterate
        self._momentum, self._beta = self._next_momentum()

    def ahead(self, inputs: Matrix) -> tuple[FloatArray, FloatArray]:
        """Where the next exchange takes place, as a function of this one's gradient.

        Args:
            inputs: X of this round's batch, shape (S, P); linear models only.

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
        """The step of a round, where no word of the label party changes any; in order, each once.

        As nobody will see a loss rise, derived steps do not go beyond what majorizes their batch.

        Args:
            round_index: the round's.
            inputs: X of its batch, shape (S, P); linear models only.
        """
        self._round, self._noise = round_index, self._noise_of(len(inputs))
        derived = self.pace.derived
        matrix = self._inverse() if self.rule.exact else self._moves(inputs, majorize=derived)
        self._momentum, self._beta = self._next_momentum()
        return Planned(matrix, self._beta, (self._scale_now, self.pace.step_size(round_index)))

    def state(self) -> dict[str, FloatArray]:
        """What it takes to go on, beside the weights."""
        numbers = [self._scale, self._momentum, self._beta, self.gained, self._largest or 0.0]
        kept = {} if self._kept_gradient is None else {"kept gradient": self._kept_gradient}
        return {
            "before": self._before,
            "kept": self._kept,
            "numbers": np.array(numbers),
            **kept,
        }

    def resume(self, state: Mapping[str, FloatArray]) -> None:
        """Go on from a state."""
        self._before, self._kept = state["before"], state["kept"]
        self._kept_gradient = state.get("kept gradient")
        self._scale, self._momentum, self._beta, self.gained, largest = map(float, state["numbers"])
        self._largest = largest or None

    @property
    def _scale_now(self) -> float:
        grown: float = (1 + NOISE_GROWTH * self._round) ** self.pace.growth
        return self._scale + self._noise * grown

    def _next_momentum(self) -> tuple[float, float]:
        # By this round's noise: where the next exchange takes place is known before its batch is.
        if not self.rule.accelerated:
            return 1.0, 0.0
        following = (1 + sqrt(1 + 4 * self._momentum**2)) / 2
        most = max(0.0, 1 - MOMENTUM_MARGIN * sqrt(self._noise))
        return following, min((self._momentum - 1) / following, most)

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
            # A network's changes with θ: asked again at rounds 0, 1, 2, 4, 8, ...
            if self._largest is None or self._round & (self._round - 1) == 0:
                bound = largest_curvature(self._model, inputs, rule.loss.curvature)
                self._largest = bound + rule.l2
            largest = self._largest
        steepest = self._scale_now * largest + rule.proximal
        return eta / steepest if steepest > 0 else 0.0

    def _moves(self, inputs: Matrix, *, majorize: bool = False) -> FloatArray:
        """A in θ − A·(G + λθ), where Q steps lead to.

        Args:
            inputs: X of the batch, shape (S, P).
            majorize: whether η stays below 1 over the largest curvature of this very batch.
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
