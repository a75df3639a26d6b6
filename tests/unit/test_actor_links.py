"""Connections between actors: exactly the peers that were introduced, whole frames, and an end."""

import asyncio
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVarTuple

import numpy as np
import pytest
from typing_extensions import override

from securevfl.actors.certificates import Encrypted, Identity
from securevfl.actors.links import Links
from securevfl.actors.task import Peer
from securevfl.errors import ConfigError, PeerError, PeerNotTrusted, PeerUnreachable
from securevfl.protocols.vertical.fdml import PushedPredictions
from securevfl.runtime.real import RealChannel

Ts = TypeVarTuple("Ts")
NAMES = ("bank", "shop", "telco")
ANY_PORT = "tcp:127.0.0.1:0"


def address_of(kind: str, folder: Path, name: str) -> str:
    return f"unix:{folder / name}" if kind == "unix" else ANY_PORT


@contextmanager
def listening(
    kind: str, folder: Path, names: tuple[str, ...] = NAMES
) -> Iterator[dict[str, Links]]:
    links = {name: Links(name, address_of(kind, folder, name)) for name in names}
    try:
        yield links
    finally:
        for each in links.values():
            each.close()


def connect_all(links: Mapping[str, Links]) -> dict[str, PeerError]:
    """Connect all with all, each on its own thread; their errors."""
    found: dict[str, PeerError] = {}

    def connect(name: str) -> None:
        others = {other: each.peer for other, each in links.items() if other != name}
        try:
            links[name].connect(others, seconds=2.0)
        except PeerError as error:
            found[name] = error

    threads = [threading.Thread(target=connect, args=(name,)) for name in links]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return found


@contextmanager
def connecting(
    links: Links, peers: Mapping[str, Peer], seconds: float = 10.0
) -> Iterator[list[PeerError]]:
    """Connect on another thread meanwhile; with what error, when all is over."""
    found: list[PeerError] = []

    def connect() -> None:
        try:
            links.connect(peers, seconds=seconds)
        except PeerError as error:
            found.append(error)

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    yield found
    thread.join(20)


async def talk(links: Mapping[str, Links], rows: int) -> None:
    """Everybody sends everybody three messages, and takes what comes."""
    loop = asyncio.get_running_loop()

    async def one(name: str) -> None:
        others = sorted(set(links) - {name})
        channel = RealChannel(
            name,
            others,
            job_hash=bytes(32),
            loop=loop,
            carry=links[name].carry,
            poll=links[name].poll,
        )
        links[name].begin(channel)
        for step in range(3):
            for other in others:
                await channel.send(other, PushedPredictions(step, np.full((rows, 1), step)))
            for other in others:
                _, message = await channel.receive([other], PushedPredictions, step)
                assert np.array_equal(message.values, np.full((rows, 1), step))
        links[name].end()

    await asyncio.gather(*map(one, links))


@pytest.mark.parametrize("rows", [1, 300_000])
@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_everybody_hears_everybody(kind: str, rows: int, tmp_path: Path) -> None:
    """Also of messages that are far longer than what a socket takes at once."""
    with listening(kind, tmp_path) as links:
        assert not connect_all(links)
        asyncio.run(talk(links, rows))
    assert not list(tmp_path.iterdir())


class NeverWaiting(asyncio.SelectorEventLoop):
    """As uvloop, which Ray takes where it is installed: sockets that it reads wait for nothing."""

    @override
    def add_reader(self, fd: Any, callback: Callable[[*Ts], Any], *args: *Ts) -> None:
        os.set_blocking(fd if isinstance(fd, int) else fd.fileno(), False)
        super().add_reader(fd, callback, *args)


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_long_messages_arrive_whatever_the_loop_does_with_sockets(
    kind: str, tmp_path: Path
) -> None:
    with listening(kind, tmp_path, NAMES[:2]) as links:
        assert not connect_all(links)
        with asyncio.Runner(loop_factory=NeverWaiting) as runner:
            runner.run(asyncio.wait_for(talk(links, 300_000), 60))


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_nobody_else_gets_in(kind: str, tmp_path: Path) -> None:
    """Neither a stranger beforehand, nor anybody once all are there; the peers do."""
    with listening(kind, tmp_path, ("bank", "shop")) as links, ExitStack() as stack:
        stranger = stack.enter_context(_connected(links["shop"].peer))
        stranger.sendall(b"\x06\x00\x00\x00mallory")
        assert not connect_all(links)
        assert _is_closed(stranger)
        with pytest.raises(OSError, match=r"refused|No such file"):
            stack.enter_context(_connected(links["shop"].peer))


