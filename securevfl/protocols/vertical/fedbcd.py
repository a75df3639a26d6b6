"""FedSGD, FedBCD-p and FedBCD-s (Liu et al. 2019, Algorithm 1), one program for each role.

In a round of FedBCD-p all parties exchange once and then take Q local steps at the same time.
In FedBCD-s they take turns on the same batch, the label party first: the party whose turn it is
gets a signal that holds everyone's newest predictions. FedSGD is FedBCD-p at Q = 1.
The paper's turns are 1, …, K with the labels last. Ours are the same cycle begun one turn earlier,
which saves the message that tells the label party of the last feature party's steps: its next
predictions do (docs/decisions/0023-departures-from-fedbcd.md).

The program is the same at both roles: what differs is the side of the exchange they hold, and
who scores.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from typing_extensions import override

from securevfl.arrays import FloatArray, Labels
from securevfl.errors import ConfigError
from securevfl.models.local_model import LocalModel
from securevfl.protocols.algorithm import Algorithm
from securevfl.protocols.exchange import (
    Batch,
    GivesSignals,
    KeepsShares,
    Lookahead,
    Session,
    Side,
)
from securevfl.protocols.local_steps import LocalSteps
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.agreement import agree
from securevfl.protocols.session.course import (
    Course,
    FollowedWatch,
    Judge,
    LabelWatch,
    NoWatch,
    Watch,
)
from securevfl.protocols.session.keeping import Keeper, Kept
from securevfl.protocols.session.label_guard import LeakageCount
from securevfl.protocols.session.outcome import Ending
from securevfl.protocols.session.party import Party, Step
from securevfl.protocols.session.privacy_account import Visits
from securevfl.protocols.session.scoring import ByRow, FeatureScoring, LabelScoring, Score
from securevfl.protocols.session.workplace import Workplace
from securevfl.protocols.signals import Signal
from securevfl.protocols.vertical.batches import PartyBatches
from securevfl.protocols.vertical.guarding import commitments, require_guard
from securevfl.protocols.vertical.held_out_guarding import require_held_out_guard
from securevfl.protocols.vertical.keeping import baseline_of, keeper_of, window_of
from securevfl.protocols.vertical.memory import Memory, go_on, keep_state
from securevfl.protocols.vertical.program import Trained, Training, run_party
from securevfl.runtime.costs import SETUP
from securevfl.runtime.simulation import Program


class FedBcd(Algorithm):
    """FedBCD with all parties at once or in turns, or FedSGD.

    Args:
        name: in a job.
        in_turns: whether parties take turns within a round.
        one_step: Q = 1 whatever the job says.
    """

    takes_head = True
    repeats_products = True

    def __init__(self, name: str, *, in_turns: bool = False, one_step: bool = False) -> None:
        self.name = name
        self.in_turns, self.one_step = in_turns, one_step
        self.needs = (GivesSignals,) if in_turns else (GivesSignals, KeepsShares)

    @override
    def check(self, plan: Plan) -> None:
        """Refuse L1 where no proximal step would follow it."""
        if not plan.job.job.l1:
            return
        if plan.networks:
            raise ConfigError("l1 takes linear models: a soft threshold follows every step")
        if plan.exchange.encrypts:
            raise ConfigError(f"l1 takes exchanges in clear, not {plan.exchange.name!r}")
        if plan.rule.exact or plan.rule.accelerated:
            raise ConfigError(
                "l1 takes local_steps as a number and no acceleration: a quadratic's minimum and "
                "its extrapolation know no threshold; algorithm = 'dbcd' does"
            )

    @override
    def visits(self, plan: Plan) -> Visits:
        """One release a visit; between two turns the party that stepped releases once more."""
        steps = plan.rule.local_steps
        if not self.in_turns:
            return Visits(1, 1, steps)
        parties = len(plan.facts.names)
        # The last party's step is followed by no turn.
        return Visits(2 if parties > 2 else 1, parties, steps)  # noqa: PLR2004

    @override
    def programs(self, plan: Plan, places: Mapping[str, Workplace]) -> dict[str, Program[Any]]:
        """Those of the parties."""
        train = plan.exchange.take_part if isinstance(plan.exchange, KeepsShares) else take_part
        return {
            name: partial(run_party, plan=plan, workplace=place, train=train)
            for name, place in places.items()
        }


DESCRIPTIONS = (
    FedBcd("fedsgd", one_step=True),
    FedBcd("fedbcd-p"),
    FedBcd("fedbcd-s", in_turns=True),
)


class Batches(Protocol):
    """Which rows a round takes, the same at every party."""

    def at(self, round_index: int) -> Batch:
        """This party's rows of a round."""


