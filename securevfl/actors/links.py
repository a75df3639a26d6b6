"""An actor's connections: one to each of its peers, and no others.

Of two actors the one whose name sorts first connects. Over TCP both ends have certificates, and
each compares the other's with the one that the supervisor sent. Unix sockets are in a folder that
only their owner can enter. Once all peers are connected, the actor stops listening.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from securevfl.actors.certificates import Encrypted, Identity
from securevfl.actors.link import Link
from securevfl.actors.task import Peer
from securevfl.errors import ConfigError, PeerError, PeerNotTrusted, PeerUnreachable
from securevfl.runtime.real import RealChannel

HANDSHAKE_SECONDS = 10.0
ALL_THERE_SECONDS = 120.0


class Links:
    """An actor's connections; it listens from the start.

    Args:
        name: of the actor.
        listen: unix:PATH or tcp:HOST:PORT, port 0 for a free one.

    Raises:
        ConfigError: it cannot listen at this address.
    """

    def __init__(self, name: str, listen: str) -> None:
        self.name = name
        kind, _, place = listen.partition(":")
        self._identity = Identity(name) if kind == "tcp" else None
        self._links: dict[str, Link] = {}
        self._channel: RealChannel | None = None
        self._lost: set[str] = set()
        self._refused: list[str] = []
        self._change = threading.Condition()
        self._path = Path(place) if kind == "unix" else None
        host, _, port = place.rpartition(":")
        self._listening = socket.socket(socket.AF_UNIX if self._path else socket.AF_INET)
        try:
            if self._path is None:
                self._listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listening.bind(place if self._path else (host, int(port)))
        except OSError as error:
            self._listening.close()
            reason = error.strerror or error  # a path that is too long has no strerror
            raise ConfigError(f"{listen}: cannot listen there ({reason})") from error
        if self._path is None:
            place = f"{host}:{self._listening.getsockname()[1]}"
        self._listening.listen()
        certificate = self._identity.certificate if self._identity else ""
        self.peer = Peer(f"{kind}:{place}", certificate)

    def connect(self, peers: Mapping[str, Peer], seconds: float = ALL_THERE_SECONDS) -> None:
        """Connect with all peers.

        Raises:
            PeerNotTrusted: a peer does not have its certificate.
            PeerUnreachable: a peer did not connect in time.
        """
        deadline = time.monotonic() + seconds
        awaited = {name for name in peers if name < self.name}
        accepting = threading.Thread(target=self._accept, args=(peers, awaited), daemon=True)
        accepting.start()
        try:
            for name in sorted(set(peers) - awaited):
                self._links[name] = self._to(name, peers[name])
            with self._change:
                self._change.wait_for(
                    lambda: awaited <= self._links.keys(), deadline - time.monotonic()
                )
                missing = sorted(awaited - self._links.keys())
                refused = self._refused.copy()
        finally:
            self._stop_listening()
            accepting.join()
        if missing:
            text = f"{', '.join(missing)} did not connect in {seconds:g} s"
            if refused:
                raise PeerNotTrusted(f"{text}; refused: {'; '.join(refused)}")
            raise PeerUnreachable(text)

    def carry(self, to: str, data: bytes) -> None:
        """Send an envelope to a peer, see `runtime.real.Carry`."""
        try:
            self._links[to].send(data)
        except PeerUnreachable as error:
            raise PeerUnreachable(f"{to} {error}") from error

    def begin(self, channel: RealChannel) -> None:
        """Pass received envelopes to a program's channel, from its own loop."""
        self._channel = channel
        for name, link in self._links.items():
            link.begin()
            channel.loop.add_reader(link.fileno(), self._take_in, name, link)
            self._take_in(name, link)

    def poll(self, at: float) -> None:
        """Pass on what has been received, at this time of the channel, see `RealChannel`."""
        for name, link in self._links.items():
            if name not in self._lost:
                self._take_in(name, link, at)

    def _take_in(self, name: str, link: Link, at: float | None = None) -> None:
        channel, at = self._channel, time.monotonic() if at is None else at
        assert channel is not None  # noqa: S101
        try:
            for data in link.arrived():
                channel.take_in(name, data, at)
        except PeerError as error:
            channel.loop.remove_reader(link.fileno())
            self._lost.add(name)
            channel.lose(name, type(error)(f"{name} {error}"))

    def end(self) -> None:
        """Pass nothing more to the channel; connections stay open."""
        for name, link in self._links.items():
            if self._channel is not None and name not in self._lost:
                self._channel.loop.remove_reader(link.fileno())
        self._channel = None

    def close(self) -> None:
        """Close all connections, after `end`."""
        self._stop_listening()
        for link in self._links.values():
            link.close()

    def _stop_listening(self) -> None:
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _to(self, name: str, peer: Peer) -> Link:
        kind, _, place = peer.address.partition(":")
        host, _, port = place.rpartition(":")
        end = socket.socket(socket.AF_UNIX if kind == "unix" else socket.AF_INET)
        end.settimeout(HANDSHAKE_SECONDS)
        link = None
        try:
            end.connect(place if kind == "unix" else (host, int(port)))
            link = Link(end)
            if self._identity is not None:
                wire = Encrypted(
                    self._identity.context([peer.certificate], server=False), server=False
                )
                link.encrypt(wire)
                wire.require(peer.certificate, name)
            link.greet(self.name)
            if link.greeted() != name:
                raise PeerNotTrusted("it has another name")
            end.settimeout(None)
        except (OSError, PeerError) as error:
            end.close()
            kind_of = type(error) if isinstance(error, PeerError) else PeerUnreachable
            raise kind_of(f"{name} at {peer.address}: {error}") from error
        return link

    def _accept(self, peers: Mapping[str, Peer], awaited: set[str]) -> None:
        """Accept awaited peers, each on a thread of its own so that none blocks the others."""
        certificates = [peers[name].certificate for name in awaited]
        while awaited - self._links.keys():
            try:
                end, _ = self._listening.accept()
            except OSError:
                return  # closed
            args = (end, peers, awaited, certificates)
            threading.Thread(target=self._welcome, args=args, daemon=True).start()

    def _welcome(
        self,
        end: socket.socket,
        peers: Mapping[str, Peer],
        awaited: set[str],
        certificates: list[str],
    ) -> None:
        end.settimeout(HANDSHAKE_SECONDS)
        try:
            link = Link(end)
            wire = None
            if self._identity is not None:
                wire = Encrypted(self._identity.context(certificates, server=True), server=True)
                link.encrypt(wire)
            name = link.greeted()
            if name not in awaited:
                raise PeerNotTrusted(f"{name[:64]!r} is not awaited")
            if wire is not None:
                wire.require(peers[name].certificate, name)
            with self._change:
                if name in self._links:
                    raise PeerNotTrusted(f"{name} is connected already")
                link.greet(self.name)
                end.settimeout(None)
                self._links[name] = link
                self._change.notify()
        except (OSError, PeerError) as error:
            end.close()
            with self._change:
                self._refused.append(str(error))
