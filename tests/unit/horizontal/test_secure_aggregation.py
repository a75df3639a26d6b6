import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import numpy as np
import pytest

from securevfl.arrays import FloatArray
from securevfl.crypto.fixed_point import decode, from_ring
from securevfl.errors import PeerTimeout, PeerViolation, RangeExceeded, UnexpectedMessage
from securevfl.horizontal.secure_aggregation import (
    FRACTION_BITS,
    Closed,
    MaskedUpload,
    Ready,
    Roster,
    Sums,
    give_masked,
    take_masked,
)
from securevfl.runtime.channel import Channel
from securevfl.runtime.costs import Costs, FixedCosts
from securevfl.runtime.line import Line
from securevfl.runtime.simulation import Program, Simulated, Tamper, simulate
from securevfl.wire.codec import decode as message_of

LINE = Line(latency_ms=1, bandwidth_mbit=1000)
SIZES, SHARED = [3, 5], 2
BLOCKS = {"a": 0, "b": 0, "c": 1, "d": 1, "e": 1}
Giving = Callable[[Channel, Costs], Coroutine[Any, Any, Any]]


def upload(name: str) -> tuple[FloatArray, FloatArray]:
    draws = np.random.default_rng(ord(name))
    return draws.standard_normal(SIZES[BLOCKS[name]]), draws.standard_normal(SHARED)


def giving(
    name: str,
    late: float = 0.0,
    steps: int = 1,
    job_hash: bytes = b"job",
    given: tuple[FloatArray, FloatArray] | None = None,
) -> Giving:
    own, shared = upload(name) if given is None else given

    async def program(channel: Channel, costs: Costs) -> list[bool]:
        await asyncio.sleep(late)
        give = partial(give_masked, channel, costs, job_hash, block=BLOCKS[name])
        return [await give(step=step, own=own, shared=shared) for step in range(steps)]

    return program


def taking(steps: int = 1, timeout: float | None = None) -> Giving:
    async def program(channel: Channel, _: Costs) -> list[Sums | str]:
        take, taken = partial(take_masked, channel, BLOCKS, sizes=SIZES), list[Sums | str]()
        for step in range(steps):
            try:
                taken.append(await take(step=step, shared=SHARED, timeout_seconds=timeout))
            except PeerTimeout as error:
                taken.append(str(error))
        return taken

    return program


def run(
    clients: dict[str, Giving], server: Giving | None = None, tamper: Tamper | None = None
) -> Simulated[Any]:
    programs: dict[str, Program[Any]] = {"server": server or taking(), **clients}
    return simulate(programs, LINE, stopwatch=FixedCosts({"encrypt": 0.0}), tamper=tamper)


def everyone(**others: Giving) -> dict[str, Giving]:
    return {name: giving(name) for name in BLOCKS} | others


def expect_sums(sums: Sums, names: str) -> None:
    for block, total in sums.own.items():
        members = [name for name in names if BLOCKS[name] == block]
        assert sums.uploads[block] == len(members)
        # Each summand is rounded by 2^-41 at most.
        expected = np.sum([upload(name)[0] for name in members], axis=0)
        np.testing.assert_allclose(total, expected, rtol=0, atol=len(members) * 2.0**-41)
    shared = np.sum([upload(name)[1] for name in names], axis=0)
    np.testing.assert_allclose(sums.shared, shared, rtol=0, atol=len(names) * 2.0**-41)


def test_the_server_has_each_groups_sum_and_everyones() -> None:
    done = run({name: giving(name, steps=2) for name in BLOCKS}, taking(steps=2))
    for sums in done.results["server"]:
        assert sorted(sums.own) == [0, 1]
        expect_sums(sums, "abcde")
    assert all(done.results[name] == [True, True] for name in BLOCKS)


