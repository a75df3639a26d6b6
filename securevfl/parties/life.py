"""A party's life in a job: connect, meet, align, describe, train, end.

Whatever interrupts a job (a link that breaks, a peer or this process that dies), every party that
notices connects anew, and all go on from the newest state that all hold. Training is the same
coroutine as in simulation (`protocols.vertical.runner.run_party`), and so are its messages.

Learns: what the party learns by alignment, by the job's algorithm and by its exchange. Nobody else
    gets its data, its model or its result.
Guarantees: under exact exchanges the model is to the byte that of a run that nobody interrupted,
    on the same kind of CPU. A job whose account of noise counts every release once never begins
    twice: it ends in one line.
"""

import asyncio
import hmac
import os
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict
from typing_extensions import override

from securevfl.errors import ConfigError, DataError, PeerViolation
from securevfl.files import content_if_there, private_folder, reading, replace_file, wipe_file
from securevfl.job import Job
from securevfl.parties.alignment import align
from securevfl.parties.meeting import ALIGNMENT, TRAINING, Meet, Meeting, Programs
from securevfl.parties.own_data import (
    ALIGNED,
    NamedRows,
    OwnRows,
    describe,
    keep_common,
    kept_common,
)
from securevfl.parties.own_file import Policy
from securevfl.parties.recovery import Network, Recovering, Runs, Seat
from securevfl.protocols.attempts import beginning
from securevfl.protocols.catalogue import algorithm_of, exchange_of
from securevfl.protocols.plan import Plan
from securevfl.protocols.resolving import resolve
from securevfl.protocols.session.checkpoints import Checkpoints, SessionState
from securevfl.protocols.session.keys import KeyMaker
from securevfl.protocols.session.pad_store import PadStore
from securevfl.protocols.session.workplace import PartyData, PartyOutcome, Workplace
from securevfl.protocols.vertical.runner import MadeOffline, run_offline
from securevfl.runtime.costs import Costs
from securevfl.runtime.real import RealChannel
from securevfl.threads import spread_over
from securevfl.training import require_offline

T = TypeVar("T")
ATTEMPTS, DIARY = "attempts", "diary.json"


