"""What ends a real channel's wait, and the work that is done in it."""

import threading
import time

import pytest

from securevfl.errors import (
    MalformedMessage,
    PeerTimeout,
    PeerUnreachable,
)
from securevfl.protocols.session.gathering import Predictions
from securevfl.runtime.real import RealChannel
from securevfl.wire.codec import encode
from tests.made_ahead import Pad
from tests.real_channels import LONG, alone, pad, predictions, sealed, summed, together


def test_a_round_takes_its_own_message_past_one_that_was_sent_ahead() -> None:
    def came(channel: RealChannel) -> None:
        for number, message in enumerate([pad(), predictions(0), pad(1), predictions(1)]):
            channel.deliver("b", sealed(number, message=encode(message)))

    async def program(channel: RealChannel) -> None:
        for kind in (Predictions, Pad):
            for step in range(2):
                await channel.receive(["b"], kind, step)

    alone(program, came)


def test_a_message_ahead_ends_no_rounds_wait_and_no_work_in_it() -> None:
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

        channel.costs.ahead.append(piece)
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


def test_work_ahead_fills_a_wait_whose_end_nobody_knows() -> None:
    done = threading.Semaphore(0)

    async def works(channel: RealChannel) -> None:
        def piece() -> bool:
            done.release()
            return True

        channel.costs.ahead.append(piece)
        await channel.receive(["b"], Predictions)

    async def waits_for_pieces(channel: RealChannel) -> None:
        for _ in range(3):
            assert done.acquire(timeout=LONG)
        await channel.send("a", predictions())

    costs = together(works, waits_for_pieces)[0].costs
    assert 0 < costs.hidden_s <= costs.seconds["offline"]
    outlasted = costs.path.get("offline", 0.0)
    assert costs.seconds["offline"] == pytest.approx(costs.hidden_s + outlasted)
    assert summed(costs) == pytest.approx(costs.clock.now())


def test_a_piece_that_outlasts_the_wait_is_on_the_path() -> None:
    async def works(channel: RealChannel) -> None:
        pieces = iter([True, False])

        def piece() -> bool:
            if more := next(pieces):
                channel.deliver("b", sealed())
                time.sleep(0.05)
            return more

        channel.costs.ahead.append(piece)
        await channel.receive(["b"], Predictions)

    costs = alone(works).costs
    assert costs.path["offline"] >= 0.04
    assert costs.hidden_s == pytest.approx(costs.seconds["offline"] - costs.path["offline"])
    assert summed(costs) == pytest.approx(costs.clock.now())


def test_work_ahead_ends_with_its_supply_the_deadline_or_the_peer() -> None:
    async def works(channel: RealChannel) -> None:
        pieces = iter([True, True])
        channel.costs.ahead.append(lambda: next(pieces, False))
        with pytest.raises(PeerTimeout):
            await channel.receive(["b"], Predictions, timeout_seconds=0.01)
        assert next(pieces, None) is None
        channel.costs.ahead.append(lambda: True)
        with pytest.raises(PeerTimeout):
            await channel.receive(["b"], Predictions, timeout_seconds=0.01)
        channel.lose("b", PeerUnreachable("b hung up"))
        with pytest.raises(PeerUnreachable):
            await channel.receive(["b"], Predictions)

    alone(works)
