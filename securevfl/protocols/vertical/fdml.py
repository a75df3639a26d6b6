"""FDML (Hu et al., KDD 2019): asynchronous parties around a server of local predictions.

The prediction of a sample is σ(Σ_k h_k(x_k)). The server stores the newest H_k of every sample and
party. At iteration i a party *pushes* its predictions of that batch and *pulls* the sum of the
others' for the same batch. The server delays its answer while the party is more than τ iterations
ahead of the slowest (stale-synchronous parallel). τ = 0 is bulk synchronous: every sum is fresh, as
if one trainer had all columns, and the server needs the predictions of one batch only.

Departures from the paper's Algorithm 1 (docs/decisions/0024-departures-from-fdml.md):

- Noise: the paper's sums include the party's own noisy push; here a party adds its exact prediction
  to the others' noisy sum. `own_prediction = "noisy"` is the paper's way.
- Waiting: in the paper from a lead of τ on, here beyond it; our τ is the paper's τ + 1.
- Step: the paper sums a batch's gradients, we average them: our η0 is S times the paper's. The
  paper takes η0/√t; our default follows a party's columns and the noise of batches (decision 48).
- Messages: here one message may hold several batches, or float32 (decision 40).

Learns:
    server: every party's predictions per sample, clipped and noisy under `dp`; no label.
    every party: all labels, which it holds from the start, and per sample of each batch the sum of
        the others' predictions: with two parties the other's prediction itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
from typing_extensions import override

from securevfl.arrays import FloatArray, IntArray, RealArray
from securevfl.errors import ConfigError, PeerViolation, TrainingDiverged, UnexpectedMessage
from securevfl.job import FdmlSettings, Job
from securevfl.models.local_model import LocalModel, Precision, PullBack
from securevfl.protocols.exchange import (
    AsTheyAre,
    Exchange,
    Outgoing,
    PartyBatches,
    SendsSingly,
    Shown,
)
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.agreement import Agreement, Hello
from securevfl.protocols.session.early_stopping import CheckpointSelection, SelectedState
from securevfl.protocols.session.gathering import HeldOutPredictions
from securevfl.protocols.session.privacy_account import LeakageCount, Visits
from securevfl.protocols.session.scoring import Score, Scoring
from securevfl.protocols.session.workplace import Workplace
from securevfl.protocols.vertical.runner import (
    Part,
    Seen,
    Training,
    VerticalAlgorithm,
    checkpoint_selection,
)
from securevfl.runtime.channel import Channel, collect, collect_values, expect_shape, receive_values
from securevfl.runtime.costs import SCORING, SETUP, Costs
from securevfl.runtime.simulation import Program
from securevfl.wire.codec import StepMessage, message_kind

Staleness = int | Literal["unbounded"]
SERVER = "server"
TYPES: dict[Precision, type[np.floating[Any]]] = {"double": np.float64, "single": np.float32}


@message_kind(12, stage="round", carries="values", shows="predictions")
class PushedPredictions(StepMessage):
    """A party to the server: its predictions of one batch or more, shape (ΣS, C).

    `step` is the iteration of the first batch.
    """

    values: RealArray


@message_kind(13, stage="round", carries="values", shows="sums")
class PulledSums(StepMessage):
    """The server to a party: the sum of the others' newest predictions of the same batches."""

    values: RealArray


LARGEST_SINGLE = 1e30
"""Sums of predictions up to this size stay in float32."""


def as_it_travels(predictions: FloatArray, precision: Precision) -> RealArray:
    """Predictions in float64, or in float32 if their sums fit."""
    if precision == "double":
        return predictions
    if not np.abs(predictions).max(initial=0.0) <= LARGEST_SINGLE:
        raise TrainingDiverged(
            "predictions leave float32: use a smaller learning rate, or [fdml] precision = 'double'"
        )
    return predictions.astype(np.float32)


