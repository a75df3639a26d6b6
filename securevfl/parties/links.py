"""A party's links: one to each peer, encrypted from end to end, whatever carries them.

Messages of at most 1 MB on the way hold TLS 1.3 between the two identities, and within it frames,
each after its length. A relay or gateway learns when how many bytes pass.
"""

import asyncio
import hashlib
import hmac
import random
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Self

from securevfl.errors import (
    ConfigError,
    PeerError,
    PeerNotTrusted,
    PeerUnreachable,
    PeerViolation,
    SecureVFLError,
)
from securevfl.parties.agreement import Agreement
from securevfl.parties.door import (
    HANDSHAKE_SECONDS,
    Caller,
    Door,
    Stream,
    bring_together,
    check_url,
    dial,
    knock,
)
from securevfl.parties.identity import Encrypted, Identity
from securevfl.wire.codec import MAX_MESSAGE_BYTES

# An envelope adds names and phases, whose lengths have 16 bits.
MAX_FRAME_BYTES = MAX_MESSAGE_BYTES + (1 << 20)
MOST_WAITING_BYTES = 64 << 20
FRAME_COST = 64  # bytes that Python takes for each, so that many small ones count
# With what TLS adds it is less than a message; smaller parts let pings through sooner.
PART_BYTES = 256 << 10
FLUSH_SECONDS = 5.0
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 30.0
SILENT_SECONDS, TELL_SECONDS = 1.0, 60.0
_READY = b"securevfl link 1"
_LENGTH = struct.Struct("<I")


class Link:
    """One connected pair, for one meeting; made by `Links`.

    Attributes:
        peer: its name.
        waiting_bytes: posted and not yet sent.
    """

    def __init__(
        self, peer: str, stream: Stream, wire: Encrypted, came: bytes, on_loss: Callable[[], None]
    ) -> None:
        self.peer, self.waiting_bytes = peer, 0
        self._stream, self._wire, self._on_loss = stream, wire, on_loss
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._lock = threading.Lock()
        self._out: deque[memoryview] = deque()
        self._came = bytearray()
        self._frames: deque[bytes] = deque()
        self._held = 0
        self._failure: PeerError | None = None
        self._closing: asyncio.Task[None]
        self._posted, self._sent = asyncio.Event(), asyncio.Event()
        self._arrived, self._taken = asyncio.Event(), asyncio.Event()
        self.lost = asyncio.Event()
        self._tasks = [
            self._loop.create_task(self._write()),
            self._loop.create_task(self._read(came)),
        ]

    def post(self, frame: bytes) -> None:
        """Queue a frame without waiting, from any thread; a PeerUnreachable if the link failed."""
        if len(frame) > MAX_FRAME_BYTES:
            raise ConfigError(f"a frame of {len(frame)} bytes, at most {MAX_FRAME_BYTES} accepted")
        self._check()
        here = threading.get_ident() == self._thread
        if here and not self._out and len(frame) < PART_BYTES and self._stream.is_idle:
            # Now, as the loop of a program that runs on it stands still while that computes.
            self._stream.send_at_once(self._wire.outgoing(_LENGTH.pack(len(frame)) + frame))
            return
        with self._lock:
            self._out.append(memoryview(_LENGTH.pack(len(frame))))
            self._out.append(memoryview(frame))
            self.waiting_bytes += _LENGTH.size + len(frame)
        if here:
            self._posted.set()
        else:
            self._loop.call_soon_threadsafe(self._posted.set)

    @property
    def has_data(self) -> bool:
        """Whether anything has come that the loop has not read, or a frame whose rest is due."""
        return bool(self._came) or self._stream.has_data

    async def receive(self) -> bytes:
        """The next frame.

        Raises:
            PeerUnreachable: the connection is lost, or bytes were changed on the way.
            PeerViolation: the peer sent what is no frame.
        """
        while not self._frames:
            self._check()
            self._arrived.clear()
            await self._arrived.wait()
        frame = self._frames.popleft()
        self._held -= len(frame) + FRAME_COST
        self._taken.set()
        return frame

    async def close(self) -> None:
        """Close the link; what was posted is sent first, for at most `FLUSH_SECONDS`."""
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                while self.waiting_bytes and self._failure is None:
                    self._sent.clear()
                    await self._sent.wait()
        except TimeoutError:
            pass
        self.fail(PeerUnreachable(f"the link to {self.peer} was closed here"))
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.shield(self._closing)

    def fail(self, error: PeerError) -> None:
        """End the link: whoever uses it gets this error, after the frames that have come."""
        if self._failure is not None:
            return
        self._failure = error
        self._closing = self._loop.create_task(self._stream.close())
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()
        for event in (self._sent, self._arrived, self._taken, self.lost):
            event.set()
        with self._lock:
            self._out.clear()
            self.waiting_bytes = 0
        self._on_loss()

    def _check(self) -> None:
        if self._failure is not None:
            raise type(self._failure)(str(self._failure))

    async def _write(self) -> None:
        try:
            while True:
                while self._out:
                    part = self._next_part()
                    await self._stream.send(self._wire.outgoing(part))
                    with self._lock:
                        self.waiting_bytes -= len(part)
                    self._sent.set()
                self._posted.clear()
                if not self._out:
                    await self._posted.wait()
        except PeerError as error:
            self.fail(type(error)(f"{self.peer} {error}"))

    def _next_part(self) -> bytes:
        parts, room = [], PART_BYTES
        with self._lock:
            while room and self._out:
                first = self._out[0]
                parts.append(first[:room])
                if len(first) > room:
                    self._out[0] = first[room:]
                else:
                    self._out.popleft()
                room -= len(parts[-1])
        return b"".join(parts)

    async def _read(self, data: bytes) -> None:
        try:
            while True:
                self._take_in(data)
                while self._held > MOST_WAITING_BYTES:
                    self._taken.clear()
                    await self._taken.wait()
                message = await self._stream.receive()
                try:
                    data = self._wire.incoming(message)
                except PeerNotTrusted as error:  # whoever is on the way can do that
                    raise PeerUnreachable("sent bytes that were changed on the way") from error
        except PeerError as error:
            self.fail(type(error)(f"{self.peer} {error}"))

    def _take_in(self, data: bytes) -> None:
        came, at = self._came, 0
        came += data
        while len(came) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(came, at)
            if length > MAX_FRAME_BYTES:
                raise PeerViolation(
                    f"sent a frame of {length} bytes, at most {MAX_FRAME_BYTES} accepted"
                )
            end = at + _LENGTH.size + length
            if end > len(came):
                break
            with memoryview(came) as view:
                self._frames.append(bytes(view[at + _LENGTH.size : end]))
            self._held += length + FRAME_COST
            at = end
        del came[:at]
        if at:
            self._arrived.set()