@contextmanager
def _connected(peer: Peer) -> Iterator[socket.socket]:
    kind, _, place = peer.address.partition(":")
    host, _, port = place.rpartition(":")
    with socket.socket(socket.AF_UNIX if kind == "unix" else socket.AF_INET) as end:
        end.connect(place if kind == "unix" else (host, int(port)))
        end.settimeout(20)
        yield end


def _is_closed(end: socket.socket) -> bool:
    """Whether the other end says nothing but perhaps an alert, and closes."""
    try:
        while end.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    return True


def test_a_peer_with_another_certificate_is_refused(tmp_path: Path) -> None:
    """It says the right name and knows whom to call: its certificate is not the introduced one."""
    with listening("tcp", tmp_path, ("bank", "shop")) as links:
        introduced = replace(links["bank"].peer, certificate=Identity("bank").certificate)
        with (
            connecting(links["shop"], {"bank": introduced}, 1.0) as found,
            pytest.raises(PeerNotTrusted, match="shop at tcp:"),
        ):
            links["bank"].connect({"shop": links["shop"].peer})
    (error,) = found
    assert isinstance(error, PeerNotTrusted)
    assert "bank did not connect in 1 s; refused: " in str(error)


@pytest.mark.parametrize("without", ["nothing", "trust", "comparison"])
def test_whoever_answers_with_another_certificate_is_refused(
    without: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TLS trusts no other, and the certificate is compared: each of the two is enough."""
    context = Identity.context

    def trusting(identity: Identity, certificates: list[str], *, server: bool) -> ssl.SSLContext:
        made = context(identity, certificates, server=server)
        made.verify_mode = ssl.CERT_REQUIRED if server else ssl.CERT_NONE
        return made

    if without == "trust":
        monkeypatch.setattr(Identity, "context", trusting)
    if without == "comparison":
        monkeypatch.setattr(Encrypted, "require", lambda *_: None)
    with listening("tcp", tmp_path, ("bank", "shop")) as links:
        bank, shop = (links[name].peer for name in ("bank", "shop"))
        introduced = replace(shop, certificate=Identity("shop").certificate)
        with (
            connecting(links["shop"], {"bank": bank}, 0.5) as found,
            pytest.raises(PeerNotTrusted, match="shop at tcp:"),
        ):
            links["bank"].connect({"shop": introduced})
    assert "bank did not connect" in str(found[0])


def test_a_key_on_its_way_to_tls_is_its_owners_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[Path, int]] = []
    load = ssl.SSLContext.load_cert_chain

    def looks(context: ssl.SSLContext, path: Path) -> None:
        found.append((path, path.stat().st_mode & 0o777))
        load(context, path)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", looks)
    Identity("bank").context([Identity("shop").certificate], server=True)
    ((path, mode),) = found
    assert mode == 0o600
    assert not path.exists()


def test_a_peer_is_not_taken_for_another_peer() -> None:
    """Both certificates are trusted; that of one does not pass for the other's."""
    bank, shop, telco = (Identity(name) for name in NAMES)
    ours = Encrypted(bank.context([shop.certificate, telco.certificate], server=True), server=True)
    theirs = Encrypted(shop.context([bank.certificate], server=False), server=False)
    data, over = b"", False
    while not over:
        data, _ = theirs.shake_hands(data)
        data, over = ours.shake_hands(data)
    ours.require(shop.certificate, "shop")
    with pytest.raises(PeerNotTrusted, match="telco"):
        ours.require(telco.certificate, "telco")


def test_one_peer_does_not_get_in_as_another(tmp_path: Path) -> None:
    with listening("tcp", tmp_path) as links:
        peers = {name: each.peer for name, each in links.items()}
        links["shop"].name = "bank"
        others = {name: peers[name] for name in ("bank", "shop")}
        with (
            connecting(links["telco"], others, 0.5) as found,
            pytest.raises(PeerNotTrusted, match="refused the connection"),
        ):
            links["shop"].connect({"telco": peers["telco"]})
    assert "the other end does not have the certificate of 'bank'" in str(found[0])


def test_who_is_there_does_not_come_again(tmp_path: Path) -> None:
    with listening("unix", tmp_path) as links, ExitStack() as stack:
        again = Links("bank", f"unix:{tmp_path / 'again'}")
        stack.callback(again.close)
        telco = {"telco": links["telco"].peer}
        others = {name: links[name].peer for name in ("bank", "shop")}
        with connecting(links["telco"], others):
            links["bank"].connect(telco)
            with pytest.raises(PeerNotTrusted, match="refused the connection"):
                again.connect(telco)
            links["shop"].connect(telco)
        asyncio.run(talk({name: links[name] for name in ("bank", "telco")}, rows=1))


def test_whoever_answers_by_another_name_is_not_talked_with(tmp_path: Path) -> None:
    """A Unix socket shows no certificate: the name is what tells one actor from another."""
    with listening("unix", tmp_path, ("shop", "telco")) as links:
        peers = {name: each.peer for name, each in links.items()}
        links["telco"].name = "trudy"
        with (
            connecting(links["telco"], {"shop": peers["shop"]}),
            pytest.raises(PeerNotTrusted, match=r"telco at unix:.*: it has another name"),
        ):
            links["shop"].connect({"telco": peers["telco"]})


def test_the_time_to_get_to_know_each_other_ends_with_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("securevfl.actors.links.HANDSHAKE_SECONDS", 0.2)
    with listening("unix", tmp_path, ("bank", "shop")) as links:
        assert not connect_all(links)
        asyncio.run(talk(links, rows=1))


def test_a_stranger_that_says_nothing_is_sent_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("securevfl.actors.links.HANDSHAKE_SECONDS", 0.2)
    with listening("unix", tmp_path, ("bank", "shop")) as links, ExitStack() as stack:
        peers = {name: each.peer for name, each in links.items()}
        with connecting(links["shop"], {"bank": peers["bank"]}):
            assert _is_closed(stack.enter_context(_connected(peers["shop"])))
            links["bank"].connect({"shop": peers["shop"]})


def test_a_peer_that_answers_nothing_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("securevfl.actors.links.HANDSHAKE_SECONDS", 0.2)
    with (
        listening("unix", tmp_path, ("bank", "shop")) as links,
        connecting(links["bank"], {"shop": links["shop"].peer}) as found,
    ):
        pass
    (error,) = found
    assert "timed out" in str(error)


def test_without_a_certificate_nobody_gets_in() -> None:
    bank, shop = Identity("bank"), Identity("shop")
    context = shop.context([bank.certificate], server=False)
    bare = type(context)(context.protocol)
    bare.check_hostname = False
    bare.load_verify_locations(cadata=bank.certificate)
    ours = Encrypted(bank.context([shop.certificate], server=True), server=True)
    theirs = Encrypted(bare, server=False)
    data, _ = theirs.shake_hands(b"")
    data, _ = ours.shake_hands(data)
    data, _ = theirs.shake_hands(data)
    with pytest.raises(PeerNotTrusted, match="no TLS connection"):
        ours.shake_hands(data)


def test_older_versions_of_tls_are_refused() -> None:
    bank, shop = Identity("bank"), Identity("shop")
    context = shop.context([bank.certificate], server=False)
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    ours = Encrypted(bank.context([shop.certificate], server=True), server=True)
    data, _ = Encrypted(context, server=False).shake_hands(b"")
    with pytest.raises(PeerNotTrusted, match="no TLS connection"):
        ours.shake_hands(data)


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_an_address_that_is_taken(kind: str, tmp_path: Path) -> None:
    with listening(kind, tmp_path, ("bank",)) as links:
        taken = links["bank"].peer.address
        with pytest.raises(ConfigError, match="cannot listen there"):
            Links("shop", taken)


def test_a_peer_that_never_comes(tmp_path: Path) -> None:
    with (
        listening("unix", tmp_path, ("bank", "shop")) as links,
        pytest.raises(PeerUnreachable, match=r"bank did not connect in 0.05 s"),
    ):
        links["shop"].connect({"bank": links["bank"].peer}, seconds=0.05)
