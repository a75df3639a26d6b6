"""The relay: pairs who want each other, sees sealed bytes, and forwards to nobody else."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys

import pytest

from securevfl.cli.relay import CONNECTIONS, OF_ADDRESS
from securevfl.errors import ConfigError, PeerUnreachable, PeerViolation
from securevfl.parties import door
from securevfl.parties.door import Limits, meet_by_nameplate, serve_nameplates
from securevfl.parties.identity import Identity, public_text
from securevfl.parties.relay import serve
from tests.chaos import Chaos
from tests.hostile import Caller, is_refused, raw
from tests.link_parties import Group, connected, free_address, run

SALT = bytes(range(32))
PLATE = bytes(range(16))
SECRET = b"what only the two of them may know " * 3


def quiet(_: str) -> None: ...


async def knocking(at: str, one: Identity, other: Identity, salt: bytes = SALT) -> door.Stream:
    """A party that has been paired."""
    stream = await door.dial(f"ws://{at}")
    await door.knock(stream, one, other.public, salt)
    return stream


@pytest.mark.parametrize("sealed", [True, False])
def test_a_relay_sees_sealed_bytes_only(sealed: bool) -> None:
    """What passes through it tells nothing; were it not sealed, it would."""

    async def program() -> None:
        async with (
            serve("127.0.0.1:0", quiet) as relay,
            Chaos(relay.address, record=True) as way,
        ):
            group = Group("bank shop", "", way.address)
            if sealed:
                async with group.pair() as (one, other):
                    one.post(SECRET)
                    assert await other.receive() == SECRET
            else:
                keys = group.keys["bank"], group.keys["shop"]
                ends = await asyncio.gather(
                    knocking(relay.address, *keys), knocking(way.address, *keys[::-1])
                )
                await ends[0].send(SECRET)
                assert await ends[1].receive() == SECRET
                for each in ends:
                    await each.close()
            assert way.seen
            assert (SECRET in way.seen) == (not sealed)

    run(program())


def test_only_those_meet_who_name_each_other_in_one_job() -> None:
    async def program() -> None:
        bank, lab, shop = (Identity.generate() for _ in range(3))
        async with serve("127.0.0.1:0", quiet) as relay:
            waiting = [
                asyncio.create_task(knocking(relay.address, *call))
                for call in (
                    (bank, shop),
                    (shop, lab),
                    (lab, bank),
                    (shop, bank, bytes([1]) * 32),
                )
            ]
            await asyncio.sleep(0.2)
            assert not any(each.done() for each in waiting)
            there = await knocking(relay.address, shop, bank)
            await there.send(b"you")
            assert await (await waiting[0]).receive() == b"you"
            for each in waiting:
                each.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    run(program())


def test_a_place_is_taken_by_its_owner_alone() -> None:
    async def program() -> None:
        bank, lab, shop = (Identity.generate() for _ in range(3))
        async with serve("127.0.0.1:0", quiet) as relay:
            waiting = asyncio.create_task(knocking(relay.address, bank, shop))
            await asyncio.sleep(0.1)
            assert await is_refused(relay.address, lab, shop.public, SALT, own=bank.public)
            assert not waiting.done()
            ends = [await knocking(relay.address, shop, bank), await waiting]
            await ends[0].send(b"still")
            assert await ends[1].receive() == b"still"

    run(program())


def test_a_party_that_calls_again_leaves_its_older_connection() -> None:
    async def program() -> None:
        bank, shop = Identity.generate(), Identity.generate()
        async with serve("127.0.0.1:0", quiet) as relay:
            first = asyncio.create_task(knocking(relay.address, bank, shop))
            await asyncio.sleep(0.05)
            second = asyncio.create_task(knocking(relay.address, bank, shop))
            with pytest.raises(PeerUnreachable, match="called again"):
                await first
            there = await knocking(relay.address, shop, bank)
            paired = await second
            third = asyncio.create_task(knocking(relay.address, bank, shop))
            for each in (there, paired):
                with pytest.raises(PeerUnreachable):
                    await each.receive()
            new = await knocking(relay.address, shop, bank)
            await new.send(b"again")
            assert await (await third).receive() == b"again"

    run(program())


def test_one_end_goes_and_the_other_is_told() -> None:
    async def program() -> None:
        said: list[str] = []
        bank, shop = Identity.generate(), Identity.generate()
        async with serve("127.0.0.1:0", said.append) as relay:
            ends = await asyncio.gather(
                knocking(relay.address, bank, shop), knocking(relay.address, shop, bank)
            )
            await ends[0].send(SECRET)
            await ends[1].receive()
            await ends[0].close()
            with pytest.raises(PeerUnreachable):
                await ends[1].receive()
        lines = "\n".join(said)
        assert f"{len(SECRET)} bytes" in lines
        for each in (bank, shop):
            assert public_text(each.public)[:8] in lines
            assert public_text(each.public) not in lines
        assert "only the two" not in lines

    run(program())


def test_only_listed_parties_may_use_a_relay_that_has_a_list() -> None:
    async def program() -> None:
        bank, shop, stranger = (Identity.generate() for _ in range(3))
        allow = [bank.public, shop.public]
        async with serve("127.0.0.1:0", quiet, allow=allow) as relay:
            assert not await is_refused(relay.address, bank, shop.public, SALT)
            assert await is_refused(relay.address, bank, stranger.public, SALT)
            assert await is_refused(relay.address, stranger, shop.public, SALT)
            with pytest.raises(PeerUnreachable, match="refused"):
                await meet_by_nameplate(f"ws://{relay.address}", bytes(16), inviter=True)

    run(program())


def test_a_relay_has_room_for_seventeen_parties_behind_one_gateway() -> None:
    """All connect anew before the old connections are seen to be dead; others have room too."""
    limits = Limits(CONNECTIONS, OF_ADDRESS)
    at = door.Door("", lambda _: True, lambda *_: asyncio.sleep(0), quiet, limits)
    assert all(at._comes("gateway") for _ in range(2 * 17 * 16))
    assert not at._comes("gateway")
    at._goes("gateway")
    assert sum(at._comes(f"other {number}") for number in range(1024)) == CONNECTIONS - OF_ADDRESS
    assert 100 < CONNECTIONS - OF_ADDRESS < 1024 - OF_ADDRESS


def test_nobody_waits_longer_than_allowed() -> None:
    async def program() -> None:
        bank, shop = Identity.generate(), Identity.generate()
        limits = Limits(waiting_seconds=0.1, nameplate_seconds=0.1)
        async with serve("127.0.0.1:0", quiet, limits=limits) as relay:
            with pytest.raises(PeerUnreachable, match="refused"):
                await knocking(relay.address, bank, shop)
            with pytest.raises(PeerUnreachable, match="refused"):
                await meet_by_nameplate(f"ws://{relay.address}", PLATE, inviter=True)

    run(program())


def test_an_end_that_takes_nothing_holds_the_other() -> None:
    """The relay keeps a few messages of a pair, not what one end can send."""

    async def program() -> None:
        bank, shop = Identity.generate(), Identity.generate()
        async with serve("127.0.0.1:0", quiet) as relay:
            taker, sender = await asyncio.gather(
                knocking(relay.address, bank, shop), knocking(relay.address, shop, bank)
            )
            sent = 0

            async def flood() -> None:
                nonlocal sent
                for _ in range(200):
                    await sender.send(bytes(door.MOST_MESSAGE_BYTES))
                    sent += 1

            flooding, before = asyncio.create_task(flood()), -1
            while before != sent or not sent:
                before = sent
                await asyncio.sleep(0.2)
            assert sent < 60  # buffers of four sockets, and a few messages at each end
            for _ in range(200):
                assert len(await taker.receive()) == door.MOST_MESSAGE_BYTES
            await flooding

    run(program())


def test_a_nameplate_brings_one_inviter_and_one_joiner_together() -> None:
    async def program() -> None:
        async with serve("127.0.0.1:0", quiet, limits=Limits(nameplates=1)) as relay:
            url = f"ws://{relay.address}"
            inviting = asyncio.create_task(meet_by_nameplate(url, PLATE, inviter=True))
            await asyncio.sleep(0.1)
            with pytest.raises(PeerUnreachable, match="refused"):  # a second inviter
                await meet_by_nameplate(url, PLATE, inviter=True)
            with pytest.raises(PeerUnreachable, match="refused"):  # no room for another
                await meet_by_nameplate(url, bytes(16), inviter=False)
            joiner = await meet_by_nameplate(url, PLATE, inviter=False)
            inviter = await inviting
            await joiner.send(b"hello")
            assert await inviter.receive() == b"hello"
            with pytest.raises(PeerUnreachable, match="refused"):  # they are two already
                await meet_by_nameplate(url, PLATE, inviter=False)
            await joiner.close()
            await inviter.close()
            ends = await asyncio.gather(
                *(meet_by_nameplate(url, PLATE, inviter=each) for each in (True, False))
            )
            for each in ends:
                await each.close()

    run(program())


def test_a_guest_with_a_nameplate_takes_no_partys_place() -> None:
    async def program() -> None:
        bank, shop = Identity.generate(), Identity.generate()
        async with serve("127.0.0.1:0", quiet) as relay:
            waiting = asyncio.create_task(knocking(relay.address, bank, shop))
            guest = await Caller.at(relay.address)
            assert await guest.is_refused(door._JOINER + SALT)  # a salt is no nameplate
            assert not waiting.done()
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    run(program())


def test_a_relay_ends_although_callers_are_silent() -> None:
    async def program() -> None:
        limits = Limits(handshake_seconds=3600)
        async with contextlib.AsyncExitStack() as stack:
            async with serve("127.0.0.1:0", quiet, limits=limits) as relay:
                reader, _ = await stack.enter_async_context(raw(relay.address))
                caller = await Caller.at(relay.address)
                while len(relay._visitors) < 2:
                    await asyncio.sleep(0.01)
            with pytest.raises(PeerUnreachable):
                await caller.stream.receive()
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""

    run(program())


def test_an_inviter_may_listen_itself() -> None:
    async def program() -> None:
        at = free_address()
        async with serve_nameplates(at, [PLATE], quiet) as next_joiner:
            with pytest.raises(PeerUnreachable, match="refused"):
                await meet_by_nameplate(f"ws://{at}", bytes(16), inviter=False)
            with pytest.raises(PeerUnreachable, match="refused"):
                await meet_by_nameplate(f"ws://{at}", PLATE, inviter=True)
            assert await is_refused(at, Identity.generate(), Identity.generate().public, SALT)
            for _ in range(2):
                joiner = await meet_by_nameplate(f"ws://{at}", PLATE, inviter=False)
                inviter = await next_joiner(PLATE)
                with pytest.raises(PeerUnreachable, match="refused"):  # one at a time
                    await meet_by_nameplate(f"ws://{at}", PLATE, inviter=False)
                await inviter.send(b"who are you")
                assert await joiner.receive() == b"who are you"
                await inviter.close()
                with contextlib.suppress(PeerUnreachable):
                    await joiner.receive()

    run(program())


def test_what_is_no_door_is_said_to_be_none() -> None:
    async def program() -> None:
        from websockets.asyncio.server import ServerConnection  # noqa: PLC0415
        from websockets.asyncio.server import serve as serve_anything  # noqa: PLC0415

        async def answer(connection: ServerConnection) -> None:
            async for _ in connection:
                await connection.send(b"what?")

        async with serve_anything(answer, "127.0.0.1", 0) as server:
            at = f"127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
            with pytest.raises(PeerViolation, match="no door"):
                await knocking(at, Identity.generate(), Identity.generate())
            with pytest.raises(PeerViolation, match="no door"):
                await meet_by_nameplate(f"ws://{at}", PLATE, inviter=False)

    run(program())


@pytest.mark.parametrize("listen", ["7000", ":0", "ws://127.0.0.1:0", "127.0.0.1:x"])
def test_a_place_without_a_host_and_a_port_is_refused(listen: str) -> None:
    async def program() -> None:
        with pytest.raises(ConfigError, match="expected HOST:PORT"):
            async with serve(listen, print):
                pass

    run(program())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_says_where_it_listens_and_ends_when_told(number: signal.Signals) -> None:
    command = [sys.executable, "-m", "securevfl", "relay", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ) as process:  # noqa: S603
        assert process.stderr is not None
        line = process.stderr.readline()
        assert line.startswith("relay: listens at 127.0.0.1:")

        async def use() -> None:
            group = Group("bank shop", "", line.split()[-1])
            async with group.pair() as (one, other):
                one.post(b"by another process")
                assert await other.receive() == b"by another process"
                process.send_signal(number)
                with pytest.raises(PeerUnreachable):
                    await other.receive()

        run(use())
        rest = process.stderr.read()
        assert process.wait(30) == 0
    assert rest.rstrip().endswith("ends") or "relay: ends\n" in rest


def test_a_relay_that_dies_is_waited_for() -> None:
    async def program() -> None:
        at = free_address()
        group = Group("bank shop", "", at)
        async with group.links("bank") as bank, group.links("shop") as shop:
            async with serve(at, quiet):
                one, other = await connected(bank, shop)
            for each in (one["shop"], other["bank"]):
                with pytest.raises(PeerUnreachable):
                    await each.receive()
            waiting = asyncio.gather(*(each.connect() for each in (bank, shop)))
            async with serve(at, quiet):
                one, other = await waiting
                one["shop"].post(b"as before")
                assert await other["bank"].receive() == b"as before"

    run(program())