class Scoring(Protocol):
    """Scoring on held-out rows."""

    scores: list[Score]

    async def stops(self, rounds: int, model: LocalModel, *, loss: float | None) -> bool:
        """Take part in scoring if it is due after a round; whether training ends here."""

    async def ends(self, rounds: int, model: LocalModel, *, first_round: int = 0) -> bool:
        """Take part in scoring what is kept; whether that is good enough."""


async def take_part(training: Training) -> Trained:
    """One party's part: agree, set up the exchange, train.

    Raises:
        PeerError: a peer broke the protocol or is gone.
        RangeExceeded: products could overflow, or values leave the agreed range.
        LabelLeakRefused: this party owns a key and its gradients would tell too much.
        HeldOutLeakRefused: scoring would show too much of this party's held-out rows.
    """
    party, plan, part = training.party, training.plan, training.part
    place = training.workplace
    # Before anybody else writes anything down.
    write_down_scorings = require_held_out_guard(training)
    async with party.costs.compute(SETUP):
        committed = commitments(plan, party.name, part.inputs, place.guard_directory)
    agreement = await agree(
        party,
        plan.hash,
        part.inputs,
        len(part.held_out),
        parameters=part.parameters,
        encrypted=plan.exchange.encrypts,
        commitments=committed,
    )
    if party.name in plan.exchange.key_owners(plan.job.exchange, party):
        resumes = place.resume is not None
        labels = place.data.train_labels
        require_guard(party, plan, agreement, labels, place.guard_directory, resumes=resumes)
    batches = PartyBatches(plan, place.data, part.inputs)
    # Products that local steps repeat tell nothing new, but a peer that cheats could make them.
    repeated = plan.facts.names if plan.products > 1 else plan.networks
    leakage = LeakageCount(
        plan.facts.rows, plan.loss.outputs, agreement.columns, nonlinear=frozenset(repeated)
    )
    columns = sum((agreement.own_columns, *agreement.columns.values()))
    async with party.costs.compute(SETUP):
        steps = plan.steps(training.model, part.inputs, columns)
    watch = watch_of(party, plan, place.data.train_labels)
    lookahead = Lookahead(steps, plan.rounds, batches.at)
    session = Session(
        party,
        plan,
        agreement,
        leakage,
        place.keys,
        lookahead=lookahead,
        noise=training.noise,
        head=part.head,
    )
    assert isinstance(plan.exchange, GivesSignals)  # noqa: S101
    ready = await plan.exchange.establish(session)
    write_down_scorings()
    keeper = keeper_of(training, agreement)
    memory = Memory(ready, steps, watch, keeper, part.row_offsets)
    first_round = 0
    if place.resume is None:
        keep_state(training, leakage, memory, 0)
    else:
        first_round = go_on(place.resume, training, leakage, memory)
    by_row = ByRow(party, ready.gathering)
    scoring: FeatureScoring | LabelScoring
    if place.data.test_labels is None:
        gives = ready.gives_held_out or by_row
        scoring = FeatureScoring(party, gives, plan.timetable, part.held_out)
    else:
        scoring = LabelScoring(
            party,
            ready.scores_held_out or by_row,
            plan.timetable,
            inputs=part.held_out,
            labels=place.data.test_labels,
            target_auc=plan.job.job.target_auc,
        )
    kept, ended = await train(
        Rounds(training, ready.side, steps, watch, keeper, part.row_offsets),
        batches=batches,
        scoring=scoring,
        goes_on=partial(keep_state, training, leakage, memory),
        first_round=first_round,
    )
    learned = not isinstance(watch, LabelWatch) or watch.judge.learned
    if keeper.hindsight is not None and kept.rounds < kept.done:
        learned = keeper.hindsight.learned(kept)
    # Noise on predictions drowns the training loss.
    learned = learned or plan.exchange.adds_noise
    return Trained(
        kept,
        scoring.scores,
        leakage,
        ready.key,
        ended=ended,
        learned=learned,
        losses=tuple(scoring.losses),
    )