async def encrypt(peer: str, stream: Stream, wire: Encrypted, on_loss: Callable[[], None]) -> Link:
    """Make the pair's own TLS connection within a stream, both ends proved.

    Raises:
        PeerNotTrusted: the other end is not who it should be.
        PeerUnreachable: the connection failed, or the other end refuses this one.
    """
    data, over = b"", False
    while not over:
        sent, over = wire.shake_hands(data)
        if sent:
            await stream.send(sent)
        if not over:
            data = await stream.receive()
    # A client is through before the server has checked it: each waits for the other's word.
    await stream.send(wire.outgoing(_READY))
    came = wire.incoming(b"")
    while len(came) < len(_READY):
        came += wire.incoming(await stream.receive())
    if not hmac.compare_digest(came[: len(_READY)], _READY):
        raise PeerViolation("is of another version")
    return Link(peer, stream, wire, came[len(_READY) :], on_loss)


class Links:
    """All links of one party; it listens, or connects outward, while it is entered.

    The event loop must run while the program computes, or peers take this party for dead after a
    minute.

    Args:
        agreement: identities, addresses (looked up at each attempt to connect) and the relay.
        own: this party's name.
        identity: its key.
        listen: HOST:PORT or unix:PATH; None if nobody connects to this party.
        proxy: for connections outward.
        say: takes a line about whom this party waits for.
        purpose: parties with another one do not meet.
        pings: whether the other ends must answer pings; else only their machines must.

    Raises:
        ConfigError: settings that can never connect.
    """

    def __init__(
        self,
        agreement: Agreement,
        own: str,
        identity: Identity,
        *,
        listen: str | None,
        proxy: str | None,
        say: Callable[[str], None],
        purpose: bytes = b"",
        pings: bool = True,
    ) -> None:
        agreement.require_own(own, identity)
        self._own, self._identity, self._proxy, self._say = own, identity, proxy, say
        self._pings = pings
        self._peers = {name: key for name, key in agreement.identities.items() if name != own}
        point = agreement.meeting_point
        self._salt = hashlib.sha256(point + purpose).digest() if purpose else point
        self._relay, self._addresses = agreement.relay, agreement.addresses
        self._outward = agreement.outward(own)
        for name, url in self._outward.items():
            if url is None:
                raise ConfigError(f"neither {own} nor {name} has an address, and there is no relay")
            check_url(url, proxy)
        self._inward = {key: name for name, key in self._peers.items() if name not in self._outward}
        if self._inward and listen is None:
            raise ConfigError(
                f"{', '.join(self._inward.values())} will connect to {own}: set listen"
            )
        self._door = (
            Door(listen, self._admits, self._welcome, say, pings=pings)
            if self._inward and listen
            else None
        )
        self._ready: dict[str, Link] = {}
        self._used: dict[str, Link] = {}
        self._changed = asyncio.Event()
        self._why: dict[str, str] = {}
        self._told: dict[str, tuple[str, float]] = {}

    @property
    def listens(self) -> str | None:
        """Where this party listens, HOST:PORT or unix:PATH."""
        return self._door.address if self._door else None

    async def __aenter__(self) -> Self:
        if self._door is not None:
            await self._door.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._leave(self._used | self._ready)
        if self._door is not None:
            await self._door.close()

    async def connect(self) -> dict[str, Link]:
        """A fresh link to every peer; links of the last time are closed.

        It waits as long as it takes, and says for whom. A SecureVFLError if this party cannot.
        """
        await self._leave(self._used)
        self._used, self._told = {}, {}
        self._why = {name: "it has not connected yet" for name in self._inward.values()}
        calls = [asyncio.create_task(self._call(name)) for name in self._outward]
        try:
            while not self._all_there():
                for call in calls:
                    if call.done():
                        call.result()
                self._changed.clear()
                try:
                    async with asyncio.timeout(SILENT_SECONDS):
                        await self._changed.wait()
                except TimeoutError:
                    for name in sorted(self._peers.keys() - self._ready.keys()):
                        self._tell(name)
            self._used, self._ready = self._ready, {}
        except BaseException:
            ready, self._ready = self._ready, {}
            await self._leave(ready)
            raise
        finally:
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
        return dict(self._used)

    def _all_there(self) -> bool:
        for name, link in list(self._ready.items()):
            if link.lost.is_set():
                del self._ready[name]
        return self._ready.keys() == self._peers.keys()

    @staticmethod
    async def _leave(links: Mapping[str, Link]) -> None:
        await asyncio.gather(*(link.close() for link in links.values()))

    def _tell(self, name: str) -> None:
        why, now = self._why.get(name, "no answer yet"), time.monotonic()
        last, at = self._told.get(name, ("", 0.0))
        if last != why or now - at >= TELL_SECONDS:
            self._told[name] = why, now
            self._say(f"waits for {name}: {why}")

    async def _call(self, name: str) -> None:
        """Connect outward to a peer, again and again, and once more if that link is lost."""
        pause = FIRST_PAUSE
        while True:
            try:
                link = await self._to(name, str(self._addresses.get(name, self._relay)))
            except PeerError as error:
                self._why[name] = str(error)
                await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            self._ready[name] = link
            self._changed.set()
            await link.lost.wait()
            pause = FIRST_PAUSE
            await asyncio.sleep(pause)

    async def _to(self, name: str, url: str) -> Link:
        stream = await dial(url, self._proxy, pings=self._pings)
        try:
            knocking = knock(stream, self._identity, self._peers[name], self._salt)
            if url == self._relay:
                self._why[name] = f"it is not at the relay {url} yet"
                await knocking
            else:
                async with asyncio.timeout(HANDSHAKE_SECONDS):
                    await knocking
            return await self._secure(name, stream)
        except TimeoutError as error:
            await stream.close()
            raise PeerUnreachable(f"no answer from {url}") from error
        except PeerUnreachable as error:
            await stream.close()
            raise PeerUnreachable(f"{url} {error}") from error
        except BaseException:
            await stream.close()
            raise

    async def _secure(self, name: str, stream: Stream) -> Link:
        wire = self._identity.tls(self._peers[name], server=self._own > name)
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                return await encrypt(name, stream, wire, self._changed.set)
        except PeerNotTrusted as error:
            raise PeerNotTrusted(f"{name} is not who it says: {error}") from error

    def _admits(self, caller: Caller) -> bool:
        return (
            caller.own in self._inward
            and hmac.compare_digest(caller.other, self._identity.public)
            and hmac.compare_digest(caller.salt, self._salt)
        )

    async def _welcome(self, stream: Stream, caller: Caller) -> None:
        name = self._inward[caller.own]
        await bring_together(stream)
        try:
            link = await self._secure(name, stream)
        except (SecureVFLError, TimeoutError) as error:
            self._why[name] = str(error) or "it was too slow"
            return
        for old in (self._used.get(name), self._ready.get(name)):
            if old is not None:
                old.fail(PeerUnreachable(f"{name} has left this link and connected again"))
        self._ready[name] = link
        self._changed.set()
        await link.lost.wait()
        if self._ready.get(name) is link:
            del self._ready[name]
