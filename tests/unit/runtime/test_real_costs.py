"""What a real channel counts: components add up to the clock, and what was made ahead is apart."""

import asyncio
import time

import numpy as np
import pytest

from securevfl.protocols.session.gathering import HeldOutPredictions, Predictions
from securevfl.protocols.session.keys import PublicKey
from securevfl.runtime.costs import (
    AHEAD,
    AHEAD_COMMUNICATION,
    COMMUNICATION,
    SCORING,
    SETUP,
    FixedCosts,
)
from securevfl.runtime.real import RealChannel
from securevfl.wire.codec import encode
from tests.made_ahead import Pad
from tests.real_channels import (
    alone,
    pad,
    predictions,
    sealed,
    summed,
    takes,
    together,
)


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
        assert summed(costs) == pytest.approx(costs.clock.now())
        costs.end_round()
    before = dict(costs.path), costs.clock.now()
    async with costs.compute(SCORING):
        pass
    await channel.send(peer, HeldOutPredictions(0, np.ones((9, 1))))
    await channel.receive([peer], HeldOutPredictions)
    assert (dict(costs.path), costs.clock.now()) == before


def test_components_add_up_to_the_clock_and_follow_the_slower_party() -> None:
    a, b = together(
        lambda channel: rounds(channel, "a", "b"), lambda channel: rounds(channel, "b", "a")
    )
    for channel in (a, b):
        path = channel.costs.path
        assert set(path) >= {SETUP, "evaluate"}
        assert min(path.values()) >= 0.0
        assert channel.costs.clock.now() == pytest.approx(summed(channel.costs))
    # It never did that itself.
    assert "evaluate" not in b.costs.seconds
    assert (a.costs.hops, b.costs.hops) == (3, 3)
    assert len(a.costs.snapshots) == len(b.costs.snapshots) == 3


def test_waiting_for_the_network_is_communication() -> None:
    async def sends_late(channel: RealChannel) -> None:
        await asyncio.sleep(0.05)
        await channel.send("a", predictions())

    a, b = together(takes(), sends_late)
    assert a.costs.path == {COMMUNICATION: pytest.approx(a.costs.clock.now())}
    assert a.costs.clock.now() >= 0.04
    # Turning a message into bytes is all that "b" did.
    assert b.costs.path == {COMMUNICATION: pytest.approx(b.costs.clock.now())}
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
    assert 1e6 <= a.costs.clock.now() == pytest.approx(summed(a.costs))


def test_what_is_made_ahead_has_components_of_its_own() -> None:
    def came(channel: RealChannel) -> None:
        channel.deliver("b", sealed(0, path={AHEAD: 1e6}, message=encode(pad())))
        channel.deliver("b", sealed(1, path={AHEAD: 2e6}))

    async def program(channel: RealChannel) -> None:
        costs = channel.costs
        await channel.send("b", pad())
        assert set(costs.path) == {AHEAD_COMMUNICATION}
        await channel.receive(["b"], Pad)
        assert set(costs.path) == {AHEAD, AHEAD_COMMUNICATION}
        assert (costs.path[AHEAD], costs.hops) == (1e6, 0)
        await channel.receive(["b"], Predictions)
        assert set(costs.path) == {AHEAD, COMMUNICATION}
        assert (costs.path[AHEAD], costs.hops) == (2e6, 1)
        assert summed(costs) == pytest.approx(costs.clock.now())

    alone(program, came)