def expect_predictions(
    sender: str, values: RealArray, shape: tuple[int, int], precision: Precision
) -> None:
    """Refuse a peer's predictions of another shape or precision than the job has."""
    expect_shape(sender, values, shape)
    if values.dtype != TYPES[precision]:
        raise UnexpectedMessage(
            f"{sender} sent {values.dtype} where {TYPES[precision].__name__} is expected"
        )


class FdmlPart(Part):
    """One party's part: it trains beside the server at its own speed, and then scores."""

    observers = (SERVER,)
    selection: CheckpointSelection

    @override
    async def establish(self, agreement: Agreement, leakage: LeakageCount) -> Scoring:
        training, plan = self.training, self.plan
        self._batches = PartyBatches(plan, self.place.data.train_labels, self.inputs)
        columns = sum((agreement.own_columns, *agreement.columns.values()))
        self._steps = plan.steps(self.model, self.inputs, columns)
        self.selection = checkpoint_selection(training, agreement)
        self._settings = plan.job.section(FdmlSettings, Fdml.name)
        self.at_once = self._settings.batches_per_message
        assert isinstance(plan.exchange, SendsSingly)  # noqa: S101
        self._release = plan.exchange.release(training.noise)
        return ServerScoring(training)

    @override
    async def round(self, first: int) -> Seen:
        """Push the predictions of one message's batches, pull the sums, and step on each batch."""
        party, model, plan = self.party, self.model, self.plan
        selection, steps, several = self.selection, self._steps, self.at_once
        costs, loss, settings = party.costs, party.loss, self._settings
        pull_back: PullBack | None = None
        async with costs.compute("local"):
            stretch = self._batches.stretch(first, min(several, plan.rounds - first))
            if several == 1:
                predictions, pull_back = model.linearize(stretch.inputs)
            else:
                predictions = model.predict(stretch.inputs)
        released = await _released(costs, predictions, self._release, "encrypt")
        shared = as_it_travels(released, settings.precision)
        await party.channel.send(SERVER, PushedPredictions(first, shared))
        sender, pulled = await party.channel.receive([SERVER], PulledSums, first)
        expect_predictions(sender, pulled.values, predictions.shape, settings.precision)
        async with costs.compute("local"):
            for index, part in enumerate(stretch.parts, first):
                inputs, labels = stretch.of(part)
                if several > 1 or pull_back is None:
                    # At the current weights: a party's own predictions need not be stale.
                    predictions, pull_back = model.linearize(inputs)
                own = shared[part] if settings.own_prediction == "noisy" else predictions
                total = np.add(pulled.values[part], own, dtype=np.float64)
                steps.begin(index, len(labels))
                residuals = loss.residuals(total, labels)
                gradient = pull_back(residuals) / len(labels) + model.penalty_gradient(plan.l2)
                if selection.lost is None:
                    with (
                        selection.undoing_divergence(index),
                        np.errstate(over="ignore", invalid="ignore"),
                    ):
                        model.weights = model.weights - steps.step_size(inputs) * gradient
                seen = loss.value(total, labels) if selection.history is not None else None
                selection.after(index + 1, (), loss=seen)
        return Seen()

    @override
    def after(self, done: int, seen: Seen, scoring: Scoring, *, reached: bool) -> None:
        """Nothing: `round` notes every batch."""

    @override
    def learned(self, selected: SelectedState) -> bool:
        history = self.selection.history
        if history is None or self.plan.exchange.adds_noise:
            return True
        return history.learned(selected)


