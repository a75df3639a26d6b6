"""FDML's server: it keeps the newest prediction of every sample and party, and no label.

Learns:
    server: every party's predictions per sample, clipped and noisy under `dp`; no label.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from securevfl.arrays import FloatArray, IntArray, RealArray
from securevfl.errors import PeerViolation, TrainingDiverged, UnexpectedMessage
from securevfl.job import FdmlSettings
from securevfl.models.local_model import Precision
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.agreement import Hello
from securevfl.protocols.session.gathering import HeldOutPredictions
from securevfl.runtime.channel import Channel, collect, expect_shape
from securevfl.runtime.costs import SCORING, SETUP, Costs
from securevfl.wire.codec import StepMessage, message_kind

Staleness = int | Literal["unbounded"]
SERVER = "server"
TYPES: dict[Precision, type[np.floating[Any]]] = {"double": np.float64, "single": np.float32}


@message_kind(12, stage="round", carries="values", shows="predictions")
class PushedPredictions(StepMessage):
    """FDML, a party to the server: its predictions of one batch or more, shape (ΣS, C).

    `step` is the iteration of the first of them.
    """

    values: RealArray


@message_kind(13, stage="round", carries="values", shows="sums")
class PulledSums(StepMessage):
    """FDML, the server to a party: the newest of the others for the same batches, summed."""

    values: RealArray


LARGEST_SINGLE = 1e30
"""Sums of any number of such predictions stay in float32."""


def as_it_travels(predictions: FloatArray, precision: Precision) -> RealArray:
    """Predictions in float64, or rounded to float32, where sums of such must stay within it."""
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
            f"{sender} sent {values.dtype} where {TYPES[precision].__name__} is due"
        )


@dataclass(frozen=True)
class Served:
    """What the server saw of the parties' speed.

    Attributes:
        refused: by party, pulls that had to wait.
        leads: by party and pull, how many iterations it was ahead of the slowest when it was
            answered.
    """

    refused: dict[str, int]
    leads: dict[str, list[int]] = field(repr=False)


async def serve(channel: Channel, costs: Costs, *, plan: Plan, settings: FdmlSettings) -> Served:
    """The server's program.

    Raises:
        PeerViolation: a party runs another job, over other rows, or breaks the order.
    """
    workers, rounds, test_rows = plan.facts.names, plan.rounds, plan.facts.test_rows
    shape = (plan.facts.rows, plan.loss.outputs)
    hellos = await collect(channel, workers, Hello)
    async with costs.compute(SETUP):
        newest: dict[str, RealArray] = {
            name: np.zeros(shape, TYPES[settings.precision]) for name in workers
        }
    _require_one_job(hellos, (plan.hash, shape[0], test_rows))
    together, limit = settings.batches_a_message, settings.staleness

    def may_pull(lead: int) -> bool:
        # At the last of its batches a party's sums are so many iterations older.
        return limit == "unbounded" or lead + together - 1 <= limit

    pushed_by = dict.fromkeys(workers, 0)
    waiting: dict[str, tuple[int, IntArray]] = {}
    served = Served(dict.fromkeys(workers, 0), {name: [] for name in workers})
    slowest = 0
    while slowest < rounds:
        running = [name for name in workers if pushed_by[name] < rounds and name not in waiting]
        sender, message = await channel.receive(running, PushedPredictions)
        first = pushed_by[sender]
        if message.step != first:
            raise UnexpectedMessage(
                f"{sender} pushed iteration {message.step} where {first} is due"
            )
        answers: dict[str, tuple[int, RealArray]] = {}
        async with costs.compute("local"):
            pushed_by[sender] = min(first + together, rounds)
            rows = _rows(plan, first, pushed_by[sender])
            due = len(rows), shape[1]
            expect_predictions(sender, message.values, due, settings.precision)
            newest[sender][rows] = message.values
            waiting[sender] = first, rows
            ended, slowest = slowest, min(pushed_by.values())
            for name in [each for each in waiting if may_pull(pushed_by[each] - slowest)]:
                step, asked = waiting.pop(name)
                served.leads[name].append(pushed_by[name] - slowest)
                answers[name] = step, _sum_of_others(newest, name, asked)
            served.refused[sender] += sender in waiting
        for name, (step, others) in answers.items():
            await channel.send(name, PulledSums(step, others))
        if slowest > ended:
            costs.end_round(slowest - ended)
    scored = plan.timetable.test_rows
    await _sum_held_out(channel, costs, workers, rounds, (scored, shape[1]))
    return served


def _require_one_job(hellos: dict[str, Hello], ours: tuple[bytes, int, int]) -> None:
    for name, hello in hellos.items():
        if (hello.job_hash, hello.rows, hello.test_rows) != ours:
            raise PeerViolation(f"{name} runs another job, or over other rows, than the server")


def _rows(plan: Plan, first: int, end: int) -> IntArray:
    if end == first + 1:
        return plan.schedule.batch(first)
    return np.concatenate([plan.schedule.batch(index) for index in range(first, end)])


def _sum_of_others(newest: dict[str, RealArray], name: str, rows: IntArray) -> RealArray:
    others = [values for other, values in newest.items() if other != name]
    total = others[0][rows]
    for values in others[1:]:
        total += values[rows]
    return total


async def _sum_held_out(
    channel: Channel,
    costs: Costs,
    workers: tuple[str, ...],
    rounds: int,
    shape: tuple[int, int],
) -> None:
    if not shape[0]:
        return
    received = await collect(channel, workers, HeldOutPredictions, rounds)
    async with costs.compute(SCORING):
        for name, message in received.items():
            expect_shape(name, message.values, shape)
        total: FloatArray = np.sum([message.values for message in received.values()], axis=0)
    for name, message in received.items():
        await channel.send(name, HeldOutPredictions(rounds, total - message.values))
