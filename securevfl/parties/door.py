"""How connections are made and admitted, at a listening party and at a relay.

A door learns who wants to meet whom (two public keys), in which job (a hash of its name and its
parties), when, and how much passes. What passes is encrypted end to end.

A relay that lies can pass a challenge on to another door, and so hold a place there; it gains no
more than by being silent, since the ends prove their identities to each other once more.
"""

import asyncio
import logging
import secrets
import select
import socket
import ssl
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from typing_extensions import override
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.connection import Connection
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import (
    ConnectionClosed,
    InvalidHandshake,
    InvalidProxy,
    InvalidStatus,
    InvalidURI,
    ProxyError,
)
from websockets.protocol import State
from websockets.proxy import parse_proxy
from websockets.uri import parse_uri

from securevfl.errors import ConfigError, PeerError, PeerNotTrusted, PeerUnreachable, PeerViolation
from securevfl.parties.identity import Identity, public_text, verify

MOST_MESSAGE_BYTES = 1 << 20
MOST_CALL_BYTES = 1 << 10  # until the two ends meet
HANDSHAKE_SECONDS = 10.0
# Gateways cut connections that are idle for some minutes; a death is noticed after a minute.
PING_SECONDS, PONG_SECONDS = 20.0, 40.0
CLOSE_SECONDS = 2.0
# In place of pings: the silent death of a machine is noticed after about a minute.
KEEP_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 20),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 60_000),
)
# Nothing here writes more than a message ahead; the rest are replies to pings that nobody reads.
MOST_UNREAD_BYTES = 4 * MOST_MESSAGE_BYTES
QUIET_SECONDS = 10.0
NAMEPLATE_BYTES = 16
UNIX = "unix:"
"""Begins the address of a socket in the file system, as parties of one machine have it."""
REFUSED = 4003
REPLACED = 4009
_PARTY, _INVITER, _JOINER = b"svfl\1p", b"svfl\1i", b"svfl\1j"
_CALL = struct.Struct("32s32s32s")
_WAIT, _MEET = b"wait", b"meet"

_quiet = logging.getLogger("securevfl.parties.door")
_quiet.disabled = True  # a line a refused connection is told by the door itself


class Refused(PeerUnreachable):
    """A door was reached, and does not let this caller in, for now."""


class _Bounded(Connection):
    """A connection that ends when the other end sends pings and reads no replies."""

    @override
    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.transport.get_write_buffer_size() > MOST_UNREAD_BYTES:
            self.transport.abort()


class _Calling(_Bounded, ClientConnection):
    pass


class _Connect(connect):
    """Connects to the agreed address and to no other."""

    @override
    def process_redirect(self, exc: Exception) -> Exception:
        return exc


class Stream:
    """Messages of at most `MOST_MESSAGE_BYTES` to and from one other end, in order.

    Attributes:
        address: of the other end, without its port.
    """

    def __init__(self, connection: Connection, *, pings: bool = True) -> None:
        self._connection = connection
        self.address = str((connection.remote_address or ("?",))[0])
        end: socket.socket | None = connection.transport.get_extra_info("socket")
        self._readable = select.poll()
        if end is not None:
            self._readable.register(end.fileno(), select.POLLIN)
        if not pings and end is not None and end.family != socket.AF_UNIX:
            for level, option, value in KEEP_ALIVE:
                end.setsockopt(level, option, value)

    @property
    def has_data(self) -> bool:
        """Whether anything has come that the loop has not read."""
        return bool(self._readable.poll(0))

    @property
    def is_idle(self) -> bool:
        """Whether all that was sent has left."""
        connection = self._connection
        return connection.state is State.OPEN and not connection.transport.get_write_buffer_size()

    def send_at_once(self, data: bytes) -> None:
        """Send a message on an idle stream."""
        self._connection.protocol.send_binary(data)
        self._connection.send_data()

    async def send(self, data: bytes) -> None:
        """Send a message; waits while the other end is slow. A PeerUnreachable if it is gone."""
        try:
            await self._connection.send(data)
        except ConnectionClosed as error:
            raise self._gone(error) from error

    async def receive(self) -> bytes:
        """Receive a message; a PeerUnreachable if the other end is gone."""
        try:
            return await self._connection.recv(decode=False)
        except ConnectionClosed as error:
            raise self._gone(error) from error

    def allow_messages(self) -> None:
        """From now on take messages of full length."""
        self._connection.protocol.max_message_size = MOST_MESSAGE_BYTES

    async def close(self, code: int = 1000) -> None:
        """Close the connection; waits at most `CLOSE_SECONDS`."""
        await self._connection.close(code)

    async def closed(self) -> None:
        """Wait until the connection is closed."""
        await self._connection.wait_closed()

    @staticmethod
    def _gone(error: ConnectionClosed) -> PeerUnreachable:
        # Reasons in words are the other end's, and not shown.
        code = error.rcvd.code if error.rcvd else None
        if code == REFUSED:
            return Refused("refused the connection")
        again = code == REPLACED
        return PeerUnreachable(
            "was called again from elsewhere" if again else "closed the connection"
        )