@dataclass(frozen=True, eq=False)
class Rounds:
    """What takes a party through a round.

    Attributes:
        training: who it is, its model and the plan.
        side: its side of the exchange.
        steps: its own, of the same model.
        watch: its side of the label party's word.
        keeper: of its snapshots.
        row_offsets: what the label party adds to H, shape (N, C); None adds nothing.
    """

    training: Training
    side: Side
    steps: LocalSteps
    watch: Watch
    keeper: Keeper
    row_offsets: FloatArray | None = None

    async def take(self, round_index: int, batch: Batch) -> tuple[Course, float | None]:
        """One round; what the label party said of it, and the batch's loss, if this party saw it.

        Raises:
            PeerError: a peer failed; the model is as after the last whole round or turn.
        """
        party, model, steps = self.training.party, self.training.model, self.steps
        async with party.costs.compute("local"):
            steps.begin(round_index, len(batch.rows), moves=self.keeper.lost is None)
        course, loss = Course(round_index), None
        for turn, step in enumerate(steps_of(self.training.plan, round_index)):
            async with party.costs.compute("local"):
                predictions = model.predict(batch.inputs)
                seen = batch.seen_by(model)
            others = await self.side.gather(step, predictions)
            if turn == 0:
                loss = await self._loss(batch, predictions, others)
                # Where nobody sees the sum of predictions: what its own steps promise to gain.
                heading = -steps.gained if loss is None else loss
                course = await self.watch.course(round_index, heading, majorizes=steps.majorizes)
                if course.back or course.stop:
                    break
                if course.keep:
                    steps.keep()
            own = predictions
            if self.row_offsets is not None and others is not None:
                others = others + self.row_offsets[batch.rows]
            elif self.row_offsets is not None:
                own = predictions + self.row_offsets[batch.rows]
            signal = await self.side.signal(step, seen, own, others)
            if signal is not None and self.keeper.lost is None:
                async with party.costs.compute("local"):
                    self._step(round_index, seen, predictions, signal)
        async with party.costs.compute("local"):
            steps.follow(course)
        return course, loss

    def _step(self, round_index: int, seen: Batch, predictions: FloatArray, signal: Signal) -> None:
        with self.keeper.watches(round_index):
            self.steps.apply(
                seen.inputs, predictions=predictions, signal=signal, tangent=seen.jacobian
            )

    async def _loss(
        self, batch: Batch, predictions: FloatArray, others: FloatArray | None
    ) -> float | None:
        """The training loss where this party has labels and sees the sum of predictions."""
        if batch.labels is None or others is None:
            return None
        async with self.training.party.costs.compute("local"):
            return self.training.plan.loss.value(others + predictions, batch.labels)


async def train(
    rounds: Rounds,
    *,
    batches: Batches,
    scoring: Scoring,
    goes_on: Callable[[int], None],
    first_round: int = 0,
) -> tuple[Kept, Ending]:
    """Train one party's part of the model, in place, and go back to what is kept of it.

    Args:
        rounds: takes this party through one.
        batches: this party's rows.
        scoring: this party's side of scoring.
        goes_on: called with the number of rounds done once scoring has not ended the job.
        first_round: rounds that have been done before.

    Returns:
        The state that is kept, and what ended training.

    Raises:
        PeerError: a peer failed; the model is as after the last whole round or turn.
    """
    training, plan, keeper = rounds.training, rounds.training.plan, rounds.keeper
    ended: Ending = "rounds"
    done = plan.rounds
    for round_index in range(first_round, plan.rounds):
        batch = batches.at(round_index)
        course, loss = await rounds.take(round_index, batch)
        training.party.costs.end_round()
        training.after_round(round_index + 1)
        done, seen = round_index + 1, None if plan.exchange.adds_noise else loss
        reached = await scoring.stops(done, training.model, loss=seen)
        keeper.after(done, scoring.scores, loss=None if plan.is_watched else loss)
        if course.stop:
            ended = "no way down" if course.back else "settled"
            break
        if reached:
            return Kept(done, done, lost=keeper.lost), "target"
        goes_on(done)
    kept = await keeper.end(done)
    if await scoring.ends(kept.rounds, training.model, first_round=first_round):
        ended = "target" if ended == "rounds" else ended
    return kept, ended


def watch_of(party: Party, plan: Plan, labels: Labels | None) -> Watch:
    """A party's side of the label party's word.

    Args:
        party: who it is.
        plan: of the job.
        labels: of all training rows, at the label party.
    """
    if labels is None or not party.holds_labels:
        return FollowedWatch(party) if plan.is_watched else NoWatch()
    judge = Judge(baseline_of(plan, labels), plan.job.job.tolerance, window_of(plan))
    return LabelWatch(party, judge, told=plan.is_watched)


def steps_of(plan: Plan, round_index: int) -> Iterator[Step]:
    """The exchanges of a round."""
    names, label_party = plan.facts.names, plan.facts.label_party
    turns = [names]
    if plan.algorithm.in_turns:
        turns = [(label_party,), *((name,) for name in names if name != label_party)]
    index, fresh = round_index * len(turns) * plan.products, names
    for receivers in turns:
        for _ in range(plan.products):
            yield Step(index, receivers, fresh)
            index, fresh = index + 1, ()
        fresh = receivers