def masked(clients: dict[str, Giving], server: Giving) -> dict[tuple[str, int], MaskedUpload]:
    """Every upload that is sent, by its sender and round."""
    sent: dict[tuple[str, int], MaskedUpload] = {}

    def overheard(sender: str, _: str, data: bytes) -> bytes:
        message = message_of(data)
        if isinstance(message, MaskedUpload):
            assert (sender, message.step) not in sent
            sent[sender, message.step] = message
        return data

    run(clients, server, overheard)
    return sent


def test_what_a_client_sends_is_fresh_and_none_of_its_numbers() -> None:
    sent = masked({name: giving(name, steps=2) for name in BLOCKS}, taking(steps=2))
    assert len(sent) == 10
    for (name, _), message in sent.items():
        for words, clear in zip((message.own, message.shared), upload(name), strict=True):
            # A uniform word is within 2^32 of the clear one with a chance of 2^-31.
            off = np.abs(decode(from_ring(words), FRACTION_BITS) - clear)
            assert np.all(off > 2.0 ** (32 - FRACTION_BITS))
    # The same upload in another round, under another key.
    for name in BLOCKS:
        assert not np.any(sent[name, 0].own == sent[name, 1].own)


def test_two_of_three_masked_uploads_of_a_group_tell_no_sum() -> None:
    sent = masked(everyone(), taking())
    for names, hidden in [("abcde", False), ("abcd", True), ("de", True)]:
        total = np.add.reduce([sent[name, 0].shared for name in names])
        clear = np.sum([upload(name)[1] for name in names], axis=0)
        off = np.abs(decode(from_ring(total), FRACTION_BITS) - clear)
        assert bool(np.all(off > 2.0 ** (32 - FRACTION_BITS))) == hidden


def test_a_client_that_is_late_is_left_out_and_takes_part_in_the_next_round() -> None:
    clients = {name: giving(name, steps=2) for name in BLOCKS}
    clients["e"] = giving("e", late=10.0, steps=2)
    done = run(clients, taking(steps=2, timeout=9.0))
    first, second = done.results["server"]
    expect_sums(first, "abcd")
    # Its word that it is ready for the first round comes when the second has begun.
    expect_sums(second, "abcde")
    assert done.results["e"] == [False, True]
    assert done.results["d"] == [True, True]


def test_a_client_that_is_left_alone_in_its_group_is_not_summed() -> None:
    done = run(everyone(a=giving("a", late=10.0)), taking(timeout=5.0))
    (sums,) = done.results["server"]
    assert sorted(sums.own) == [1]
    expect_sums(sums, "cde")
    assert (done.results["b"], done.results["c"]) == ([False], [True])


def test_without_any_group_the_round_is_void() -> None:
    gone = {name: giving(name, late=10.0) for name in "bde"}
    done = run(everyone(**gone), taking(timeout=5.0))
    assert "no group has 2 clients" in done.results["server"][0]
    assert all(done.results[name] == [False] for name in BLOCKS)


def test_masks_of_clients_with_another_job_do_not_cancel() -> None:
    done = run(everyone(a=giving("a", job_hash=b"other"), d=giving("d", job_hash=b"other")))
    (sums,) = done.results["server"]
    for found, clear in [
        (sums.own[0], upload("a")[0] + upload("b")[0]),
        (sums.own[1], np.sum([upload(name)[0] for name in "cde"], axis=0)),
    ]:
        assert np.all(np.abs(found - clear) > 2.0 ** (32 - FRACTION_BITS))


def test_an_upload_that_is_lost_voids_the_round_for_everyone() -> None:
    def lost(sender: str, _: str, data: bytes) -> bytes | None:
        is_lost = sender == "d" and isinstance(message_of(data), MaskedUpload)
        return None if is_lost else data

    done = run(everyone(), taking(timeout=5.0), lost)
    assert "d" in done.results["server"][0]
    assert all(done.results[name] == [False] for name in BLOCKS)


def ask(*rosters: Callable[[dict[str, bytes]], Roster]) -> Giving:
    """A server that sends rosters of its own making, of the keys that it got."""

    async def program(channel: Channel, costs: Costs) -> None:
        keys = {}
        for _ in BLOCKS:
            sender, ready = await channel.receive(list(BLOCKS), Ready, 0)
            keys[sender] = ready.key
        for roster in rosters:
            await channel.send("a", roster(keys))

    return program


