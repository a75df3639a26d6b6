"""DBCD (Mahajan, Keerthi, Sundararajan, JMLR 2017): L1-regularized linear models in column blocks.

A round, at common predictions H = Σ_k X_kθ_k:

1. label → feature parties: residuals d, which determine f″ (`CurvedLoss`).
2. all: minimize their local approximation over a working set (`L1Block`): a direction Δ_k.
3. feature → label party: X_k(θ_k + Δ_k), and penalties for a grid of steps. The label party
   subtracts the X_kθ_k that it knows and has the paper's X_kΔ_k; noise does not add up over rounds.
4. label → feature parties: the step of its line search, and whether the objective is within the
   tolerance. A round takes 4(K − 1) messages.

In the paper all nodes hold the labels; here only the label party does, and sends residuals.

Learns:
    label party: X_k(θ_k + Δ_k) of every round and party, and so X_kθ_k and X_kΔ_k; ‖θ_k‖₁ for a
        grid of steps. Under masks only their sums.
    feature party: d of every round. With logistic loss this reveals every label and H, with squared
        loss (d = H − y) eventually, with squared hinge where it is not 0. The steps, and how many.
"""

from collections.abc import Iterator
from dataclasses import replace
from types import MappingProxyType

import numpy as np
from typing_extensions import override

from securevfl.arrays import FloatArray, Labels
from securevfl.errors import ConfigError, UnexpectedMessage
from securevfl.job import DbcdSettings
from securevfl.models.losses import CurvedLoss
from securevfl.protocols.exchange import Batch, PartyBatches, SendsResiduals
from securevfl.protocols.local_steps import ResidualSignal
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.agreement import Agreement
from securevfl.protocols.session.early_stopping import SelectedState
from securevfl.protocols.session.gathering import Step
from securevfl.protocols.session.privacy_account import LeakageCount, Visits
from securevfl.protocols.session.scoring import ByRow, Scoring
from securevfl.protocols.session.workplace import PathPoint
from securevfl.protocols.vertical.dbcd_block import (
    LASTS,
    NO_LAST,
    STEPS,
    L1Block,
    LineSearch,
    PenaltySums,
)
from securevfl.protocols.vertical.runner import (
    Part,
    Seen,
    Training,
    VerticalAlgorithm,
    baseline_of,
    scoring_of,
)
from securevfl.runtime.channel import expect_shape, tell
from securevfl.sparse import require_dense
from securevfl.wire.codec import StepMessage, message_kind

GREEDY_SIZE = 10


@message_kind(47, stage="round", shows="stopping")
class StepTaken(StepMessage):
    """The result of the label party's line search.

    `length` is (ω, ψ). Where `settled` the objective at this λ₁ is within the tolerance, and the
    next λ₁ follows, if there is one.
    """

    length: FloatArray
    settled: bool


