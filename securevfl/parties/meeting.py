"""A meeting: on fresh links to all peers, the parties agree from which state all go on.

Every meeting has links of its own, and nothing of an earlier one is ever received in a later one.
The first byte of a frame says what follows: JSON of this module, or an envelope of a program,
preceded by the numbers of the programs that it is for and from. When one link fails all end, so
that every party goes back to `Links.connect`: one recovery, whatever happened.

Learns:
    every party: the others' agreement with their signatures, after which rounds they hold states,
        whether they have finished, and the digest of their alignment.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, Protocol, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from securevfl.errors import MalformedMessage, PeerError, PeerUnreachable, PeerViolation
from securevfl.runtime.real import RealChannel

CONTROL, ALIGNMENT, TRAINING, SCORING = range(4)
WIRE_VERSION = 1
MOST_CONTROL_BYTES = 1 << 18
MOST_PROBES = 16
WORD_SECONDS = 1.0
MOST_WAITING = 8
"""Control frames of a peer that wait; honest parties are at most two ahead."""


class Control(BaseModel):
    """A frame between parties that no program sees."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @property
    def frame(self) -> bytes:
        """As it travels on a link."""
        return bytes((CONTROL,)) + self.model_dump_json().encode()


class First(Control):
    """What every first frame on a link says.

    Attributes:
        agreement: text of job.toml.
        signature: of the sender over it, in hex.
        nonce: fresh, 32 bytes in hex.
        finished: whether the sender holds its result.
    """

    wire: int = WIRE_VERSION
    version: str = Field(max_length=64)
    agreement: str
    signature: str
    nonce: str = Field(pattern=r"^[0-9a-f]{64}$")
    finished: bool


class Meet(First):
    """The first frame where the parties train.

    Attributes:
        states: numbers of rounds after which the sender can go on; [0] before it has sent anything.
        aligned: digest of the alignment that it keeps, in hex, or empty.
        by_digest: whether its data are a shard, so that rows are matched by digest.
        ahead: whether it makes pads for the job, and does not train.
    """

    kind: Literal["meet"] = "meet"
    states: list[int] = Field(min_length=1, max_length=4)
    aligned: str
    by_digest: bool
    ahead: bool


class Score(First):
    """The first frame where the parties score new rows.

    Attributes:
        model: hash of the job that the sender's part is of, in hex.
        rounds: after which it was saved.
    """

    kind: Literal["score"] = "score"
    model: str = Field(pattern=r"^[0-9a-f]{64}$")
    rounds: int


class Ready(Control):
    """The digest of all parties' first frames, by which all know that they are at one meeting."""

    kind: Literal["ready"] = "ready"
    meeting: str


class Done(Control):
    """The sender holds its result."""

    kind: Literal["done"] = "done"
    rounds: int


class Bye(Control):
    """The sender knows that all hold theirs."""

    kind: Literal["bye"] = "bye"


class Ended(Control):
    """The sender ends the job: why, as the name of an error, and no more of it."""

    kind: Literal["ended"] = "ended"
    error: str = Field(max_length=64, pattern=r"^[A-Za-z]+$")


class Stopped(Control):
    """A party has stopped the job for good: who, when (UTC), and its signature of that, in hex."""

    kind: Literal["stopped"] = "stopped"
    by: str = Field(max_length=256)
    at: str = Field(pattern=r"^\d{4}-\d\d-\d\d \d\d:\d\d UTC$")
    signature: str = Field(pattern=r"^[0-9a-f]{128}$")


class Probe(Control):
    """Measures a link before a job: it comes back at once, without its filling, with a clock.

    Attributes:
        back: whether it has come back.
        clock: of the sender, seconds since 1970.
        agreement: SHA-256 of the first sender's, in hex.
    """

    kind: Literal["probe"] = "probe"
    back: bool = False
    clock: float
    version: str = Field(max_length=64)
    agreement: str = Field(pattern=r"^[0-9a-f]{64}$")
    filling: str = Field(default="", max_length=MOST_CONTROL_BYTES >> 1)

    def returned(self) -> "Probe":
        """What is sent back."""
        return self.model_copy(update={"back": True, "clock": time.time(), "filling": ""})


