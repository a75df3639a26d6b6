"""What a message costs on this package's own links on this machine, measured over a real pair.

A simulated network counts latency and bandwidth of lines. Real parties also spend time on each
message that no line explains: its envelope, TLS, framing, and threads that wake one another. A
message between two ends in this process goes through all of that, over loopback. Pauses let all
threads fall asleep before each, as they do where a line has latency. Small and large messages take
turns, and lower quartiles count: other work on this machine can only make a message slower, for a
while, and would otherwise be taken for a cost of the size that was being measured.
"""

import asyncio
import time
from contextlib import AsyncExitStack
from functools import cache, partial

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.errors import SecureVFLError
from securevfl.job import Job
from securevfl.parties.agreement import Agreement
from securevfl.parties.identity import Identity
from securevfl.parties.links import Links
from securevfl.parties.meeting import TRAINING, Meeting, Programs
from securevfl.protocols.session.gathering import Predictions
from securevfl.runtime.line import LinkCosts
from securevfl.runtime.real import ProgramThread, RealChannel

HERE, THERE, LOOPBACK = "here", "there", "127.0.0.1:0"
SMALL, LARGE = 1, 1 << 15
"""Numbers in a message: a decision, and a quarter of a megabyte."""
WARM, MEASURED, PAUSE_SECONDS = 5, 30, 0.003
IN_TURNS = (SMALL, LARGE) * (WARM + MEASURED)
MOST_SECONDS = 15.0


@cache
def measured_link_costs() -> LinkCosts | None:
    """The costs on this machine, measured once by a process, in half a second.

    None where this machine does not connect to itself over loopback, as in a sandbox.
    """

    async def in_time() -> LinkCosts:
        async with asyncio.timeout(MOST_SECONDS):
            return await _measured()

    try:
        return asyncio.run(in_time())
    except (OSError, SecureVFLError):
        return None


async def _measured() -> LinkCosts:
    identities = {name: Identity.generate() for name in (THERE, HERE)}
    public = {name: identity.public for name, identity in identities.items()}
    async with AsyncExitStack() as stack:
        ends, address = dict[str, Links](), LOOPBACK
        for name, identity in identities.items():
            at = LOOPBACK if name == THERE else None
            agreement = Agreement(b"", Job(), public, {THERE: f"ws://{address}"}, relay=None)
            links = Links(agreement, name, identity, listen=at, proxy=None, say=lambda line: None)
            ends[name] = await stack.enter_async_context(links)
            address = links.listens or address
        connected = await asyncio.gather(*(each.connect() for each in ends.values()))
        threads = {name: stack.enter_context(ProgramThread()) for name in ends}
        channels = {}
        for name, peers in zip(ends, connected, strict=True):
            meeting = Meeting(name, peers, Programs({each: each for each in ends}))
            await stack.enter_async_context(meeting)
            made = partial(RealChannel, job_hash=bytes(32), loop=threads[name].loop)
            channels[name] = meeting.channel(TRAINING, name, made)
        sent, received = await asyncio.gather(
            threads[HERE].run(_send(channels[HERE])), threads[THERE].run(_receive(channels[THERE]))
        )
    return costs_of(np.subtract(received, sent))


def costs_of(took: FloatArray) -> LinkCosts:
    """The costs, from the seconds of each message, in the order `IN_TURNS`."""
    warm = 2 * WARM
    small, large = (
        float(np.quantile(took[warm:][np.equal(IN_TURNS[warm:], size)], 0.25))
        for size in (SMALL, LARGE)
    )
    return LinkCosts(small, max(large - small, 0.0) / (8 * (LARGE - SMALL)))


async def _send(channel: RealChannel) -> list[float]:
    """When each message was sent."""
    times = []
    messages = {numbers: Predictions(0, np.zeros((numbers, 1))) for numbers in (SMALL, LARGE)}
    for numbers in IN_TURNS:
        await asyncio.sleep(PAUSE_SECONDS)
        times.append(time.perf_counter())
        await channel.send(THERE, messages[numbers])
    return times


async def _receive(channel: RealChannel) -> list[float]:
    """When each message was received."""
    times = []
    for _ in IN_TURNS:
        await channel.receive([HERE], Predictions)
        times.append(time.perf_counter())
    return times