class DbcdPart(Part):
    """One party's rounds; `path` gets a point whenever training at a λ₁ ends.

    The label party stores H before and after the last step, the others' part of it, the objective
    after a round, and a bound on its relative gap before the last step.
    """

    _objective: float | None = None
    _gap: float | None = None

    @override
    async def establish(self, agreement: Agreement, leakage: LeakageCount) -> Scoring:
        party, plan = self.party, self.plan
        assert isinstance(plan.exchange, SendsResiduals)  # noqa: S101
        ready = await plan.exchange.establish_residuals(self.session(agreement, leakage))
        self._side, noisy = ready.side, plan.exchange.adds_noise
        masks = agreement.masks if plan.learns.predictions == "summed" else None
        self._sums = PenaltySums(party, masks)
        own = plan.job.section(DbcdSettings, plan.algorithm.name)
        self._lasts = LASTS if own.momentum and not noisy else NO_LAST
        # Under noise parties do not say how far they are from optimal.
        self._bounds_gap = not noisy
        self._batch = PartyBatches(plan, self.place.data.train_labels, self.inputs).at(0)
        self._total = self._before = self._others = np.zeros((len(self._batch.rows), 1))
        self._block = _block(self.training, self._batch)
        self._values = own.path or (plan.job.job.l1,)
        self._block.l1, self._block.is_last = self._values[0], len(self._values) == 1
        return scoring_of(self.training, ByRow(party, ready.gathering))

    @override
    async def round(self, index: int) -> Seen:
        """Find a direction, search along it and step; a small gap at the last λ₁ ends training."""
        party, loss = self.party, None
        step = Step(index, receivers=party.names, fresh=party.names)
        if party.holds_labels:
            taken, loss = await self._lead(step), self._loss
        else:
            taken = await self._follow(step)
        self._settled = taken.settled
        over = taken.settled and self._block.is_last
        return Seen(loss, ended="settled" if over else None)

    async def _follow(self, step: Step) -> StepTaken:
        party, batch, block = self.party, self._batch, self._block
        nothing = np.zeros((len(batch.rows), 1))
        signal = await self._side.signal(step, batch, nothing, None)
        assert isinstance(signal, ResidualSignal)  # noqa: S101
        async with party.costs.compute("local"):
            aim, numbers = block.aim(signal.residuals), self._penalties()
        await self._side.gather(step, aim)
        await self._sums.give(step.index, *numbers)
        sender, taken = await party.channel.receive([party.label_party], StepTaken, step.index)
        expect_shape(sender, taken.length, (2,))
        if taken.length[0] not in STEPS or taken.length[1] not in self._lasts:
            raise UnexpectedMessage(f"{sender} takes a step that is not on the grid")
        async with party.costs.compute("local"):
            block.move(*taken.length.tolist(), settled=taken.settled)
        return taken

    async def _lead(self, step: Step) -> StepTaken:
        party, batch, block, total = self.party, self._batch, self._block, self._total
        loss, labels = party.loss, self._labels
        await self._side.signal(step, batch, total - self._others, self._others)
        async with party.costs.compute("local"):
            residuals = loss.residuals(total, labels)
            own, numbers = block.aim(residuals), self._penalties()
        others = await self._side.gather(step, own)
        assert others is not None  # noqa: S101
        table, optimality = await self._sums.take(step.index, *numbers)
        async with party.costs.compute("local"):
            direction = own + others - total
            search = LineSearch(
                lambda there: loss.value(there, labels),
                total,
                direction,
                total - self._before,
                table=table,
                lasts=self._lasts,
                slope=float(np.mean(residuals * direction)),
            )
            place = search.best()
            taken = self._judged(step, search, place, optimality)
            self._before, self._total = total, search.predictions(place)
            if taken.settled:
                self._before = self._total
            block.move(*taken.length.tolist(), settled=taken.settled)
            self._others = self._total - block.predictions()
        await tell(party.channel, party.feature_parties, taken)
        return taken

    def _penalties(self) -> tuple[FloatArray, FloatArray]:
        optimality = self._block.optimality() if self._bounds_gap else np.zeros(2)
        return self._block.penalties(STEPS, self._lasts), optimality

    def _judged(
        self, step: Step, search: LineSearch, place: tuple[int, int], optimality: FloatArray
    ) -> StepTaken:
        """The step, and whether the objective is within the tolerance or no longer falls."""
        start, self._objective = search.objective((0, 0)), search.objective(place)
        settled = False
        if self._bounds_gap:
            slack, beyond = optimality.tolist()
            # Parties cap `beyond` at 1, where F itself is the bound.
            bound = start if beyond >= 1 else min(start, slack + beyond * start)
            self._gap = max(bound, 0.0) / start if start > 0 else 0.0
            settled = self._gap <= self.plan.job.job.tolerance or place == (0, 0)
        length = np.array([STEPS[place[0]], self._lasts[place[1]]])
        return StepTaken(step.index, length, settled)

    @override
    def after(self, done: int, seen: Seen, scoring: Scoring, *, reached: bool) -> None:
        """Where training at a λ₁ ends, add a point to the path and go to the next λ₁."""
        block, settled = self._block, self._settled
        if not (settled or reached or done == self.plan.rounds):
            return
        model = self.local.saved(done)
        if settled:
            model = replace(model, weights=block.with_zeros())
        point = PathPoint(block.l1, done, settled, model, self._objective, self._gap)
        self.path = (*self.path, point)
        if settled and not block.is_last:
            block.l1 = self._values[len(self.path)]
            block.is_last = len(self.path) + 1 == len(self._values)

    @override
    def learned(self, selected: SelectedState) -> bool:
        """By the loss without penalties, at the label party; unknown under noise."""
        if self.plan.exchange.adds_noise or not self.party.holds_labels:
            return True
        return self._loss < baseline_of(self.plan, self._labels)

    @property
    def _labels(self) -> Labels:
        assert self._batch.labels is not None  # noqa: S101
        return self._batch.labels

    @property
    def _loss(self) -> float:
        return self.party.loss.value(self._total, self._labels)