C = TypeVar("C", bound=Control)


class JobEnded(PeerError):
    """A peer has ended the job, for an error of this name."""

    def __init__(self, peer: str, error: str) -> None:
        super().__init__(f"{peer} ended the job ({error}); its own last line says why")
        self.error = error


class JobStopped(PeerError):
    """A peer says that a party has stopped the job."""

    def __init__(self, peer: str, stopped: Stopped) -> None:
        super().__init__(f"stopped by {stopped.by} on {stopped.at}")
        self.peer, self.stopped = peer, stopped


class Link(Protocol):
    """One connection to a peer, see `links.Link`."""

    @property
    def has_data(self) -> bool:
        """Whether anything has come that nobody has looked at."""

    @property
    def waiting_bytes(self) -> int:
        """Posted and not yet sent."""

    async def receive(self) -> bytes:
        """The next frame, or a PeerError."""

    def post(self, frame: bytes) -> None:
        """Queue a frame; from any thread."""

    async def close(self) -> None:
        """Send what is queued, and close."""


@dataclass(frozen=True)
class Programs:
    """The programs of a job and at which party each runs, in the order of their numbers."""

    hosts: Mapping[str, str]

    def numbers(self, name: str, to: str) -> bytes:
        """The header of an envelope."""
        names = list(self.hosts)
        return bytes((names.index(to), names.index(name)))

    def named(self, header: bytes, peer: str) -> tuple[str, str]:
        """For whom an envelope is, and from whom; a MalformedMessage unless that is the peer's."""
        names = list(self.hosts)
        if len(header) != 2 or max(header) >= len(names):  # noqa: PLR2004
            raise MalformedMessage(f"from {peer}: a frame for no program of this job")
        to, sender = (names[number] for number in header)
        if self.hosts[sender] != peer:
            raise PeerViolation(f"{peer} sent a frame in another party's name")
        return to, sender


