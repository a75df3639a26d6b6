import fcntl
import resource
import socket
from collections.abc import Iterator

import pytest

from securevfl.actors.link import MOST_NAME_BYTES, Link
from securevfl.errors import PeerNotTrusted, PeerUnreachable, PeerViolation

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def test_a_name_that_is_too_long_is_not_waited_for(pair: Pair) -> None:
    one, other = pair
    other.settimeout(5)
    one.sendall((MOST_NAME_BYTES + 1).to_bytes(4, "little"))
    with pytest.raises(PeerNotTrusted, match=f"{MOST_NAME_BYTES + 1} bytes, at most"):
        Link(other).greeted()


def test_a_frame_that_is_too_long_is_not_waited_for(pair: Pair) -> None:
    one, other = pair
    link = Link(other, max_frame_bytes=100)
    link.begin()
    one.sendall(b"\x65\x00\x00\x00")
    with pytest.raises(PeerViolation, match="a frame of 101 bytes, at most 100 accepted"):
        list(link.arrived())
    link.close()


def test_what_comes_along_with_a_greeting_is_kept(pair: Pair) -> None:
    one, other = pair
    link = Link(other)
    one.sendall(b"\x04\x00\x00\x00bank\x03\x00\x00\x00abc")
    assert link.greeted() == "bank"
    link.begin()
    assert list(link.arrived()) == [b"abc"]
    link.close()


def test_long_frames_are_sent_at_any_file_number() -> None:
    """A process of many files: `select` takes numbers below 1024 only."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip("this machine allows a process fewer files")
    one, other = socket.socketpair()
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    try:
        high = socket.socket(fileno=fcntl.fcntl(other, fcntl.F_DUPFD_CLOEXEC, 1500))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    other.close()
    link = Link(high)
    link.begin()
    frame = bytes(1 << 22)
    link.send(frame)
    one.settimeout(5)
    with one, one.makefile("rb") as received:
        assert received.read(4 + len(frame))[4:] == frame
    link.close()


def test_whoever_is_gone_is_noticed() -> None:
    one, other = socket.socketpair()
    link = Link(other)
    link.begin()
    one.sendall(b"\x03\x00\x00\x00abc\x02\x00")
    assert list(link.arrived()) == [b"abc"]
    one.close()
    with pytest.raises(PeerUnreachable, match="closed the connection"):
        list(link.arrived())
    with pytest.raises(PeerUnreachable, match="closed the connection"):
        link.send(b"hello")
    link.close()
