"""FDML's server: it keeps the newest prediction of every sample and party, and no label.

Learns:
    server: every party's predictions per sample, clipped and noisy under `dp`; no label.
"""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from securevfl.arrays import FloatArray, IntArray
from securevfl.errors import PeerViolation, UnexpectedMessage
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.agreement import Hello
from securevfl.protocols.session.gathering import HeldOutPredictions
from securevfl.runtime.channel import Channel, collect, expect_shape
from securevfl.runtime.costs import SCORING, SETUP, Costs
from securevfl.wire.codec import StepMessage, message_kind

Staleness = int | Literal["unbounded"]
SERVER = "server"


@message_kind(12, stage="round", carries="values")
class PushedPredictions(StepMessage):
    """FDML, a party to the server: its predictions of a batch, shape (S, C)."""

    values: FloatArray


@message_kind(13, stage="round", carries="values")
class PulledSums(StepMessage):
    """FDML, the server to a party: the newest of the others for the same batch, summed."""

    values: FloatArray


@dataclass(frozen=True)
class Served:
    """What the server saw of the parties' speed.

    Attributes:
        refused: by party, pulls that had to wait.
        leads: by party and iteration, how many iterations it was ahead of the slowest when it was
            answered.
    """

    refused: dict[str, int]
    leads: dict[str, list[int]] = field(repr=False)


async def serve(channel: Channel, costs: Costs, *, plan: Plan, staleness: Staleness) -> Served:
    """The server's program.

    Args:
        channel: to the parties.
        costs: its ledger.
        plan: of the job.
        staleness: τ.

    Raises:
        PeerViolation: a party runs another job, over other rows, or breaks the order.
    """
    workers, rounds, test_rows = plan.facts.names, plan.rounds, plan.facts.test_rows
    shape = (plan.facts.rows, plan.loss.outputs)
    hellos = await collect(channel, workers, Hello)
    async with costs.compute(SETUP):
        newest = {name: np.zeros(shape) for name in workers}
    for name, hello in hellos.items():
        if (hello.job_hash, hello.rows, hello.test_rows) != (plan.hash, shape[0], test_rows):
            raise PeerViolation(f"{name} runs another job, or over other rows, than the server")
    pushed = dict.fromkeys(workers, 0)
    waiting: list[str] = []
    served = Served(dict.fromkeys(workers, 0), {name: [] for name in workers})
    slowest = 0
    while slowest < rounds:
        running = [name for name in workers if pushed[name] < rounds and name not in waiting]
        sender, message = await channel.receive(running, PushedPredictions)
        if message.step != pushed[sender]:
            raise UnexpectedMessage(
                f"{sender} pushed iteration {message.step} where {pushed[sender]} is due"
            )
        async with costs.compute("local"):
            rows = plan.schedule.batch(message.step)
            expect_shape(sender, message.values, (len(rows), shape[1]))
            newest[sender][rows] = message.values
        pushed[sender] += 1
        waiting.append(sender)
        ends_round = min(pushed.values()) > slowest
        slowest += ends_round
        for name in waiting.copy():
            if staleness != "unbounded" and pushed[name] - slowest > staleness:
                served.refused[name] += name == sender
                continue
            waiting.remove(name)
            served.leads[name].append(pushed[name] - slowest)
            async with costs.compute("local"):
                step = pushed[name] - 1
                others = _sum_of_others(newest, name, plan.schedule.batch(step))
            await channel.send(name, PulledSums(step, others))
        if ends_round:
            costs.end_round()
    scored = plan.timetable.test_rows
    await _sum_held_out(channel, costs, workers, rounds, (scored, shape[1]))
    return served


def _sum_of_others(newest: dict[str, FloatArray], name: str, rows: IntArray) -> FloatArray:
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
