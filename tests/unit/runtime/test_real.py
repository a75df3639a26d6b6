"""A real channel and its thread: how programs and waits end, what is refused, what is counted."""

import asyncio
import sys
import threading
import time

import numpy as np
import pytest

from securevfl.errors import (
    MalformedMessage,
    PeerTimeout,
    PeerUnreachable,
    PeerViolation,
    UnexpectedMessage,
)
from securevfl.protocols.exchanges.plain import Residuals
from securevfl.protocols.session.gathering import HeldOutPredictions, Predictions
from securevfl.protocols.session.keys import PublicKey
from securevfl.protocols.session.scoring import Verdict
from securevfl.runtime.costs import (
    COMMUNICATION,
    CORRELATED_RANDOMNESS,
    OFFLINE_COMMUNICATION,
    SCORING,
    SETUP,
    FixedCosts,
)
from securevfl.runtime.real import ENTRY_BYTES, ProgramThread, RealChannel
from securevfl.wire.codec import Message, encode
from tests.made_offline import Pad
from tests.real_channels import JOB, LONG, alone, pad, predictions, sealed, summed, takes, together


def test_the_callers_loop_lives_while_a_program_computes() -> None:
    """A computation that ends only once the other thread's loop has turned a few times."""
    turned = threading.Semaphore(0)

    async def computes() -> bool:
        return all(turned.acquire(timeout=LONG) for _ in range(3))

    async def main() -> bool:
        with ProgramThread() as thread:
            computing = asyncio.create_task(thread.run(computes()))
            while not computing.done():
                await asyncio.sleep(0.001)
                turned.release()
            return computing.result()

    assert asyncio.run(main())


def test_leaving_cancels_a_program_at_its_next_wait() -> None:
    ended = []

    async def waits() -> None:
        try:
            await asyncio.sleep(10 * LONG)
        finally:
            ended.append(threading.current_thread())

    async def main() -> None:
        with ProgramThread() as thread:
            running = asyncio.create_task(thread.run(waits()))
            await asyncio.sleep(0.01)
            running.cancel()

    asyncio.run(main())
    assert len(ended) == 1
    assert ended[0] is not threading.current_thread()


def test_a_deadline_names_who_waited_for_what() -> None:
    error_text = "a waited 0.01 s for Predictions from b in vain"
    with pytest.raises(PeerTimeout, match=error_text):
        alone(takes(timeout_seconds=0.01))
    with pytest.raises(PeerTimeout, match=error_text):
        alone(takes(), timeout_seconds=0.01)


def test_a_lost_peer_ends_the_wait_but_what_came_before_counts() -> None:
    def came_and_went(channel: RealChannel) -> None:
        channel.deliver("b", sealed())
        channel.lose("b", PeerUnreachable("b hung up"))

    async def program(channel: RealChannel) -> None:
        await channel.receive(["b"], Predictions)
        with pytest.raises(PeerUnreachable, match="a waits for Verdict from b: b hung up"):
            await channel.receive(["b"], Verdict)
        with pytest.raises(PeerUnreachable, match="a waits for Residuals from b: b hung up"):
            await channel.receive(["b"], Residuals)

    alone(program, came_and_went)


@pytest.mark.parametrize("to", ["a", "c"])
def test_there_is_no_way_to_oneself_or_to_a_stranger(to: str) -> None:
    with pytest.raises(PeerUnreachable, match=f"a has no peer '{to}'"):
        alone(lambda channel: channel.send(to, predictions()))


@pytest.mark.parametrize(
    ("envelopes", "error", "error_text"),
    [
        ([sealed(job=bytes(32))], PeerViolation, "b runs another job: hash 0000000000000000"),
        ([sealed(sender="c")], PeerViolation, "b sent an envelope in another party's name"),
        ([sealed(0), sealed(0)], UnexpectedMessage, "b sent its message 0 where 1 is expected"),
        ([sealed(0), sealed(2)], UnexpectedMessage, "b sent its message 2 where 1 is expected"),
        ([sealed(0)[:-1]], MalformedMessage, "from b: "),
        ([b""], MalformedMessage, "from b: "),
        ([sealed(message=b"")], MalformedMessage, "from b: "),
        ([sealed(message=bytes(101))], MalformedMessage, "at most 100"),
        ([sealed(message=encode(Verdict(0, stop=False)))], UnexpectedMessage, "sent Verdict"),
        ([sealed(0), sealed(0, message=encode(pad()))], UnexpectedMessage, "where 1 is expected"),
    ],
)
def test_what_does_not_belong_is_refused_with_the_peers_name(
    envelopes: list[bytes], error: type[Exception], error_text: str
) -> None:
    def hostile(channel: RealChannel) -> None:
        for data in envelopes:
            channel.deliver("b", data)

    with pytest.raises(error, match=error_text) as caught:
        alone(takes(2, timeout_seconds=0.0), hostile, max_message_bytes=100)
    assert "\n" not in str(caught.value)


