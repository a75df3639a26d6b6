"""DBCD's rounds at one party; see `dbcd` for who learns what.

All parties know the λ₁ of a path in advance; the label party says when the next one is on.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from securevfl.arrays import FloatArray, Labels
from securevfl.errors import UnexpectedMessage
from securevfl.job import DbcdSettings
from securevfl.models.losses import BendingLoss
from securevfl.protocols.exchange import Batch, Session, Side, TellsResiduals
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.agreement import agree
from securevfl.protocols.session.keeping import Kept
from securevfl.protocols.session.label_guard import LeakageCount
from securevfl.protocols.session.outcome import Ending, PathPoint
from securevfl.protocols.session.party import Party, Step
from securevfl.protocols.session.scoring import ByRow, FeatureScoring, LabelScoring
from securevfl.protocols.signals import ResidualSignal
from securevfl.protocols.vertical.batches import PartyBatches
from securevfl.protocols.vertical.held_out_guarding import require_held_out_guard
from securevfl.protocols.vertical.l1_block import L1Block
from securevfl.protocols.vertical.line_search import LASTS, NO_LAST, STEPS, LineSearch
from securevfl.protocols.vertical.memory import require_no_session
from securevfl.protocols.vertical.penalties import PenaltySums
from securevfl.protocols.vertical.program import Trained, Training
from securevfl.runtime.channel import expect_shape
from securevfl.sparse import require_dense
from securevfl.wire.codec import StepMessage, message_kind

GREEDY_SIZE = 10


@message_kind(47, stage="round")
class StepTaken(StepMessage):
    """The label party's word after its line search.

    `length` is ω and ψ, shape (2,); where `settled` the objective at this λ₁ is low enough, and the
    next λ₁ is on, if there is one.
    """

    length: FloatArray
    settled: bool


@dataclass(frozen=True, eq=False)
class Common:
    """What both roles have in hand in a round.

    Attributes:
        party: who it is.
        side: of the exchange.
        sums: how penalties travel.
        lasts: the ψ of the line search, shape (B,).
        bounds_gap: whether parties say how far from optimal they are: not under noise.
    """

    party: Party
    side: Side
    sums: PenaltySums
    lasts: FloatArray
    bounds_gap: bool

    def said(self, block: L1Block) -> tuple[FloatArray, FloatArray]:
        """What a party says in the line search."""
        optimality = block.optimality() if self.bounds_gap else np.zeros(2)
        return block.penalties(STEPS, self.lasts), optimality


class Follower:
    """A feature party's part of a round."""

    objective: float | None = None
    gap: float | None = None
    loss: float | None = None

    def __init__(self, common: Common) -> None:
        self._common = common

    async def take(self, step: Step, batch: Batch, block: L1Block) -> StepTaken:
        """Aim at residuals, and go as far as the label party says.

        Raises:
            UnexpectedMessage: a step that is none of the search's.
        """
        common, party = self._common, self._common.party
        nothing = np.zeros((len(batch.rows), 1))
        signal = await common.side.signal(step, batch, nothing, None)
        assert isinstance(signal, ResidualSignal)  # noqa: S101
        async with party.costs.compute("local"):
            aim = block.aim(signal.residuals)
            said = common.said(block)
        await common.side.gather(step, aim)
        await common.sums.give(step.index, *said)
        sender, taken = await party.channel.receive([party.label_party], StepTaken, step.index)
        expect_shape(sender, taken.length, (2,))
        if taken.length[0] not in STEPS or taken.length[1] not in common.lasts:
            raise UnexpectedMessage(f"{sender} takes a step that is not on the grid")
        async with party.costs.compute("local"):
            block.move(*taken.length.tolist(), settled=taken.settled)
        return taken


class Leader:
    """The label party's part of a round.

    Args:
        common: see there.
        labels: of the batch, shape (N,).
        tolerance: the gap that is small enough, as a part of the objective.

    Attributes:
        objective: after the last round.
        gap: bound on how far it was above the least before the last step, as a part of it.
    """

    def __init__(self, common: Common, labels: Labels, tolerance: float) -> None:
        self._common, self._labels, self._tolerance = common, labels, tolerance
        self._total = self._before = self._others = np.zeros((len(labels), 1))
        self.objective: float | None = None
        self.gap: float | None = None

    @property
    def learned(self) -> bool:
        """Whether the loss, without penalty, is below that of the best constant."""
        loss, labels = self._common.party.loss, self._labels
        constant = np.broadcast_to(loss.constant(labels), self._total.shape)
        return self.loss < loss.value(constant, labels)

    @property
    def loss(self) -> float:
        """The mean loss of training rows, without penalty."""
        return self._common.party.loss.value(self._total, self._labels)

    async def take(self, step: Step, batch: Batch, block: L1Block) -> StepTaken:
        """Give residuals, aim at them like all others, search and say how far all go."""
        common, party = self._common, self._common.party
        loss, total, labels = party.loss, self._total, self._labels
        await common.side.signal(step, batch, total - self._others, self._others)
        async with party.costs.compute("local"):
            residuals = loss.residuals(total, labels)
            own = block.aim(residuals)
            said = common.said(block)
        others = await common.side.gather(step, own)
        assert others is not None  # noqa: S101
        table, optimality = await common.sums.take(step.index, *said)
        async with party.costs.compute("local"):
            ahead = own + others - total
            search = LineSearch(
                lambda there: loss.value(there, labels),
                total,
                ahead,
                total - self._before,
                table=table,
                lasts=common.lasts,
                slope=float(np.mean(residuals * ahead)),
            )
            place = search.best()
            taken = self._judged(step, search, place, optimality)
            self._before, self._total = total, search.predictions(place)
            if taken.settled:
                self._before = self._total
            block.move(*taken.length.tolist(), settled=taken.settled)
            self._others = self._total - block.predictions()
        for name in party.feature_parties:
            await party.channel.send(name, taken)
        return taken

    def _judged(
        self, step: Step, search: LineSearch, place: tuple[int, int], optimality: FloatArray
    ) -> StepTaken:
        """The step, and whether the objective is low enough or falls no further."""
        start, self.objective = search.objective((0, 0)), search.objective(place)
        settled = False
        if self._common.bounds_gap:
            slack, beyond = optimality.tolist()
            # A party says 1 for all that is more, for which F alone is a bound.
            bound = start if beyond >= 1 else min(start, slack + beyond * start)
            self.gap = max(bound, 0.0) / start if start > 0 else 0.0
            settled = self.gap <= self._tolerance or place == (0, 0)
        length = np.array([STEPS[place[0]], self._common.lasts[place[1]]])
        return StepTaken(step.index, length, settled)


