"""One party's program: agree with the others, train, score, keep the model.

The same coroutine runs in simulation and over a real network. It is given its own columns, and
the labels only at the label party.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from securevfl.crypto.scheme import KeyOwner
from securevfl.data.partition import BatchSchedule
from securevfl.data.tables import PartyTable
from securevfl.job import Job
from securevfl.models.local_model import LocalModel, MakeModule
from securevfl.models.losses import Loss, loss_for
from securevfl.models.storage import SavedModel, save_model
from securevfl.protocols import fdml
from securevfl.protocols.agreement import Agreement, agree
from securevfl.protocols.exchange import Batch, Party
from securevfl.protocols.exchanges import Established, KeyMaker, establish, key_owners
from securevfl.protocols.fedbcd import Plan, StepSize, train
from securevfl.protocols.label_guard import GuardRecord, LeakageCount, planned
from securevfl.protocols.local_part import LocalPart, network_parties
from securevfl.protocols.one_trip import Lookahead
from securevfl.protocols.privacy_account import Noise, Promise, account_of
from securevfl.protocols.private_gradients import PrivateGradients
from securevfl.protocols.scoring import FeatureScoring, LabelScoring, Score, Timetable
from securevfl.protocols.signals import LocalRule
from securevfl.runtime.channel import Channel
from securevfl.runtime.costs import Costs

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class PartyData:
    """What one party brings to a job.

    Attributes:
        table: its own columns.
        names: all parties, in the job's order.
        label_party: who holds the labels.
        train_labels: at the label party only; under fdml at all.
        test_labels: the same.
        classes: number of classes.
        standardize: whether features are standardized, each party on its own.
        schedule: which rows each round takes, the same at every party.
    """

    table: PartyTable
    names: tuple[str, ...]
    label_party: str
    train_labels: IntArray | None
    test_labels: IntArray | None
    classes: int
    standardize: bool
    schedule: BatchSchedule


@dataclass(frozen=True)
class Workplace:
    """What a party's program may use besides its data.

    Attributes:
        keys: makes homomorphic keys.
        start: draws θ⁰. In a simulation it is seeded, so that runs repeat; between real parties
            it must not be, as θ⁰ is private.
        guard_directory: where a key owner remembers what its jobs revealed, and refuses or notes
            this one; None only counts, as benchmarks do.
        checkpoints: where the model is written as training goes on; None writes none.
        progress: called with rounds done.
        make_module: makes this party's network where its model is custom.
        wrap_model: gives what is trained in place of the local model at θ⁰; benchmarks follow
            the weights with it.
    """

    keys: KeyMaker
    start: np.random.Generator
    guard_directory: Path | None = None
    checkpoints: Path | None = None
    progress: Callable[[int], None] | None = None
    make_module: MakeModule | None = None
    wrap_model: Callable[[LocalModel], LocalModel] | None = None


@dataclass(frozen=True)
class PartyOutcome:
    """What one party's program returns.

    Attributes:
        model: its trained part.
        rounds: rounds done.
        scores: held-out scores, at the label party.
        key_fingerprint: of its own homomorphic key, if any.
        key_bits: of that key, if its scheme has a choice.
        leakage: what the gradients it decrypted reveal.
        held_out: its own exact predictions of the held-out rows after the last round.
        privacy: what the job's noise promises; None where there is none.
    """

    model: SavedModel
    rounds: int
    scores: list[Score]
    key_fingerprint: str | None
    key_bits: int | None
    leakage: LeakageCount
    held_out: FloatArray
    privacy: Promise | None


async def run_party(
    channel: Channel, costs: Costs, *, job: Job, data: PartyData, workplace: Workplace
) -> PartyOutcome:
    """Take one party through a job.

    Raises:
        PeerError: a peer broke the protocol or is gone.
        RangeExceeded: products could overflow, or values leave the agreed range.
        LabelLeakRefused: this party owns a key and its gradients would tell too much.
        BudgetExhausted: the job would spend more than its privacy budget.
    """
    loss = loss_for(job.job.loss, data.classes)
    party = Party(channel, costs, data.names, data.label_party, loss)
    part = LocalPart(
        job,
        data.table,
        loss=loss,
        classes=data.classes,
        standardize=data.standardize,
        holds_labels=party.holds_labels,
        start=workplace.start,
        make_module=workplace.make_module,
    )
    if workplace.wrap_model is not None:
        part.model = workplace.wrap_model(part.model)
    account = account_of(
        job,
        data.schedule,
        parties=len(data.names),
        outputs=loss.outputs,
        test_rows=len(part.held_out),
    )
    noise = None
    private: LocalModel = part.model
    if account is not None:
        account.require_budget()
        noise = account.noise_at(data.names.index(party.name))
        if noise.gradients is not None and not (party.holds_labels and job.job.algorithm != "fdml"):
            private = PrivateGradients(part.model, noise.gradients, noise.generator)

    def after_round(rounds: int) -> None:
        every = job.output.checkpoint_every
        if workplace.checkpoints is not None and every and rounds % every == 0:
            path = workplace.checkpoints / f"{party.name}.safetensors"
            save_model(path, part.saved(rounds))
        if workplace.progress is not None:
            workplace.progress(rounds)

    algorithm = _fdml if job.job.algorithm == "fdml" else _fedbcd
    trained = await algorithm(
        Training(party, job, data, workplace, part, private, noise, after_round)
    )
    return PartyOutcome(
        model=part.saved(trained.rounds),
        rounds=trained.rounds,
        scores=trained.scores,
        key_fingerprint=trained.key.fingerprint if trained.key is not None else None,
        key_bits=trained.key.key_bits if trained.key is not None else None,
        leakage=trained.leakage,
        held_out=part.model.predict(part.held_out),
        privacy=None if account is None else account.after(trained.rounds),
    )


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


async def _fedbcd(training: Training) -> Trained:
    party, job, data, part = training.party, training.job, training.data, training.part
    agreement = await agree(
        party, job.hash(), part.inputs, len(part.held_out), parameters=part.parameters
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


async def _fdml(training: Training) -> Trained:
    party, job, data, part = training.party, training.job, training.data, training.part
    agreement = await agree(
        party,
        job.hash(),
        part.inputs,
        len(part.held_out),
        parameters=part.parameters,
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


def plan_of(job: Job, loss: Loss, parties: int) -> Plan:
    """Rounds, step sizes and local steps of a job."""
    settings = job.job
    return Plan(
        rounds=settings.rounds,
        in_turns=settings.algorithm == "fedbcd-s",
        step_size=step_size_of(job, parties),
        rule=LocalRule(
            loss,
            local_steps=job.local_steps,
            l2=settings.l2,
            proximal=settings.proximal,
            frozen=settings.local_rule == "frozen",
            gauss_newton=settings.local_rule == "gauss-newton",
        ),
    )


def step_size_of(job: Job, parties: int) -> StepSize:
    """η of a job, round by round."""
    settings = job.job
    divided_by = parties if settings.divide_by_sqrt_parties else 1
    return StepSize(settings.learning_rate, decays=job.step_size_decays, parties=divided_by)


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