async def rounds(channel: RealChannel, me: str, peer: str) -> None:
    """Set-up and three rounds, in which "a" computes longer than "b"; then scoring."""
    costs = channel.costs
    async with costs.compute(SETUP):
        pass
    await channel.send(peer, PublicKey("bfv", bytes(1000)))
    await channel.receive([peer], PublicKey)
    for step in range(3):
        async with costs.compute("local" if me == "b" else "evaluate"):
            if me == "a":
                time.sleep(0.02)
        await channel.send(peer, predictions(step))
        await channel.receive([peer], Predictions, step)
        assert summed(costs) == pytest.approx(costs.now)
        costs.end_round()
    before = dict(costs.path), costs.now
    async with costs.compute(SCORING):
        pass
    await channel.send(peer, HeldOutPredictions(0, np.ones((9, 1))))
    await channel.receive([peer], HeldOutPredictions)
    assert (dict(costs.path), costs.now) == before


def test_components_add_up_to_the_clock_and_follow_the_slower_party() -> None:
    a, b = together(
        lambda channel: rounds(channel, "a", "b"), lambda channel: rounds(channel, "b", "a")
    )
    for channel in (a, b):
        path = channel.costs.path
        assert set(path) >= {SETUP, "evaluate"}
        assert min(path.values()) >= 0.0
        assert channel.costs.now == pytest.approx(summed(channel.costs))
    # It never did that itself.
    assert "evaluate" not in b.costs.seconds
    assert (a.costs.hops, b.costs.hops) == (3, 3)
    assert len(a.costs.snapshots) == len(b.costs.snapshots) == 3


def test_waiting_for_the_network_is_communication() -> None:
    async def sends_late(channel: RealChannel) -> None:
        await asyncio.sleep(0.05)
        await channel.send("a", predictions())

    a, b = together(takes(), sends_late)
    assert a.costs.path == {COMMUNICATION: pytest.approx(a.costs.now)}
    assert a.costs.now >= 0.04
    # Turning a message into bytes is all that "b" did.
    assert b.costs.path == {COMMUNICATION: pytest.approx(b.costs.now)}
    assert b.costs.bytes_sent == {"Predictions": len(encode(predictions()))}


def test_a_message_that_was_there_leaves_the_receivers_path() -> None:
    def early(channel: RealChannel) -> None:
        channel.deliver("b", sealed(path={"encrypt": 1.0}))

    async def computes(channel: RealChannel) -> None:
        async with channel.costs.compute("evaluate"):
            await asyncio.sleep(0)
        await channel.receive(["b"], Predictions)

    a = alone(computes, early, stopwatch=FixedCosts({"evaluate": 5.0}))
    assert set(a.costs.path) == {"evaluate", COMMUNICATION}
    assert a.costs.path["evaluate"] == 5.0


def test_a_clock_is_set_forward_to_that_of_a_peer_who_started_earlier() -> None:
    def early(channel: RealChannel) -> None:
        channel.deliver("b", sealed(path={"encrypt": 1e6}))

    a = alone(takes(), early)
    assert a.costs.path["encrypt"] == 1e6
    assert 1e6 <= a.costs.now == pytest.approx(summed(a.costs))


def test_what_is_made_offline_has_components_of_its_own() -> None:
    def came(channel: RealChannel) -> None:
        channel.deliver("b", sealed(0, path={CORRELATED_RANDOMNESS: 1e6}, message=encode(pad())))
        channel.deliver("b", sealed(1, path={CORRELATED_RANDOMNESS: 2e6}))

    async def program(channel: RealChannel) -> None:
        costs = channel.costs
        await channel.send("b", pad())
        assert set(costs.path) == {OFFLINE_COMMUNICATION}
        await channel.receive(["b"], Pad)
        assert set(costs.path) == {CORRELATED_RANDOMNESS, OFFLINE_COMMUNICATION}
        assert (costs.path[CORRELATED_RANDOMNESS], costs.hops) == (1e6, 0)
        await channel.receive(["b"], Predictions)
        assert set(costs.path) == {CORRELATED_RANDOMNESS, COMMUNICATION}
        assert (costs.path[CORRELATED_RANDOMNESS], costs.hops) == (2e6, 1)
        assert summed(costs) == pytest.approx(costs.now)

    alone(program, came)


