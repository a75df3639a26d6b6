"""Programs of parties as lists of what they do, one thing after the other."""

from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

from securevfl.protocols.session.gathering import Predictions
from securevfl.runtime.channel import Channel
from securevfl.runtime.costs import Costs
from securevfl.runtime.simulation import Program
from securevfl.wire.codec import Message, encode

Step = Callable[[Channel, Costs], Awaitable[object]]


def party(*steps: Step) -> Program[list[float]]:
    """Its clock after each step is what it gives."""

    async def program(channel: Channel, costs: Costs) -> list[float]:
        moments = []
        for step in steps:
            await step(channel, costs)
            moments.append(costs.now)
        return moments

    return program


def works(*phases: str) -> Step:
    async def step(_: Channel, costs: Costs) -> None:
        for phase in phases:
            async with costs.compute(phase):
                pass

    return step


def sends(to: str, *messages: Message) -> Step:
    async def step(channel: Channel, _: Costs) -> None:
        for message in messages:
            await channel.send(to, message)

    return step


def receives(senders: str, kind: type[Message] = Predictions, **given: Any) -> Step:  # noqa: ANN401
    """A message from one of these parties, named by letters or by a whole name."""
    names = [senders] if len(senders) > 2 else [*senders]
    return lambda channel, _: channel.receive(names, kind, **given)


async def ends_round(_: Channel, costs: Costs) -> None:
    costs.end_round()


def predictions(step: int = 0, rows: int = 1) -> Predictions:
    return Predictions(step, np.zeros((rows, 1)))


def size(*messages: Message) -> int:
    return sum(len(encode(message)) for message in messages)
