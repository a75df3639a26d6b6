"""What a message costs on this package's own links on this machine, measured over a real pair.

A simulated network counts latency and bandwidth of lines. Real parties also spend time on each
message that no line explains: its envelope, TLS, framing, and threads that wake one another. A
message between two ends in this process goes through all of that, over loopback. Pauses let all
threads fall asleep before each, as they do where a line has latency.
"""

import asyncio
import time
from contextlib import AsyncExitStack
from functools import cache, partial

import numpy as np

from securevfl.errors import PeerUnreachable, SecureVFLError
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
MOST_SECONDS = 15.0


@cache
def measured_link_costs() -> LinkCosts:
    """The costs on this machine; measured once by a process, in a third of a second.

    Raises:
        PeerUnreachable: this machine does not connect to itself, as in a sandbox.
    """

    async def in_time() -> LinkCosts:
        async with asyncio.timeout(MOST_SECONDS):
            return await _measured()

    try:
        return asyncio.run(in_time())
    except (OSError, SecureVFLError) as error:
        raise PeerUnreachable("this machine does not connect to itself over loopback") from error


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
    took = np.subtract(received, sent).reshape(2, -1)[:, WARM:]
    small, large = map(float, np.median(took, axis=1))
    return LinkCosts(small, max(large - small, 0.0) / (8 * (LARGE - SMALL)))


async def _send(channel: RealChannel) -> list[float]:
    """When each message was sent."""
    times = []
    for numbers in (SMALL, LARGE):
        message = Predictions(0, np.zeros((numbers, 1)))
        for _ in range(WARM + MEASURED):
            await asyncio.sleep(PAUSE_SECONDS)
            times.append(time.perf_counter())
            await channel.send(THERE, message)
    return times


async def _receive(channel: RealChannel) -> list[float]:
    """When each message was received."""
    times = []
    for _ in range(2 * (WARM + MEASURED)):
        await channel.receive([HERE], Predictions)
        times.append(time.perf_counter())
    return times