class Diary(BaseModel):
    """What outlives this process beside states.

    Attributes:
        attempts: meetings from which training began.
        repeated: rounds that were taken again.
        job: the job's hash, with its defaults, once training begins.
        finished: after how many rounds this party got its result.
        complete: whether all parties have theirs.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    attempts: int = 0
    repeated: int = 0
    job: str = ""
    finished: int | None = None
    complete: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class Place(Seat):
    """What a party brings to a job, and where it keeps things.

    Attributes:
        job: the agreement's job with this party's own data filled in.
        folder: of what it keeps in this job.
        pads: this party's store of pads, and of keys of states of shares.
        ahead: make pads for the job, and do not train.
        states: folder of its states; `folder` unless given.
        ledgers: takes the costs of the programs that ran here, by name, before `save` is called.
        durable: whether its states must outlive a power cut, which takes one machine of several.
        most_repeated: rounds that the job may take again, in all: each tells a peer that cheats as
            much as one more.
    """

    job: Job
    rows: Callable[[bool], OwnRows | NamedRows]
    by_digest: bool
    folder: Path
    pads: PadStore | None = None
    ahead: bool = False
    states: Path | None = None
    ledgers: Callable[[Mapping[str, Costs]], None] = lambda ledgers: None
    durable: bool = True
    most_repeated: int = Policy().most_repeated_rounds


@dataclass(frozen=True, eq=False)
class Finished:
    """A party's own result.

    Attributes:
        outcome: None where this process found the job finished, or made pads.
        data: that it was trained on.
        pads: made now.
    """

    plan: Plan | None
    outcome: PartyOutcome | None
    data: PartyData | None
    pads: MadeOffline | None = None


async def live(
    place: Place, network: Network, save: Callable[[Plan, PartyOutcome], None]
) -> Finished:
    """Take a party through a job, however often it is interrupted.

    Args:
        place: what it brings.
        network: connects it with its peers.
        save: writes its result; called before any peer is told that it has one.

    Raises:
        JobEnded: a peer ended the job.
        JobStopped: a party has stopped it.
        PeerViolation: a peer broke the protocol, or has another agreement.
        SecureVFLError: this party cannot take part; its peers are told, by the error's name alone.
    """
    life = _Life(place, save)
    if life.complete:
        place.told.line(
            f"has finished before: stays {life.patience / 60:.3g} minutes at most for a peer that "
            "missed the end, and may be interrupted"
        )
    with spread_over(place.job.exchange.workers):
        return await life.until_over(network)


class _Life(Recovering[Finished]):
    """What a party carries from one meeting to the next."""

    def __init__(self, place: Place, save: Callable[[Plan, PartyOutcome], None]) -> None:
        names = place.agreement.names
        servers = algorithm_of(place.job).servers
        hosts = {name: name for name in names}
        programs = Programs(hosts | dict.fromkeys(servers, place.agreement.label_party))
        super().__init__(place, programs)
        self.place, self._save = place, save
        self._checkpoints = Checkpoints(place.states or place.folder, place.name)
        self._diary = read_diary(place.folder)
        self._reached = _Reached(place.folder / "reached")
        self._own_rows = cache(place.rows)
        self.complete = self._diary.complete
        if place.ahead:
            # Before a secret is drawn, which would say that a job with noise has begun.
            self._make = require_offline(exchange_of(place.job))
            if self.complete:
                raise ConfigError("--ahead: the job has finished, and takes no pads any more")
        elif self._diary.finished is not None:
            self.hold(Finished(None, None, None))

    @override
    async def attempt(self, meeting: Meeting) -> None:
        place = self.place
        states = self._checkpoints.load()
        meets = await self.greet(meeting, self._meet(states))
        does = {True: "makes pads (--ahead)", False: "trains"}
        if other := next((n for n, each in meets.items() if each.ahead != place.ahead), None):
            text = f"{other} {does[not place.ahead]}, and this party {does[place.ahead]}"
            raise PeerViolation(text)
        if all(each.finished for each in meets.values()):
            await self._end(meeting)
            return
        if self.complete:  # the secret is wiped: other numbers would show more of the same people
            liar = next(name for name, each in meets.items() if not each.finished)
            raise PeerViolation(f"{liar} had finished, and says that it has not")
        resume = self._agreed(meets)
        by_digest = any(each.by_digest for each in meets.values())
        with place.runs() as runs, place.runs() as beside:
            ends = {
                stage: meeting.channel(stage, place.name, partial(self.made, runs))
                for stage in (ALIGNMENT, TRAINING)
            }
            servers = {
                name: meeting.channel(TRAINING, name, partial(self.made, beside))
                for name, host in self._programs.hosts.items()
                if host == place.name != name
            }
            digest = await self.barrier(meeting, meets)
            aligned = {each.aligned for each in meets.values()}
            found = await runs.run(
                self._prepare(ends[ALIGNMENT], digest, by_digest, kept=len(aligned) == 1)
            )
            plan, data = found
            workplace = self._workplace(plan, data, states.get(resume))
            self._begin(plan, states, resume)
            end = ends[TRAINING]
            place.told.channel(end)
            if place.ahead:
                place.told.phase("making pads")
                await self._make_ahead(meeting, runs, end, workplace, plan)
                return
            programs = plan.algorithm.programs(plan, {place.name: workplace})
            place.told.phase("training")
            outcome, *_ = await _all_of(
                runs.run(programs[place.name](end, end.costs)),
                *(beside.run(programs[n](each, each.costs)) for n, each in servers.items()),
            )
        place.ledgers({each.name: each.costs for each in (end, *servers.values())})
        self._save(plan, outcome)
        self._write(finished=outcome.rounds)
        self.hold(Finished(plan, outcome, data))
        await self._end(meeting)

    async def _make_ahead(
        self, meeting: Meeting, runs: Runs, end: RealChannel, workplace: Workplace, plan: Plan
    ) -> None:
        """Make pads, which the next run at all parties uses up."""
        store = self.place.pads
        assert store is not None  # noqa: S101
        store.discard()  # a meeting that broke off may have left some here and none elsewhere
        made = await runs.run(
            run_offline(end, end.costs, plan=plan, workplace=workplace, make=self._make)
        )
        self.hold(Finished(plan, None, None, made))
        await self.end(meeting, made.rounds)

    async def _end(self, meeting: Meeting) -> None:
        """Wait until all parties hold their results."""
        rounds = self._diary.finished
        assert rounds is not None  # noqa: S101
        await self.end(meeting, rounds, self._complete)

    def _complete(self) -> None:
        self._write(complete=True)
        self._checkpoints.clear()
        # θ⁰ and the row offsets of a finished job are of no use to anybody but its peers.
        secret = self.place.folder / ATTEMPTS
        with suppress(FileNotFoundError):
            wipe_file(secret)
            secret.unlink()
        if self.place.pads is not None:
            self.place.pads.state_seal(self._diary.job).destroy()

    def _meet(self, states: Mapping[int, SessionState]) -> Meet:
        place, path, kept = self.place, self.place.folder / ALIGNED, None
        if path.exists():
            # By digest if a peer's data are a shard, which this party did not know before.
            ways = dict.fromkeys((place.by_digest, True))
            found = (kept_common(path, self._own_rows(by_digest)) for by_digest in ways)
            kept = next((each for each in found if each is not None), None)
        return self.first(
            Meet,
            states=sorted(states) or [0],
            aligned="" if kept is None else kept[1].hex(),
            by_digest=place.by_digest,
            ahead=place.ahead,
            finished=not place.ahead and self._diary.finished is not None,
        )

    def _agreed(self, meets: Mapping[str, Meet]) -> int:
        """After how many rounds all go on."""
        common = set.intersection(*(set(each.states) for each in meets.values()))
        if not common:
            held = ", ".join(f"{name} {max(each.states)}" for name, each in meets.items())
            raise ConfigError(f"the parties hold states of no round in common ({held})")
        return max(common)

    async def _prepare(
        self, channel: RealChannel, digest: bytes, by_digest: bool, *, kept: bool
    ) -> tuple[Plan, PartyData]:
        """Find the rows that all parties hold, and plan the job for them."""
        place = self.place
        rows, path = self._own_rows(by_digest), place.folder / ALIGNED
        known = kept_common(path, rows)
        place.told.channel(channel)
        if known is None or not kept:
            place.told.phase("aligning")
            place.aligns()
            common = await align(
                channel,
                channel.costs,
                names=place.agreement.names,
                label_party=place.agreement.label_party,
                context=hmac.digest(place.agreement.hash, b"alignment" + digest, "sha256"),
                train=rows.train_points,
                test=rows.test_points,
                limits=place.limits,
                # By what this party's own data are: a peer's word would show their order.
                by_id=not place.by_digest,
                progress=place.told.ids,
            )
            keep_common(path, common, rows.digest, digest)
        else:
            common = known[0]
        place.told.line(
            f"aligned: {len(common.train) + len(common.test)} rows in common of own {len(rows)}"
        )
        taken = rows.taken(common)
        own = taken.load(place.job)
        facts, data = await describe(channel, place.agreement, taken, own, place.job)
        return resolve(place.job, facts), data

    def _workplace(self, plan: Plan, data: PartyData, resume: SessionState | None) -> Workplace:
        place = self.place
        return Workplace(
            data=data,
            keys=KeyMaker(),
            **beginning(place.folder / ATTEMPTS, plan, data),
            guard_directory=place.records,
            checkpoints=place.states or place.folder,
            durable=place.durable,
            progress=partial(self._progressed, plan.rounds),
            resume=resume,
            pads=place.pads,
        )

    def _begin(self, plan: Plan, states: Mapping[int, SessionState], resume: int) -> None:
        """Note that training begins; refuse to take too many rounds again."""
        diary, repeated = self._diary, self._diary.repeated
        if diary.attempts:
            # The round in which it broke off counts: a peer may have got its part of it.
            repeated += max(*states, self._reached.rounds, 0) + 1 - resume
        most = self.place.most_repeated
        if repeated > most:
            raise ConfigError(
                f"{repeated} rounds would be taken again, at most {most} "
                "(policy.most_repeated_rounds)"
            )
        self._write(
            attempts=diary.attempts + 1,
            job=plan.hash.hex(),
            repeated=repeated,
            finished=None,
        )
        self.hold(None)
        self._reached.rounds = resume
        self.place.told.begins(resume)
        if resume:
            self.place.told.line(f"goes on after {resume} rounds")

    def _progressed(self, most: int, rounds: int) -> None:
        self.progress += 1
        self._reached.rounds = rounds
        self.place.told.rounds(rounds, most)

    def _write(self, **changes: object) -> None:
        self._diary = self._diary.model_copy(update=changes)
        replace_file(self.place.folder / DIARY, self._diary.model_dump_json().encode(), "diary")


async def _all_of(*programs: Coroutine[Any, Any, T]) -> list[T]:
    """Run programs to their ends; the first error ends all, as each may wait for another."""
    tasks = [asyncio.ensure_future(each) for each in programs]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Reached:
    """How many rounds are done since the last state; outlives the process, if not a power cut."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def rounds(self) -> int:
        return int.from_bytes(content_if_there(self._path, "rounds reached") or b"", "little")

    @rounds.setter
    def rounds(self, rounds: int) -> None:
        try:
            handle = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.write(handle, rounds.to_bytes(8, "little"))
            finally:
                os.close(handle)
        except OSError as error:
            raise DataError(f"{self._path} cannot be written") from error


def read_diary(folder: Path) -> Diary:
    """How far a party has come in a job, by its folder; a DataError if the file is damaged."""
    path = folder / DIARY
    data = content_if_there(path, "diary")
    with reading(f"diary {path}"):
        return Diary() if data is None else Diary.model_validate_json(data)


@contextmanager
def alone(folder: Path, name: str) -> Iterator[None]:
    """Hold a party's place in a job; a ConfigError if another process does."""
    from filelock import FileLock, Timeout  # noqa: PLC0415

    private_folder(folder, "state folder")
    lock = FileLock(folder / "running.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise ConfigError(f"party {name!r} is running already, in {folder}") from error
    try:
        yield
    finally:
        lock.release()
