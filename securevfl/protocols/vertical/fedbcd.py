"""FedSGD, FedBCD-p and FedBCD-s (Liu et al. 2019, Algorithm 1), one program for each role.

In a round of FedBCD-p all parties exchange once and then take Q local steps at the same time.
In FedBCD-s they take turns on the same batch, the label party first: the party whose turn it is
gets a signal that holds everyone's newest predictions. FedSGD is FedBCD-p at Q = 1.

The program is the same at both roles: what differs is the side of the exchange they hold, and
who scores.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from typing_extensions import override

from securevfl.arrays import FloatArray
from securevfl.errors import ConfigError
from securevfl.models.local_model import LocalModel
from securevfl.protocols.algorithm import Algorithm
from securevfl.protocols.exchange import Batch, Established, Lookahead, Session, Side
from securevfl.protocols.local_steps import LocalSteps
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.agreement import Agreement, agree
from securevfl.protocols.session.course import (
    LONGEST_WINDOW,
    SHORTEST_WINDOW,
    Course,
    FollowedWatch,
    Judge,
    LabelWatch,
    NoWatch,
    Watch,
)
from securevfl.protocols.session.label_guard import GuardRecord, LeakageCount, planned
from securevfl.protocols.session.party import Party, Step
from securevfl.protocols.session.privacy_account import Visits
from securevfl.protocols.session.scoring import FeatureScoring, LabelScoring
from securevfl.protocols.session.state import SessionState
from securevfl.protocols.session.workplace import Workplace
from securevfl.protocols.vertical.batches import PartyBatches
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

    def __init__(self, name: str, *, in_turns: bool = False, one_step: bool = False) -> None:
        self.name = name
        self.in_turns, self.one_step = in_turns, one_step

    @override
    def check(self, plan: Plan) -> None:
        """Nothing beside what exchanges ask for."""

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
        return {
            name: partial(run_party, plan=plan, workplace=place, train=take_part)
            for name, place in places.items()
        }


FEDSGD = FedBcd("fedsgd", one_step=True)
FEDBCD_P = FedBcd("fedbcd-p")
FEDBCD_S = FedBcd("fedbcd-s", in_turns=True)


class Batches(Protocol):
    """Which rows a round takes, the same at every party."""

    def at(self, round_index: int) -> Batch:
        """This party's rows of a round."""


class Scoring(Protocol):
    """Scoring on held-out rows after a round."""

    async def stops(self, round_index: int, model: LocalModel, *, last: bool = False) -> bool:
        """Take part in scoring if it is due or training ends; whether it ends here."""


async def take_part(training: Training) -> Trained:
    """One party's part: agree, set up the exchange, train.

    Raises:
        PeerError: a peer broke the protocol or is gone.
        RangeExceeded: products could overflow, or values leave the agreed range.
        LabelLeakRefused: this party owns a key and its gradients would tell too much.
    """
    party, plan, part = training.party, training.plan, training.part
    place = training.workplace
    agreement = await agree(
        party,
        plan.hash,
        part.inputs,
        len(part.held_out),
        parameters=part.parameters,
        encrypted=plan.exchange.encrypts,
    )
    if party.name in plan.exchange.key_owners(plan.job.exchange, party):
        resumes = place.resume is not None
        require_guard(party, plan, agreement, place.guard_directory, resumes=resumes)
    batches = PartyBatches(plan, place.data, part.inputs)
    leakage = LeakageCount(
        plan.facts.rows, plan.loss.outputs, agreement.columns, nonlinear=frozenset(plan.networks)
    )
    columns = sum((agreement.own_columns, *agreement.columns.values()))
    async with party.costs.compute(SETUP):
        steps = plan.steps(training.model, part.inputs, columns)
    watch = _watch(training)
    lookahead = Lookahead(steps, plan.rounds, batches.at)
    session = Session(
        party, plan, agreement, leakage, place.keys, lookahead=lookahead, noise=training.noise
    )
    ready = await plan.exchange.establish(session)
    memory = _Memory(ready, steps, watch)
    first_round = 0
    if place.resume is not None:
        first_round = _go_on(place.resume, training, leakage, memory)
    scoring: FeatureScoring | LabelScoring
    if place.data.test_labels is None:
        scoring = FeatureScoring(party, ready.gathering, plan.timetable, part.held_out)
    else:
        scoring = LabelScoring(
            party,
            ready.gathering,
            plan.timetable,
            inputs=part.held_out,
            labels=place.data.test_labels,
            target_auc=plan.job.job.target_auc,
        )
    rounds = await train(
        training,
        ready.side,
        steps=steps,
        watch=watch,
        batches=batches,
        scoring=scoring,
        goes_on=partial(_keep_state, training, leakage, memory),
        first_round=first_round,
    )
    scores = scoring.scores if isinstance(scoring, LabelScoring) else []
    learned = not isinstance(watch, LabelWatch) or watch.judge.learned
    return Trained(rounds, scores, leakage, ready.key, learned=learned)