async def silent(channel: Channel, costs: Costs) -> None:
    """A client that says that it is ready and nothing more."""
    await channel.send("server", Ready(0, bytes(32)))


def roster(names: str, keys: dict[str, bytes], blocks: list[int] | None = None) -> Roster:
    listed = [BLOCKS[name] for name in names] if blocks is None else blocks
    return Roster(
        0,
        tuple(name.encode() for name in names),
        tuple(keys[name] for name in names),
        np.array(listed, np.uint64),
    )


@pytest.mark.parametrize(
    ("made", "refused"),
    [
        (lambda keys: roster("acde", keys), "alone in its group"),
        (lambda keys: roster("aac", keys), "a name twice"),
        (lambda keys: roster("ab", keys, [1, 1]), "another key or block"),
        (lambda keys: roster("ab", keys | {"a": bytes(32)}), "another key or block"),
        (lambda keys: roster("ab", keys, [0]), "one key and one block a name"),
        (lambda keys: Roster(0, (b"a", b"\xff"), (b"", b""), np.zeros(2, np.uint64)), "UTF-8"),
        (lambda keys: Roster(0, (b"a",), (b"",), np.zeros((1, 1), np.uint64)), "one key and one"),
    ],
)
def test_a_client_gives_nothing_to_a_roster_that_would_not_hide_it(
    made: Callable[[dict[str, bytes]], Roster], refused: str
) -> None:
    clients = {name: silent for name in BLOCKS} | {"a": giving("a")}
    with pytest.raises(PeerViolation, match=refused):
        run(clients, ask(made))


def test_a_client_never_masks_one_upload_twice() -> None:
    # Real keys, as a client looks at those of its peers.
    twice = ask(lambda keys: roster("abcd", keys), lambda keys: roster("abcde", keys))
    with pytest.raises(UnexpectedMessage):
        run(everyone(), twice)


@pytest.mark.parametrize(("own", "shared"), [(4, SHARED), (1, SHARED), (SIZES[0], 1)])
def test_an_upload_of_another_shape_is_refused_and_voids_the_round(own: int, shared: int) -> None:
    """Also one that NumPy would repeat for every entry of the block."""
    counted = list[bool]()

    def overheard(_: str, to: str, data: bytes) -> bytes:
        message = message_of(data)
        if isinstance(message, Closed):
            counted.append(message.counts)
        return data

    with pytest.raises(UnexpectedMessage, match="a sent an array of"):
        run(everyone(a=giving("a", given=(np.zeros(own), np.zeros(shared)))), tamper=overheard)
    assert counted == [False] * 5


@pytest.mark.parametrize("step", [1, 2])
def test_a_client_cannot_be_ready_before_its_round(step: int) -> None:
    async def early(channel: Channel, _: Costs) -> None:
        await channel.send("server", Ready(step, bytes(32)))

    with pytest.raises(UnexpectedMessage, match="a is ready in round"):
        run(everyone(a=early))


@pytest.mark.parametrize("bad", [np.nan, np.inf, 2.0**22 / 5 * 1.001])
def test_what_could_wrap_is_refused_before_it_is_sent(bad: float) -> None:
    with pytest.raises(RangeExceeded, match="upload: largest"):
        run(everyone(a=giving("a", given=(np.array([0, bad, 0]), np.zeros(SHARED)))))


def test_the_largest_allowed_sum_does_not_wrap() -> None:
    most = 2.0**22 / 5
    clients = {
        name: giving(name, given=(np.full(SIZES[block], -most), np.full(SHARED, most)))
        for name, block in BLOCKS.items()
    }
    (sums,) = run(clients).results["server"]
    np.testing.assert_allclose(sums.shared, 5 * most)
    np.testing.assert_allclose(sums.own[1], -3 * most)
