"""One party as a process: its own file, the aligned ids, a job file, and a socket to its peer.

Takes part in jobs one after another, as lines of JSON on standard input say, and tells of each
on standard output: first of a round done, then how the job ended.
"""

import asyncio
import json
import socket
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from securevfl.data.ids import AlignedIds, read_aligned
from securevfl.data.join import OwnData, load_party
from securevfl.data.read import FileSource
from securevfl.data.tables import row_digests
from securevfl.errors import SecureVFLError
from securevfl.job import Job, read_job
from securevfl.protocols.plan import Facts
from securevfl.protocols.resolving import resolve
from securevfl.protocols.session.keys import KeyMaker
from securevfl.protocols.session.workplace import PartyData, PartyOutcome, Workplace
from securevfl.runtime.costs import SETUP
from securevfl.runtime.real import ProgramThread, RealChannel
from tests.end_to_end.socket_transport import SocketTransport

HEARTBEATS = 3


@dataclass(frozen=True)
class Order:
    """A job to take part in.

    Attributes:
        descriptor: of the socket to the peer.
        job: the job file.
        aligned: the aligned ids.
        own: this party's file.
        weights: where to write what was learned.
        timeout_seconds: how long to wait for the peer.
    """

    descriptor: int
    job: str
    aligned: str
    own: str
    weights: str
    timeout_seconds: float


def tell(**what: object) -> None:
    print(json.dumps(what), flush=True)  # noqa: T201


def party_program(
    channel: RealChannel,
    job: Job,
    own: OwnData,
    aligned: AlignedIds,
    progress: Callable[[int], None],
) -> Coroutine[Any, Any, PartyOutcome]:
    """The program that a simulation runs as well, with the same θ⁰."""
    names = tuple(party.name for party in job.party)
    facts = Facts(
        names=names,
        label_party=next(party.name for party in job.party if party.role == "label"),
        rows=len(aligned.train),
        test_rows=len(aligned.test),
        classes=aligned.classes,
        row_digests=row_digests(aligned.train),
    )
    place = Workplace(
        data=PartyData(own.table, own.train_labels, own.test_labels, class_names=own.label_names),
        keys=KeyMaker(),
        start=np.random.default_rng([job.job.seed, names.index(channel.name)]),
        progress=progress,
    )
    plan = resolve(job, facts)
    program = plan.algorithm.programs(plan, {channel.name: place})[channel.name]
    return program(channel, channel.costs)


async def compute_until_heard(channel: RealChannel, transport: SocketTransport) -> None:
    """A computation that lasts until the peer, which computes as well, was heard again."""
    goal, limit = transport.heard + HEARTBEATS, time.monotonic() + 60
    async with channel.costs.compute(SETUP):
        while transport.heard < goal and not transport.gone:
            if time.monotonic() > limit:
                raise TimeoutError("no heartbeat while computing: the network's loop stands still")


async def take_part(name: str, order: Order) -> None:
    job = read_job(Path(order.job))
    section = next(party for party in job.party if party.name == name)
    source = FileSource(name, Path(order.own), section.id_column, section.label_column)
    aligned = read_aligned(Path(order.aligned))
    own = load_party(source, aligned)
    (peer,) = (party.name for party in job.party if party.name != name)
    transport = SocketTransport(peer)
    with ProgramThread() as thread, socket.socket(fileno=order.descriptor) as end:
        channel = RealChannel(
            name,
            {peer},
            job_hash=job.hash(),
            loop=thread.loop,
            carry=transport.carry,
            timeout_seconds=order.timeout_seconds,
        )
        reports = iter([tell])

        def progress(rounds: int) -> None:
            for first in reports:
                first(round=rounds)

        async def program() -> PartyOutcome:
            await compute_until_heard(channel, transport)
            return await party_program(channel, job, own, aligned, progress)

        async with transport.connected(end, channel):
            outcome = await thread.run(program())
    np.save(order.weights, outcome.model.weights)
    tell(
        rounds=outcome.rounds,
        scores=[score.auc for score in outcome.scores],
        path=channel.costs.path,
        clock=channel.costs.now,
        bytes_sent=channel.costs.bytes_sent,
        hops=channel.costs.hops,
    )


def main(name: str) -> None:
    tell(ready=name)
    for line in sys.stdin:
        try:
            asyncio.run(take_part(name, Order(**json.loads(line))))
        except SecureVFLError as error:
            tell(error=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main(sys.argv[1])