def check_url(url: str, proxy: str | None = None) -> None:
    """Refuse what `dial` could never use; a ConfigError."""
    if url.startswith(UNIX):
        return
    try:
        parse_uri(url)
    except (InvalidURI, ValueError) as error:
        raise ConfigError(f"{url!r} is no ws://HOST:PORT or wss://HOST:PORT") from error
    if proxy is None:
        return
    try:
        scheme = parse_proxy(proxy).scheme
    except (InvalidProxy, ValueError) as error:
        raise ConfigError("proxy is no http://HOST:PORT or socks5://HOST:PORT") from error
    if scheme.startswith("socks") and find_spec("python_socks") is None:
        raise ConfigError(f"proxy = {scheme}://…: install python-socks[asyncio]")


async def dial(url: str, proxy: str | None = None, *, pings: bool = True) -> Stream:
    """Connect to a door.

    Args:
        url: ws://…, wss://… with the system's certificate authorities, or unix:PATH.
        proxy: http://… for CONNECT or socks5://…; None for none.
        pings: whether the other end must answer pings; else only its machine must.

    Raises:
        ConfigError: an address that can never be used.
        PeerUnreachable: no connection, with the reason in words.
    """
    check_url(url, proxy)
    path: dict[str, Any] = {}
    if url.startswith(UNIX):
        path = {"unix": True, "path": url.removeprefix(UNIX)}
    try:
        return Stream(
            pings=pings,
            connection=await _Connect(
                "ws://localhost/" if path else url,
                **path,
                proxy=proxy,
                compression=None,
                open_timeout=HANDSHAKE_SECONDS,
                ping_interval=PING_SECONDS if pings else None,
                ping_timeout=PONG_SECONDS,
                close_timeout=CLOSE_SECONDS,
                max_size=MOST_MESSAGE_BYTES,
                max_queue=4,
                logger=_quiet,
                create_connection=_Calling,
            ),
        )
    except (OSError, UnicodeError, InvalidHandshake, EOFError, ConnectionClosed) as error:
        raise PeerUnreachable(_why(error, url)) from error


def _why(error: Exception, url: str) -> str:
    if isinstance(error, InvalidStatus):
        return f"{url} refuses (HTTP status {error.response.status_code})"
    for kind, words in (
        (ProxyError, "the proxy refuses to connect to"),
        (ConnectionRefusedError, "nobody listens at"),
        (socket.gaierror, "no such host:"),
        (UnicodeError, "no such host:"),
        (TimeoutError, "no answer from"),
        (ssl.SSLError, "no valid certificate at"),
        (OSError, "no way to"),
    ):
        if isinstance(error, kind):
            return f"{words} {url}"
    return f"no securevfl at {url}"


@dataclass(frozen=True)
class Caller:
    """Who called, and has proved it.

    Attributes:
        own: its public key; of a nameplate's guests, which prove nothing, their role.
        other: public key of the party that it wants to meet, or the other role.
        salt: the agreement's `meeting_point`, or the nameplate.
    """

    own: bytes
    other: bytes
    salt: bytes

    @property
    def is_party(self) -> bool:
        """Whether it has proved an identity."""
        return len(self.own) == len(self.salt)

    def meets(self) -> "Caller":
        """Whom it wants to meet, as that one calls."""
        return Caller(self.other, self.own, self.salt)

    @property
    def short(self) -> str:
        """The first characters of its key, for a line of a log."""
        return f"party {public_text(self.own)[:8]}" if self.is_party else "a guest"


