"""One connection between two actors: frames of bounded size, each preceded by its length.

The program's thread writes what the socket accepts at once, and reads while it waits for messages.
A message then costs two system calls and wakes one thread. A thread of the link writes the rest,
while the program continues.
"""

import contextlib
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Iterator

from securevfl.actors.certificates import Clear, Encrypted, Wire
from securevfl.errors import PeerError, PeerNotTrusted, PeerUnreachable, PeerViolation
from securevfl.wire.codec import MAX_MESSAGE_BYTES

# An envelope adds names and phases, whose lengths have 16 bits.
MAX_FRAME_BYTES = MAX_MESSAGE_BYTES + (1 << 20)
MOST_NAME_BYTES = 1 << 12
# The silent death of a machine is noticed after about a minute.
KEEP_ALIVE = (
    (socket.TCP_KEEPIDLE, 20),
    (socket.TCP_KEEPINTVL, 10),
    (socket.TCP_KEEPCNT, 4),
    (socket.TCP_USER_TIMEOUT, 60_000),
)
_LENGTH = struct.Struct("<I")
_CHUNK = 1 << 18


class Link:
    """One end of a connection.

    Args:
        end: a connected socket; the link closes it.
        max_frame_bytes: longer frames are refused.
    """

    def __init__(self, end: socket.socket, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._end, self._max = end, max_frame_bytes
        self._wire: Wire = Clear()
        self._came = bytearray()
        self._lock = threading.Lock()
        self._left: deque[bytes] = deque()
        self._more = threading.Condition(self._lock)
        self._closed, self._early = False, True
        self._writing: threading.Thread | None = None
        if end.family != socket.AF_UNIX:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in KEEP_ALIVE:
                end.setsockopt(socket.IPPROTO_TCP, option, value)

    def encrypt(self, wire: Encrypted) -> None:
        """Switch to TLS, before anything else is sent.

        Raises:
            PeerNotTrusted: the other end has no certificate, or the wrong one.
            PeerUnreachable: the connection failed.
        """
        over, came = False, b""
        while not over:
            sent, over = wire.shake_hands(came)
            try:
                self._end.sendall(sent)
                came = b"" if over else self._end.recv(_CHUNK)
            except OSError as error:
                raise PeerUnreachable(f"no TLS connection: {error}") from error
            if not over and not came:
                raise PeerNotTrusted("the other end refused the connection")
        self._wire = wire

    def greet(self, name: str) -> None:
        """Send this end's name."""
        self.send(name.encode())

    def greeted(self) -> str:
        """Receive the other end's name; a PeerNotTrusted if it sends none."""
        try:
            frame = self._first_frame()
        except (OSError, PeerError) as error:
            raise PeerNotTrusted(f"the other end refused the connection ({error})") from error
        return frame.decode(errors="replace")

    def _first_frame(self) -> bytes:
        # Bytes that came with the end of the handshake are still within TLS.
        data = self._wire.incoming(b"")
        while True:
            for frame in self._frames(data, MOST_NAME_BYTES):
                return frame
            came = self._end.recv(_CHUNK)
            if not came:
                raise PeerUnreachable("it closed the connection")
            data = self._wire.incoming(came)

    def begin(self) -> None:
        """Start the writing thread; from now on nothing blocks."""
        self._writing = threading.Thread(target=self._write_left, daemon=True)
        self._writing.start()

    def fileno(self) -> int:
        """The socket's descriptor, to wait for data."""
        return self._end.fileno()

    def arrived(self) -> Iterator[bytes]:
        """Yield the frames that have arrived so far; a PeerError if the link failed."""
        if self._early:  # bytes that came with the greeting
            self._early = False
            yield from self._frames(self._wire.incoming(b""), self._max)
        while True:
            try:
                data = self._end.recv(_CHUNK, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError as error:
                raise PeerUnreachable(f"closed the connection ({error.strerror})") from error
            if not data:
                raise PeerUnreachable("closed the connection")
            yield from self._frames(self._wire.incoming(data), self._max)
            if len(data) < _CHUNK:
                return

    def send(self, frame: bytes) -> None:
        """Send a frame without blocking; a PeerUnreachable if the connection is closed."""
        with self._lock:
            if self._closed:
                raise PeerUnreachable("closed the connection")
            data = self._wire.outgoing(_LENGTH.pack(len(frame)) + frame)
            sent = 0
            if not self._left:
                try:
                    sent = self._end.send(data, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    sent = 0
                except OSError as error:
                    raise PeerUnreachable(f"closed the connection ({error.strerror})") from error
            if sent < len(data):
                self._left.append(data[sent:])
                self._more.notify()

    def close(self) -> None:
        """Close this end and stop its thread."""
        with self._lock:
            self._closed = True
            self._more.notify()
        with contextlib.suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)
        if self._writing is not None:
            self._writing.join()
        self._end.close()

    def _write_left(self) -> None:
        while True:
            with self._lock:
                self._more.wait_for(lambda: self._left or self._closed)
                if self._closed:
                    return
                data = self._left[0]
            try:
                self._send_all(data)
            except OSError:
                return  # the reading side notices
            with self._lock:
                self._left.popleft()

    def _send_all(self, data: bytes) -> None:
        """`sendall` for a socket that a loop has made non-blocking.

        uvloop does so, and Ray's processes use it where it is installed.
        """
        view = memoryview(data)
        writable = select.poll()  # not select(), which supports no descriptors beyond 1023
        writable.register(self._end, select.POLLOUT)
        while view:
            writable.poll()
            with contextlib.suppress(BlockingIOError):
                view = view[self._end.send(view, socket.MSG_DONTWAIT) :]

    def _frames(self, data: bytes, most: int) -> Iterator[bytes]:
        came, at = self._came, 0
        came += data
        try:
            while len(came) - at >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(came, at)
                if length > most:
                    raise PeerViolation(f"a frame of {length} bytes, at most {most} accepted")
                end = at + _LENGTH.size + length
                if end > len(came):
                    return
                frame = bytes(memoryview(came)[at + _LENGTH.size : end])
                at = end
                yield frame
        finally:
            del came[:at]
