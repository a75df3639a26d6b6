"""An actor: it opens its own data, listens, connects with its peers and runs its party's program.

Learns: what its party learns by the job's algorithm and exchange. Programs and messages are those
of the simulation, so the others see the same as there.
"""

import asyncio
import secrets
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from securevfl.actors.leftover import leave_ledger, leave_outcome
from securevfl.actors.links import Links
from securevfl.actors.own_data import own_data, read_facts
from securevfl.actors.row_shards import (
    RowSharded,
    ShardSums,
    actor_name,
    data_of_shard,
    plan_of_shard,
)
from securevfl.actors.task import ActorTask, Event, Peer, Tell
from securevfl.errors import DataError, SecureVFLError
from securevfl.job import Job
from securevfl.privacy.streams import KEY_BYTES
from securevfl.protocols.plan import Plan
from securevfl.protocols.resolving import resolve
from securevfl.protocols.session.checkpoints import Checkpoints, SessionState
from securevfl.protocols.session.keys import KeyMaker
from securevfl.protocols.session.pad_store import PadPlaces
from securevfl.protocols.session.workplace import PartyOutcome, Workplace
from securevfl.runtime.real import RealChannel
from securevfl.runtime.simulation import Program

OFTEN_SECONDS = 0.1


class PartyActor:
    """One actor.

    Args:
        task: its part of the job.
        tell: called with its events.
    """

    def __init__(self, task: ActorTask, tell: Tell) -> None:
        self._task, self._tell = task, tell
        self._links: Links | None = None

    def open(self) -> None:
        """Open the data and listen; report the address, or the error."""
        with _errors_reported(self._tell):
            threadpool_limits(self._task.threads)
            self._program = self._made_ready()
            self._links = Links(self._task.name, self._task.listen)
            self._tell(Event("introduced", self._links.peer))

    def take_part(self, peers: Mapping[str, Peer]) -> None:
        """Connect with all peers, run the program, and report how it ended.

        Connections stay open until `close`, as peers may still have something to read.
        """
        with _errors_reported(self._tell):
            assert self._links is not None  # noqa: S101
            needed = {*self._lane().values(), *self._shards()} - {self._task.name}
            self._links.connect({name: peers[name] for name in needed})
            asyncio.run(self._run(self._links))
            self._tell(Event("finished"))

    def close(self) -> None:
        """Close its connections."""
        if self._links is not None:
            self._links.close()

    def _lane(self) -> dict[str, str]:
        """The actor of each party that this one's program communicates with."""
        return {name: actor_name(name, self._task.shard) for name in self._task.names}

    def _shards(self) -> list[str]:
        """All actors of this party; none for a server."""
        if self._task.party in self._parties:
            return [actor_name(self._task.party, shard) for shard in range(self._task.shards)]
        return []

    async def _run(self, links: Links) -> None:
        task, lane = self._task, self._lane()
        del lane[task.party]
        channel = RealChannel(
            task.party,
            set(lane),
            job_hash=bytes.fromhex(task.job_hash),
            loop=asyncio.get_running_loop(),
            carry=lambda to, data: links.carry(lane[to], data),
            poll=links.poll,
        )
        self._sums = ShardSums(task.name, self._shards(), links, channel.costs)
        links.begin(channel, lane)
        try:
            outcome = await self._program(channel, channel.costs)
        finally:
            links.end()
        if isinstance(outcome, PartyOutcome):
            leave_outcome(task, self._of_all_rows(outcome))
        leave_ledger(Path(task.work) / f"{task.name}.ledger", channel.costs)

    def _of_all_rows(self, outcome: PartyOutcome) -> PartyOutcome:
        header = replace(outcome.model.header, rows=self._rows)
        return replace(outcome, model=replace(outcome.model, header=header))

    def _made_ready(self) -> Program[Any]:
        task = self._task
        work, data_dir = Path(task.work), Path(task.data_dir) if task.data_dir else None
        job = Job.of(**task.job)
        facts = read_facts(work)
        plan = resolve(job, facts)
        if plan.hash.hex() != task.job_hash:
            raise DataError(f"the job's hash is {plan.hash.hex()[:16]}, not {task.job_hash[:16]}")
        self._parties, self._rows = facts.names, facts.rows
        party, sharded = task.party, task.shards > 1
        places = {}
        if party in facts.names:
            data = own_data(plan, party, work, Path(task.beside), data_dir)
            places[party] = Workplace(
                data=data_of_shard(data, task.shard, task.shards) if sharded else data,
                keys=KeyMaker(),
                **start_of(job, facts.names.index(party)),
                guard_directory=Path(task.guard_directory),
                checkpoints=Path(task.output),
                progress=self._progress(plan) if task.name == facts.label_party else None,
                wrap_model=(lambda model: RowSharded(model, self._sums)) if sharded else None,
                resume=self._state(),
                pads=PadPlaces(*map(Path, task.pads)).of(party) if task.pads else None,
            )
        lane = plan_of_shard(plan, task.shard, task.shards) if sharded else plan
        return lane.algorithm.programs(lane, places)[party]

    def _state(self) -> SessionState | None:
        rounds = self._task.resume_rounds
        if rounds is None:
            return None
        states = Checkpoints(Path(self._task.output), self._task.party).load()
        if rounds not in states:
            raise DataError(f"no state after {rounds} rounds in {self._task.output}")
        return states[rounds]

    def _progress(self, plan: Plan) -> Callable[[int], None]:
        last = [-OFTEN_SECONDS]

        def report(rounds: int) -> None:
            now = time.monotonic()
            if now >= last[0] + OFTEN_SECONDS or rounds == plan.rounds:
                last[0] = now
                self._tell(Event("progress", rounds=rounds))

        return report


def start_of(job: Job, place: int) -> dict[str, Any]:
    """The source of θ⁰ and of row offsets: the operating system, unless the job asks for seeds."""
    if job.job.start == "seeded":
        return {"start": np.random.default_rng([job.job.seed, place])}
    # Peers see what follows from θ⁰: the key must not follow from it as well.
    generator = np.random.default_rng(secrets.randbits(256))
    return {"start": generator, "offsets_key": secrets.token_bytes(KEY_BYTES)}


@contextmanager
def _errors_reported(tell: Tell) -> Iterator[None]:
    try:
        yield
    except SecureVFLError as error:
        tell(Event("failed", error=type(error).__name__, text=str(error)))
    except Exception as error:  # the supervisor has to learn of any kind
        sys.stderr.write(traceback.format_exc())
        tell(Event("failed", error="SecureVFLError", text=f"{type(error).__name__}: {error}"))