async def knock(stream: Stream, identity: Identity, other: bytes, salt: bytes) -> None:
    """Prove who calls, and return when the other end is there.

    Raises:
        PeerUnreachable: the door refuses.
        PeerViolation: no door answers.
    """
    call = _CALL.pack(salt, identity.public, other)
    await stream.send(_PARTY + call)
    challenge = await stream.receive()
    if len(challenge) != _CHALLENGE_BYTES:
        raise PeerViolation("the other end is no door of this version")
    await stream.send(identity.sign("door", challenge + call))
    await _met(stream)


async def meet_by_nameplate(
    url: str, nameplate: bytes, *, inviter: bool, proxy: str | None = None
) -> Stream:
    """Meet whoever gives the same nameplate at this door, in the other role.

    Nobody is authenticated: the two ends must authenticate each other.

    Raises:
        ConfigError, PeerUnreachable: see `dial`; also if nobody comes in the door's time.
    """
    stream = await dial(url, proxy)
    try:
        await stream.send((_INVITER if inviter else _JOINER) + nameplate)
        await _met(stream)
    except BaseException:
        await stream.close()
        raise
    return stream


async def _met(stream: Stream) -> None:
    while (word := await stream.receive()) == _WAIT:
        pass
    if word != _MEET:
        raise PeerViolation("the other end is no door of this version")


_CHALLENGE_BYTES = 32


async def _called(stream: Stream) -> Caller:
    """Who calls: the door's half of `knock`; a PeerError unless the caller proves it."""
    data = await stream.receive()
    kind, call = data[: len(_PARTY)], data[len(_PARTY) :]
    if kind in (_INVITER, _JOINER) and len(call) == NAMEPLATE_BYTES:
        return Caller(kind, _JOINER if kind == _INVITER else _INVITER, call)
    if kind != _PARTY or len(call) != _CALL.size:
        raise PeerViolation("no call of this version")
    salt, own, other = _CALL.unpack(call)
    challenge = secrets.token_bytes(_CHALLENGE_BYTES)
    await stream.send(challenge)
    verify(own, "door", challenge + call, await stream.receive(), "a caller")
    return Caller(own, other, salt)


@dataclass(frozen=True)
class Limits:
    """What a door holds at most; of each connection at most about 6 MB wait.

    Attributes:
        connections: in all.
        of_address: of one network address.
        handshake_seconds: until it has proved who it is.
        waiting_seconds: until the other end comes.
        nameplates: open at once.
        nameplate_seconds: until a nameplate is taken down.
    """

    connections: int = 256
    of_address: int = 64
    handshake_seconds: float = HANDSHAKE_SECONDS
    waiting_seconds: float = 86_400.0
    nameplates: int = 64
    nameplate_seconds: float = 600.0


Welcome = Callable[[Stream, Caller], Awaitable[None]]