def _block(training: Training, batch: Batch) -> L1Block:
    """This party's block at θ = 0, where DBCD always starts."""
    plan, model = training.plan, training.model
    own = plan.job.section(DbcdSettings, plan.algorithm.name)
    assert isinstance(plan.loss, CurvedLoss)  # noqa: S101
    model.weights = np.zeros_like(model.weights)
    return L1Block(
        model,
        require_dense(batch.inputs, "algorithm 'dbcd'"),
        plan.loss,
        l2=plan.l2,
        proximal=plan.job.job.proximal,
        size=None if own.working_set == "all" else own.size or GREEDY_SIZE,
        passes=None if plan.local_steps == "exact" else plan.local_steps,
    )


class Dbcd(VerticalAlgorithm):
    """Block coordinate descent for L1-regularized linear models."""

    name = "dbcd"
    needs = (SendsResiduals,)
    part = DbcdPart
    takes_sparse = False
    settings = DbcdSettings
    gradient_steps = False
    keeps_state = False
    defaults = MappingProxyType(
        {"local_steps": "exact", "batch_size": "full", "acceleration": "none", "l2": 0.0}
    )
    roles = (
        (
            "label party",
            "X_k(θ_k + Δ_k) of every round, as the exchange shows H_k; ‖θ_k‖₁ for a grid of "
            "steps, or the sum of them",
            "features; where masked, any single party's",
        ),
        (
            "feature party",
            "d of every round, so every label in time; how many rounds each λ₁ took",
            "others' features",
        ),
    )

    @override
    def check(self, plan: Plan) -> None:
        for wrong, reason in _refusals(plan, plan.job.section(DbcdSettings, self.name)):
            if wrong:
                raise ConfigError(reason)

    @override
    def visits(self, plan: Plan) -> Visits:
        return Visits(1, 1, 1)


def _refusals(plan: Plan, own: DbcdSettings) -> Iterator[tuple[object, str]]:
    """Conditions under which the job is refused, each with its error."""
    settings, privacy = plan.job.job, plan.job.privacy
    yield (
        (own.path is None) == (settings.l1 == 0),
        "algorithm = 'dbcd' takes either job.l1 above 0 or [dbcd] path",
    )
    path = own.path or ()
    yield np.any(np.diff(path) >= 0), "[dbcd] path: expected falling values"
    yield (
        len(path) > 1 and plan.exchange.adds_noise,
        "[dbcd] path: under noise no party knows when a λ₁ has converged; use job.l1",
    )
    yield (
        own.size is not None and own.working_set == "all",
        "[dbcd] size belongs to working_set = 'greedy'",
    )
    yield (
        not isinstance(plan.loss, CurvedLoss),
        f"loss = {plan.loss.name!r}: dbcd takes logistic (two classes), squared, taylor-logistic "
        "or squared-hinge",
    )
    yield plan.networks, "algorithm = 'dbcd' trains linear models only"
    yield plan.batch_size != "full", "algorithm = 'dbcd' takes all rows: batch_size = 'full'"
    yield privacy.gradient_clip, "gradient_clip: dbcd takes no gradient steps"
    yield (
        settings.learning_rate != "auto" or settings.schedule or settings.divide_by_sqrt_parties,
        "algorithm = 'dbcd' searches for its steps: drop learning_rate, schedule and "
        "divide_by_sqrt_parties",
    )
    yield (
        settings.acceleration == "nesterov",
        "acceleration = 'nesterov': dbcd has [dbcd] momentum in its place",
    )
    yield (
        settings.local_rule != "curvature",
        f"local_rule = {settings.local_rule!r}: dbcd follows curvature",
    )
    yield (
        privacy.label_noise_multiplier,
        "label_noise_multiplier: dbcd's line search depends on exact labels",
    )


DESCRIPTIONS = (Dbcd(),)
