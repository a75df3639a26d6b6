"""One party's program, the same for every algorithm: `run_party`.

It asks the guards, agrees with the other parties, sets up the exchange, starts or resumes, takes
rounds with scoring and checkpoints, and returns the outcome. An algorithm contributes its `Part`.
The same coroutine runs in simulation and over a real network. It has the party's own columns, and
labels only where the algorithm needs them.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from securevfl.arrays import Labels
from securevfl.crypto.scheme import KeyOwner
from securevfl.data.labels import TargetScaling
from securevfl.errors import ConfigError, DataError
from securevfl.models.local_model import LocalModel
from securevfl.models.losses import with_weights
from securevfl.models.scores import auc_error, r2_error
from securevfl.protocols.algorithm import Algorithm
from securevfl.protocols.exchange import Lookahead, Session, TrainsOnShares
from securevfl.protocols.guards.failed_checks import require_trust
from securevfl.protocols.guards.feature_guard import FeatureGuard
from securevfl.protocols.guards.label_guard import commitments, require_guard
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.agreement import Agreement, agree
from securevfl.protocols.session.checkpoints import Checkpoints, SessionState
from securevfl.protocols.session.early_stopping import (
    LONGEST_WINDOW,
    SHORTEST_WINDOW,
    CheckpointSelection,
    SelectedState,
    TrainingHistory,
    snapshot_rounds,
)
from securevfl.protocols.session.gathering import Party, Step
from securevfl.protocols.session.privacy_account import LeakageCount, Noise
from securevfl.protocols.session.scoring import ByRow, GatheredScoring, HeldOut, Scoring
from securevfl.protocols.session.workplace import Ending, PartyOutcome, PathPoint, Workplace
from securevfl.protocols.vertical.local_part import LocalPart
from securevfl.protocols.vertical.private_gradients import with_private_gradients
from securevfl.runtime.channel import Channel
from securevfl.runtime.costs import SETUP, Costs
from securevfl.runtime.simulation import Program


@dataclass(frozen=True, eq=False)
class Training:
    """A party before it has talked to any other.

    Attributes:
        part: its inputs and model.
        model: its model, with private gradients where the job has them.
        noise: of this party, where the exchange adds noise.
        unit: of its targets; real ones are scaled.
    """

    party: Party
    plan: Plan
    workplace: Workplace
    part: LocalPart
    model: LocalModel
    noise: Noise | None
    unit: float


@dataclass(frozen=True)
class Seen:
    """What a party saw of a round.

    Attributes:
        loss: of the exchanged batch, for scores; None where it is unknown or noisy.
        selection_loss: likewise, for checkpoint selection.
        ended: why training ends with this round, if it does.
    """

    loss: float | None = None
    selection_loss: float | None = None
    ended: Ending | None = None


class Part(ABC):
    """An algorithm's part at one party; `run_party` calls its methods in the order below.

    Attributes:
        inputs: X of the rows that all parties hold.
        observers: servers that receive this party's greeting without answering.
        at_once: rounds per call of `round`; the last call may take fewer.
        restores_first: whether it restores a state before it agrees with the others.
        selection: of a checkpoint at the end; None takes the last state.
        key: its own homomorphic key, if it has one.
        path: see `PartyOutcome`.
        failure: see `PartyOutcome`.
    """

    observers: ClassVar[Collection[str]] = ()
    at_once: int = 1
    restores_first: ClassVar[bool] = False
    selection: CheckpointSelection | None = None
    key: KeyOwner | None = None
    path: tuple[PathPoint, ...] = ()
    failure: float = 0.0

    def __init__(self, training: Training) -> None:
        self.training = training
        self.party, self.plan, self.place = training.party, training.plan, training.workplace
        self.local, self.model = training.part, training.model
        self.inputs = training.part.inputs

    async def agree(self) -> Agreement:
        """Agree with all other parties; guards count the columns that these announce."""
        party, plan, part = self.party, self.plan, self.local
        async with party.costs.compute(SETUP):
            committed = commitments(plan, party.name, self.inputs, self.place.guard_directory)
        return await agree(
            party,
            plan.hash,
            self.inputs,
            len(part.held_out),
            parameters=part.parameters,
            encrypted=plan.exchange.encrypts,
            rows_digest=self.place.data.table.rows_digest,
            commitments=committed,
            observers=self.observers,
        )

    def session(
        self, agreement: Agreement, leakage: LeakageCount, lookahead: Lookahead | None = None
    ) -> Session:
        """The inputs of this party's side of the exchange."""
        keys, noise = self.place.keys, self.training.noise
        return Session(
            self.party, self.plan, agreement, leakage, keys, lookahead, noise, self.local.head
        )

    @abstractmethod
    async def establish(self, agreement: Agreement, leakage: LeakageCount) -> Scoring:
        """Set up this party's side of the exchange and return its scoring.

        `leakage` counts what gradients under this party's key reveal.

        Raises:
            RangeExceeded: products could overflow; before any key is made.
        """

    @property
    def exact(self) -> bool:
        """Whether others see all digits of this party's predictions."""
        return True

    def begin(self) -> None:  # noqa: B027
        """Start a new session, once no party can refuse any more."""

    @abstractmethod
    async def round(self, index: int) -> Seen:
        """Take the round `index`, or `at_once` rounds from it on.

        Raises:
            PeerError: a peer failed; the model is as after the last whole round or turn.
        """

    def after(self, done: int, seen: Seen, scoring: Scoring, *, reached: bool) -> None:
        """Note a round's loss and scores; `reached` says that the scores end the job."""
        del reached
        if self.selection is not None:
            self.selection.after(done, scoring.scores, loss=seen.selection_loss)

    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """The state beside the model, by name."""
        return {}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:  # noqa: B027
        """Return to such a state."""

    def learned(self, selected: SelectedState) -> bool:
        """Whether the training loss ended below that of the best constant; True if unknown."""
        del selected
        return True