@dataclass
class Door:
    """Listens, admits callers, and hands each to `welcome`, at whose end the connection closes.

    Attributes:
        listen: HOST:PORT, port 0 for a free one; or unix:PATH.
        admits: who may come in, once it has proved who it is; all others get the same refusal.
        pings: whether callers must answer pings; else only their machines must.
        say: takes a line about refused callers, at most one each `QUIET_SECONDS`.
        refused: how many, by reason.
    """

    listen: str
    admits: Callable[[Caller], bool]
    welcome: Welcome
    say: Callable[[str], None]
    limits: Limits = field(default_factory=Limits)
    pings: bool = True
    refused: Counter[str] = field(default_factory=Counter)
    _of_address: Counter[str] = field(default_factory=Counter)
    _visitors: set[ServerConnection] = field(default_factory=set)
    _server: Server | None = None
    _said: float = float("-inf")

    async def open(self) -> None:
        """Begin to listen; a ConfigError if that cannot be."""
        door = self

        class Visiting(_Bounded, ServerConnection):
            """A connection that is counted from its first byte."""

            _counted = ""

            @override
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                address = str((transport.get_extra_info("peername") or ("?",))[0])
                super().connection_made(transport)
                self._counted = address
                door._visitors.add(self)
                if not door._comes(address):
                    self.transport.abort()

            @override
            def connection_lost(self, exc: Exception | None) -> None:
                super().connection_lost(exc)
                door._visitors.discard(self)
                door._goes(self._counted)

        try:
            self._server = await serve(
                self._answer,
                **self._place(),
                compression=None,
                server_header=None,
                open_timeout=self.limits.handshake_seconds,
                ping_interval=PING_SECONDS if self.pings else None,
                ping_timeout=PONG_SECONDS,
                close_timeout=CLOSE_SECONDS,
                max_size=MOST_CALL_BYTES,
                max_queue=4,
                logger=_quiet,
                create_connection=Visiting,
            )
        except (OSError, ValueError, OverflowError) as error:
            why = getattr(error, "strerror", None) or "expected HOST:PORT"
            raise ConfigError(f"{self.listen}: cannot listen there ({why})") from error

    def _place(self) -> dict[str, Any]:
        if self.listen.startswith(UNIX):
            return {"unix": True, "path": self.listen.removeprefix(UNIX)}
        host, _, port = self.listen.rpartition(":")
        if not host or "/" in host:  # no host would mean all of this machine's networks
            raise ValueError
        return {"host": host.strip("[]"), "port": int(port)}

    @property
    def address(self) -> str:
        """Where it listens, in the form of `listen`."""
        assert self._server is not None  # noqa: S101
        if self.listen.startswith(UNIX):
            return self.listen
        host, port = next(iter(self._server.sockets)).getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def close(self) -> None:
        """Close all connections and stop listening."""
        if self._server is not None:
            self._server.close()
            for each in self._visitors:
                if each.state is State.CONNECTING:
                    each.transport.abort()
            await self._server.wait_closed()

    def _comes(self, address: str) -> bool:
        self._of_address[address] += 1
        if self._of_address.total() > self.limits.connections:
            self._refuse(address, "too many connections")
        elif self._of_address[address] > self.limits.of_address:
            self._refuse(address, "too many connections of this address")
        else:
            return True
        return False

    def _goes(self, address: str) -> None:
        self._of_address[address] -= 1
        if not self._of_address[address]:
            del self._of_address[address]

    def _refuse(self, address: str, why: str) -> None:
        self.refused[why] += 1
        if time.monotonic() - self._said > QUIET_SECONDS:
            self._said = time.monotonic()
            self.say(f"refused a caller from {address}: {why} ({self.refused.total()} so far)")

    async def _answer(self, connection: ServerConnection) -> None:
        stream = Stream(connection, pings=self.pings)
        try:
            try:
                async with asyncio.timeout(self.limits.handshake_seconds):
                    caller = await _called(stream)
            except PeerNotTrusted:
                return await self._turn_away(stream, "it did not prove its identity")
            except (PeerError, TimeoutError):
                return await self._turn_away(stream, "it did not say who it is")
            if not self.admits(caller):
                return await self._turn_away(stream, "it is not awaited here")
            await self.welcome(stream, caller)
        except PeerError:
            pass  # it has gone
        except Exception as error:
            self.say(f"a connection failed unexpectedly ({type(error).__name__})")
            raise
        finally:
            await stream.close()

    async def _turn_away(self, stream: Stream, why: str) -> None:
        self._refuse(stream.address, why)
        await stream.close(REFUSED)


async def keep_waiting(stream: Stream) -> None:
    """Tell a caller that the other end is not there yet."""
    await stream.send(_WAIT)


async def bring_together(stream: Stream) -> None:
    """Tell a caller that the other end is there."""
    stream.allow_messages()
    await stream.send(_MEET)


@asynccontextmanager
async def serve_nameplates(
    listen: str, nameplates: Iterable[bytes], say: Callable[[str], None]
) -> AsyncIterator[Callable[[bytes], Awaitable[Stream]]]:
    """A door of the inviter itself, at which joiners come in, one at a time for each nameplate.

    Yields a function that waits for the next joiner with a nameplate; it is to close each stream.
    """
    joiners = {each: asyncio.Queue[Stream]() for each in nameplates}
    one = {each: asyncio.Lock() for each in joiners}

    def admits(caller: Caller) -> bool:
        is_known = caller == Caller(_JOINER, _INVITER, caller.salt) and caller.salt in joiners
        return is_known and not one[caller.salt].locked()

    async def welcome(stream: Stream, caller: Caller) -> None:
        async with one[caller.salt]:
            await bring_together(stream)
            joiners[caller.salt].put_nowait(stream)
            await stream.closed()

    door = Door(listen, admits, welcome, say)
    await door.open()
    try:
        yield lambda nameplate: joiners[nameplate].get()
    finally:
        await door.close()
