"""FedSGD, FedBCD-p and FedBCD-s (Liu et al. 2019, Algorithm 1), one program for each role.

In a round of FedBCD-p all parties exchange once and then take Q local steps at the same time.
In FedBCD-s they take turns on the same batch, the label party first: the party whose turn it is
gets a signal that holds everyone's newest predictions. FedSGD is FedBCD-p at Q = 1.

The program is the same at both roles: what differs is the side of the exchange they hold, and
who scores.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from typing_extensions import override

from securevfl.errors import ConfigError
from securevfl.job import Job
from securevfl.models.local_model import LocalModel
from securevfl.protocols.algorithm import Algorithm
from securevfl.protocols.exchange import Batch, Established, Lookahead, Session, Side
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.agreement import Agreement, agree
from securevfl.protocols.session.label_guard import GuardRecord, LeakageCount, planned
from securevfl.protocols.session.party import Party, Step
from securevfl.protocols.session.privacy_account import Visits
from securevfl.protocols.session.scoring import FeatureScoring, LabelScoring
from securevfl.protocols.session.state import SessionState
from securevfl.protocols.session.workplace import Workplace
from securevfl.protocols.vertical.batches import PartyBatches
from securevfl.protocols.vertical.program import Trained, Training, run_party
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
        self.in_turns, self._one_step = in_turns, one_step

    @override
    def check(self, plan: Plan) -> None:
        """Nothing beside what exchanges ask for."""

    @override
    def local_steps(self, job: Job) -> int:
        return 1 if self._one_step else job.job.local_steps

    @override
    def visits(self, plan: Plan) -> Visits:
        """One release a visit; between two turns the party that stepped releases once more."""
        steps = plan.local_steps
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

    async def stops(self, round_index: int, model: LocalModel) -> bool:
        """Take part in scoring if it is due; whether training ends here."""


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
    lookahead = Lookahead(part.model, plan.rule, plan.rounds, plan.step_size.at, batches.at)
    session = Session(
        party, plan, agreement, leakage, place.keys, lookahead=lookahead, noise=training.noise
    )
    ready = await plan.exchange.establish(session)
    first_round = 0
    if place.resume is not None:
        first_round = _go_on(place.resume, training, leakage, ready)
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
        batches=batches,
        scoring=scoring,
        goes_on=partial(_keep_state, training, leakage, ready),
        first_round=first_round,
    )
    scores = scoring.scores if isinstance(scoring, LabelScoring) else []
    return Trained(rounds, scores, leakage, ready.key)


async def train(
    training: Training,
    side: Side,
    *,
    batches: Batches,
    scoring: Scoring,
    goes_on: Callable[[int], None],
    first_round: int = 0,
) -> int:
    """Train one party's part of the model, in place.

    Args:
        training: who it is, its model at θ⁰ and the plan.
        side: this party's side of the exchange.
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
        for step in steps_of(plan, round_index):
            async with party.costs.compute("local"):
                predictions = model.predict(batch.inputs)
                seen = batch.seen_by(model)
            signal = await side.signal(step, seen, predictions)
            if signal is not None:
                async with party.costs.compute("local"):
                    plan.rule.apply(
                        model,
                        batch.inputs,
                        predictions=predictions,
                        signal=signal,
                        step_size=plan.step_size.at(round_index),
                        tangent=seen.jacobian,
                    )
        party.costs.end_round()
        training.after_round(round_index + 1)
        if await scoring.stops(round_index, model):
            return round_index + 1
        goes_on(round_index + 1)
    return plan.rounds


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


def _keep_state(training: Training, leakage: LeakageCount, ready: Established, rounds: int) -> None:
    keep = training.workplace.keep_state
    if keep is not None:
        weights, plan = training.model.weights, training.plan
        revealed = {peer: dict(batches) for peer, batches in leakage.revealed.items()}
        name, in_flight = training.party.name, dict(ready.in_flight)
        keep(SessionState(plan.hash.hex(), name, rounds, weights, revealed, in_flight))


def _go_on(
    state: SessionState, training: Training, leakage: LeakageCount, ready: Established
) -> int:
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
    ready.in_flight.update(state.in_flight)
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
