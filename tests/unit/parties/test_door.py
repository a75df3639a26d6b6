"""Who comes in at a door: nobody takes a party's place, and no bytes do it harm."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from securevfl.errors import PeerError, PeerUnreachable
from securevfl.parties import door
from securevfl.parties.door import Door, Limits
from securevfl.parties.identity import Identity
from securevfl.parties.relay import serve
from tests.hostile import Caller, is_refused, mutations, raw, request, say, throw
from tests.link_parties import Group, connected, run

SALT = bytes(range(32))


def listening() -> Group:
    """A bank, a lab and a shop, at which both others call."""
    return Group("bank lab shop", "bank shop")


@asynccontextmanager
async def shop_of(group: Group) -> AsyncIterator[str]:
    """Its shop's address while it waits for all."""
    async with group.links("shop") as shop:
        waiting = asyncio.create_task(shop.connect())
        yield group.listen["shop"]
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


def test_a_listening_party_admits_its_peers_alone_and_only_for_its_agreement() -> None:
    async def program() -> None:
        group = listening()
        bank, lab, shop = (group.keys[name] for name in ("bank", "lab", "shop"))
        stranger = Identity.generate()
        async with shop_of(group) as at:
            assert not await is_refused(at, bank, shop.public, group.salt)  # the control
            assert await is_refused(at, stranger, shop.public, group.salt)
            assert await is_refused(at, bank, shop.public, bytes([1]) * 32)
            assert await is_refused(at, bank, lab.public, group.salt)
            # the lab has agreed too, and would be the bank
            assert await is_refused(at, lab, shop.public, group.salt, own=bank.public)
            assert await is_refused(at, shop, shop.public, group.salt)
        assert [line for line in group.said["shop"] if "refused a caller" in line] == [
            "refused a caller from 127.0.0.1: it is not awaited here (1 so far)"
        ]

    run(program())


def test_all_are_refused_in_the_same_words() -> None:
    """Else a stranger would learn who has agreed with whom."""

    async def program() -> None:
        group = listening()
        bank, shop = group.keys["bank"], group.keys["shop"]
        answers = set()
        async with shop_of(group) as at:
            for who, key, salt in (
                (bank.public, Identity.generate(), group.salt),
                (bank.public, bank, bytes(32)),
                (Identity.generate().public, bank, group.salt),
            ):
                caller = await Caller.at(at)
                _, asked = await caller.call(who, shop.public, salt)
                await caller.stream.send(key.sign("door", asked))
                with pytest.raises(PeerUnreachable) as refusal:
                    await caller.stream.receive()
                connection = caller.stream._connection
                answers.add((str(refusal.value), connection.close_code, connection.close_reason))
        assert answers == {("refused the connection", door.REFUSED, "")}

    run(program())


@pytest.mark.parametrize("at_relay", [False, True])
def test_an_answer_is_good_once(at_relay: bool) -> None:
    async def program() -> None:
        group = listening()
        bank, shop = group.keys["bank"], group.keys["shop"]
        async with shop_of(group) as own, serve("127.0.0.1:0", lambda _: None) as relay:
            at = relay.address if at_relay else own
            first = await Caller.at(at)
            challenge, asked = await first.call(bank.public, shop.public, group.salt)
            answer = bank.sign("door", asked)
            assert not await first.is_refused(answer)  # the control
            second = await Caller.at(at)
            other, _ = await second.call(bank.public, shop.public, group.salt)
            assert other != challenge
            assert await second.is_refused(answer)

    run(program())


@pytest.mark.parametrize("changed", ["own", "other", "salt", "context"])
def test_an_answer_is_good_for_one_call(changed: str) -> None:
    async def program() -> None:
        bank, shop, lab = (Identity.generate() for _ in range(3))
        async with serve("127.0.0.1:0", lambda _: None) as relay:
            call = {"own": bank.public, "other": shop.public, "salt": SALT}
            caller = await Caller.at(relay.address)
            challenge, _ = await caller.call(**call)
            signed = call | {changed: lab.public} if changed in call else call
            asked = challenge + door._CALL.pack(signed["salt"], signed["own"], signed["other"])
            assert await caller.is_refused(
                bank.sign("agreement" if changed == "context" else "door", asked)
            )

    run(program())


def test_a_stranger_at_the_partys_address_gets_no_word_of_the_other() -> None:
    """Whoever listens there in its place, or sits between, cannot end the inner TLS."""

    async def program() -> None:
        group = Group("bank shop", "shop")
        stranger = Identity.generate()

        async def welcome(stream: door.Stream, caller: door.Caller) -> None:
            await door.bring_together(stream)
            wire = stranger.tls(caller.own, server=True)
            data, over = b"", False
            with contextlib.suppress(PeerError):
                while not over:
                    sent, over = wire.shake_hands(data)
                    if sent:
                        await stream.send(sent)
                    if not over:
                        data = await stream.receive()
                heard.append(data)

        heard: list[bytes] = []
        false_shop = Door(group.listen["shop"], lambda _: True, welcome, lambda _: None)
        await false_shop.open()
        async with group.links("bank") as bank:
            waiting = asyncio.create_task(bank.connect())
            while not any("is not who it says" in line for line in group.said["bank"]):
                await asyncio.sleep(0.01)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        await false_shop.close()
        assert not heard

    run(program())