def test_a_round_takes_its_own_message_past_one_that_was_sent_offline() -> None:
    def came(channel: RealChannel) -> None:
        for number, message in enumerate([pad(), predictions(0), pad(1), predictions(1)]):
            channel.deliver("b", sealed(number, message=encode(message)))

    async def program(channel: RealChannel) -> None:
        for kind in (Predictions, Pad):
            for step in range(2):
                await channel.receive(["b"], kind, step)

    alone(program, came)


def test_a_message_offline_ends_no_rounds_wait_and_no_work_in_it() -> None:
    """Pieces are done until the message of the round is there, whatever comes before."""
    ended = []

    async def works(channel: RealChannel) -> None:
        pieces = iter(range(3))

        def piece() -> bool:
            which = next(pieces)
            message = pad() if which == 0 else predictions()
            if which < 2:
                channel.deliver("b", sealed(which, message=encode(message)))
            ended.append(which)
            return True

        channel.costs.idle_work.append(piece)
        await channel.receive(["b"], Predictions)

    alone(works)
    assert ended == [0, 1]


@pytest.mark.parametrize("kind", [Pad, Predictions])
def test_what_is_wrong_with_a_peer_ends_any_wait_for_it(kind: type[Pad | Predictions]) -> None:
    async def program(channel: RealChannel) -> None:
        await channel.receive(["b"], kind)

    with pytest.raises(MalformedMessage, match="from b: "):
        alone(program, lambda channel: channel.deliver("b", b""), timeout_seconds=0.0)
    with pytest.raises(PeerUnreachable, match="b hung up"):
        alone(program, lambda channel: channel.lose("b", PeerUnreachable("b hung up")))


def test_work_offline_fills_a_wait_whose_end_nobody_knows() -> None:
    done = threading.Semaphore(0)

    async def works(channel: RealChannel) -> None:
        def piece() -> bool:
            done.release()
            return True

        channel.costs.idle_work.append(piece)
        await channel.receive(["b"], Predictions)

    async def waits_for_pieces(channel: RealChannel) -> None:
        for _ in range(3):
            assert done.acquire(timeout=LONG)
        await channel.send("a", predictions())

    costs = together(works, waits_for_pieces)[0].costs
    assert 0 < costs.hidden_s <= costs.seconds["offline"]
    outlasted = costs.path.get("offline", 0.0)
    assert costs.seconds["offline"] == pytest.approx(costs.hidden_s + outlasted)
    assert summed(costs) == pytest.approx(costs.now)


def test_a_piece_that_outlasts_the_wait_is_on_the_path() -> None:
    async def works(channel: RealChannel) -> None:
        pieces = iter([True, False])

        def piece() -> bool:
            if more := next(pieces):
                channel.deliver("b", sealed())
                time.sleep(0.05)
            return more

        channel.costs.idle_work.append(piece)
        await channel.receive(["b"], Predictions)

    costs = alone(works).costs
    assert costs.path["offline"] >= 0.04
    assert costs.hidden_s == pytest.approx(costs.seconds["offline"] - costs.path["offline"])
    assert summed(costs) == pytest.approx(costs.now)


def test_work_offline_ends_with_its_supply_the_deadline_or_the_peer() -> None:
    async def works(channel: RealChannel) -> None:
        pieces = iter([True, True])
        channel.costs.idle_work.append(lambda: next(pieces, False))
        with pytest.raises(PeerTimeout):
            await channel.receive(["b"], Predictions, timeout_seconds=0.01)
        assert next(pieces, None) is None
        channel.costs.idle_work.append(lambda: True)
        with pytest.raises(PeerTimeout):
            await channel.receive(["b"], Predictions, timeout_seconds=0.01)
        channel.lose("b", PeerUnreachable("b hung up"))
        with pytest.raises(PeerUnreachable):
            await channel.receive(["b"], Predictions)

    alone(works)


@pytest.mark.parametrize("busy", ["leaving", "arriving"])
def test_no_work_begins_while_a_message_leaves_or_arrives(busy: str) -> None:
    """It would keep the interpreter's lock from the thread that carries the message."""

    async def run() -> RealChannel:
        loop = asyncio.get_running_loop()
        channel = RealChannel(
            "a",
            {"b"},
            job_hash=JOB,
            loop=loop,
            carry=lambda *_: None,
            **{busy: lambda: True},  # type: ignore[arg-type]
        )
        channel.costs.idle_work.append(lambda: pytest.fail("a piece was done"))
        loop.call_later(0.01, channel.deliver, "b", sealed())
        await channel.receive(["b"], Predictions)
        return channel

    costs = asyncio.run(run()).costs
    assert costs.path["communication"] == pytest.approx(costs.now)


