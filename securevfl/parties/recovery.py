"""One recovery for everything: whatever interrupts a party, it connects anew and tries again.

A party's training and its scorings differ in what they do at a meeting. Who the peers are, whether
all are at one meeting, and when all may leave is the same.
"""

import asyncio
import hashlib
import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from securevfl import __version__
from securevfl.errors import (
    PeerError,
    PeerNotTrusted,
    PeerTimeout,
    PeerUnreachable,
    PeerViolation,
    SecureVFLError,
)
from securevfl.parties.agreement import Agreement, differences, require_signature, shown
from securevfl.parties.alignment import Limits
from securevfl.parties.meeting import (
    WIRE_VERSION,
    Done,
    Ended,
    First,
    JobEnded,
    JobStopped,
    Link,
    Meeting,
    Programs,
    Ready,
    Stopped,
)
from securevfl.runtime.real import ProgramThread, RealChannel

T = TypeVar("T")
R = TypeVar("R")
F = TypeVar("F", bound=First)
DAY_SECONDS, LINGER_SECONDS = 86_400.0, 600.0
FIRST_PAUSE_SECONDS, MOST_PAUSE_SECONDS = 0.2, 30.0
PASSES = 4
"""Of the loop until a program has what has arrived: the stream, the link, the meeting, and it."""
AGAIN = (PeerUnreachable, PeerNotTrusted)


class Network(Protocol):
    """Where links come from, see `links.Links`."""

    async def connect(self) -> Mapping[str, Link]:
        """A fresh link to every peer."""


class Runs(Protocol):
    """Where programs run: a thread of their own, so that links live while they compute."""

    loop: asyncio.AbstractEventLoop

    async def run(self, program: Coroutine[Any, Any, T]) -> T:
        """Run a program to its end."""


@dataclass(frozen=True)
class Told:
    """How a job tells the person at this party.

    Attributes:
        line: of an event.
        rounds: how many are done, and how many there may be.
        ids: how many of all parties' ids alignment has worked on here, and of how many.
        phase: what begins.
        channel: this party's end of the network, for each phase: what it waits for, and its costs.
        begins: training does, after so many rounds.
        holds: this party has its own result now, or None: peers need rounds again.
    """

    line: Callable[[str], None] = lambda text: None
    rounds: Callable[[int, int], None] = lambda done, most: None
    ids: Callable[[int, int], None] = lambda done, total: None
    phase: Callable[[str], None] = lambda text: None
    channel: Callable[[RealChannel], None] = lambda channel: None
    begins: Callable[[int], None] = lambda done: None
    holds: Callable[[object], None] = lambda result: None


@dataclass(frozen=True, eq=False, kw_only=True)
class Seat:
    """What a party brings to the meetings of an agreement.

    Attributes:
        name: of the party.
        signature: of this party over the agreement.
        records: of its guards, over all jobs.
        limits: for alignment.
        aligns: called before ids are compared; raises if the policy has enough of that.
        stopped: checks and keeps what says that a party has stopped the job; a PeerNotTrusted if
            that party has not.
        runs: makes the thread for programs.
        patience: seconds after which a party that meets nobody gives up, for now.
    """

    name: str
    agreement: Agreement
    signature: bytes
    records: Path
    limits: Limits
    told: Told = field(default_factory=Told)
    aligns: Callable[[], None] = lambda: None
    stopped: Callable[[Stopped], None] = lambda stopped: None
    runs: Callable[[], AbstractContextManager[Runs]] = ProgramThread
    patience: float = DAY_SECONDS


