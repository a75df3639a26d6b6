"""An actor: it opens its own data, listens, connects with its peers and runs its party's program.

Learns: what its party learns by the job's algorithm and exchange. Programs and messages are those
of the simulation, so the others see the same as there.
"""

import asyncio
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from securevfl.actors.leftover import leave_ledger, leave_outcome
from securevfl.actors.links import Links
from securevfl.actors.own_data import own_data, read_facts
from securevfl.actors.task import ActorTask, Event, Peer, Tell
from securevfl.errors import DataError, SecureVFLError
from securevfl.job import Job
from securevfl.protocols.attempts import beginning
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
            self._links.connect({name: peers[name] for name in self._others()})
            asyncio.run(self._run(self._links))
            self._tell(Event("finished"))

    def close(self) -> None:
        """Close its connections."""
        if self._links is not None:
            self._links.close()

    def _others(self) -> set[str]:
        return set(self._task.names) - {self._task.name}

    async def _run(self, links: Links) -> None:
        task = self._task
        channel = RealChannel(
            task.name,
            self._others(),
            job_hash=bytes.fromhex(task.job_hash),
            loop=asyncio.get_running_loop(),
            carry=links.carry,
            poll=links.poll,
        )
        links.begin(channel)
        try:
            outcome = await self._program(channel, channel.costs)
        finally:
            links.end()
        if isinstance(outcome, PartyOutcome):
            leave_outcome(task, outcome)
        leave_ledger(Path(task.work) / f"{task.name}.ledger", channel.costs)

    def _made_ready(self) -> Program[Any]:
        task = self._task
        work, data_dir = Path(task.work), Path(task.data_dir) if task.data_dir else None
        job = Job.of(**task.job)
        facts = read_facts(work)
        plan = resolve(job, facts)
        if plan.hash.hex() != task.job_hash:
            raise DataError(f"the job's hash is {plan.hash.hex()[:16]}, not {task.job_hash[:16]}")
        party, places = task.name, {}
        if party in facts.names:
            data = own_data(plan, party, work, Path(task.beside), data_dir)
            places[party] = Workplace(
                data=data,
                keys=KeyMaker(),
                **beginning(work / f"{party}.attempts", plan, data),
                guard_directory=Path(task.guard_directory),
                checkpoints=Path(task.output),
                progress=self._progress(plan) if party == facts.label_party else None,
                resume=self._state(),
                pads=PadPlaces(*map(Path, task.pads)).of(party) if task.pads else None,
            )
        return plan.algorithm.programs(plan, places)[party]

    def _state(self) -> SessionState | None:
        rounds = self._task.resume_rounds
        if rounds is None:
            return None
        states = Checkpoints(Path(self._task.output), self._task.name).load()
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


@contextmanager
def _errors_reported(tell: Tell) -> Iterator[None]:
    try:
        yield
    except SecureVFLError as error:
        tell(Event("failed", error=type(error).__name__, text=str(error)))
    except Exception as error:  # the supervisor has to learn of any kind
        sys.stderr.write(traceback.format_exc())
        tell(Event("failed", error="SecureVFLError", text=f"{type(error).__name__}: {error}"))
