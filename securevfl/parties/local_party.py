"""A party of a local job: its life, as between organizations, and what it leaves its operator.

It opens its own data only. Its identity is made for the job, by the operator of all parties.
"""

import asyncio
import sys
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

from securevfl.errors import DataError, SecureVFLError
from securevfl.job import Job, PartySettings
from securevfl.parties.agreement import Agreement, sign_agreement
from securevfl.parties.alignment import Limits
from securevfl.parties.door import UNIX
from securevfl.parties.identity import Identity
from securevfl.parties.leftover import leave_ledger, leave_outcome
from securevfl.parties.life import Place, live
from securevfl.parties.links import Links
from securevfl.parties.own_data import NamedRows, OwnRows
from securevfl.parties.recovery import Told
from securevfl.parties.task import Event, Task, Tell
from securevfl.protocols.catalogue import algorithm_of
from securevfl.protocols.session.pad_store import PadPlaces
from securevfl.runtime.costs import Costs
from securevfl.runtime.real import ProgramThread
from securevfl.threads import limit_threads
from securevfl.training.job_data import file_sources

T = TypeVar("T")
OFTEN_SECONDS = 0.1
ANY_ROUNDS = sys.maxsize
WS = "ws://"


class LocalParty:
    """One party.

    Args:
        task: its part of the job.
        tell: called with its events.
    """

    def __init__(self, task: Task, tell: Tell) -> None:
        self._task, self._tell = task, tell
        self._addresses = dict(task.addresses)
        self._introduced: Future[None] = Future()

    def run(self) -> None:
        """Take part to the end, and report how it ended."""
        with _errors_reported(self._tell):
            limit_threads(self._task.threads)
            asyncio.run(self._live())
            self._tell(Event("finished"))

    def introduce(self, addresses: Mapping[str, str]) -> None:
        """Hear where all parties are; from any thread."""
        self._addresses.update(addresses)
        if not self._introduced.done():
            self._introduced.set_result(None)

    async def _live(self) -> None:
        task, own = self._task, self._task.addresses[self._task.name]
        identity = Identity.load(key_file(task))
        agreement = agreement_of(task, self._addresses)
        listen = own.removeprefix(WS)
        links = Links(
            agreement,
            task.name,
            identity,
            listen=listen,
            proxy=None,
            say=lambda line: None,
            # Where programs run on the loop of the links, nobody answers while they compute.
            pings=False,
        )
        async with links:
            here = links.listens or listen
            self._tell(Event("introduced", address=here if here.startswith(UNIX) else WS + here))
            await asyncio.wrap_future(self._introduced)
            place = self._place(agreement, sign_agreement(agreement, identity))
            await live(place, links, lambda plan, outcome: leave_outcome(task, outcome))

    def _place(self, agreement: Agreement, signature: bytes) -> Place:
        task, job, work = self._task, Job.of(**self._task.job), Path(self._task.work)

        def leave(ledgers: Mapping[str, Costs]) -> None:
            for name, costs in ledgers.items():
                leave_ledger(work / f"{name}.ledger", costs)

        told = Told()
        if task.name == task.label_party:
            told = Told(
                rounds=self._often(), begins=lambda done: self._tell(Event("begins", rounds=done))
            )
        return Place(
            name=task.name,
            agreement=agreement,
            job=job,
            rows=lambda by_digest: self._rows(job),
            by_digest=task.by_digest,
            signature=signature,
            folder=folder_of(task),
            records=Path(task.guard_directory),
            limits=Limits(),
            aligns=_refuse_other_data,
            told=told,
            pads=PadPlaces(*map(Path, task.pads)).of(task.name) if task.pads else None,
            states=Path(task.output),
            durable=False,
            ledgers=leave,
            most_repeated=ANY_ROUNDS,
            runs=ProgramThread if self._keeps_others_waiting(job) else _Here,
        )

    def _keeps_others_waiting(self, job: Job) -> bool:
        """Whether a server runs beside a program that computes long, as one on its loop would."""
        serves = self._task.name == self._task.label_party and bool(algorithm_of(job).servers)
        return serves and job.model_of(self._task.name).model != "linear"

    def _rows(self, job: Job) -> OwnRows | NamedRows:
        if job.job.dataset is None:
            return own_file(self._task)
        data_dir = Path(self._task.data_dir) if self._task.data_dir else None
        return NamedRows.read(job, self._task.name, data_dir)

    def _often(self) -> Callable[[int, int], None]:
        last = [-OFTEN_SECONDS]

        def report(rounds: int, most: int) -> None:
            now = time.monotonic()
            if now >= last[0] + OFTEN_SECONDS or rounds == most:
                last[0] = now
                self._tell(Event("progress", rounds=rounds))

        return report


def key_file(task: Task) -> Path:
    """Where a party's private key is, for the time of the job."""
    return Path(task.work) / f"{task.name}.key"


def folder_of(task: Task) -> Path:
    """Where a party keeps what its life needs, for the time of the job."""
    return Path(task.work) / task.name


def agreement_of(task: Task, addresses: Mapping[str, str]) -> Agreement:
    """What the parties of a local job compare: the hash of the job with its defaults."""
    job, label_party = Job.of(**task.job), task.label_party
    if not job.party:
        parties = tuple(
            PartySettings(name=name, role="label" if name == label_party else "feature")
            for name in task.identities
        )
        job = job.model_copy(update={"party": parties})
    identities = {name: bytes.fromhex(each) for name, each in task.identities.items()}
    return Agreement(task.job_hash.encode(), job, identities, addresses, relay=None)


def own_file(task: Task) -> OwnRows:
    """The rows of a party's file or shard; errors as `file_sources` and `load_files`."""
    (source,) = file_sources(Job.of(**task.job), Path(task.beside), task.name)
    # The job's [preprocess] is all parties', and their files were read with it before.
    return OwnRows.read(source, by_digest=task.by_digest, shared=True)


class _Here:
    """Runs programs on the loop of the links: a message then wakes no other thread."""

    def __enter__(self) -> Self:
        self.loop = asyncio.get_running_loop()
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is left running."""

    async def run(self, program: Coroutine[Any, Any, T]) -> T:
        """Run a program."""
        return await program


def _refuse_other_data() -> None:
    raise DataError("a party's data are not those that the job was planned for")


@contextmanager
def _errors_reported(tell: Tell) -> Iterator[None]:
    try:
        yield
    except SecureVFLError as error:
        tell(Event("failed", error=type(error).__name__, text=str(error)))
    except Exception as error:  # the operator has to learn of any kind
        sys.stderr.write(traceback.format_exc())
        tell(Event("failed", error="SecureVFLError", text=f"{type(error).__name__}: {error}"))