class VerticalAlgorithm(Algorithm):
    """An algorithm whose parties run `run_party` with its part."""

    part: ClassVar[type[Part]]

    @override
    def programs(self, plan: Plan, places: Mapping[str, Workplace]) -> dict[str, Program[Any]]:
        made = plan.exchange.part if isinstance(plan.exchange, TrainsOnShares) else type(self).part
        return {
            name: partial(run_party, plan=plan.of_a_program(), workplace=place, made=made)
            for name, place in places.items()
        }


async def run_party(
    channel: Channel,
    costs: Costs,
    *,
    plan: Plan,
    workplace: Workplace,
    made: Callable[[Training], Part],
) -> PartyOutcome:
    """Take one party through a job; `made` makes its part of the algorithm.

    Raises:
        PeerError: a peer broke the protocol or is gone.
        RangeExceeded: products could overflow, or values leave the agreed range.
        LabelLeakRefused: gradients under this party's key would reveal too much.
        FeatureLeakRefused: rounds or scoring would show too much of this party's rows.
        BudgetExhausted: the job would spend more than its privacy budget.
        ConfigError: a job that cannot resume, or not from this state.
    """
    training = _begun(channel, costs, plan, workplace)
    party, local, place = training.party, training.part, training.workplace
    state, first_round = place.resume, 0
    owners = plan.exchange.key_owners(plan.job.exchange, party)
    if plan.learns.gradients and not owners:
        raise ConfigError(
            f"exchange {plan.exchange.name!r} reveals gradients and names no key_owners: no party "
            "would count what they reveal of labels"
        )
    if state is not None and plan.never_resumes is not None:
        raise ConfigError(plan.never_resumes)
    # Before any party records anything.
    require_trust(place.guard_directory, party.others)
    shows = FeatureGuard(party, plan, place, local.inputs, local.held_out)
    shows.require()
    part = made(training)
    if state is not None and part.restores_first:
        first_round = _go_on(state, part)
    agreement = await part.agree()
    # Where gradients are hidden too, what is revealed at the end still differs with the labels.
    hides_labels = plan.learns.residuals == "hidden" and party.holds_labels
    if party.name in owners or hides_labels:
        # As given: one changed target moves the scaling of all.
        labels, resumes = workplace.data.train_labels, state is not None
        if labels is not None and plan.facts.real_targets:
            labels = labels.astype(np.float64)
        require_guard(party, plan, agreement, labels, place, resumes=resumes)
    # Repeated products of local steps reveal nothing new unless a peer cheats, so they count.
    repeated = [name for name in plan.facts.names if plan.products > 1 or plan.renews(name)]
    revealed = {} if state is None else {name: dict(each) for name, each in state.revealed.items()}
    leakage = LeakageCount(
        plan.facts.rows, plan.loss.outputs, agreement.columns, revealed, frozenset(repeated)
    )
    scoring = await part.establish(agreement, leakage)
    shows.write_down()
    checkpoints = Checkpoints(place.checkpoints or Path(), party.name, durable=place.durable)
    keep = partial(_keep_state, part, leakage, checkpoints)
    if state is None:
        part.begin()
        keep(0)
    elif not part.restores_first:
        first_round = _go_on(state, part)
    with checkpoints, shows.rounds(first_round, part.model, exact=part.exact) as begin:
        selected, ended = await _trained(part, scoring, first_round, keep, begin)
    saved = local.saved(selected.rounds)
    shows.note_model(saved)
    return PartyOutcome(
        model=saved,
        rounds=selected.done,
        scores=[score.in_units(training.unit) for score in scoring.scores],
        key_fingerprint=part.key.fingerprint if part.key is not None else None,
        key_bits=part.key.key_bits if part.key is not None else None,
        leakage=leakage,
        held_out=local.model.predict(local.held_out),
        ended=ended,
        learned=part.learned(selected),
        # Of all rounds even if training ended early, since when it ends depends on the data.
        privacy=None if plan.account is None else plan.account.after(plan.rounds),
        path=part.path,
        losses=tuple(training.unit**2 * loss for loss in scoring.losses),
        selected=selected,
        failure=part.failure,
        joint=scoring.seen.get(selected.rounds),
    )


