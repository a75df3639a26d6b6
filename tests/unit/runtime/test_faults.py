import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from securevfl.errors import MalformedMessage, PeerTimeout, PeerUnreachable, UnexpectedMessage
from securevfl.protocols.exchanges.plain import Residuals
from securevfl.protocols.session.gathering import HeldOutPredictions, Predictions
from securevfl.runtime.channel import Channel, collect, expect_shape
from securevfl.runtime.costs import COMMUNICATION, Costs, FixedCosts
from securevfl.runtime.line import PRESETS, Line
from securevfl.runtime.simulation import Program, simulate
from securevfl.runtime.views import Decrypted, Learned, Received, record
from securevfl.wire.codec import encode
from tests.programs import Step, party, predictions, receives, sends, size

LAN = PRESETS["lan"]


MESSAGE = predictions(rows=3)
SENDS = party(sends("b", MESSAGE))
BOTH = {"a": SENDS, "b": party(receives("a"))}


@pytest.mark.parametrize("to", ["a", "c"])
def test_there_is_no_way_to_oneself_or_to_a_stranger(to: str) -> None:
    with pytest.raises(PeerUnreachable, match=f"a has no peer '{to}'"):
        simulate({"a": party(sends(to, MESSAGE))}, LAN)


def test_a_stalled_job_says_who_waits_for_what() -> None:
    programs = {"a": party(receives("b", Residuals)), "b": party(receives("a"))}
    with pytest.raises(PeerTimeout) as error_text:
        simulate(programs, LAN)
    assert "a for Residuals from b; b for Predictions from a" in str(error_text.value)


def test_who_gave_up_waiting_is_not_named() -> None:
    async def gives_up(channel: Channel, costs: Costs) -> None:
        with pytest.raises(PeerTimeout):
            await channel.receive(["b"], Residuals, timeout_seconds=1)

    with pytest.raises(PeerTimeout, match=r"yet waiting: b for Predictions from a$"):
        simulate({"a": gives_up, "b": party(receives("a"))}, LAN)


def test_a_wait_in_scoring_takes_nothing_off_a_later_deadline() -> None:
    """It ends on a clock far ahead of the party's own, which stands still meanwhile."""

    async def scores_late(channel: Channel, costs: Costs) -> None:
        async with costs.compute("local"):
            pass
        await channel.send("b", HeldOutPredictions(0, np.zeros((1, 1))))

    async def goes_on(channel: Channel, costs: Costs) -> float:
        await channel.receive(["a"], HeldOutPredictions)
        await channel.send("c", MESSAGE)
        await channel.receive(["c"], Predictions, timeout_seconds=5)
        return costs.now

    programs: dict[str, Program[Any]] = {
        "a": scores_late,
        "b": goes_on,
        "c": party(receives("b"), sends("b", MESSAGE)),
    }
    done = simulate(programs, LAN, stopwatch=FixedCosts({"local": 100.0}))
    assert done.results["b"] < 1


def test_a_deadline_passes_in_virtual_time_and_says_who_waited_for_what() -> None:
    async def program(channel: Channel, costs: Costs) -> float:
        with pytest.raises(PeerTimeout, match="b waited 3600 s for Predictions from a in vain"):
            await channel.receive(["a"], Predictions, timeout_seconds=3600)
        assert costs.path == {COMMUNICATION: 3600.0}
        with pytest.raises(PeerTimeout, match="waited 7200 s"):
            await channel.receive(["a"], HeldOutPredictions, timeout_seconds=7200)
        return costs.now

    assert simulate({"b": program}, LAN).results == {"b": 3600.0}


def test_what_comes_before_a_deadline_is_in_time() -> None:
    async def program(channel: Channel, costs: Costs) -> float:
        with pytest.raises(PeerTimeout):
            await channel.receive(["a"], Predictions, timeout_seconds=9.9e-4)
        await channel.receive(["a"], Predictions, timeout_seconds=1.1e-4)
        return costs.now

    programs: dict[str, Program[Any]] = {"a": SENDS, "b": program}
    done = simulate(programs, Line(latency_ms=1, bandwidth_mbit=1e9))
    assert done.results["b"] == pytest.approx(1e-3)
    assert sum(done.costs["b"].path.values()) == pytest.approx(1e-3)


def test_what_has_begun_to_come_before_a_deadline_and_ends_after_it_is_late() -> None:
    async def program(channel: Channel, costs: Costs) -> list[float]:
        with pytest.raises(PeerTimeout, match="in vain"):
            await channel.receive(["a"], Predictions, timeout_seconds=1.5)
        moments = [costs.now]
        await channel.receive(["a"], Predictions, timeout_seconds=10)
        return [*moments, costs.now]

    line = Line(latency_ms=1000, bandwidth_mbit=size(MESSAGE) * 8 / 1e6)
    programs: dict[str, Program[Any]] = {"a": SENDS, "b": program}
    assert simulate(programs, line).results["b"] == pytest.approx([1.5, 2.0])