async def train(
    training: Training,
    side: Side,
    *,
    steps: LocalSteps,
    watch: Watch,
    batches: Batches,
    scoring: Scoring,
    goes_on: Callable[[int], None],
    first_round: int = 0,
) -> int:
    """Train one party's part of the model, in place.

    Args:
        training: who it is, its model at θ⁰ and the plan.
        side: this party's side of the exchange.
        steps: this party's, of the same model.
        watch: this party's side of the label party's word.
        batches: this party's rows.
        scoring: this party's side of scoring.
        goes_on: called with the number of rounds done once scoring has not ended the job.
        first_round: rounds that have been done before.

    Returns:
        The number of rounds done.

    Raises:
        PeerError: a peer failed; the model is as after the last whole round or turn.
    """
    party, model, plan = training.party, training.model, training.plan
    for round_index in range(first_round, plan.rounds):
        batch = batches.at(round_index)
        async with party.costs.compute("local"):
            steps.begin(round_index, len(batch.rows))
        course = Course(round_index)
        for turn, step in enumerate(steps_of(plan, round_index)):
            async with party.costs.compute("local"):
                predictions = model.predict(batch.inputs)
                seen = batch.seen_by(model)
            others = await side.gather(step, predictions)
            if turn == 0:
                loss = await _loss(training, steps, batch, predictions, others)
                course = await watch.course(round_index, loss)
                if course.back or course.stop:
                    break
                if course.keep:
                    steps.keep()
            signal = await side.signal(step, seen, predictions, others)
            if signal is not None:
                async with party.costs.compute("local"):
                    steps.apply(
                        batch.inputs,
                        predictions=predictions,
                        signal=signal,
                        tangent=seen.jacobian,
                    )
        async with party.costs.compute("local"):
            steps.follow(course)
        party.costs.end_round()
        training.after_round(round_index + 1)
        ended = await scoring.stops(round_index, model, last=course.stop)
        if ended or course.stop:
            return round_index + 1
        goes_on(round_index + 1)
    return plan.rounds


async def _loss(
    training: Training,
    steps: LocalSteps,
    batch: Batch,
    predictions: FloatArray,
    others: FloatArray | None,
) -> float | None:
    """The training loss at the label party, or as much of it as it can tell.

    Where nobody sees the sum of predictions it counts what its own steps promise to gain.
    """
    if batch.labels is None:
        return None
    if others is None:
        return -steps.gained
    async with training.party.costs.compute("local"):
        return training.plan.loss.value(others + predictions, batch.labels)


def _watch(training: Training) -> Watch:
    party, plan, labels = training.party, training.plan, training.workplace.data.train_labels
    if labels is None or not party.holds_labels:
        return FollowedWatch(party) if plan.is_watched else NoWatch()
    constant = np.broadcast_to(plan.loss.constant(labels), (len(labels), plan.loss.outputs))
    window = 1
    if not plan.full_batches or plan.exchange.adds_noise:
        window = min(max(plan.schedule.batches, SHORTEST_WINDOW), LONGEST_WINDOW)
    judge = Judge(plan.loss.value(constant, labels), plan.job.job.tolerance, window)
    return LabelWatch(party, judge, told=plan.is_watched)