class ServerScoring(Scoring):
    """One scoring at the end: the server sends every party the sum of the others."""

    def __init__(self, training: Training) -> None:
        super().__init__(training.party, training.plan.timetable, training.part.held_out)
        exchange, self._labels = training.plan.exchange, training.workplace.data.test_labels
        assert isinstance(exchange, SendsSingly)  # noqa: S101
        self._release = exchange.release(training.noise, "held-out predictions")

    @override
    async def _score(self, rounds: int, model: LocalModel) -> bool:
        party, step = self._party, self._timetable.rounds
        assert self._labels is not None  # noqa: S101
        async with party.costs.compute(SCORING):
            own = model.predict(self._inputs)
        shared = await _released(party.costs, own, self._release, SCORING)
        await party.channel.send(SERVER, HeldOutPredictions(step, shared))
        others = await receive_values(party.channel, SERVER, HeldOutPredictions, step, own.shape)
        async with party.costs.compute(SCORING):
            # All parties score the same numbers: each its own as it was shared.
            total = shared + others
            self._note(Score.of(rounds, total, self._labels, party.loss.middle), total)
        return False


@dataclass(frozen=True)
class Served:
    """The parties' speed as the server saw it.

    Attributes:
        refused: by party, the number of pulls that had to wait.
        leads: by party and pull, its lead over the slowest party when the server answered.
    """

    refused: dict[str, int]
    leads: dict[str, list[int]] = field(repr=False)


async def serve(channel: Channel, costs: Costs, *, plan: Plan, settings: FdmlSettings) -> Served:
    """The server's program; a PeerViolation if a party deviates in job, rows or order."""
    workers, rounds, test_rows = plan.facts.names, plan.rounds, plan.facts.test_rows
    shape = (plan.facts.rows, plan.loss.outputs)
    hellos = await collect(channel, workers, Hello)
    together, limit = settings.batches_per_message, settings.staleness
    # Then every sum is of what all parties have just pushed: there is no table of all rows.
    in_step = limit == together - 1
    held = together * plan.most_batch_rows if in_step else shape[0]
    async with costs.compute(SETUP):
        newest: dict[str, RealArray] = {
            name: np.zeros((held, shape[1]), TYPES[settings.precision]) for name in workers
        }
    _require_one_job(hellos, (plan.hash, shape[0], test_rows))

    def may_pull(lead: int) -> bool:
        # The sums for the last batch of a message are this many iterations older.
        return limit == "unbounded" or lead + together - 1 <= limit

    pushed_by = dict.fromkeys(workers, 0)
    waiting: dict[str, tuple[int, IntArray | slice]] = {}
    served = Served(dict.fromkeys(workers, 0), {name: [] for name in workers})
    slowest = 0
    while slowest < rounds:
        running = [name for name in workers if pushed_by[name] < rounds and name not in waiting]
        sender, message = await channel.receive(running, PushedPredictions)
        first = pushed_by[sender]
        if message.step != first:
            raise UnexpectedMessage(
                f"{sender} pushed iteration {message.step} where {first} is expected"
            )
        answers: dict[str, tuple[int, RealArray]] = {}
        async with costs.compute("local"):
            pushed_by[sender] = min(first + together, rounds)
            pushed = range(first, pushed_by[sender])
            due = sum(map(plan.schedule.size, pushed)), shape[1]
            expect_predictions(sender, message.values, due, settings.precision)
            rows = slice(due[0]) if in_step else _rows(plan, pushed)
            newest[sender][rows] = message.values
            waiting[sender] = first, rows
            ended, slowest = slowest, min(pushed_by.values())
            for name in [each for each in waiting if may_pull(pushed_by[each] - slowest)]:
                step, rows = waiting.pop(name)
                served.leads[name].append(pushed_by[name] - slowest)
                answers[name] = step, _sum_of_others(newest, name, rows)
            served.refused[sender] += sender in waiting
        for name, (step, others) in answers.items():
            await channel.send(name, PulledSums(step, others))
        if slowest > ended:
            costs.end_round(slowest - ended)
    await _sum_held_out(channel, costs, plan)
    return served


def _require_one_job(hellos: dict[str, Hello], ours: tuple[bytes, int, int]) -> None:
    for name, hello in hellos.items():
        if (hello.job_hash, hello.rows, hello.test_rows) != ours:
            raise PeerViolation(f"{name} runs another job, or over other rows, than the server")


