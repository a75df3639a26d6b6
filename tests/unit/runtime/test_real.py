"""A real channel and its thread: how programs end, and what is refused of peers."""

import asyncio
import threading

import pytest

from securevfl.errors import (
    MalformedMessage,
    PeerTimeout,
    PeerUnreachable,
    PeerViolation,
    UnexpectedMessage,
)
from securevfl.protocols.exchanges.plain import Residuals
from securevfl.protocols.session.gathering import Predictions
from securevfl.protocols.session.scoring import Verdict
from securevfl.runtime.real import ProgramThread, RealChannel
from securevfl.wire.codec import encode
from tests.real_channels import (
    LONG,
    alone,
    pad,
    predictions,
    sealed,
    takes,
)


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
    told = "a waited 0.01 s for Predictions from b in vain"
    with pytest.raises(PeerTimeout, match=told):
        alone(takes(timeout_seconds=0.01))
    with pytest.raises(PeerTimeout, match=told):
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
    ("envelopes", "error", "told"),
    [
        ([sealed(job=bytes(32))], PeerViolation, "b runs another job: hash 0000000000000000"),
        ([sealed(sender="c")], PeerViolation, "b sent an envelope in another party's name"),
        ([sealed(0), sealed(0)], UnexpectedMessage, "b sent its message 0 where 1 is due"),
        ([sealed(0), sealed(2)], UnexpectedMessage, "b sent its message 2 where 1 is due"),
        ([sealed(0)[:-1]], MalformedMessage, "from b: "),
        ([b""], MalformedMessage, "from b: "),
        ([sealed(message=b"")], MalformedMessage, "from b: "),
        ([sealed(message=bytes(101))], MalformedMessage, "at most 100"),
        ([sealed(message=encode(Verdict(0, stop=False)))], UnexpectedMessage, "sent Verdict"),
        ([sealed(0), sealed(0, message=encode(pad()))], UnexpectedMessage, "where 1 is due"),
    ],
)
def test_what_does_not_belong_is_refused_with_the_peers_name(
    envelopes: list[bytes], error: type[Exception], told: str
) -> None:
    def hostile(channel: RealChannel) -> None:
        for data in envelopes:
            channel.deliver("b", data)

    with pytest.raises(error, match=told) as caught:
        alone(takes(2, timeout_seconds=0.0), hostile, max_message_bytes=100)
    assert "\n" not in str(caught.value)
