"""What `securevfl party check` finds out before any data move, a line each."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from typing_extensions import override

from securevfl import __version__
from securevfl.crypto.schemes import why_slower
from securevfl.data.read import read_party
from securevfl.data.shards import is_shard, read_header
from securevfl.errors import PeerError, PeerUnreachable, SecureVFLError
from securevfl.parties.agreement import Agreement, differences, read_signatures, shown
from securevfl.parties.identity import Identity
from securevfl.parties.links import Link, Links
from securevfl.parties.meeting import CONTROL, Meet, Probe, kind_of, parsed
from securevfl.parties.own_file import OwnFile
from securevfl.parties.policy import refusals
from securevfl.training.job_data import file_sources

SMALL_PROBES, FILLING = 4, "x" * (1 << 16)
LINGER_SECONDS = 5.0
CLOCK_SECONDS = 1.0
SAME = "the same agreement"


@dataclass(frozen=True)
class Pair(Agreement):
    """An agreement as if only two of its parties connected; they meet where all do."""

    place: bytes = b""

    @property
    @override
    def meeting_point(self) -> bytes:
        return self.place


@dataclass
class Seen:
    """What a link to a peer shows.

    Attributes:
        round_trip: seconds.
        bandwidth: bytes a second, to the peer.
        ahead: seconds by which its clock is ahead.
        runs: whether it runs the job, and does not only check it.
    """

    version: str = ""
    agreement: str = ""
    round_trip: float | None = None
    bandwidth: float | None = None
    ahead: float = 0.0
    runs: bool = False

    def text(self) -> str:
        """In words."""
        said = [f"securevfl {shown(self.version)}", self.agreement] if self.version else []
        if self.round_trip is None:
            return ", ".join([*said, "it does not answer yet: it waits for other peers"])
        said.append(f"{1000 * self.round_trip:.3g} ms round trip")
        if self.bandwidth is not None:
            said.append(f"about {8e-6 * self.bandwidth:.3g} Mbit/s")
        if abs(self.ahead) > CLOCK_SECONDS:
            which = "ahead" if self.ahead > 0 else "behind"
            said.append(f"its clock is {abs(self.ahead):.0f} s {which}")
        return ", ".join(said)


@dataclass
class Check:
    """A check of an agreement by one party; `say` takes a line each, and whether it is good."""

    own: OwnFile
    agreement: Agreement
    identity: Identity
    say: Callable[[str, bool], None]
    wait: float
    _why: dict[str, str] = field(default_factory=dict)

    async def run(self) -> None:
        """Check what is here, and then each peer, in an order that all keep."""
        refused = refusals(self.own.policy, self.agreement, self.own.name)
        self.say(f"policy: {'; '.join(refused) or 'accepts this job'}", not refused)
        self._tell("data", self._data)
        self._tell("signatures", self._signatures)
        exchange = self.agreement.job.exchange
        if (slower := why_slower(exchange.scheme, exchange.engine)) is not None:
            self.say(slower, True)
        for peer in sorted(set(self.agreement.names) - {self.own.name}):
            try:
                seen = await self._peer(peer)
            except SecureVFLError as error:
                self.say(f"{peer}: {shown(str(error), 200)}", False)
            else:
                good = seen.agreement in ("", SAME)
                self.say(f"{peer}: reachable, is who it says, {seen.text()}", good)

    def _tell(self, what: str, found: Callable[[], tuple[str, bool]]) -> None:
        try:
            text, good = found()
        except SecureVFLError as error:
            text, good = str(error), False
        self.say(f"{what}: {text}", good)

    def _data(self) -> tuple[str, bool]:
        job = self.own.own_job(self.agreement.job)
        (source,) = file_sources(job, Path(), self.own.name)
        if is_shard(source.path):
            header = read_header(source.path)
            rows, columns = header.rows, header.columns
        else:
            held = read_party(source)
            rows, columns = len(held), len(held.columns)
        return f"{rows} rows, {columns} columns before encoding", True

    def _signatures(self) -> tuple[str, bool]:
        kept = read_signatures(self.own.state, self.agreement)
        missing = "" if self.own.name in kept else "; not yours: securevfl party sign JOB.toml"
        return f"{', '.join(kept) or 'none'}{missing}", not missing

    async def _peer(self, peer: str) -> Seen:
        """What a link to one peer shows; a PeerUnreachable if there is none in time."""
        identities = {name: self.agreement.identities[name] for name in (self.own.name, peer)}
        whole = {key: getattr(self.agreement, key) for key in ("text", "job", "addresses", "relay")}
        links = Links(
            Pair(**whole, identities=identities, place=self.agreement.meeting_point),
            self.own.name,
            self.identity,
            listen=self.own.listen,
            proxy=self.own.proxy,
            say=lambda line: self._why.update({peer: line}),
        )
        async with links:
            try:
                async with asyncio.timeout(self.wait):
                    link = (await links.connect())[peer]
            except TimeoutError as error:
                why = self._why.get(peer, "").removeprefix(f"waits for {peer}: ")
                raise PeerUnreachable(
                    f"not reached in {self.wait:g} s ({why}); let it run check or run now"
                ) from error
            return await self._examined(link)

    async def _examined(self, link: Link) -> Seen:
        seen, probe = (
            Seen(),
            Probe(clock=time.time(), version=__version__, agreement=self.agreement.hash.hex()),
        )
        sent: list[float] = []

        def send() -> None:
            big = len(sent) == SMALL_PROBES
            sent.append(time.monotonic())
            link.post(_filled(probe, FILLING if big else "").frame)

        send()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.wait) as limit:
                while True:
                    data = await self._next(link, seen)
                    if data is None:
                        return seen
                    if not self._learned(link, seen, data):
                        continue
                    self._timed(seen, len(sent), time.monotonic() - sent[-1])
                    if len(sent) <= SMALL_PROBES:
                        send()
                    elif seen.runs:
                        return seen
                    else:  # the other end may not be through
                        limit.reschedule(asyncio.get_running_loop().time() + LINGER_SECONDS)
        return seen

    async def _next(self, link: Link, seen: Seen) -> bytes | None:
        try:
            return await link.receive()
        except PeerError:
            if seen.bandwidth is None:
                raise
            return None  # it is through

    def _learned(self, link: Link, seen: Seen, frame: bytes) -> bool:
        """Whether a frame is a probe that has come back."""
        if frame[:1] != bytes((CONTROL,)):
            return False
        if kind_of(frame[1:]) == "meet":
            meet = parsed(link.peer, frame[1:], Meet)
            found = differences(self.agreement.text, meet.agreement.encode())
            seen.runs, seen.version = True, meet.version
            seen.agreement = f"another agreement: {'; '.join(found[:3])}" if found else SAME
            return False
        probe = parsed(link.peer, frame[1:], Probe)
        if not probe.back:
            same = probe.agreement == self.agreement.hash.hex()
            seen.version, seen.agreement = probe.version, SAME if same else "another agreement"
            link.post(probe.returned().frame)
            return False
        seen.ahead = probe.clock - time.time()
        return True

    @staticmethod
    def _timed(seen: Seen, number: int, took: float) -> None:
        if number <= SMALL_PROBES:
            seen.round_trip = min(seen.round_trip or took, took)
        else:
            assert seen.round_trip is not None  # noqa: S101
            seen.bandwidth = len(FILLING) / max(took - seen.round_trip, 1e-6)


def _filled(probe: Probe, filling: str) -> Probe:
    return probe.model_copy(update={"filling": filling, "clock": time.time()})
