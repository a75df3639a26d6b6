"""What a peer may send at a meeting, and how everything else ends."""

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from pydantic import ValidationError
from typing_extensions import override

from securevfl.errors import MalformedMessage, PeerError, PeerUnreachable, PeerViolation
from securevfl.parties import meeting
from securevfl.parties.alignment import Limits
from securevfl.parties.meeting import (
    CONTROL,
    MOST_CONTROL_BYTES,
    MOST_PROBES,
    MOST_WAITING,
    TRAINING,
    Bye,
    Control,
    Done,
    Ended,
    JobEnded,
    Link,
    Meet,
    Meeting,
    Probe,
    Programs,
)
from securevfl.parties.recovery import Recovering, Runs, Seat
from securevfl.runtime.real import ProgramThread, RealChannel
from tests.link_parties import run
from tests.unit.parties.agreements import TEXT, of

PROGRAMS = Programs({"bank": "bank", "shop": "shop", "post": "post"})
TWO = Programs({"bank": "bank", "shop": "shop"})
HEADER = bytes((TRAINING,)) + TWO.numbers("shop", "bank")
BANK, SHOP, POST = range(3)


class Says:
    """A peer's end of a link: it sends some frames, and then it is gone."""

    has_data = False
    waiting_bytes = 0

    def __init__(self, frames: Sequence[bytes]) -> None:
        self._frames, self.posted = list(frames), 0

    async def receive(self) -> bytes:
        if not self._frames:
            raise PeerUnreachable("shop is gone")
        return self._frames.pop(0)

    def post(self, frame: bytes) -> None:
        self.posted += len(frame)

    async def close(self) -> None:
        pass


def control(message: Control) -> bytes:
    return bytes((CONTROL,)) + message.model_dump_json().encode()


def heard(*frames: bytes) -> object:
    """What the bank makes of the shop's frames, as it waits for a goodbye."""

    async def meet() -> object:
        async with asyncio.timeout(60), Meeting("bank", {"shop": Says(frames)}, PROGRAMS) as found:
            return (await found.exchange(Bye()))["shop"]

    return asyncio.run(meet())


def test_a_goodbye_is_heard() -> None:
    assert heard(control(Bye())) == Bye()
    assert heard(control(Probe(clock=0, version="1", agreement="0" * 64)), control(Bye())) == Bye()


@pytest.mark.parametrize(
    ("frames", "error", "words"),
    [
        ([], PeerUnreachable, "gone"),
        ([control(Done(rounds=3))], MalformedMessage, "no Bye where one is expected"),
        ([bytes((CONTROL,)) + b"nonsense"], MalformedMessage, "no Bye"),
        ([bytes((CONTROL,)) + b"[" * 100_000], MalformedMessage, "no Bye"),
        ([bytes((CONTROL,)) + b'{"kind":"ended","error":"x y"}'], MalformedMessage, "no Ended"),
        ([bytes((CONTROL,)) + b'{"kind":"ended","error":"DataError"}'], JobEnded, "DataError"),
        ([bytes((CONTROL,)) + b'{"kind":"stopped"}'], MalformedMessage, "no Stopped"),
        ([bytes(MOST_CONTROL_BYTES + 1)], PeerViolation, "too long"),
        ([control(Bye())] * (MOST_WAITING + 1), PeerViolation, "too many control frames"),
        (
            [control(Probe(clock=0, version="1", agreement="0" * 64))] * (MOST_PROBES + 1),
            PeerViolation,
            "probes",
        ),
        ([b""], MalformedMessage, "no program"),
        ([bytes((TRAINING, BANK))], MalformedMessage, "no program"),
        ([bytes((TRAINING, BANK, 3))], MalformedMessage, "no program"),
        ([bytes((TRAINING, BANK, POST))], PeerViolation, "in another party's name"),
        ([bytes((TRAINING, POST, SHOP))], PeerViolation, "does not run here"),
        ([bytes((9, BANK, SHOP))], PeerViolation, "does not run here"),
    ],
)
def test_everything_else_ends_the_meeting(
    frames: list[bytes], error: type[PeerError], words: str
) -> None:
    flood = len(frames) > MOST_WAITING
    with pytest.raises(error, match=words):
        last(frames) if flood else heard(*frames)


def last(frames: list[bytes]) -> None:
    """Let all frames arrive before the bank looks at any."""

    async def meet() -> None:
        async with asyncio.timeout(60), Meeting("bank", {"shop": Says(frames)}, PROGRAMS) as found:
            for _ in range(3 * len(frames)):
                await asyncio.sleep(0)
            for _ in frames:
                await found.exchange(Bye())

    asyncio.run(meet())