def steps_of(plan: Plan, round_index: int) -> Iterator[Step]:
    """The exchanges of a round."""
    names, label_party = plan.facts.names, plan.facts.label_party
    if not plan.algorithm.in_turns:
        yield Step(round_index, receivers=names, fresh=names)
        return
    turns = (label_party, *(name for name in names if name != label_party))
    first = round_index * len(turns)
    fresh = names
    for turn, name in enumerate(turns):
        yield Step(first + turn, receivers=(name,), fresh=fresh)
        fresh = (name,)


@dataclass(frozen=True)
class _Memory:
    """What a party keeps from round to round beside its model and the guard's count."""

    exchange: Established
    steps: LocalSteps
    watch: Watch

    def arrays(self) -> dict[str, FloatArray]:
        """All of it, by name."""
        parts = {"exchange": self.exchange.in_flight, "steps": self.steps.state()}
        if isinstance(self.watch, LabelWatch):
            parts["watch"] = self.watch.judge.state()
        return {f"{part} {name}": a for part, held in parts.items() for name, a in held.items()}

    def restore(self, arrays: Mapping[str, FloatArray]) -> None:
        """Put all of it back."""

        def of(part: str) -> dict[str, FloatArray]:
            start = f"{part} "
            return {n.removeprefix(start): a for n, a in arrays.items() if n.startswith(start)}

        self.exchange.in_flight.update(of("exchange"))
        self.steps.resume(of("steps"))
        if isinstance(self.watch, LabelWatch):
            self.watch.judge.resume(of("watch"))


def _keep_state(training: Training, leakage: LeakageCount, memory: _Memory, rounds: int) -> None:
    keep = training.workplace.keep_state
    if keep is not None:
        weights, plan = training.model.weights, training.plan
        revealed = {peer: dict(batches) for peer, batches in leakage.revealed.items()}
        name = training.party.name
        keep(SessionState(plan.hash.hex(), name, rounds, weights, revealed, memory.arrays()))


def _go_on(state: SessionState, training: Training, leakage: LeakageCount, memory: _Memory) -> int:
    """Put a party back to where it was, and say how many rounds that is.

    Raises:
        ConfigError: the state of another job, party or model, one after the last round, or a job
            whose noise is counted.
    """
    if training.plan.account is not None:
        raise ConfigError(
            f"exchange {training.plan.exchange.name!r}: a session that goes on would release again "
            "what its account counts once"
        )
    ours = (training.plan.hash.hex(), training.party.name, training.model.weights.shape)
    if (state.job_hash, state.party, state.weights.shape) != ours:
        raise ConfigError(
            f"state of party {state.party!r} in job {state.job_hash[:16]}: not one of "
            f"{training.party.name!r} in {ours[0][:16]}"
        )
    if state.rounds >= training.plan.rounds:
        raise ConfigError(f"state after {state.rounds} rounds: none of the job's are left")
    training.model.weights = state.weights
    leakage.revealed.update({peer: dict(batches) for peer, batches in state.revealed.items()})
    memory.restore(state.in_flight)
    return state.rounds


def require_guard(
    party: Party, plan: Plan, agreement: Agreement, directory: Path | None, *, resumes: bool = False
) -> None:
    """Refuse a job whose gradients would tell too much, or write it down before it starts.

    A job that goes on was written down when it started, and is not counted twice.

    Raises:
        LabelLeakRefused: they would.
        DataError: the record of earlier jobs cannot be read or written.
    """
    if directory is None:
        return
    record = GuardRecord(directory / party.name, plan.schedule.fingerprint)
    earlier = record.load()
    count = LeakageCount(
        plan.facts.rows,
        plan.loss.outputs,
        agreement.columns,
        {} if resumes else earlier,
        frozenset(plan.networks),
    )
    batches = (plan.schedule.batch(index) for index in range(plan.rounds))
    after = planned(count, party.others, batches)
    if resumes:
        after.include(earlier)
    if not plan.job.job.allow_label_leak:
        after.require_below_limit()
    record.save(after.revealed)