class Meeting:
    """All links of one meeting, of the party `own`; entering it reads from all.

    Args:
        own: this party.
        links: fresh ones, by peer; they are closed at the end.
        programs: of the job.
    """

    def __init__(self, own: str, links: Mapping[str, Link], programs: Programs) -> None:
        self.own, self._links, self._programs = own, links, programs
        self._control: dict[str, asyncio.Queue[bytes | PeerError]] = {}
        self._channels: dict[tuple[int, str], RealChannel] = {}
        self._probes: Counter[str] = Counter()
        self._error: PeerError | None = None
        self._word: JobEnded | JobStopped | None = None
        self._leaving = False
        self._readers: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        for peer, link in self._links.items():
            self._control[peer] = asyncio.Queue()
            self._readers.append(asyncio.create_task(self._read(peer, link)))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._readers:
            task.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        await asyncio.gather(*(each.close() for each in self._links.values()))

    def tell(self, message: Control) -> None:
        """Send a control frame to all peers, as far as they are there."""
        frame = message.frame
        for peer, link in self._links.items():
            try:
                link.post(frame)
            except PeerUnreachable as error:
                self._fail(peer, error)

    async def exchange(self, message: C) -> dict[str, C]:
        """Send a control frame to all peers, and take one of the same kind from each.

        Raises:
            PeerError: a link failed, or a peer sent something else.
            JobEnded, JobStopped: a peer ended the job, or tells that a party has stopped it.
        """
        self.tell(message)
        found = {}
        for peer, queue in self._control.items():
            data = await queue.get()
            if isinstance(data, PeerError):
                raise data
            found[peer] = parsed(peer, data, type(message))
        return found

    async def last_word(self) -> "JobEnded | JobStopped | None":
        """What a peer has said of the end of the job; a program may meet its broken link first."""
        await asyncio.wait(self._readers, timeout=WORD_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        return self._word

    async def take_leave(self) -> None:
        """Say goodbye to all peers, and wait for theirs; who has said it may be gone.

        Raises:
            PeerError: a peer has gone without a goodbye, or sent something else.
        """
        self._leaving, missing = True, None
        self.tell(Bye())
        for peer, queue in self._control.items():
            data = await queue.get()
            if isinstance(data, PeerError):
                missing = missing or data
            else:
                parsed(peer, data, Bye)
        if missing is not None:
            raise missing

    def channel(self, stage: int, name: str, made: Callable[..., RealChannel]) -> RealChannel:
        """The end of a program that runs here; `made` makes it of its name, peers and carrier."""
        peers = [each for each in self._programs.hosts if each != name]

        def carry(to: str, envelope: bytes) -> None:
            header, host = self._programs.numbers(name, to), self._programs.hosts[to]
            if host == self.own:
                self._channels[stage, to].deliver(name, envelope)
            else:
                self._links[host].post(bytes((stage,)) + header + envelope)

        channel = self._channels[stage, name] = made(
            name, peers, carry=carry, arriving=self._arriving, leaving=self._sending
        )
        if self._error is not None:
            self._lose(channel, self._error)
        return channel

    def _arriving(self) -> bool:
        return any(link.has_data for link in self._links.values())

    def _sending(self) -> bool:
        return any(link.waiting_bytes for link in self._links.values())

    async def _read(self, peer: str, link: Link) -> None:
        try:
            while True:
                self._sort(peer, await link.receive())
        except PeerError as error:
            self._fail(peer, error)
        except Exception as error:  # nothing that a peer sends may end this unseen
            kind = type(error).__name__
            self._fail(peer, PeerViolation(f"{peer} sent what cannot be handled ({kind})"))

    def _sort(self, peer: str, frame: bytes) -> None:
        kind = frame[:1]
        if kind == bytes((CONTROL,)):
            queue = self._control[peer]
            if len(frame) > MOST_CONTROL_BYTES or queue.qsize() >= MOST_WAITING:
                raise PeerViolation(f"{peer} sent too many control frames, or one that is too long")
            match kind_of(frame[1:]):
                case "ended":
                    raise JobEnded(peer, parsed(peer, frame[1:], Ended).error)
                case "probe":
                    self._send_back(peer, parsed(peer, frame[1:], Probe))
                    return
                case "stopped":
                    raise JobStopped(peer, parsed(peer, frame[1:], Stopped))
            queue.put_nowait(frame[1:])
            return
        to, sender = self._programs.named(frame[1:3], peer)
        channel = self._channels.get((frame[0], to))
        if channel is None:
            raise PeerViolation(f"{peer} sent a frame for a program that does not run here")
        with suppress(RuntimeError):  # its program has ended, and its loop
            channel.deliver(sender, frame[3:])

    def _send_back(self, peer: str, probe: Probe) -> None:
        self._probes[peer] += 1
        if self._probes[peer] > MOST_PROBES:
            raise PeerViolation(f"{peer} sent more than {MOST_PROBES} probes")
        if not probe.back:
            self._links[peer].post(probe.returned().frame)

    def _fail(self, peer: str, error: PeerError) -> None:
        """One link failed, or a peer broke the rules: no program waits for anybody any more."""
        if isinstance(error, JobEnded | JobStopped):
            self._word = self._word or error
        if self._leaving:
            self._control[peer].put_nowait(error)
            return
        if self._error is not None:
            return
        self._error = error
        for queue in self._control.values():
            queue.put_nowait(error)
        for channel in self._channels.values():
            with suppress(RuntimeError):  # likewise
                self._lose(channel, error)

    def _lose(self, channel: RealChannel, error: PeerError) -> None:
        for name in self._programs.hosts:
            channel.lose(name, error)


def kind_of(data: bytes) -> object:
    """The kind that a control frame says it is."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found.get("kind") if isinstance(found, dict) else None


def parsed(peer: str, data: bytes, kind: type[C]) -> C:
    """A control frame of this kind, after its first byte; a MalformedMessage if it is none."""
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        raise MalformedMessage(f"from {peer}: no {kind.__name__} where one is expected") from error