class Scripted:
    """A link whose peer sends these frames, and then breaks off if it is told to."""

    has_data = False
    waiting_bytes = 0

    def __init__(self, *frames: bytes, breaks_off: bool = False) -> None:
        self._frames, self._breaks_off = list(frames), breaks_off

    async def receive(self) -> bytes:
        await asyncio.sleep(0)
        if not self._frames and self._breaks_off:
            raise PeerUnreachable("shop closed the connection")
        while not self._frames:
            await asyncio.sleep(3600)
        return self._frames.pop(0)

    def post(self, frame: bytes) -> None:
        del frame
        if self._breaks_off:
            raise PeerUnreachable("shop closed the connection")

    async def close(self) -> None:
        pass


async def said_bye(link: Link, *, after_a_program: bool) -> None:
    """Wait for the peer's goodbye."""
    async with Meeting("bank", {"shop": link}, TWO) as meeting:
        if after_a_program:
            with ProgramThread() as runs:
                meeting.channel(TRAINING, "bank", partial(_made, runs))
        await meeting.exchange(Bye())


def _made(runs: Runs, name: str, peers: list[str], **carried: object) -> RealChannel:
    return RealChannel(name, peers, job_hash=bytes(32), loop=runs.loop, **carried)  # type: ignore[arg-type]


def test_a_peer_that_leaves_after_the_last_round_is_noticed() -> None:
    with pytest.raises(PeerUnreachable):
        run(said_bye(Scripted(breaks_off=True), after_a_program=True))


def test_a_frame_for_a_program_that_has_ended_hides_nothing_that_follows() -> None:
    bye = bytes((CONTROL,)) + Bye().model_dump_json().encode()
    run(said_bye(Scripted(HEADER + b"late", bye), after_a_program=True))


@pytest.mark.parametrize("changes", [{"states": []}, {"version": "1" * 65}])
def test_a_first_frame_names_a_state_and_a_version_that_fits_a_line(
    changes: dict[str, object],
) -> None:
    first = Meet(
        version="1", agreement="", signature="", nonce="0" * 64, finished=False,
        states=[0], aligned="", by_digest=False, ahead=False,
    )  # fmt: skip
    assert Meet.model_validate(dict(first)) == first
    with pytest.raises(ValidationError):
        Meet.model_validate(dict(first) | changes)


class Later(Says):
    """A peer whose frames come after some turns of the loop."""

    @override
    async def receive(self) -> bytes:
        for _ in range(50):
            await asyncio.sleep(0)
        return await super().receive()


@pytest.mark.parametrize("bye", [True, False])
def test_who_has_said_goodbye_may_be_gone_before_another_says_it(bye: bool) -> None:
    goodbye = control(Bye())

    async def leave() -> None:
        links = {"post": Later([goodbye]), "shop": Says([goodbye] if bye else [])}
        async with asyncio.timeout(60), Meeting("bank", links, PROGRAMS) as found:
            await found.take_leave()

    if bye:
        asyncio.run(leave())
    else:
        with pytest.raises(PeerUnreachable):
            asyncio.run(leave())


def test_what_cannot_be_handled_ends_the_meeting(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> object:
        raise ZeroDivisionError

    monkeypatch.setattr(meeting, "kind_of", fails)
    with pytest.raises(PeerViolation, match=r"cannot be handled \(ZeroDivisionError\)"):
        heard(control(Bye()))


class Broken(Later):
    """A link at which sending fails before what the peer said has come."""

    @override
    def post(self, frame: bytes) -> None:
        raise PeerUnreachable("shop is gone")


class Sends(Recovering[str]):
    """A party whose program sends something."""

    @override
    async def attempt(self, meeting: Meeting) -> None:
        raise PeerUnreachable("the link is broken")


class Once:
    """Gives the same broken link to every meeting."""

    async def connect(self) -> dict[str, Link]:
        return {"shop": Broken([control(Ended(error="DataError"))])}


def test_a_program_that_meets_a_broken_link_first_hears_the_last_word() -> None:
    seat = Seat(
        name="bank", agreement=of(TEXT), signature=b"", records=Path("records"), limits=Limits()
    )
    with pytest.raises(JobEnded, match="DataError"):
        asyncio.run(asyncio.wait_for(Sends(seat, PROGRAMS).until_over(Once()), 30))