async def take_part(training: Training) -> Trained:
    """One party's part: agree, set up the exchange, train.

    Raises:
        PeerError: a peer broke the protocol or is gone.
        RangeExceeded: predictions or penalties leave what masks are made for.
        HeldOutLeakRefused: scoring would show too much of this party's held-out rows.
        TrainingDiverged: slopes leave float64.
    """
    party, plan, part = training.party, training.plan, training.part
    place = training.workplace
    require_no_session(training)
    write_down_scorings = require_held_out_guard(training)
    agreement = await agree(party, plan.hash, part.inputs, len(part.held_out), encrypted=False)
    leakage = LeakageCount(plan.facts.rows, plan.loss.outputs, agreement.columns)
    assert isinstance(plan.exchange, TellsResiduals)  # noqa: S101
    ready = await plan.exchange.establish_residuals(
        Session(party, plan, agreement, leakage, place.keys, noise=training.noise)
    )
    write_down_scorings()
    batch = PartyBatches(plan, place.data, part.inputs).at(0)
    own = plan.job.section(DbcdSettings, plan.algorithm.name)
    noisy = plan.exchange.adds_noise
    common = Common(
        party,
        ready.side,
        PenaltySums(party, agreement.masks if plan.learns.predictions == "summed" else None),
        lasts=LASTS if own.momentum and not noisy else NO_LAST,
        bounds_gap=not noisy,
    )
    role: Follower | Leader = Follower(common)
    by_row = ByRow(party, ready.gathering)
    scoring: FeatureScoring | LabelScoring
    scoring = FeatureScoring(party, by_row, plan.timetable, part.held_out)
    if party.holds_labels:
        assert batch.labels is not None and place.data.test_labels is not None  # noqa: S101, PT018
        role = Leader(common, batch.labels, plan.job.job.tolerance)
        scoring = LabelScoring(
            party,
            by_row,
            plan.timetable,
            inputs=part.held_out,
            labels=place.data.test_labels,
            target_auc=plan.job.job.target_auc,
        )
    rounds = Rounds(training, role, batch, _block(training, batch))
    ended = await rounds.train(scoring)
    return Trained(
        Kept(rounds.path[-1].rounds, rounds.path[-1].rounds),
        scoring.scores,
        leakage,
        ended=ended,
        learned=noisy or isinstance(role, Follower) or role.learned,
        path=tuple(rounds.path),
        losses=tuple(scoring.losses),
    )


@dataclass(frozen=True, eq=False)
class Rounds:
    """One party's rounds; `path` fills as one λ₁ after another ends."""

    training: Training
    role: Follower | Leader
    batch: Batch
    block: L1Block
    path: list[PathPoint] = field(default_factory=list)

    async def train(self, scoring: FeatureScoring | LabelScoring) -> Ending:
        """Train one party's part of the model, in place."""
        training, plan, names = self.training, self.training.plan, self.training.party.names
        values = _l1_values(plan)
        self.block.l1, self.block.is_last = values[0], len(values) == 1
        for index in range(plan.rounds):
            step = Step(index, receivers=names, fresh=names)
            taken = await self.role.take(step, self.batch, self.block)
            training.party.costs.end_round()
            training.after_round(index + 1)
            over = taken.settled and len(self.path) + 1 == len(values)
            done = index + 1
            last = over or done == plan.rounds
            target = await scoring.stops(done, training.model, loss=self.role.loss)
            if last and not target:
                target = await scoring.ends(done, training.model)
            if taken.settled or target or last:
                self._note(done, settled=taken.settled)
            if over:
                return "settled"
            if target:
                return "target"
            if taken.settled:
                self.block.l1 = values[len(self.path)]
                self.block.is_last = len(self.path) + 1 == len(values)
        return "rounds"

    def _note(self, rounds: int, *, settled: bool) -> None:
        part, role = self.training.part.saved(rounds), self.role
        if settled:
            part = replace(part, weights=self.block.with_zeros())
        self.path.append(PathPoint(self.block.l1, rounds, settled, part, role.objective, role.gap))


def _l1_values(plan: Plan) -> tuple[float, ...]:
    own = plan.job.section(DbcdSettings, plan.algorithm.name)
    return own.path or (plan.job.job.l1,)


def _block(training: Training, batch: Batch) -> L1Block:
    """This party's block at θ = 0, where DBCD starts whatever the job's start is."""
    plan, model = training.plan, training.model
    own = plan.job.section(DbcdSettings, plan.algorithm.name)
    assert isinstance(plan.loss, BendingLoss)  # noqa: S101
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
