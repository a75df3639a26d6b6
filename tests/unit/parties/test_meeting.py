"""A meeting: whatever a peer sends or breaks off, nobody waits for it for ever."""

import asyncio
from functools import partial

import pytest
from pydantic import ValidationError

from securevfl.errors import MalformedMessage, PeerUnreachable
from securevfl.parties.meeting import CONTROL, TRAINING, Bye, Link, Meet, Meeting, Programs
from securevfl.parties.recovery import Runs
from securevfl.runtime.real import ProgramThread, RealChannel
from tests.link_parties import run

PROGRAMS = Programs({"bank": "bank", "shop": "shop"})
HEADER = bytes((TRAINING,)) + PROGRAMS.numbers("shop", "bank")


class Scripted:
    """A link whose peer sends these frames, and then breaks off if it is told to."""

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
    async with Meeting("bank", {"shop": link}, PROGRAMS) as meeting:
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


def test_a_frame_that_nests_without_end_is_refused() -> None:
    frame = bytes((CONTROL,)) + b"[" * 200_000
    with pytest.raises(MalformedMessage):
        run(said_bye(Scripted(frame), after_a_program=False))


@pytest.mark.parametrize("changes", [{"states": []}, {"version": "1" * 65}])
def test_a_first_frame_names_a_state_and_a_version_that_fits_a_line(
    changes: dict[str, object],
) -> None:
    first = Meet(
        version="1", agreement="", signature="", nonce="0" * 64, finished=False,
        states=[0], aligned="", by_digest=False,
    )  # fmt: skip
    assert Meet.model_validate(dict(first)) == first
    with pytest.raises(ValidationError):
        Meet.model_validate(dict(first) | changes)
