"""What is made ahead of rounds: time, bytes and messages of its own, and totals that hold them."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from securevfl.protocols.exchanges.homomorphic import EncryptedValues
from securevfl.protocols.session.gathering import Predictions
from securevfl.protocols.session.keys import PublicKey
from securevfl.runtime.channel import Channel
from securevfl.runtime.costs import (
    AHEAD,
    AHEAD_COMMUNICATION,
    COMMUNICATION,
    SETUP,
    Costs,
    FixedCosts,
    JobCosts,
    job_costs,
)
from securevfl.runtime.line import Line
from securevfl.runtime.simulation import Simulated, simulate
from securevfl.wire.codec import Message, encode
from tests.made_ahead import Pad, PadRequest

LATENCY, BANDWIDTH = 0.25, 1000.0
# Seconds of latency, bytes a second.
SLOW = Line(latency_ms=LATENCY * 1e3, bandwidth_mbit=BANDWIDTH * 8 / 1e6)
SECONDS = {SETUP: 8.0, AHEAD: 4.0, "local": 1.0, "encrypt": 2.0, "offline": 0.125}
KEY = PublicKey("bfv", bytes(100))
REQUEST, PAD = PadRequest(0, (bytes(500),)), Pad(0, np.zeros((20, 1)))
SHARES, CIPHERTEXTS = Predictions(0, np.zeros((5, 1))), EncryptedValues(0, (bytes(40),))


def size(*messages: Message) -> int:
    return sum(len(encode(message)) for message in messages)


def on_the_line(*messages: Message) -> float:
    """Seconds of messages that wait for one another."""
    return LATENCY * len(messages) + size(*messages) / BANDWIDTH


async def asks(channel: Channel, costs: Costs) -> None:
    """Gets a pad made before each of two rounds, and speaks first in these."""
    await channel.send("b", KEY)
    for _ in range(2):
        await channel.send("b", REQUEST)
        await channel.receive(["b"], Pad)
        async with costs.compute("local"):
            pass
        await channel.send("b", SHARES)
        await channel.receive(["b"], EncryptedValues)
        costs.end_round()


async def makes(channel: Channel, costs: Costs) -> None:
    """The other party of `asks`."""
    async with costs.compute(SETUP):
        pass
    await channel.receive(["a"], PublicKey)
    for _ in range(2):
        await channel.receive(["a"], PadRequest)
        async with costs.compute(AHEAD):
            pass
        await channel.send("a", PAD)
        await channel.receive(["a"], Predictions)
        async with costs.compute("encrypt"):
            pass
        await channel.send("a", CIPHERTEXTS)
        costs.end_round()


@pytest.fixture(scope="module")
def job() -> Simulated[None]:
    return simulate({"a": asks, "b": makes}, SLOW, stopwatch=FixedCosts(SECONDS))


def test_components_of_every_path_add_up_to_the_clock(job: Simulated[None]) -> None:
    for ledger in job.costs.values():
        assert sum(ledger.path.values()) == pytest.approx(ledger.clock.now())
        assert set(ledger.path) >= {AHEAD, AHEAD_COMMUNICATION, COMMUNICATION}


@pytest.mark.parametrize("rounds", [1, 2])
def test_time_ahead_is_of_its_own_and_part_of_the_totals(job: Simulated[None], rounds: int) -> None:
    """Of all that was made ahead until then, in whichever round."""
    costs = job_costs(job.costs, rounds)
    # The first request waits at "b", whose keys take longer than its way.
    ahead = on_the_line(*[PAD] * rounds, *[REQUEST] * (rounds - 1))
    online = on_the_line(*[SHARES, CIPHERTEXTS] * rounds)
    assert costs.ahead_compute_s == pytest.approx(4.0 * rounds)
    assert costs.ahead_communication_s == pytest.approx(ahead)
    assert costs.compute_by_phase_s[AHEAD] == costs.ahead_compute_s
    assert costs.compute_s == pytest.approx((4.0 + 1.0 + 2.0) * rounds)
    assert costs.compute_s == pytest.approx(sum(costs.compute_by_phase_s.values()))
    assert costs.communication_s == pytest.approx(ahead + online)
    assert costs.total_s == pytest.approx(7.0 * rounds + ahead + online)
    assert costs.ahead_s == pytest.approx(4.0 * rounds + ahead)
    clock = max(sum(each.snapshots[rounds - 1].path.values()) for each in job.costs.values())
    assert costs.total_s + costs.setup_s == pytest.approx(clock)


@pytest.mark.parametrize("rounds", [1, 2])
def test_bytes_and_messages_ahead_are_counted_apart_and_in_all(
    job: Simulated[None], rounds: int
) -> None:
    costs = job_costs(job.costs, rounds)
    assert costs.messages == 4 * rounds
    assert costs.bytes_sent == rounds * size(REQUEST, PAD, SHARES, CIPHERTEXTS)
    assert costs.ciphertext_bytes == rounds * size(REQUEST, CIPHERTEXTS)
    assert costs.ahead_messages == 2 * rounds
    assert costs.ahead_bytes == rounds * size(REQUEST, PAD)
    assert costs.ahead_ciphertext_bytes == rounds * size(REQUEST)


def test_round_trips_are_of_rounds(job: Simulated[None]) -> None:
    assert [job_costs(job.costs, rounds).round_trips for rounds in (1, 2)] == [1.0, 2.0]


def test_a_chain_of_rounds_goes_on_through_a_message_ahead() -> None:
    async def first(channel: Channel, costs: Costs) -> int:
        await channel.send("b", SHARES)
        return costs.hops

    async def middle(channel: Channel, costs: Costs) -> int:
        await channel.receive(["a"], Predictions)
        await channel.send("c", PAD)
        return costs.hops

    async def last(channel: Channel, costs: Costs) -> int:
        await channel.receive(["b"], Pad)
        return costs.hops

    programs = {"a": first, "b": middle, "c": last}
    assert simulate(programs, SLOW).results == {"a": 0, "b": 1, "c": 1}


def test_a_row_and_what_is_shown_say_what_was_made_ahead(job: Simulated[None]) -> None:
    costs = job_costs(job.costs, 2)
    row = costs.row()
    assert row["total_s"] == costs.compute_s + costs.communication_s
    assert row["ahead_bytes"] == costs.ahead_bytes
    assert f"{costs.ahead_s:.3g} s of the total" in repr(costs)


async def unasked(channel: Channel, costs: Costs) -> None:
    """Two rounds of `asks`, with nothing ahead."""
    for _ in range(2):
        async with costs.compute("local"):
            pass
        await channel.send("b", SHARES)
        await channel.receive(["b"], EncryptedValues)
        costs.end_round()


async def answers(channel: Channel, costs: Costs) -> None:
    """The other party of `unasked`."""
    for _ in range(2):
        await channel.receive(["a"], Predictions)
        async with costs.compute("encrypt"):
            pass
        await channel.send("a", CIPHERTEXTS)
        costs.end_round()


def figures(costs: JobCosts) -> Mapping[str, Any]:
    return {name: each for name, each in asdict(costs).items() if name.startswith("ahead_")}


def test_a_job_that_makes_nothing_ahead_has_no_figure_of_it() -> None:
    done = simulate({"a": unasked, "b": answers}, SLOW, stopwatch=FixedCosts(SECONDS))
    costs = job_costs(done.costs, 2)
    assert len(figures(costs)) == 5
    assert set(figures(costs).values()) == {0}
    assert set(costs.compute_by_phase_s) == {"local", "encrypt", "evaluate", "decrypt", "offline"}
    assert costs.communication_s == pytest.approx(on_the_line(*[SHARES, CIPHERTEXTS] * 2))
    assert costs.total_s == pytest.approx(6.0 + costs.communication_s)
    assert "ahead" not in repr(costs)


# Made in an earlier run


async def pad_for_a(channel: Channel, costs: Costs) -> None:
    """One pad, at either party."""
    if channel.name == "a":
        await channel.send("b", REQUEST)
        await channel.receive(["b"], Pad)
        return
    await channel.receive(["a"], PadRequest)
    async with costs.compute(AHEAD):
        pass
    await channel.send("a", PAD)


async def one_round(channel: Channel, costs: Costs) -> None:
    """Predictions, and nothing comes back."""
    if channel.name == "a":
        await channel.send("b", SHARES)
    else:
        await channel.receive(["a"], Predictions)
    costs.end_round()


def test_what_an_earlier_run_made_ahead_counts_as_if_it_were_made_here() -> None:
    async def at_once(channel: Channel, costs: Costs) -> None:
        await pad_for_a(channel, costs)
        await one_round(channel, costs)

    made = {
        name: costs.made_ahead()
        for name, costs in simulate(
            {"a": pad_for_a, "b": pad_for_a}, SLOW, stopwatch=FixedCosts(SECONDS)
        ).costs.items()
    }

    async def later(channel: Channel, costs: Costs) -> None:
        await costs.bring(made[channel.name])
        assert costs.clock.now() == pytest.approx(sum(costs.path.values()))
        await one_round(channel, costs)

    both, again = (
        asdict(job_costs(simulate({"a": each, "b": each}, SLOW, stopwatch=watch).costs, 1))
        for each, watch in ((at_once, FixedCosts(SECONDS)), (later, FixedCosts({})))
    )
    assert both.pop("compute_by_phase_s") == pytest.approx(again.pop("compute_by_phase_s"))
    assert again == pytest.approx(both)
    assert again["ahead_compute_s"] == 4.0


# Order and waits


def test_a_round_takes_its_own_message_past_one_that_was_sent_ahead() -> None:
    """And what came meanwhile is there at once when it is asked for."""

    async def sender(channel: Channel, costs: Costs) -> None:
        await channel.send("b", PAD)
        await channel.send("b", SHARES)

    async def receiver(channel: Channel, costs: Costs) -> None:
        await channel.receive(["a"], Predictions)
        at = costs.clock.now()
        await channel.receive(["a"], Pad)
        assert costs.clock.now() == at

    path = simulate({"a": sender, "b": receiver}, SLOW).costs["b"].path
    # The line was busy with the other.
    assert path == {COMMUNICATION: pytest.approx(on_the_line(SHARES) + size(PAD) / BANDWIDTH)}


@pytest.mark.parametrize(
    ("message", "line", "phase"),
    [(PAD, AHEAD_COMMUNICATION, AHEAD), (SHARES, COMMUNICATION, "offline")],
    ids=["ahead", "round"],
)
def test_work_that_outlasts_a_wait_counts_as_what_was_waited_for(
    message: Message, line: str, phase: str
) -> None:
    async def sender(channel: Channel, costs: Costs) -> None:
        await channel.send("b", message)

    async def receiver(channel: Channel, costs: Costs) -> None:
        pieces = iter([True, False])
        costs.ahead.append(lambda: next(pieces))
        await channel.receive(["a"], type(message))

    watch = FixedCosts({"offline": 2.0})
    ledger = simulate({"a": sender, "b": receiver}, SLOW, stopwatch=watch).costs["b"]
    wait = on_the_line(message)
    assert ledger.hidden_s == pytest.approx(wait)
    assert ledger.path == pytest.approx({line: wait, phase: 2.0 - wait})
    assert ledger.clock.now() == pytest.approx(2.0)