async def _trained(
    part: Part,
    scoring: Scoring,
    first_round: int,
    keep: Callable[[int], None],
    begin: Callable[[int], None],
) -> tuple[SelectedState, Ending]:
    """Take all rounds and return to the selected state; also say what ended training.

    `keep` is called with the number of rounds done after each round that scoring did not end.
    `begin` is called with the number of rounds as each begins.
    """
    model, selection, ended = part.model, part.selection, None
    done = rounds = part.plan.rounds
    for index in range(first_round, rounds, part.at_once):
        begin(min(index + part.at_once, rounds))
        seen = await part.round(index)
        done = min(index + part.at_once, rounds)
        part.party.costs.end_round(done - index)
        if part.place.progress is not None:
            for each in range(index, done):
                part.place.progress(each + 1)
        reached = await scoring.stops(done, model, loss=seen.loss)
        part.after(done, seen, scoring, reached=reached)
        ended = seen.ended
        if ended is not None:
            break
        if reached:
            return SelectedState(done, done, lost=selection.lost if selection else None), "target"
        keep(done)
    selected = SelectedState(done, done) if selection is None else await selection.finish(done)
    reached = await scoring.ends(selected.rounds, model, first_round=first_round)
    return selected, ended or ("target" if reached else "rounds")


@dataclass(frozen=True)
class MadeOffline:
    """A party's pads on disk: where, how many bytes, for how many rounds."""

    path: Path
    size: int
    rounds: int


MakeOffline = Callable[[Training], Awaitable[MadeOffline]]


async def run_offline(
    channel: Channel, costs: Costs, *, plan: Plan, workplace: Workplace, make: MakeOffline
) -> MadeOffline:
    """Take one party through the offline phase of a job."""
    return await make(_begun(channel, costs, plan, workplace))


def _begun(channel: Channel, costs: Costs, plan: Plan, workplace: Workplace) -> Training:
    facts, data = plan.facts, workplace.data
    party = Party(channel, costs, facts.names, facts.label_party, plan.loss)
    part = LocalPart(
        plan,
        data.whole_table,
        workplace.start,
        workplace.make_module,
        class_names=data.class_names,
        offsets_key=workplace.offsets_key,
    )
    if workplace.wrap_model is not None:
        part.model = workplace.wrap_model(part.model)
    if data.train_labels is not None:
        given, of_rows = plan.job.job.class_weight, data.table.weights
        labels = with_weights(data.train_labels, data.class_names, given, of_rows)
        workplace = replace(workplace, data=replace(data, train_labels=labels))
    workplace, unit = _with_scaled_targets(plan, workplace, part)
    noise = None
    if plan.account is not None:
        plan.account.require_budget()
        noise = plan.account.noise_at(facts.names.index(party.name))
    model = part.model
    with_exact_steps = party.holds_labels and not plan.algorithm.labels_everywhere
    if noise is not None and noise.gradients is not None and not with_exact_steps:
        model = with_private_gradients(part.model, noise.gradients, noise.key.stream("gradients"))
    return Training(party, plan, workplace, part, model, noise, unit)


def _with_scaled_targets(
    plan: Plan, workplace: Workplace, part: LocalPart
) -> tuple[Workplace, float]:
    """The workplace with real targets scaled, and their unit."""
    data, facts = workplace.data, plan.facts
    if not facts.real_targets or data.train_labels is None or data.test_labels is None:
        return workplace, 1.0
    train = data.train_labels.astype(np.float64)
    targets = TargetScaling.fit(train, centered=plan.job.job.intercept)
    if data.table.name == facts.label_party:
        part.targets = targets
    labels, held_out = targets.apply(train), targets.apply(data.test_labels)
    data = replace(data, train_labels=labels, test_labels=held_out)
    return replace(workplace, data=data), targets.scale