@pytest.mark.parametrize(
    ("due", "error_text"),
    [
        (receives("a", Residuals), "a sent Predictions where Residuals is expected"),
        (receives("a", step=0), "step 3 where step 0 is expected"),
        (receives("a", step=4), "step 3 where step 4 is expected"),
    ],
)
def test_another_kind_or_step_than_due_is_refused(due: Step, error_text: str) -> None:
    with pytest.raises(UnexpectedMessage, match=error_text):
        simulate({"a": party(sends("b", predictions(3))), "b": party(due)}, LAN)


@pytest.mark.parametrize(
    "change", [lambda data: data[:-1], lambda data: b"?" + data, lambda data: b""]
)
def test_damaged_bytes_are_refused_with_the_senders_name(change: Callable[[bytes], bytes]) -> None:
    with pytest.raises(MalformedMessage, match="from a: "):
        simulate(BOTH, LAN, tamper=lambda sender, receiver, data: change(data))


def test_a_message_longer_than_accepted_is_refused() -> None:
    longest = size(MESSAGE)
    assert simulate(BOTH, LAN, max_message_bytes=longest).costs["b"].path
    with pytest.raises(MalformedMessage, match=f"at most {longest - 1}"):
        simulate(BOTH, LAN, max_message_bytes=longest - 1)


def test_a_shape_that_is_not_due_is_refused() -> None:
    expect_shape("a", np.ones((2, 1)), (2, 1))
    with pytest.raises(UnexpectedMessage, match="a sent an array of"):
        expect_shape("a", np.ones((2, 1)), (3, 1))


def test_one_partys_error_reaches_the_caller_and_ends_the_others() -> None:
    ended = []

    async def fails(channel: Channel, costs: Costs) -> None:
        await asyncio.sleep(1)
        raise MalformedMessage("this one")

    async def waits(channel: Channel, costs: Costs) -> None:
        try:
            await channel.receive(["a"], Predictions)
        finally:
            ended.append(channel.name)

    with pytest.raises(MalformedMessage, match="this one"):
        simulate({"a": fails, "b": waits, "c": waits}, LAN)
    assert sorted(ended) == ["b", "c"]


def test_a_section_that_waits_while_another_party_computes_is_an_error() -> None:
    async def careless(channel: Channel, costs: Costs) -> None:
        async with costs.compute("local"):
            await asyncio.sleep(1)

    async def other(channel: Channel, costs: Costs) -> None:
        await asyncio.sleep(0.5)
        async with costs.compute("local"):
            pass

    with pytest.raises(RuntimeError, match="must not wait"):
        simulate({"a": careless, "b": other}, LAN)


def test_a_view_holds_what_was_received_and_decrypted_in_order() -> None:
    async def watched(channel: Channel, costs: Costs) -> None:
        await channel.receive(["a"], Predictions, 0)
        record(channel, Decrypted("a", 0, np.array([7])))
        await channel.receive(["a"], Predictions, 1)

    programs: dict[str, Program[Any]] = {
        "a": party(sends("b", predictions(0), predictions(1))),
        "b": watched,
    }
    done = simulate(programs, LAN, record_views=True)
    first, second, third = done.views["b"].entries
    assert isinstance(first, Received)
    assert isinstance(second, Decrypted)
    assert isinstance(third, Received)
    assert (first.sender, second.sender, second.step, int(second.values[0])) == ("a", "a", 0, 7)
    assert encode(third.message) == encode(predictions(1))
    assert done.views["b"].received() == done.views["b"].received(Predictions) == [first, third]
    assert done.views["b"].received(Residuals) == []
    assert done.views["b"].decrypted() == [second]
    assert done.views["a"].entries == []
    assert simulate(programs, LAN).views == {}


def test_recording_needs_a_recorder_and_nothing_else_does() -> None:
    async def program(channel: Channel, costs: Costs) -> bool:
        record(channel, Learned("a", 0, "gradients", np.ones(1)))
        return channel.view is not None

    assert simulate({"b": program}, LAN).results == {"b": False}
    done = simulate({"b": program}, LAN, record_views=True)
    assert done.results == {"b": True}
    assert [entry.sender for entry in done.views["b"].learned()] == ["a"]


def test_collecting_takes_one_message_of_each_in_the_order_asked_for() -> None:
    async def late(channel: Channel, costs: Costs) -> None:
        await asyncio.sleep(1)
        await channel.send("b", predictions(rows=2))

    async def gathers(channel: Channel, costs: Costs) -> list[tuple[str, int]]:
        messages = await collect(channel, ["a", "c"], Predictions, 0)
        return [(name, len(message.values)) for name, message in messages.items()]

    programs: dict[str, Program[Any]] = {
        "a": late,
        "b": gathers,
        "c": party(sends("b", predictions(rows=5))),
    }
    assert simulate(programs, LAN).results["b"] == [("a", 2), ("c", 5)]
