"""Links of parties: fresh ones at each meeting, frames in order, and what ends them."""

import asyncio
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typing_extensions import override

from securevfl.errors import (
    ConfigError,
    DataError,
    PeerError,
    PeerNotTrusted,
    PeerUnreachable,
    PeerViolation,
)
from securevfl.parties import door, links
from securevfl.parties.identity import Encrypted, Identity
from securevfl.parties.links import Link, encrypt
from securevfl.parties.relay import serve
from tests.chaos import Chaos
from tests.hostile import mutations
from tests.link_parties import Group, connected, run

BOTH = "bank shop"


def said_nothing(_: str) -> None: ...


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


class Tube:
    """One end of a stream within the process."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.other: Tube | None = None

    async def send(self, data: bytes) -> None:
        assert self.other is not None
        self.other.messages.put_nowait(data)

    async def receive(self) -> bytes:
        if (data := await self.messages.get()) is None:
            raise PeerUnreachable("closed the connection")
        return data

    async def close(self) -> None:
        if self.other is not None:
            self.other.messages.put_nowait(None)


def nothing() -> None: ...


async def ends_of(client: Identity, server: Identity, awaited: bytes) -> list[Link | BaseException]:
    """Both ends of a link, or why there is none; the server awaits a client with that key."""

    async def made(peer: str, end: Tube, wire: Encrypted) -> Link:
        try:
            return await encrypt(peer, end, wire, nothing)  # type: ignore[arg-type]
        except PeerError:
            await end.close()
            raise

    ends = Tube(), Tube()
    ends[0].other, ends[1].other = ends[1], ends[0]
    both = (
        made("server", ends[0], client.tls(server.public, server=False)),
        made("client", ends[1], server.tls(awaited, server=True)),
    )
    return list(await asyncio.gather(*both, return_exceptions=True))


async def linked(client: Identity, server: Identity) -> list[Link]:
    made = await ends_of(client, server, client.public)
    return [each for each in made if isinstance(each, Link)]


@pytest.mark.parametrize("listening", ["shop", "bank", "bank shop", ""])
def test_frames_arrive_whole_and_in_order(listening: str) -> None:
    async def program() -> None:
        async with serve("127.0.0.1:0", said_nothing) as relay:
            group = Group(BOTH, listening, relay.address)
            async with group.pair() as (one, other):
                assert (one.peer, other.peer) == ("shop", "bank")
                sizes = (0, 1, links.PART_BYTES - 4, links.PART_BYTES, 3_000_001)
                frames = [bytes([k]) * n for k, n in enumerate(sizes)]
                for frame in frames:
                    one.post(frame)
                    other.post(frame)
                assert [await other.receive() for _ in frames] == frames
                assert [await one.receive() for _ in frames] == frames
                assert one.waiting_bytes == other.waiting_bytes == 0

    run(program())


def test_parties_may_start_in_any_order_and_say_whom_they_wait_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "SILENT_SECONDS", 0.02)

    async def program() -> None:
        group = Group("bank lab shop", "shop")
        group.moved(lab="lab.invalid:1")
        with pytest.raises(PeerUnreachable, match="no such host"):
            await door.dial(f"ws://{'a' * 70}.invalid:1")
        async with group.links("bank") as bank:
            waiting = asyncio.create_task(bank.connect())
            await until(lambda: len(group.said["bank"]) > 1)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        assert sorted(group.said["bank"]) == [
            "waits for lab: no such host: ws://lab.invalid:1",
            f"waits for shop: nobody listens at ws://{group.listen['shop']}",
        ]
        group = Group(BOTH, "shop")
        async with group.links("shop") as shop:
            waiting = asyncio.create_task(shop.connect())
            await until(lambda: group.said["shop"])
            async with group.links("bank") as bank:
                await connected(bank)
                await waiting
        assert group.said["shop"] == ["waits for bank: it has not connected yet"]

    run(program())


def test_a_party_that_cannot_make_a_link_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "full"))

    async def program() -> None:
        group = Group(BOTH, "shop")
        async with group.links("bank") as bank, group.links("shop") as shop:
            waiting = asyncio.create_task(shop.connect())
            with pytest.raises(DataError, match="no temporary file for the key of a link: No such"):
                await bank.connect()
            waiting.cancel()

    run(program())


def test_a_party_that_cannot_take_a_link_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "SILENT_SECONDS", 0.02)

    def full(peer: bytes, *, server: bool) -> Encrypted:
        raise DataError("no temporary file")

    async def program() -> None:
        group = Group(BOTH, "shop")
        monkeypatch.setattr(group.keys["shop"], "tls", full)
        async with group.links("bank") as bank, group.links("shop") as shop:
            both = [asyncio.create_task(each.connect()) for each in (bank, shop)]
            await until(lambda: "waits for bank: no temporary file" in group.said["shop"])
            for each in both:
                each.cancel()

    run(program())


def test_a_meeting_has_links_of_its_own() -> None:
    async def program() -> None:
        group = Group(BOTH, "shop")
        async with group.links("bank") as bank, group.links("shop") as shop:
            (first,), (second,) = [list(each.values()) for each in await connected(bank, shop)]
            first.post(b"of the first meeting")
            (new,), (there,) = [list(each.values()) for each in await connected(bank, shop)]
            for old in (first, second):
                assert old.lost.is_set()
                with pytest.raises(PeerUnreachable):
                    old.post(b"")
            new.post(b"of the second")
            assert await there.receive() == b"of the second"

    run(program())


def test_parties_that_meet_for_different_purposes_do_not_meet() -> None:
    async def program() -> None:
        group = Group("bank shop", "bank shop")
        async with group.links("bank", purpose=b"one") as bank, group.links("shop") as shop:
            both = asyncio.gather(bank.connect(), shop.connect())
            while not any("refused the connection" in line for line in group.said["bank"]):
                assert not both.done()
                await asyncio.sleep(0.01)
            both.cancel()

    run(program())


def test_a_peer_that_connects_again_has_left_its_old_link() -> None:
    async def program() -> None:
        group = Group(BOTH, "shop")
        async with group.links("shop") as shop, group.links("bank") as gone:
            _, old = await connected(gone, shop)
            async with group.links("bank") as bank:
                new = await bank.connect()
                with pytest.raises(PeerUnreachable, match="bank has left this link"):
                    await old["bank"].receive()
                new["shop"].post(b"again")
                assert await (await shop.connect())["bank"].receive() == b"again"

    run(program())


@pytest.mark.parametrize("listening", ["bank shop", ""])
def test_a_link_that_breaks_while_others_are_awaited_is_replaced(listening: str) -> None:
    async def program() -> None:
        async with serve("127.0.0.1:0", said_nothing) as relay:
            group = Group("bank lab shop", listening, relay.address)
            at = group.listen.get("shop") or relay.address
            async with Chaos(at) as way:
                if listening:
                    group.moved(shop=way.address)
                else:
                    group.agreed = replace(group.agreed, relay=f"ws://{way.address}")
                async with (
                    group.links("bank") as bank,
                    group.links("shop") as shop,
                    group.links("lab") as lab,
                ):
                    waiting = [asyncio.create_task(each.connect()) for each in (bank, shop)]
                    await until(lambda: "shop" in bank._ready and "bank" in shop._ready)
                    broken = bank._ready["shop"]
                    way.cut()
                    await until(broken.lost.is_set)
                    await lab.connect()
                    one, other = await asyncio.gather(*waiting)
                    assert one["shop"] is not broken
                    one["shop"].post(b"whole")
                    assert await other["bank"].receive() == b"whole"

    run(program())


def test_frames_that_came_are_delivered_before_the_loss() -> None:
    async def program() -> None:
        group = Group(BOTH, "shop")
        async with group.pair() as (one, other):
            one.post(b"last words")
            await one.close()
            assert await other.receive() == b"last words"
            with pytest.raises(PeerUnreachable, match="bank closed the connection"):
                await other.receive()

    run(program())


def test_any_thread_may_post() -> None:
    async def program() -> None:
        group = Group(BOTH, "shop")
        async with group.pair() as (one, other):

            def write() -> None:
                for k in range(200):
                    one.post(k.to_bytes(2))

            threads = [threading.Thread(target=write) for _ in range(4)]
            for each in threads:
                each.start()
            got = [int.from_bytes(await other.receive()) for _ in range(800)]
            assert sorted(got) == sorted([*range(200)] * 4)
            for each in threads:
                each.join()

    run(program())


def test_a_link_of_which_nothing_is_taken_holds_little_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "MOST_WAITING_BYTES", 1 << 20)

    async def program() -> None:
        group = Group(BOTH, "shop")
        async with group.pair() as (sender, taker):
            frame = bytes(1 << 19)

            for _ in range(100):
                sender.post(frame)
            held = [-1]

            async def still() -> bool:
                held.append(taker._held)
                await asyncio.sleep(0.1)
                return taker._held == held[-1] > 0

            while not await still():
                pass
            assert taker._held <= links.MOST_WAITING_BYTES + 2 * len(frame)
            for _ in range(100):
                assert len(await taker.receive()) == len(frame)

    run(program())


def test_empty_frames_take_memory_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "MOST_WAITING_BYTES", 1 << 20)

    async def program() -> None:
        sender, taker = await linked(Identity.generate(), Identity.generate())
        end = taker._stream
        assert isinstance(end, Tube)
        for _ in range(20):
            end.messages.put_nowait(sender._wire.outgoing(bytes(4 * 10_000)))
        await until(lambda: end.messages.qsize() <= 18)
        await asyncio.sleep(0.1)  # enough to read them all
        assert end.messages.qsize() == 18
        for _ in range(10_000):
            assert await taker.receive() == b""
        await until(lambda: end.messages.qsize() == 17)
        await sender.close()
        await taker.close()

    run(program())


def test_a_frame_that_is_too_long_ends_the_link_and_is_not_sent() -> None:
    async def program() -> None:
        group = Group(BOTH, "shop")
        async with group.pair() as (one, other):

            class Long(bytes):
                @override
                def __len__(self) -> int:
                    return links.MAX_FRAME_BYTES + 1

            with pytest.raises(ConfigError, match="at most"):
                one.post(Long())
            length = (links.MAX_FRAME_BYTES + 1).to_bytes(4, "little")
            await one._stream.send(one._wire.outgoing(length))
            with pytest.raises(PeerViolation, match=r"bank sent a frame of 1074790401 bytes"):
                await other.receive()

    run(program())


@pytest.mark.parametrize("fault", ["cut", "corrupt", "lose"])
def test_bytes_changed_or_lost_on_the_way_end_the_link_and_the_next_is_whole(fault: str) -> None:
    async def program() -> None:
        group = Group(BOTH, "shop")
        async with Chaos(group.listen["shop"], seed=5) as way:
            group.moved(shop=way.address)
            async with group.links("bank") as bank, group.links("shop") as shop:
                one, other = await connected(bank, shop)
                one["shop"].post(b"before")
                assert await other["bank"].receive() == b"before"
                before = way.passed
                getattr(way, fault)()
                one["shop"].post(bytes(5000))
                await until(lambda: way.passed > before or fault == "cut")
                if not one["shop"].lost.is_set():
                    one["shop"].post(bytes(5000))
                await other["bank"].lost.wait()
                one, other = await connected(bank, shop)
                one["shop"].post(b"after")
                assert await other["bank"].receive() == b"after"

    run(program())


def test_no_byte_passes_unchanged_that_was_changed_on_the_way() -> None:
    async def program() -> None:
        sender, link = await linked(Identity.generate(), Identity.generate())
        sealed = sender._wire.outgoing(b"\5\0\0\0hello" * 2)
        end = link._stream
        assert isinstance(end, Tube)
        end.messages.put_nowait(sealed[:-3] + bytes([sealed[-3] ^ 1]) + sealed[-2:])
        with pytest.raises(PeerUnreachable, match="client sent bytes that were changed on the way"):
            await link.receive()
        await link.close()
        await sender.close()

    run(program())


def test_a_network_that_fails_again_and_again_only_costs_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(links, "LONGEST_PAUSE", 0.02)
    monkeypatch.setattr(links, "HANDSHAKE_SECONDS", 0.5)
    monkeypatch.setattr(door, "CLOSE_SECONDS", 0.02)

    async def program() -> None:
        group = Group(BOTH, "shop")
        async with Chaos(group.listen["shop"], seed=11) as way:
            group.moved(shop=way.address)

            async def party(name: str, peer: str) -> int:
                meetings = 0
                async with group.links(name) as own:
                    while True:
                        meetings += 1
                        link = (await own.connect())[peer]
                        try:
                            async with asyncio.timeout(0.5):  # as a meeting has, when half-open
                                for k in range(60):
                                    link.post(bytes([k]) * 500)
                                    assert await link.receive() == bytes([k]) * 500
                                link.post(b"done")
                                assert await link.receive() == b"done"
                        except (PeerError, TimeoutError):
                            continue
                        await asyncio.sleep(0.05)
                        return meetings

            way.plan(12, 12)
            both = await asyncio.gather(party("bank", "shop"), party("shop", "bank"))
            assert min(both) > 3
            assert not way.ahead

    run(program())


def test_settings_that_can_never_connect_are_refused() -> None:
    group = Group(BOTH, "shop")
    with pytest.raises(ConfigError, match="bank will connect to shop: set listen"):
        group.links("shop", listen=None)
    with pytest.raises(ConfigError, match="party 'bank': the agreement has identity"):
        group.links("bank", identity=group.keys["shop"])
    with pytest.raises(ConfigError, match="no http"):
        group.links("bank", proxy="ftp://here")
    with pytest.raises(ConfigError, match="no relay"):
        Group(BOTH).links("bank")
    wrong = Group(BOTH)
    wrong.agreed = replace(wrong.agreed, addresses={"shop": "http://there"})
    with pytest.raises(ConfigError, match="is no ws"):
        wrong.links("bank")

    async def taken() -> None:
        async with group.links("shop"), group.links("shop"):
            pass

    with pytest.raises(ConfigError, match="cannot listen there"):
        run(taken())


@pytest.mark.parametrize(
    ("answer", "by_proxy", "told"),
    [
        ("407 Proxy Authentication Required", True, "the proxy refuses to connect to ws://there:1"),
        ("403 Forbidden", False, r"refuses \(HTTP status 403\)"),
        ("302 Found\r\nLocation: ws://127.0.0.1:{other}", False, r"\(HTTP status 302\)"),
        ("SSH-2.0", False, "no securevfl at ws://127.0.0.1"),
    ],
    ids=["proxy", "forbidden", "redirect", "no_http"],
)
def test_who_refuses_is_named_and_nobody_is_sent_elsewhere(
    answer: str, by_proxy: bool, told: str
) -> None:
    async def program() -> None:
        called = 0

        async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal called
            called += 1
            await reader.readuntil(b"\r\n\r\n")
            line = answer.format(other=port)
            writer.write(f"HTTP/1.1 {line}\r\nContent-Length: 0\r\n\r\n".encode())
            writer.close()

        async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            proxy = f"http://127.0.0.1:{port}" if by_proxy else None
            with pytest.raises(PeerUnreachable, match=told):
                await door.dial("ws://there:1" if by_proxy else f"ws://127.0.0.1:{port}", proxy)
            assert called == 1

    run(program())


def test_the_client_of_tls_waits_until_the_server_has_checked_it() -> None:
    """Its own half of TLS 1.3 ends earlier: it would take a link for made that is refused."""

    async def program() -> None:
        bank, shop, stranger = (Identity.generate() for _ in range(3))

        for client, good in ((bank, True), (stranger, False)):
            both = await ends_of(client, shop, bank.public)
            if good:
                assert all(isinstance(each, Link) for each in both)
            else:
                assert [type(each) for each in both] == [PeerUnreachable, PeerNotTrusted]
            for each in both:
                if isinstance(each, Link):
                    await each.close()

    run(program())


def test_no_frame_of_a_hostile_peer_harms_a_link() -> None:
    """It ends in a PeerError, or its bytes are frames; nothing is kept but what has come."""

    async def program() -> None:
        shop, bank = Identity.generate(), Identity.generate()
        base = b"".join(len(each).to_bytes(4, "little") + each for each in (b"", b"ab", bytes(99)))
        choices, refused, taken = random.Random(2), 0, 0  # noqa: S311
        variants = mutations(base, choices)
        wire = shop.tls(bank.public, server=True)  # not used: the bytes are those within TLS
        for _ in range(2000):
            link = Link("bank", Tube(), wire, b"", nothing)  # type: ignore[arg-type]
            data = next(variants)
            try:
                for at in range(0, len(data), 50):
                    link._take_in(data[at : at + 50])
            except PeerViolation:
                refused += 1
            else:
                got = sum(4 + len(each) for each in link._frames) + len(link._came)
                assert got == len(data)
            taken += len(link._frames)
            link.fail(PeerUnreachable("over"))
            await asyncio.gather(*link._tasks, return_exceptions=True)
        assert refused > 100 < taken

    run(program())


def test_a_peer_that_has_died_without_a_word_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "PING_SECONDS", 0.05)
    monkeypatch.setattr(door, "PONG_SECONDS", 0.3)
    monkeypatch.setattr(door, "CLOSE_SECONDS", 0.05)

    async def program() -> None:
        group = Group(BOTH, "shop")
        async with Chaos(group.listen["shop"]) as way:
            group.moved(shop=way.address)
            async with group.pair() as (one, other):
                way.freeze()
                for each in (one, other):
                    with pytest.raises(PeerUnreachable):
                        await each.receive()

    run(program())


def test_it_is_said_again_whom_this_party_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "SILENT_SECONDS", 0.01)

    async def said(times: int) -> list[str]:
        group = Group(BOTH, "shop")
        async with group.links("shop") as shop:
            waiting = asyncio.create_task(shop.connect())
            if times > 1:
                await until(lambda: len(group.said["shop"]) >= times)
            else:
                await asyncio.sleep(0.2)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        return group.said["shop"]

    assert len(run(said(1))) == 1
    monkeypatch.setattr(links, "TELL_SECONDS", 0.02)
    assert len(set(run(said(3)))) == 1


def test_a_party_may_connect_through_a_proxy() -> None:
    async def program() -> None:
        asked = []

        async def proxied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.append((await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0].decode())
            host, _, port = asked[-1].split()[1].rpartition(":")
            there = await asyncio.open_connection(host, int(port))
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            await asyncio.gather(passed(reader, there[1]), passed(there[0], writer))

        async def passed(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while data := await source.read(1 << 16):
                sink.write(data)
            sink.close()

        group = Group(BOTH, "shop")
        async with await asyncio.start_server(proxied, "127.0.0.1", 0) as proxy:
            at = f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
            async with group.links("bank", proxy=at) as bank, group.links("shop") as shop:
                one, other = await connected(bank, shop)
                one["shop"].post(b"by the proxy")
                assert await other["bank"].receive() == b"by the proxy"
        assert asked == [f"CONNECT {group.listen['shop']} HTTP/1.1"]

    run(program())
