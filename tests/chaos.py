"""A TCP proxy that fails as networks do, at once when told or by a seeded schedule."""

import asyncio
import random
from types import TracebackType
from typing import Self

FAULTS = ("cut", "freeze", "corrupt", "lose", "stall")


class Chaos:
    """Stands between two ends, and passes on what it receives.

    Args:
        target: HOST:PORT to which it connects.
        seed: of all its choices.

    Attributes:
        delay: seconds that each piece is held.
        rate: bytes a second, each way; None for any.
        passed: bytes that have come, each way.
        seen: all that went on, if `record` is set.
    """

    def __init__(self, target: str, seed: int = 0, *, record: bool = False) -> None:
        self.delay = 0.0
        self.rate: float | None = None
        self.seen = bytearray()
        self.passed = 0
        self._target, self._record = target, record
        self._choices = random.Random(seed)  # noqa: S311
        self._pieces, self._planned = 0, dict[int, str]()
        self._next: str | None = None
        self._frozen: set[asyncio.StreamWriter] = set()
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Reset every connection."""
        for each in list(self._open):
            each.transport.abort()

    def freeze(self) -> None:
        """Every connection stays open, and nothing passes any more: half-open."""
        self._frozen |= self._open

    def corrupt(self) -> None:
        """Change a byte of the next piece."""
        self._next = "corrupt"

    def lose(self) -> None:
        """Leave the next piece out."""
        self._next = "lose"

    def stall(self) -> None:
        """Hold the next piece for a fifth of a second."""
        self._next = "stall"

    def plan(self, faults: int, pieces: float) -> None:
        """So many faults, of the seed's choice, one after so many pieces on average."""
        at = 0
        for _ in range(faults):
            at += 1 + int(self._choices.expovariate(1 / pieces))
            self._planned[self._pieces + at] = self._choices.choice(FAULTS)

    @property
    def ahead(self) -> int:
        """Planned faults that have not happened."""
        return len(self._planned)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self._target.rpartition(":")
        try:
            there = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.transport.abort()
            return
        ends = (writer, there[1])
        self._open |= set(ends)
        for source, sink in ((reader, there[1]), (there[0], writer)):
            task = asyncio.create_task(self._pass(source, sink, ends))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        ends: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
    ) -> None:
        try:
            while data := await source.read(1 << 16):
                self.passed += len(data)
                data = await self._harm(data)
                if sink in self._frozen:
                    await asyncio.Event().wait()
                if self._record:
                    self.seen += data
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            for each in ends:
                self._open.discard(each)
                each.transport.abort() if each not in self._frozen else None

    async def _harm(self, data: bytes) -> bytes:
        self._pieces += 1
        if planned := self._planned.pop(self._pieces, None):
            getattr(self, planned)()
        fault, self._next = self._next, None
        wait = self.delay + (len(data) / self.rate if self.rate else 0)
        if fault == "stall":
            wait += 0.2
        if wait:
            await asyncio.sleep(wait)
        if fault == "corrupt":
            at = self._choices.randrange(len(data))
            return data[:at] + bytes([data[at] ^ 1 << self._choices.randrange(8)]) + data[at + 1 :]
        return b"" if fault == "lose" else data