class Recovering(ABC, Generic[R]):
    """What a party carries from one meeting to the next.

    Attributes:
        finished: its own result, once it has one.
        progress: grows while things go well, so that the next pause is short.
        complete: whether all parties have their results.
        over: whether all know it.
    """

    def __init__(self, seat: Seat, programs: Programs) -> None:
        self._seat, self._programs = seat, programs
        self.finished: R | None = None
        self.progress, self.complete, self.over = 0, False, False

    @property
    def patience(self) -> float:
        """Seconds to wait for peers: not for long where they can only have missed a goodbye."""
        patience = self._seat.patience
        return min(LINGER_SECONDS, patience) if self.complete else patience

    def hold(self, result: R | None) -> None:
        """Note this party's own result, or that it has none any more."""
        self.finished = result
        self._seat.told.holds(result)

    @abstractmethod
    async def attempt(self, meeting: Meeting) -> None:
        """One meeting, if all goes well to the end."""

    async def until_over(self, network: Network) -> R:
        """Meet again after every interruption; errors as `life.live`."""
        seat, pause = self._seat, FIRST_PAUSE_SECONDS
        while True:
            before = self.progress
            try:
                links = await asyncio.wait_for(network.connect(), self.patience)
            except TimeoutError:
                if self.finished is not None:
                    return self.finished
                raise PeerTimeout(f"no meeting with all peers in {seat.patience:g} s") from None
            async with Meeting(seat.name, links, self._programs) as meeting:
                try:
                    await self.attempt(meeting)
                except AGAIN as error:
                    if (word := await meeting.last_word()) is None:
                        seat.told.line(f"{error}: connects again")
                    else:
                        self._end_by(meeting, word)
                except SecureVFLError as error:
                    self._end_by(meeting, error)
            if self.over and self.finished is not None:
                return self.finished
            went_on = self.progress > before
            pause = FIRST_PAUSE_SECONDS if went_on else min(2 * pause, MOST_PAUSE_SECONDS)
            await asyncio.sleep(pause)

    def _end_by(self, meeting: Meeting, error: SecureVFLError) -> None:
        """Tell peers of an error, and raise it unless all have their results."""
        self.over = over = self.complete and isinstance(error, PeerError)
        try:
            if isinstance(error, JobStopped) and not over:
                self._seat.stopped(error.stopped)
        except SecureVFLError as refused:
            error = refused
        # Also what a peer told: its links may break before all have heard of it.
        meeting.tell(Ended(error=type(error).__name__) if over else _word_of(error))
        if not over:
            raise error

    def first(self, kind: type[F], **more: object) -> F:
        """This party's first frame at a meeting."""
        seat = self._seat
        known = {
            "wire": WIRE_VERSION,
            "version": __version__,
            "agreement": seat.agreement.text.decode(),
            "signature": seat.signature.hex(),
            "nonce": secrets.token_hex(32),
        }
        return kind.model_validate(known | more)

    async def greet(self, meeting: Meeting, ours: F) -> dict[str, F]:
        """All parties' first frames; a PeerViolation for another agreement or no signature."""
        meets = {self._seat.name: ours, **await meeting.exchange(ours)}
        for name, theirs in meets.items():
            if name != self._seat.name:
                _check(self._seat.agreement, name, theirs, ours)
        self.progress += 1
        return meets

    async def barrier(self, meeting: Meeting, meets: Mapping[str, F]) -> bytes:
        """Wait until all can receive; the digest by which all know that they are at one meeting."""
        digest = _digest(meets)
        ready = await meeting.exchange(Ready(meeting=digest.hex()))
        if any(each.meeting != digest.hex() for each in ready.values()):
            raise PeerUnreachable("the parties are not at one meeting")
        return digest

    async def end(
        self, meeting: Meeting, rounds: int, complete: Callable[[], None] = lambda: None
    ) -> None:
        """Wait until all hold their results of a model of so many rounds; then all may leave."""
        self._seat.told.phase("waits until all have finished")
        done = await meeting.exchange(Done(rounds=rounds))
        if other := next((n for n, each in done.items() if each.rounds != rounds), None):
            raise PeerViolation(f"{other} ended after {done[other].rounds} rounds, here {rounds}")
        complete()
        self.complete = True
        # Who has all goodbyes leaves nobody waiting: all know that all have finished.
        await meeting.take_leave()
        self.over = True

    def made(self, runs: Runs, name: str, peers: list[str], **carried: Any) -> RealChannel:  # noqa: ANN401
        """The end of a program, for `Meeting.channel`."""
        passes = PASSES if runs.loop is asyncio.get_running_loop() else 0
        hashed = self._seat.agreement.hash
        return RealChannel(name, peers, job_hash=hashed, loop=runs.loop, passes=passes, **carried)


def _word_of(error: SecureVFLError) -> Ended | Stopped:
    """What peers are told of the end of a job."""
    match error:
        case JobStopped():
            return error.stopped
        case JobEnded():
            return Ended(error=error.error)
    return Ended(error=type(error).__name__)


def _check(agreement: Agreement, name: str, theirs: First, ours: First) -> None:
    """Check a peer's first frame; a PeerViolation says what is another there."""
    if theirs.wire != ours.wire:
        raise PeerViolation(
            f"{name} speaks version {theirs.wire} (securevfl {shown(theirs.version)}), "
            f"here {ours.wire}"
        )
    if theirs.agreement != ours.agreement:
        found = differences(agreement.text, theirs.agreement.encode())
        raise PeerViolation(f"{name} has another agreement: {'; '.join(found[:3])}")
    try:
        require_signature(agreement, name, bytes.fromhex(theirs.signature))
    except (ValueError, PeerNotTrusted) as error:
        raise PeerViolation(f"{name} has not signed the agreement") from error


def _digest(meets: Mapping[str, First]) -> bytes:
    """SHA-256 over all first frames: of one meeting, the same at all parties."""
    frames = [meets[name].model_dump_json() for name in sorted(meets)]
    return hashlib.sha256(json.dumps(frames).encode()).digest()
