"""A party's block of an L1-regularized problem, its penalties, and the label party's line search.

For residuals d and f″ at the common H, a party minimizes a local quadratic approximation over its
own columns, or a working set W of them:
gᵀΔ + ½Δᵀ(X_Wᵀdiag(f″)X_W/N + (λ + μ)I)Δ + λ₁‖θ + Δ‖₁, with g = X_Wᵀd/N + λθ.

The label party searches along the sum of all directions:
F(ω, ψ) = f(H + ω·D + ψ·M) + Σ_k penalty_k(ω, ψ), with the new direction D and, for momentum, the
last step M. It knows H, D and M, and receives the penalties for a grid of (ω, ψ). First it takes
the ω of Armijo's rule at ψ = 0, F(ω, 0) ≤ F(0, 0) + σωp with p = ∇f(H)·D + penalty(1, 0) −
penalty(0, 0); then it moves to better neighbours on the grid.

Learns:
    label party: the penalty λ₁‖θ_k‖₁ + ½λ‖θ_k‖² after each step of a grid, and two numbers that
        bound how far θ_k is from optimal; only their sums where predictions are masked.
Source: DBCD (Mahajan, Keerthi, Sundararajan, JMLR 2017), whose search is that along D alone; p is
Tseng and Yun's (Math. Program. 117, 2009).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from securevfl.arrays import FloatArray, IntArray, RingArray
from securevfl.crypto.masks import PairwiseMasks
from securevfl.errors import TrainingDiverged
from securevfl.models.coordinate_descent import minimized, violations
from securevfl.models.local_model import LocalModel
from securevfl.models.losses import CurvedLoss
from securevfl.protocols.session.gathering import Party, masked, unmasked_sum
from securevfl.runtime.channel import collect, expect_shape
from securevfl.wire.codec import StepMessage, message_kind

LEAST_BEND = 1e-6


class L1Block:
    """A party's columns, with their state from round to round.

    Args:
        model: linear; moves change its weights, once a round.
        inputs: X of all rows, shape (N, P).
        loss: f.
        l2: λ of ½λ‖θ‖², which leaves the intercept alone as L1 does.
        proximal: μ.
        size: of the working set; None takes all columns.
        passes: of coordinate descent; None goes on until it has converged.

    Attributes:
        l1: λ₁.
        is_last: whether no other λ₁ follows.
    """

    def __init__(
        self,
        model: LocalModel,
        inputs: FloatArray,
        loss: CurvedLoss,
        *,
        l2: float,
        proximal: float,
        size: int | None,
        passes: int | None,
    ) -> None:
        self._model, self._inputs, self._loss = model, inputs, loss
        self._l2, self._proximal, self._size, self._passes = l2, proximal, size, passes
        self._penalized = np.ones(inputs.shape[1])
        if model.intercept:
            self._penalized[-1] = 0.0
        self.l1, self.is_last = 0.0, True
        self._before = self._target = self._weights
        self._gradient = np.zeros_like(self._before)

    @property
    def _weights(self) -> FloatArray:
        weights: FloatArray = self._model.weights[:, 0]
        return weights

    def aim(self, residuals: FloatArray) -> FloatArray:
        """Predictions at the local approximation's minimum, from d, both of shape (N, 1).

        Raises:
            TrainingDiverged: slopes that leave float64.
        """
        inputs, weights, rows = self._inputs, self._weights, len(self._inputs)
        with np.errstate(over="ignore", invalid="ignore"):
            slopes = (inputs.T @ residuals)[:, 0] / rows
            self._gradient = slopes + self._l2 * self._penalized * weights
        penalties = self.l1 * self._penalized
        chosen = self._working_set(violations(self._gradient, weights, penalties))
        some = inputs[:, chosen]
        bends = np.maximum(
            self._loss.second_derivative(residuals), LEAST_BEND * self._loss.curvature
        )
        with np.errstate(over="ignore", invalid="ignore"):
            matrix = some.T @ (bends * some) / rows
        if not (np.isfinite(self._gradient).all() and np.isfinite(matrix).all()):
            raise TrainingDiverged(
                "training diverged: columns so large that their slopes or squares leave float64: "
                "standardize them"
            )
        matrix[np.diag_indices_from(matrix)] += self._proximal + self._l2 * self._penalized[chosen]
        self._target = weights.copy()
        self._target[chosen] = minimized(
            matrix, self._gradient[chosen], weights[chosen], penalties[chosen], self._passes
        )
        return inputs @ self._target[:, None]

    def predictions(self) -> FloatArray:
        """X_kθ_k, shape (N, 1)."""
        return self._inputs @ self._model.weights

    def _working_set(self, broken: FloatArray) -> IntArray | slice:
        if self._size is None:
            return slice(None)
        return np.sort(np.argsort(-broken, kind="stable")[: self._size])

    def penalties(self, steps: FloatArray, lasts: FloatArray) -> FloatArray:
        """λ₁‖θ‖₁ + ½λ‖θ‖² after steps ω to the target and ψ along the last one, shape (ωs, ψs)."""
        weights = self._weights
        direction = steps[:, None, None] * (self._target - weights)
        places = weights + direction + lasts[None, :, None] * (weights - self._before)
        costs = self.l1 * np.abs(places) + 0.5 * self._l2 * places**2
        table: FloatArray = costs @ self._penalized
        return table

    def optimality(self) -> FloatArray:
        """What bounds how far the objective is above its least value, shape (2,).

        By convexity F(θ) − F* ≤ Σ_j(g_jθ_j + λ₁|θ_j|) + max_j(|g_j| − λ₁)₊·‖θ*‖₁, where λ₁‖θ*‖₁ ≤
        F(θ): the sum, and the maximum in units of λ₁, 1 at most. The intercept counts as if its θ*
        stayed below F/λ₁, too.
        """
        weights, gradient = self._weights, self._gradient
        slack = gradient @ weights + self.l1 * self._penalized @ np.abs(weights)
        beyond = np.abs(gradient) - self.l1 * self._penalized
        return np.array([slack, np.clip(np.max(beyond, initial=0.0) / self.l1, 0.0, 1.0)])

    def move(self, step: float, last: float, *, settled: bool) -> None:
        """Take the step. Where it settles this λ₁, momentum starts anew.

        Where it settles the last λ₁, weights become final: `with_zeros` applies.
        """
        weights = self._weights
        moved = weights + step * (self._target - weights) + last * (weights - self._before)
        self._before = moved if settled else weights
        if settled and self.is_last:
            moved = np.where(self._target == 0, 0.0, moved)
        self._model.weights = moved[:, None]

    def with_zeros(self) -> FloatArray:
        """The weights with 0 wherever the target has 0, which they approach while ω ≠ 1.

        For final models only, as the label party's H does not change with it. Shape (P, 1).
        """
        return np.where(self._target == 0, 0.0, self._weights)[:, None]


SUFFICIENT = 0.01
STEPS: FloatArray = np.append(0.0, 2.0 ** (np.arange(4, -25, -1) / 2))
"""ω: none, then from 4 down to 2⁻¹²."""
NO_LAST: FloatArray = np.zeros(1)
LASTS: FloatArray = np.append(0.0, 2.0 ** (np.arange(-6, 3) / 2))
"""ψ: none, then from ⅛ up to 2."""
WHOLE = int(np.flatnonzero(STEPS == 1)[0])
"""Where STEPS has ω = 1."""


@dataclass
class LineSearch:
    """One round's search.

    Attributes:
        loss: f at predictions.
        start: H, shape (N, 1).
        direction: D, the same shape.
        last: M, the same shape.
        table: penalties by step, shape (A, B).
        lasts: the ψ that there are, shape (B,).
        slope: ∇f(H)·D.
    """

    loss: Callable[[FloatArray], float]
    start: FloatArray
    direction: FloatArray
    last: FloatArray
    table: FloatArray
    lasts: FloatArray
    slope: float
    _known: dict[tuple[int, int], float] = field(default_factory=dict)

    def objective(self, place: tuple[int, int]) -> float:
        """F at a place of the grid."""
        if place not in self._known:
            there = self.predictions(place)
            self._known[place] = self.loss(there) + float(self.table[place])
        return self._known[place]

    def predictions(self, place: tuple[int, int]) -> FloatArray:
        """H after the step of a place."""
        step, last = place
        there: FloatArray = self.start + STEPS[step] * self.direction + self.lasts[last] * self.last
        return there

    def best(self) -> tuple[int, int]:
        """The place of the lowest F found; the start (0, 0) if none is lower."""
        place = (self._armijo(), 0)
        if place == (0, 0):
            return place
        while True:
            step, last = place
            beside = [(step, each) for each in range(len(self.lasts))]
            beside += [(each, last) for each in range(max(1, step - 2), min(step + 3, len(STEPS)))]
            best = min(beside, key=self.objective)
            if self.objective(best) >= self.objective(place):
                return place
            place = best

    def _armijo(self) -> int:
        """The step of least F among those of sufficient decrease, from the longest down."""
        start = self.objective((0, 0))
        decrease = self.slope + float(self.table[WHOLE, 0] - self.table[0, 0])
        found = 0
        for step in range(1, len(STEPS)):
            objective = self.objective((step, 0))
            if found and objective >= self.objective((found, 0)):
                break
            if objective < start and objective <= start + SUFFICIENT * STEPS[step] * decrease:
                found = step
        return found


@message_kind(45, stage="round", carries="values", shows="penalties")
class Penalties(StepMessage):
    """Penalties by step, shape (A, B), and what bounds the gap; see `L1Block`."""

    table: FloatArray
    optimality: FloatArray


@message_kind(46, stage="round", carries="shares", shows="penalties")
class MaskedPenalties(StepMessage):
    """The same in fixed point plus masks that cancel in the sum over parties."""

    table: RingArray
    optimality: RingArray


class PenaltySums:
    """The sum of all parties' penalties at the label party; single ones if there are no masks."""

    def __init__(self, party: Party, masks: PairwiseMasks | None) -> None:
        self._party, self._masks = party, masks

    async def give(self, step: int, table: FloatArray, optimality: FloatArray) -> None:
        """Send a feature party's numbers."""
        party, masks = self._party, self._masks
        message: Penalties | MaskedPenalties = Penalties(step, table, optimality)
        if masks is not None:
            async with party.costs.compute("encrypt"):
                both = (f"penalties {step}", table), (f"optimality {step}", optimality)
                hidden = (masked(party, masks, what, values, what) for what, values in both)
                message = MaskedPenalties(step, *hidden)
        await party.channel.send(party.label_party, message)

    async def take(
        self, step: int, table: FloatArray, optimality: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """All parties' numbers, added to the label party's own."""
        party = self._party
        kind: type[Any] = Penalties if self._masks is None else MaskedPenalties
        received = await collect(party.channel, party.feature_parties, kind, step)
        for sender, message in received.items():
            expect_shape(sender, message.table, table.shape)
            expect_shape(sender, message.optimality, optimality.shape)
        tables = [message.table for message in received.values()]
        optimalities = [message.optimality for message in received.values()]
        if self._masks is not None:
            return table + unmasked_sum(tables), optimality + unmasked_sum(optimalities)
        return table + np.sum(tables, axis=0), optimality + np.sum(optimalities, axis=0)
