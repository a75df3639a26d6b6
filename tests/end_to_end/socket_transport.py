"""The least that carries envelopes between two parties: one socket, frames behind their length.

A frame of no bytes is a heartbeat. It is sent from the network's loop, so that a peer hears from
a party whose program computes.
"""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from securevfl.errors import PeerUnreachable, PeerViolation
from securevfl.runtime.real import RealChannel

HEARTBEAT_SECONDS = 0.02
MAX_FRAME_BYTES = 1 << 24
_LENGTH = struct.Struct("<I")


class SocketTransport:
    """One end of a connection.

    Attributes:
        heard: the peer's heartbeats so far.
        gone: whether the peer has closed the connection.
    """

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.heard = 0
        self._loop = asyncio.get_running_loop()
        self.gone = False
        self._writer: asyncio.StreamWriter | None = None

    def carry(self, to: str, data: bytes) -> None:
        """From the program's thread: to the socket, on the network's loop."""
        if self.gone:
            raise PeerUnreachable(f"{to} closed the connection")
        self._loop.call_soon_threadsafe(self._write, data)

    @asynccontextmanager
    async def connected(self, end: socket.socket, channel: RealChannel) -> AsyncIterator[None]:
        """Carry what comes to the channel, until the context is left and all is delivered."""
        reader, self._writer = await asyncio.open_connection(sock=end, limit=MAX_FRAME_BYTES)
        listening = asyncio.create_task(self._listen(reader, channel))
        beating = asyncio.create_task(self._beat())
        try:
            yield
        finally:
            beating.cancel()
            # A socket that is closed with bytes unread takes back what it had sent.
            if not self.gone:
                self._writer.write_eof()
                await asyncio.wait([listening], timeout=1)
            listening.cancel()
            self._writer.close()

    async def _listen(self, reader: asyncio.StreamReader, channel: RealChannel) -> None:
        try:
            while True:
                (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
                if length > MAX_FRAME_BYTES:
                    error = PeerViolation(f"{self.peer} announces a frame of {length} bytes")
                    channel.lose(self.peer, error)
                    return
                if length:
                    channel.deliver(self.peer, await reader.readexactly(length))
                else:
                    self.heard += 1
        except (asyncio.IncompleteReadError, OSError):
            self.gone = True
            channel.lose(self.peer, PeerUnreachable(f"{self.peer} closed the connection"))

    async def _beat(self) -> None:
        while not self.gone:
            self._write(b"")
            await asyncio.sleep(HEARTBEAT_SECONDS)

    def _write(self, data: bytes) -> None:
        if self._writer is not None and not self.gone:
            self._writer.write(_LENGTH.pack(len(data)) + data)