def _rows(plan: Plan, rounds: range) -> IntArray:
    return np.concatenate([plan.schedule.batch(index) for index in rounds])


def _sum_of_others(newest: dict[str, RealArray], name: str, rows: IntArray | slice) -> RealArray:
    total: RealArray = np.sum([newest[other][rows] for other in newest if other != name], axis=0)
    return total


async def _sum_held_out(channel: Channel, costs: Costs, plan: Plan) -> None:
    rounds, shape = plan.rounds, (plan.timetable.test_rows, plan.loss.outputs)
    if not shape[0]:
        return
    names = plan.facts.names
    received = await collect_values(channel, names, HeldOutPredictions, rounds, shape)
    async with costs.compute(SCORING):
        total: FloatArray = np.sum(list(received.values()), axis=0)
    for name, values in received.items():
        await channel.send(name, HeldOutPredictions(rounds, total - values))


class Fdml(VerticalAlgorithm):
    """Asynchronous parties around a server."""

    name = "fdml"
    needs = (SendsSingly,)
    part = FdmlPart
    settings = FdmlSettings
    one_step = True
    labels_everywhere = True
    keeps_state = False
    scores_between = False
    servers = (SERVER,)
    default_schedule = "inverse-sqrt"
    roles = (
        ("server", "every party's predictions of every sample, noisy under `dp`", "labels"),
        (
            "every party",
            "all labels, given to it; the sum of the others' predictions of every sample",
            "others' features; at K ≥ 3 single predictions",
        ),
    )

    @override
    def check(self, plan: Plan) -> None:
        settings = plan.job.job
        _check_messages(plan.job.section(FdmlSettings, self.name))
        if plan.exchange.encrypts or plan.learns.predictions != "singly":
            raise ConfigError(
                "algorithm = 'fdml' gives single predictions to its server, clear or noisy: "
                f"not with exchange {plan.exchange.name!r} as it is set"
            )
        if SERVER in plan.facts.names:
            raise ConfigError(f"party {SERVER!r}: the name of fdml's server")
        if plan.job.privacy.label_noise_multiplier:
            raise ConfigError("label_noise_multiplier: under fdml all parties hold the labels")
        if settings.target_auc is not None:
            raise ConfigError("target_auc: fdml's parties run to the last round without scoring")
        if settings.acceleration == "nesterov":
            raise ConfigError("acceleration: fdml's parties have no rounds in common")
        if settings.l1:
            raise ConfigError("l1: fdml has no proximal step; use fedbcd-p or dbcd")
        if settings.proximal:
            raise ConfigError("proximal: fdml takes no local steps that it could pull back")

    @override
    def new_rows(self, job: Job, exchange: Exchange, parties: int) -> Shown:
        """Without noise only sums where there is one: a label party is no server."""
        if exchange.adds_noise or parties == 2:  # noqa: PLR2004
            return "singly"
        return "summed"

    @override
    def visits(self, plan: Plan) -> Visits:
        return Visits(1, 1, 1)

    @override
    def programs(self, plan: Plan, places: Mapping[str, Workplace]) -> dict[str, Program[Any]]:
        settings = plan.job.section(FdmlSettings, self.name)
        parties = super().programs(plan, places)
        of_server = plan.of_a_program(len(parties))
        return {**parties, SERVER: partial(serve, plan=of_server, settings=settings)}


def _check_messages(settings: FdmlSettings) -> None:
    several, limit = settings.batches_per_message, settings.staleness
    if limit != "unbounded" and several > limit + 1:
        raise ConfigError(
            f"batches_per_message = {several}: the last of them steps with predictions that are "
            f"{several - 1} iterations old, and staleness allows {limit}"
        )


async def _released(
    costs: Costs, predictions: FloatArray, release: Outgoing, phase: str
) -> FloatArray:
    if isinstance(release, AsTheyAre):
        return predictions
    async with costs.compute(phase):
        return release.units(predictions)


DESCRIPTIONS = (Fdml(),)