def test_scoring_waits_are_not_filled_with_work() -> None:
    """What would be done in them is on no ledger's path, and scoring shall not change it."""

    async def waits(channel: RealChannel) -> None:
        channel.costs.idle_work.append(lambda: pytest.fail("a piece was done"))
        with pytest.raises(PeerTimeout):
            await channel.receive(["b"], HeldOutPredictions, timeout_seconds=0.01)

    assert alone(waits).costs.path == {}


# ------------------------------------------------- what arrives before it is received is bounded

MOST = 20 * (ENTRY_BYTES + len(sealed()))


@pytest.mark.parametrize("kind", [Predictions, Verdict, Pad])
def test_a_peer_that_sends_more_than_is_held_ends_any_wait_and_is_named(
    kind: type[Message],
) -> None:
    """Also a wait for another kind, or for somebody who has sent something already."""

    def flood(channel: RealChannel) -> None:
        channel.deliver("c", sealed(sender="c"))
        for number in range(21):
            channel.deliver("b", sealed(number))

    async def program(channel: RealChannel) -> None:
        await channel.receive(["c"], kind)

    with pytest.raises(PeerViolation, match=f"b sent .* before a received .* at most {MOST} "):
        alone(program, flood, most_held_bytes=MOST, timeout_seconds=LONG)


def test_a_flood_ends_a_wait_that_has_begun() -> None:
    async def program(channel: RealChannel) -> None:
        flooding = threading.Timer(0.05, flood, [channel])
        flooding.start()
        with pytest.raises(PeerViolation, match="b sent"):
            await channel.receive(["c"], Predictions)

    def flood(channel: RealChannel) -> None:
        for number in range(21):
            channel.deliver("b", sealed(number))

    alone(program, most_held_bytes=MOST)


def test_what_a_flood_brought_is_freed_though_the_program_computes() -> None:
    """Its loop stands still, as in a long product, so nothing is received or sorted."""
    data = [bytes(1 << 20) for _ in range(20)]

    def references() -> list[int]:
        return [sys.getrefcount(data[place]) for place in range(20)]

    def deliver(channel: RealChannel, places: range) -> None:
        def all_of_them() -> None:
            for place in places:
                channel.deliver("b", data[place])

        network = threading.Thread(target=all_of_them)
        network.start()
        network.join()

    async def program(channel: RealChannel) -> None:
        before = references()
        deliver(channel, range(10))
        holding = references()
        assert [now - then for now, then in zip(holding, before, strict=True)] == [1] * 10 + [
            0
        ] * 10
        assert channel.held_bytes("b") == 10 * (ENTRY_BYTES + (1 << 20))
        deliver(channel, range(10, 20))
        afterwards = references()
        assert afterwards == before
        assert channel.held_bytes("b") == 0
        with pytest.raises(PeerViolation):
            await channel.receive(["c"], Predictions)

    alone(program, most_held_bytes=11 << 20)


def test_whatever_one_sends_in_time_is_received_however_much_it_is() -> None:
    async def program(channel: RealChannel) -> None:
        for number in range(0, 100, 20):
            for each in range(number, number + 20):
                channel.deliver("b", sealed(each))
            assert channel.held_bytes("b") == MOST
            for _ in range(20):
                await channel.receive(["b"], Predictions)
            assert channel.held_bytes("b") == 0

    alone(program, most_held_bytes=MOST)


def test_messages_of_no_bytes_count_as_what_they_hold() -> None:
    async def program(channel: RealChannel) -> None:
        for _ in range(20_000):
            channel.deliver("b", b"")
        with pytest.raises(PeerViolation, match="before a received"):
            await channel.receive(["c"], Predictions)

    alone(program, most_held_bytes=10_000 * ENTRY_BYTES)


@pytest.mark.parametrize("passes", [3, 0])
def test_what_arrives_while_the_program_computes_on_the_transports_loop_made_nobody_wait(
    passes: int,
) -> None:
    """Such a loop stands still meanwhile, and takes some passes to deliver what lies there."""

    async def run() -> RealChannel:
        loop = asyncio.get_running_loop()
        channel = RealChannel(
            "a",
            {"b"},
            job_hash=JOB,
            loop=loop,
            carry=lambda *_: None,
            passes=passes,
            arriving=lambda: True,
        )
        data = sealed(0, path={"encrypt": 1e-9})
        loop.call_soon(loop.call_soon, loop.call_soon, channel.deliver, "b", data)
        async with channel.costs.compute("local"):
            time.sleep(0.001)
        await channel.receive(["b"], Predictions)
        return channel

    path = asyncio.run(run()).costs.path
    # Whoever waits takes over the path of the party that it waited for.
    assert ("encrypt" in path) == (passes == 0)
    assert ("local" in path) == (passes > 0)
