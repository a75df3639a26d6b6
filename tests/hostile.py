"""Callers at a door that mean no good, and bytes that no caller sends."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

from securevfl.errors import PeerError
from securevfl.parties import door
from securevfl.parties.identity import Identity


class Caller:
    """A connection that says what it likes."""

    def __init__(self, stream: door.Stream) -> None:
        self.stream = stream

    @classmethod
    async def at(cls, address: str) -> "Caller":
        return cls(await door.dial(f"ws://{address}"))

    async def call(self, own: bytes, other: bytes, salt: bytes) -> tuple[bytes, bytes]:
        """Say who it is; what the door asks, and what it must sign."""
        said = door._CALL.pack(salt, own, other)
        await self.stream.send(door._PARTY + said)
        challenge = await self.stream.receive()
        return challenge, challenge + said

    async def is_refused(self, signature: bytes) -> bool:
        """Whether the door closes the connection after this answer, with the word for that."""
        try:
            await self.stream.send(signature)
            await self.stream.receive()
        except PeerError as error:
            return str(error) == "refused the connection"
        finally:
            await self.stream.close()
        return False


async def is_refused(
    address: str, identity: Identity, other: bytes, salt: bytes, own: bytes | None = None
) -> bool:
    """Whether a caller with this key is turned away, if it calls itself `own`."""
    caller = await Caller.at(address)
    _, asked = await caller.call(own or identity.public, other, salt)
    return await caller.is_refused(identity.sign("door", asked))


def mutations(base: bytes, choices: random.Random) -> Iterator[bytes]:
    """Endless variants: changed, cut, repeated and spliced."""
    while True:
        data = bytearray(base)
        for _ in range(choices.randint(1, 3)):
            match choices.randrange(5):
                case 0 if data:
                    data[choices.randrange(len(data))] ^= 1 << choices.randrange(8)
                case 1:
                    del data[choices.randrange(len(data) + 1) :]
                case 2:
                    at = choices.randrange(len(data) + 1)
                    data[at:at] = choices.randbytes(choices.choice((1, 4, 100, 2000)))
                case 3:
                    data += data[: choices.randrange(len(data) + 1)]
                case _:
                    data = bytearray(choices.randbytes(choices.randrange(200)))
        yield bytes(data)


async def say(address: str, messages: list[bytes]) -> None:
    """Say all of it and leave, whatever the door does."""
    stream = None
    with contextlib.suppress(PeerError, TimeoutError):
        stream = await door.dial(f"ws://{address}")
        for each in messages:
            await stream.send(each)
            async with asyncio.timeout(0.005):
                await stream.receive()
    if stream is not None:
        stream._connection.transport.abort()


@asynccontextmanager
async def raw(address: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection that is no websocket."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def throw(address: str, data: bytes) -> None:
    """Write bytes to the port, whatever they are, and leave."""
    async with raw(address) as (_, writer):
        writer.write(data)
        with contextlib.suppress(OSError):
            await writer.drain()


def request(address: str) -> bytes:
    """What a client of websockets says first."""
    return (
        f"GET / HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    ).encode()
