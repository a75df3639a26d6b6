"""Real channels for tests: parties on threads of one process, or one whose peer is the test."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np

from securevfl.protocols.session.gathering import Predictions
from securevfl.runtime.costs import Costs, Stopwatch
from securevfl.runtime.real import MOST_HELD_BYTES, ProgramThread, RealChannel
from securevfl.wire.codec import Envelope, encode, seal
from tests.made_offline import Pad

JOB = bytes(range(32))
LONG = 30.0  # seconds after which a test that waits has failed

Run = Callable[[RealChannel], Coroutine[Any, Any, Any]]


def predictions(step: int = 0, rows: int = 2) -> Predictions:
    return Predictions(step, np.ones((rows, 1)))


def together(*programs: Run) -> list[RealChannel]:
    """Run programs "a", "b", … to their ends, each on a thread; what one carries the other has."""
    channels: dict[str, RealChannel] = {}

    def carrying(sender: str) -> Callable[[str, bytes], None]:
        return lambda to, data: channels[to].deliver(sender, data)

    async def all_of_them() -> None:
        with ExitStack() as stack:
            names = "abc"[: len(programs)]
            threads = [stack.enter_context(ProgramThread()) for _ in names]
            for name, thread in zip(names, threads, strict=True):
                channels[name] = RealChannel(
                    name,
                    set(names) - {name},
                    job_hash=JOB,
                    loop=thread.loop,
                    carry=carrying(name),
                )
            running = [
                thread.run(program(channel))
                for thread, program, channel in zip(
                    threads, programs, channels.values(), strict=True
                )
            ]
            await asyncio.wait_for(asyncio.gather(*running), LONG)

    asyncio.run(all_of_them())
    return list(channels.values())


def alone(
    program: Run,
    before: Callable[[RealChannel], None] = lambda _: None,
    *,
    timeout_seconds: float | None = None,
    max_message_bytes: int = 1000,
    most_held_bytes: int = MOST_HELD_BYTES,
    stopwatch: Stopwatch | None = None,
) -> RealChannel:
    """Run "a" alone; "b" and "c" are whatever `before` does in its place."""

    async def run() -> RealChannel:
        with ProgramThread() as thread:
            channel = RealChannel(
                "a",
                {"b"},
                job_hash=JOB,
                loop=thread.loop,
                carry=lambda *_: None,
                timeout_seconds=timeout_seconds,
                max_message_bytes=max_message_bytes,
                most_held_bytes=most_held_bytes,
                stopwatch=stopwatch,
            )
            before(channel)
            await asyncio.wait_for(thread.run(program(channel)), LONG)
            return channel

    return asyncio.run(run())


def sealed(
    number: int = 0,
    *,
    job: bytes = JOB,
    sender: str = "b",
    path: Mapping[str, float] | None = None,
    message: bytes | None = None,
) -> bytes:
    data = encode(predictions()) if message is None else message
    return seal(Envelope(job, sender, number, 0, path or {}, data))


def takes(times: int = 1, timeout_seconds: float | None = None) -> Run:
    async def program(channel: RealChannel) -> None:
        for _ in range(times):
            await channel.receive(["b"], Predictions, timeout_seconds=timeout_seconds)

    return program


def summed(costs: Costs) -> float:
    return sum(costs.path.values())


def pad(step: int = 0) -> Pad:
    return Pad(step, np.ones((2, 1)))