def test_one_address_or_many_connections_cannot_fill_a_door() -> None:
    async def program() -> None:
        limits = Limits(connections=5, of_address=2)
        bank, shop = Identity.generate(), Identity.generate()
        async with serve("127.0.0.1:0", lambda _: None, limits=limits) as relay, raw(relay.address):
            async with raw(relay.address):
                with pytest.raises(PeerUnreachable):
                    await door.dial(f"ws://{relay.address}")
                assert relay.refused == {"too many connections of this address": 1}
            while relay._of_address.total() > 1:
                await asyncio.sleep(0.01)
            assert not await is_refused(relay.address, bank, shop.public, SALT)
            relay.limits = Limits(connections=1, of_address=10)
            with pytest.raises(PeerUnreachable):
                await door.dial(f"ws://{relay.address}")
            assert relay.refused["too many connections"] == 1

    run(program())


def test_a_caller_that_is_slow_is_not_waited_for() -> None:
    async def program() -> None:
        limits = Limits(handshake_seconds=0.3)
        async with serve("127.0.0.1:0", lambda _: None, limits=limits) as relay:
            async with raw(relay.address) as (reader, writer):
                writer.write(b"GET / HT")
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read() == b""
            silent = await door.dial(f"ws://{relay.address}")
            with pytest.raises(PeerUnreachable, match="refused"):
                await silent.receive()
            assert relay.refused == {"it did not say who it is": 1}

    run(program())


def test_messages_are_short_until_the_ends_have_met() -> None:
    async def program() -> None:
        async with serve("127.0.0.1:0", lambda _: None) as relay:
            caller = await Caller.at(relay.address)
            await caller.stream.send(bytes(door.MOST_CALL_BYTES + 1))
            with pytest.raises(PeerUnreachable):
                await caller.stream.receive()
            assert caller.stream._connection.close_code == 1009
            async with raw(relay.address) as (reader, writer):
                writer.write(request(relay.address))
                await reader.readuntil(b"\r\n\r\n")
                writer.write(b"\x82\xff" + bytes([127] + 7 * [255]))
                answer = await reader.read()  # not one byte more is awaited
                assert answer[2:4] == (1009).to_bytes(2)

    run(program())


def test_replies_that_nobody_reads_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "MOST_UNREAD_BYTES", 1 << 16)
    pings = (bytes([0x89, 0x80 | 125]) + bytes(4 + 125)) * 500

    async def flood(writer: asyncio.StreamWriter) -> None:
        for _ in range(400):  # 26 MB: more than all buffers on the way
            writer.write(pings)
            await writer.drain()

    async def program() -> None:
        limits = Limits(handshake_seconds=60)
        async with (
            serve("127.0.0.1:0", lambda _: None, limits=limits) as relay,
            raw(relay.address) as (_, writer),
        ):
            writer.write(request(relay.address))
            with pytest.raises(ConnectionError):
                await flood(writer)

    run(program())


async def _bombard(group: Group, at: str, times: int, seed: int) -> None:
    choices = random.Random(seed)  # noqa: S311
    bank, shop = group.keys["bank"], group.keys["shop"]
    call = door._PARTY + door._CALL.pack(group.salt, bank.public, shop.public)
    calls, answers = mutations(call, choices), mutations(bank.sign("door", call), choices)
    plate = mutations(door._JOINER + bytes(16), choices)
    raw = mutations(request(at) + b"\x82\xe7" + bytes(4) + call, choices)
    for k in range(times):
        match k % 4:
            case 0:
                await say(at, [next(calls)])
            case 1:
                await say(at, [call, next(answers)])
            case 2:
                await say(at, [next(plate)])
            case _:
                await throw(at, next(raw))


async def _is_well(times: int, seed: int) -> None:
    """Bombard a listening party and a relay; then both still do their work, and hold nothing."""
    said: list[str] = []
    async with serve("127.0.0.1:0", said.append) as relay:
        group, out = Group("bank shop", "shop"), Group("bank shop", "", relay.address)
        async with group.links("shop") as shop, group.links("bank") as bank:
            waiting = asyncio.create_task(shop.connect())
            targets = 4 * (group.listen["shop"], relay.address)
            await asyncio.gather(
                *(_bombard(group, at, times // 8, seed + k) for k, at in enumerate(targets))
            )
            await connected(bank)
            await waiting
        async with out.links("shop") as shop, out.links("bank") as bank:
            one, other = await connected(shop, bank)
            one["bank"].post(b"as ever")
            assert await other["shop"].receive() == b"as ever"
        while relay._of_address:
            await asyncio.sleep(0.01)
        assert relay.refused.total() > times // 8
        assert not [line for line in said + group.said["shop"] if "unexpectedly" in line]


def test_no_first_message_harms_a_door() -> None:
    run(_is_well(2000, 1))


@pytest.mark.slow
def test_no_first_message_of_very_many_harms_a_door(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.link_parties.SECONDS", 3600.0)
    run(_is_well(100_000, 3))
