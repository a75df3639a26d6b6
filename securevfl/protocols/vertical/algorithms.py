"""A party's part of each algorithm, from agreeing with the others to the last score."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from securevfl.arrays import FloatArray
from securevfl.crypto.scheme import KeyOwner
from securevfl.job import Job
from securevfl.models.local_model import LocalModel
from securevfl.protocols.exchange import Batch
from securevfl.protocols.exchanges.label_guard import GuardRecord, LeakageCount, planned
from securevfl.protocols.exchanges.one_trip import Lookahead
from securevfl.protocols.exchanges.setting_up import IN_CLEAR, Established, establish, key_owners
from securevfl.protocols.plans import plan_of, step_size_of
from securevfl.protocols.session.agreement import Agreement, agree
from securevfl.protocols.session.party import Party
from securevfl.protocols.session.privacy_account import Noise
from securevfl.protocols.session.scoring import FeatureScoring, LabelScoring, Score, Timetable
from securevfl.protocols.vertical import fdml
from securevfl.protocols.vertical.fedbcd import train
from securevfl.protocols.vertical.local_part import LocalPart, network_parties
from securevfl.protocols.vertical.workplace import PartyData, Workplace


@dataclass(frozen=True)
class Training:
    """What a party's part of an algorithm starts from.

    Attributes:
        party: who it is.
        job: the job.
        data: what it brings.
        workplace: what it may use.
        part: what it trains.
        model: its model, with private gradients where the job has them.
        noise: what it adds under `dp`.
        after_round: to be called with rounds done.
    """

    party: Party
    job: Job
    data: PartyData
    workplace: Workplace
    part: LocalPart
    model: LocalModel
    noise: Noise | None
    after_round: Callable[[int], None]


@dataclass(frozen=True)
class Trained:
    """What is left of an algorithm beside the model; see `PartyOutcome`."""

    rounds: int
    scores: list[Score]
    key: KeyOwner | None
    leakage: LeakageCount


async def train_fedbcd(training: Training) -> Trained:
    """FedSGD, FedBCD-p or FedBCD-s under the job's exchange.

    Raises:
        PeerError: a peer broke the protocol or is gone.
        RangeExceeded: products could overflow, or values leave the agreed range.
        LabelLeakRefused: this party owns a key and its gradients would tell too much.
    """
    party, job, data, part = training.party, training.job, training.data, training.part
    agreement = await agree(
        party,
        job.hash(),
        part.inputs,
        len(part.held_out),
        parameters=part.parameters,
        encrypted=job.exchange.scheme not in IN_CLEAR,
    )
    if party.name in key_owners(party, job.exchange):
        _require_guard(party, job, agreement, data, training.workplace.guard_directory)
    plan = plan_of(job, party.loss, len(data.names))
    batches = _PartyBatches(data, part.inputs, job.job.sampling == "partition")
    ready = await establish(
        party,
        job.exchange,
        agreement,
        batch_rows=-(-len(part.inputs) // data.schedule.batches),
        total_rows=len(part.inputs),
        network=job.network.resolve(),
        lookahead=Lookahead(part.model, plan.rule, plan.rounds, plan.step_size.at, batches.at),
        in_turns=plan.in_turns,
        nonlinear=network_parties(job, data.names),
        keys=training.workplace.keys,
        noise=training.noise,
    )
    scoring = _scoring(party, job, data, ready, part.held_out)
    rounds = await train(
        party,
        training.model,
        plan,
        batches=batches,
        exchange=ready.exchange,
        scoring=scoring,
        after_round=training.after_round,
    )
    scores = scoring.scores if isinstance(scoring, LabelScoring) else []
    return Trained(rounds, scores, ready.key, ready.leakage)


async def train_fdml(training: Training) -> Trained:
    """FDML, beside a server.

    Raises:
        PeerError: a peer or the server broke the protocol or is gone.
    """
    party, job, data, part = training.party, training.job, training.data, training.part
    agreement = await agree(
        party,
        job.hash(),
        part.inputs,
        len(part.held_out),
        parameters=part.parameters,
        encrypted=False,
        observers=[fdml.SERVER],
    )
    rounds = job.job.rounds
    await fdml.work(
        party,
        training.model,
        rounds=rounds,
        step_size=step_size_of(job, len(data.names)),
        l2=job.job.l2,
        batches=_PartyBatches(data, part.inputs, job.job.sampling == "partition"),
        noise=training.noise,
        after_round=training.after_round,
    )
    scores = []
    if len(part.held_out) and data.test_labels is not None:
        own = training.model.predict(part.held_out)
        scores = [await fdml.score(party, own, data.test_labels, rounds, training.noise)]
    leakage = LeakageCount(len(part.inputs), party.loss.outputs, agreement.columns)
    return Trained(rounds, scores, None, leakage)


def _require_guard(
    party: Party, job: Job, agreement: Agreement, data: PartyData, directory: Path | None
) -> None:
    """Refuse a job whose gradients would tell too much, or write it down before it starts."""
    if directory is None:
        return
    record = GuardRecord(directory / party.name, data.schedule.fingerprint)
    rows = len(data.table.train)
    nonlinear = network_parties(job, data.names)
    count = LeakageCount(rows, party.loss.outputs, agreement.columns, record.load(), nonlinear)
    batches = (data.schedule.batch(index) for index in range(job.job.rounds))
    after = planned(count, party.others, batches)
    if not job.job.allow_label_leak:
        after.require_below_limit()
    record.save(after.revealed)


class _PartyBatches:
    """One party's rows of every round; those of a fixed partition are cut out once."""

    def __init__(self, data: PartyData, inputs: FloatArray, repeats: bool) -> None:
        self._schedule = data.schedule
        self._inputs = inputs
        self._labels = data.train_labels
        self._repeats = repeats
        self._kept: dict[int, Batch] = {}

    def at(self, round_index: int) -> Batch:
        """This party's rows of a round."""
        key = self._schedule.batch_key(round_index)
        if key in self._kept:
            return self._kept[key]
        rows = self._schedule.batch(round_index)
        labels = None if self._labels is None else self._labels[rows]
        batch = Batch(key, self._repeats, rows, self._inputs[rows], labels)
        if self._repeats:
            self._kept[key] = batch
        return batch


def _scoring(
    party: Party, job: Job, data: PartyData, ready: Established, held_out: FloatArray
) -> FeatureScoring | LabelScoring:
    timetable = Timetable(job.job.rounds, job.job.eval_every, len(held_out))
    if data.test_labels is None:
        return FeatureScoring(party, ready.gathering, timetable, held_out)
    return LabelScoring(
        party,
        ready.gathering,
        timetable,
        inputs=held_out,
        labels=data.test_labels,
        target_auc=job.job.target_auc,
    )