def _keep_state(part: Part, leakage: LeakageCount, checkpoints: Checkpoints, rounds: int) -> None:
    """Pass the state to resume from to `keep_state`, and write it if a checkpoint is scheduled.

    It is also written before the first round, so that the guards need not count the job again.
    """
    place, plan = part.place, part.plan
    every = plan.job.output.checkpoint_every
    keeps = place.checkpoints is not None and every > 0 and plan.never_resumes is None
    due = keeps and rounds % every == 0 and rounds < plan.rounds
    hands_on = place.keep_state is not None and rounds > 0 and plan.algorithm.keeps_state
    if due or hands_on:
        state = _state_of(part, leakage, rounds)
        if place.keep_state is not None and hands_on:
            place.keep_state(state)
        if due:
            checkpoints.keep(state)
    # A peer may be a round ahead, and drops what this party has before its next state.
    if keeps and (rounds + 2) % every == 0:
        checkpoints.settle()


def _state_of(part: Part, leakage: LeakageCount, rounds: int) -> SessionState:
    return SessionState(
        job_hash=part.plan.hash.hex(),
        party=part.party.name,
        rounds=rounds,
        weights=part.model.weights,
        revealed={peer: dict(batches) for peer, batches in leakage.revealed.items()},
        in_flight=part.arrays(),
        data=part.place.data.fingerprint,
    )


def _go_on(state: SessionState, part: Part) -> int:
    """Restore a party; returns the number of rounds done."""
    ours = (part.plan.hash.hex(), part.party.name, part.model.weights.shape)
    if (state.job_hash, state.party, state.weights.shape) != ours:
        raise ConfigError(
            f"state of party {state.party!r} in job {state.job_hash[:16]}: expected one of "
            f"{part.party.name!r} in {ours[0][:16]}"
        )
    if state.data != part.place.data.fingerprint:
        raise DataError(
            f"party {state.party!r}: its data differ from those of the session that stopped after "
            f"{state.rounds} rounds"
        )
    if state.rounds >= part.plan.rounds:
        raise ConfigError(f"state after {state.rounds} rounds: the job has no more")
    if part.place.checkpoints is not None:
        Checkpoints(part.place.checkpoints, part.party.name).return_to(state.rounds)
    part.model.weights = state.weights
    part.restore(state.in_flight)
    return state.rounds


def scoring_of(training: Training, held_out: HeldOut) -> Scoring:
    """A party's side of scoring; a ConfigError for scores by row if these are to be hidden."""
    party, plan, inputs = training.party, training.plan, training.part.held_out
    hides = plan.timetable.test_rows > 0 and plan.algorithm.held_out(plan) == "hidden"
    if hides and isinstance(held_out, ByRow):
        raise ConfigError(
            f"exchange {plan.exchange.name!r} hides held-out predictions and has no sums to score "
            "by: eval_every = 'never' trains without"
        )
    labels, target = training.workplace.data.test_labels, plan.job.job.target_auc
    return GatheredScoring(
        party, held_out, plan.timetable, inputs=inputs, labels=labels, target_auc=target
    )


def baseline_of(plan: Plan, labels: Labels) -> float:
    """The loss of the best prediction that is the same for all training rows."""
    constant = np.broadcast_to(plan.loss.constant(labels), (len(labels), plan.loss.outputs))
    return plan.loss.value(constant, labels)


def window_of(plan: Plan) -> int:
    """Rounds whose mean loss counts as one: all batches, within bounds."""
    if plan.full_batches and not plan.exchange.adds_noise:
        return 1
    return min(max(plan.schedule.batches, SHORTEST_WINDOW), LONGEST_WINDOW)


def checkpoint_selection(training: Training, agreement: Agreement) -> CheckpointSelection:
    """A party's snapshots and, at the label party, the history that it selects by."""
    party, plan, data = training.party, training.plan, training.workplace.data
    largest = plan.given * max(agreement.own_columns, *agreement.columns.values())
    history = None
    if party.holds_labels:
        labels, held_out = data.train_labels, data.test_labels
        assert labels is not None and held_out is not None  # noqa: S101, PT018
        chance = 0.0  # of no scores
        if len(held_out):
            chance = r2_error(len(held_out)) if plan.facts.real_targets else auc_error(held_out)
        history = TrainingHistory(baseline_of(plan, labels), window_of(plan), chance)
    every = range(1, plan.rounds + 1)
    return CheckpointSelection(
        party,
        training.model,
        # So the selected state has been scored, if any has.
        snapshot_rounds([*filter(plan.timetable.due, every)] or every, largest),
        announced=plan.learns.residuals != "noisy",
        history=history,
    )


def steps_of(plan: Plan, round_index: int, *, alternating: bool) -> Iterator[Step]:
    """The exchanges of a round: one for all parties, or one each, the label party first."""
    names, label_party = plan.facts.names, plan.facts.label_party
    turns = [names]
    if alternating:
        turns = [(label_party,), *((name,) for name in names if name != label_party)]
    index, fresh = round_index * len(turns) * plan.products, names
    for receivers in turns:
        for _ in range(plan.products):
            yield Step(index, receivers, fresh)
            index, fresh = index + 1, ()
        fresh = receivers
