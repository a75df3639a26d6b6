"""Links between parties of one process, in virtual time, which a test breaks as it likes."""

import asyncio
import random
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from securevfl.errors import PeerUnreachable
from securevfl.runtime.simulation import VirtualTimeLoop

T = TypeVar("T")
POLL_SECONDS = 0.05
LONG_SECONDS = 3600.0


class Here:
    """Runs programs on the loop that asks: there are no threads in virtual time."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()

    async def run(self, program: Coroutine[Any, Any, T]) -> T:
        return await program


@contextmanager
def here() -> Iterator[Here]:
    yield Here()


@dataclass(eq=False)
class End:
    """One end of a link."""

    peer: str
    board: "Switchboard"
    other: "End | None" = None
    arrived: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)
    due: float = 0.0
    open: bool = True

    @property
    def waiting_bytes(self) -> int:
        return 0

    @property
    def has_data(self) -> bool:
        return False

    async def receive(self) -> bytes:
        frame = await self.arrived.get() if self.open or not self.arrived.empty() else None
        if frame is None:
            raise PeerUnreachable(f"{self.peer} closed the connection")
        return frame

    def post(self, frame: bytes) -> None:
        if not self.open:
            raise PeerUnreachable(f"{self.peer} closed the connection")
        self._later(frame)

    async def close(self) -> None:
        self.cut()

    def cut(self) -> None:
        """Nothing is sent any more; what is on its way arrives, and then the end."""
        if self.open:
            self.open = False
            self.arrived.put_nowait(None)
            self._later(None)

    def _later(self, frame: bytes | None) -> None:
        loop, other = asyncio.get_running_loop(), self.other
        assert other is not None
        self.due = max(self.due, loop.time() + self.board.delay())
        loop.call_at(self.due, other.take, frame)

    def take(self, frame: bytes | None) -> None:
        if frame is None:
            self.cut()
        elif self.open:
            self.arrived.put_nowait(frame)


class Switchboard:
    """Connects whoever wants a link with whom: a pair once both ask for it.

    Args:
        names: of all parties.
        chance: of delays.
        longest: seconds that a frame may take.
    """

    def __init__(self, names: tuple[str, ...], chance: random.Random, longest: float) -> None:
        self.names, self._chance, self._longest = names, chance, longest
        self._asking: dict[str, dict[str, End]] = {}
        self.links: dict[frozenset[str], End] = {}

    def delay(self) -> float:
        return self._chance.random() * self._longest

    def of(self, name: str) -> "Plug":
        return Plug(self, name)

    async def connect(self, name: str) -> Mapping[str, End]:
        ours = self._asking[name] = {}
        try:
            while len(ours) < len(self.names) - 1:
                for peer, theirs in self._asking.items():
                    if peer != name and peer not in ours and name not in theirs:
                        ours[peer], theirs[name] = self._pair(name, peer)
                await asyncio.sleep(POLL_SECONDS)
                for peer in [peer for peer, end in ours.items() if not end.open]:
                    del ours[peer]
        except BaseException:
            for end in ours.values():
                end.cut()
            raise
        finally:
            del self._asking[name]
        return ours

    def _pair(self, one: str, two: str) -> tuple[End, End]:
        ends = End(two, self), End(one, self)
        ends[0].other, ends[1].other = ends[1], ends[0]
        self.links[frozenset((one, two))] = ends[0]
        return ends

    def cut(self, one: str, two: str) -> None:
        """Break the link of a pair, if it has one."""
        if (end := self.links.pop(frozenset((one, two)), None)) is not None:
            end.cut()


@dataclass(frozen=True)
class Plug:
    """One party's way to the switchboard."""

    board: Switchboard
    name: str

    async def connect(self) -> Mapping[str, End]:
        return await self.board.connect(self.name)


def in_virtual_time(program: Coroutine[Any, Any, T]) -> T:
    """Run a program on a loop whose clock jumps to the next event."""
    loop = VirtualTimeLoop()  # type: ignore[abstract]
    try:
        result: T = loop.run_until_complete(asyncio.wait_for(program, LONG_SECONDS))
    finally:
        loop.close()
    return result
