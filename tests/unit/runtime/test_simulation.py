"""The simulated network: when messages arrive, whose path a party is on, what scoring costs."""

import time
from functools import partial
from typing import Any

import numpy as np
import pytest

from securevfl.protocols.exchanges.plain import Residuals
from securevfl.protocols.session.gathering import HeldOutPredictions, Predictions
from securevfl.protocols.session.keys import PublicKey
from securevfl.protocols.session.scoring import Verdict
from securevfl.runtime.channel import Channel
from securevfl.runtime.costs import (
    COMMUNICATION,
    SCORING,
    SETUP,
    Costs,
    FixedCosts,
)
from securevfl.runtime.line import Line
from securevfl.runtime.simulation import Program, Simulated, simulate
from securevfl.wire.codec import Message, encode

LATENCY, BANDWIDTH = 0.25, 1000.0
# Seconds of latency, bytes a second.
SLOW = Line(latency_ms=LATENCY * 1e3, bandwidth_mbit=BANDWIDTH * 8 / 1e6)
INSTANT = Line(latency_ms=0, bandwidth_mbit=1e12)
SECONDS = {"local": 1.0, "encrypt": 2.0, "evaluate": 4.0, SETUP: 8.0, SCORING: 64.0}


def predictions(step: int = 0, rows: int = 1) -> Predictions:
    return Predictions(step, np.zeros((rows, 1)))


def transfer(message: Message) -> float:
    return len(encode(message)) / BANDWIDTH


def now(costs: Costs) -> float:
    return costs.clock.now()


def run(programs: dict[str, Program[Any]], network: Line = SLOW) -> Simulated[Any]:
    return simulate(programs, network, stopwatch=FixedCosts(SECONDS))


# Time of messages


def test_a_message_arrives_after_latency_and_its_bytes_over_the_bandwidth() -> None:
    async def sender(channel: Channel, costs: Costs) -> None:
        await channel.send("b", predictions(rows=10))

    async def receiver(channel: Channel, costs: Costs) -> float:
        await channel.receive(["a"], Predictions)
        return now(costs)

    done = run({"a": sender, "b": receiver})
    assert done.results["b"] == pytest.approx(LATENCY + transfer(predictions(rows=10)))
    assert done.costs["a"].path == {}
    assert done.costs["b"].path == {COMMUNICATION: pytest.approx(done.results["b"])}


def test_a_wait_is_used_for_work_ahead_and_only_what_outlasts_it_is_on_the_path() -> None:
    pieces = iter([True, True, False])

    async def sender(channel: Channel, costs: Costs) -> None:
        await channel.send("b", predictions(rows=10))
        await channel.send("b", predictions(step=1, rows=1000))

    async def receiver(channel: Channel, costs: Costs) -> list[float]:
        costs.ahead.append(lambda: next(pieces))
        moments = []
        for step in range(2):
            await channel.receive(["a"], Predictions, step)
            moments.append(now(costs))
        return moments

    watch = FixedCosts({"offline": 1.0})
    done = simulate({"a": sender, "b": receiver}, SLOW, stopwatch=watch)
    first = LATENCY + transfer(predictions(rows=10))
    lines = transfer(predictions(rows=10)) + transfer(predictions(rows=1000))
    # The first piece outlasts the first wait, the second is hidden in the next one.
    assert done.results["b"] == pytest.approx([1.0, LATENCY + lines])
    assert done.costs["b"].hidden_s == pytest.approx(first + 1.0)
    assert sum(done.costs["b"].path.values()) == pytest.approx(LATENCY + lines)


def test_distance_costs_no_real_time() -> None:
    async def sender(channel: Channel, costs: Costs) -> None:
        await channel.send("b", predictions())

    async def receiver(channel: Channel, costs: Costs) -> float:
        await channel.receive(["a"], Predictions)
        return now(costs)

    started = time.perf_counter()
    done = run({"a": sender, "b": receiver}, Line(latency_ms=4e8, bandwidth_mbit=1))
    assert done.results["b"] == pytest.approx(4e5, rel=1e-6)
    assert time.perf_counter() - started < 10


def test_the_senders_ledger_counts_the_bytes_that_travel() -> None:
    sizes = []

    async def sender(channel: Channel, costs: Costs) -> None:
        await channel.send("b", predictions(rows=3))
        await channel.send("b", PublicKey("bfv", b"key"))

    def watch(sender: str, receiver: str, data: bytes) -> bytes:
        sizes.append(len(data))
        return data

    async def idle(channel: Channel, costs: Costs) -> None:
        """Receives nothing."""

    done = simulate({"a": sender, "b": idle}, SLOW, tamper=watch)
    assert list(done.costs["a"].bytes_sent.items()) == [
        ("Predictions", sizes[0]),
        ("PublicKey", sizes[1]),
    ]
    assert done.costs["a"].messages.total() == 2
    assert done.costs["b"].messages == {}


def test_messages_of_one_sender_share_its_line() -> None:
    async def sender(channel: Channel, costs: Costs) -> None:
        for receiver in ("b", "c"):
            await channel.send(receiver, predictions(rows=100))

    async def receiver(channel: Channel, costs: Costs) -> float:
        await channel.receive(["a"], Predictions)
        return now(costs)

    done = run({"a": sender, "b": receiver, "c": receiver})
    whole = transfer(predictions(rows=100))
    assert done.results["b"] == pytest.approx(LATENCY + whole)
    assert done.results["c"] == pytest.approx(LATENCY + 2 * whole)


def test_messages_to_one_receiver_share_its_line() -> None:
    async def sender(channel: Channel, costs: Costs) -> None:
        await channel.send("c", predictions(rows=100))

    async def receiver(channel: Channel, costs: Costs) -> list[float]:
        times = []
        for _ in range(2):
            await channel.receive(["a", "b"], Predictions)
            times.append(now(costs))
        return times

    done = run({"a": sender, "b": sender, "c": receiver})
    whole = transfer(predictions(rows=100))
    assert done.results["c"] == pytest.approx([LATENCY + whole, LATENCY + 2 * whole])


def test_a_line_is_free_again_after_a_transfer() -> None:
    async def sender(channel: Channel, costs: Costs) -> None:
        await channel.send("b", predictions())
        async with costs.compute("local"):
            pass
        await channel.send("b", predictions())

    async def receiver(channel: Channel, costs: Costs) -> float:
        for _ in range(2):
            await channel.receive(["a"], Predictions)
        return now(costs)

    done = run({"a": sender, "b": receiver})
    assert done.results["b"] == pytest.approx(1.0 + LATENCY + transfer(predictions()))


def test_messages_of_one_sender_arrive_in_order() -> None:
    async def sender(channel: Channel, costs: Costs) -> None:
        for step in range(5):
            await channel.send("b", predictions(step, rows=50 - 10 * step))

    async def receiver(channel: Channel, costs: Costs) -> list[int]:
        return [(await channel.receive(["a"], Predictions))[1].step for _ in range(5)]

    assert run({"a": sender, "b": receiver}).results["b"] == [0, 1, 2, 3, 4]


def test_the_first_to_arrive_is_the_first_received() -> None:
    async def late(channel: Channel, costs: Costs) -> None:
        async with costs.compute("local"):
            pass
        await channel.send("c", predictions())

    async def early(channel: Channel, costs: Costs) -> None:
        await channel.send("c", predictions())

    async def receiver(channel: Channel, costs: Costs, busy: bool) -> list[str]:
        if busy:
            async with costs.compute("evaluate"):
                pass
        return [(await channel.receive(["late", "early"], Predictions))[0] for _ in range(2)]

    for busy in (False, True):
        done = run({"late": late, "early": early, "c": partial(receiver, busy=busy)})
        assert done.results["c"] == ["early", "late"]


# Time of computations, paths and hops


def test_parties_compute_at_the_same_time() -> None:
    async def party(channel: Channel, costs: Costs) -> float:
        for _ in range(3):
            async with costs.compute("local"):
                pass
        return now(costs)

    done = run({name: party for name in "abc"})
    assert done.results == {"a": 3.0, "b": 3.0, "c": 3.0}


def test_measured_computation_passes_in_virtual_time() -> None:
    async def party(channel: Channel, costs: Costs) -> float:
        async with costs.compute("local"):
            time.sleep(0.01)
        return now(costs)

    done = simulate({"a": party, "b": party}, INSTANT)
    for name in "ab":
        assert 0.01 <= done.results[name] < 0.1
        assert done.costs[name].path == done.costs[name].seconds
        assert done.costs[name].path["local"] == pytest.approx(done.results[name])


def test_a_party_that_waits_takes_over_the_path_of_whom_it_waited_for() -> None:
    async def sender(channel: Channel, costs: Costs) -> None:
        async with costs.compute("encrypt"):
            pass
        await channel.send("b", predictions())

    async def receiver(channel: Channel, costs: Costs) -> None:
        async with costs.compute("local"):
            pass
        await channel.receive(["a"], Predictions)

    ledger = run({"a": sender, "b": receiver}).costs["b"]
    assert ledger.path == {
        "encrypt": 2.0,
        COMMUNICATION: pytest.approx(LATENCY + transfer(predictions())),
    }
    assert ledger.seconds == {"local": 1.0}


def test_a_party_that_need_not_wait_keeps_its_own_path() -> None:
    async def sender(channel: Channel, costs: Costs) -> None:
        async with costs.compute("local"):
            pass
        await channel.send("b", predictions())

    async def receiver(channel: Channel, costs: Costs) -> float:
        async with costs.compute("evaluate"):
            pass
        await channel.receive(["a"], Predictions)
        return now(costs)

    done = run({"a": sender, "b": receiver})
    assert done.results["b"] == 4.0
    assert done.costs["b"].path == {"evaluate": 4.0}


def test_waiting_for_a_busy_line_is_communication() -> None:
    async def sender(channel: Channel, costs: Costs) -> None:
        for _ in range(3):
            await channel.send("b", predictions(rows=100))

    async def receiver(channel: Channel, costs: Costs) -> None:
        for _ in range(3):
            await channel.receive(["a"], Predictions)

    path = run({"a": sender, "b": receiver}).costs["b"].path
    assert path == {COMMUNICATION: pytest.approx(LATENCY + 3 * transfer(predictions(rows=100)))}


def test_set_up_messages_are_no_communication_of_rounds() -> None:
    async def sender(channel: Channel, costs: Costs) -> None:
        async with costs.compute(SETUP):
            pass
        await channel.send("b", PublicKey("bfv", bytes(1000)))

    async def receiver(channel: Channel, costs: Costs) -> None:
        await channel.receive(["a"], PublicKey)

    ledger = run({"a": sender, "b": receiver}).costs["b"]
    took = 8.0 + LATENCY + transfer(PublicKey("bfv", bytes(1000)))
    assert ledger.path == {SETUP: pytest.approx(took)}
    assert ledger.hops == 0


def test_hops_count_the_longest_chain_of_round_messages() -> None:
    async def first(channel: Channel, costs: Costs) -> int:
        await channel.send("b", PublicKey("x", b""))
        await channel.send("b", predictions())
        await channel.receive(["c"], Residuals)
        return costs.hops

    async def second(channel: Channel, costs: Costs) -> int:
        await channel.receive(["a"], PublicKey)
        await channel.receive(["a"], Predictions)
        await channel.send("c", predictions())
        return costs.hops

    async def third(channel: Channel, costs: Costs) -> int:
        await channel.receive(["b"], Predictions)
        await channel.send("a", Residuals(0, np.zeros(1)))
        return costs.hops

    assert run({"a": first, "b": second, "c": third}).results == {"a": 3, "b": 1, "c": 2}


def test_a_short_chain_that_arrives_late_does_not_shorten_the_longest() -> None:
    async def echo(channel: Channel, costs: Costs) -> None:
        await channel.receive(["b"], Predictions)
        await channel.send("b", predictions())

    async def slow(channel: Channel, costs: Costs) -> None:
        async with costs.compute("evaluate"):
            pass
        await channel.send("b", predictions())

    async def middle(channel: Channel, costs: Costs) -> int:
        await channel.send("a", predictions())
        await channel.receive(["a"], Predictions)
        await channel.receive(["c"], Predictions)
        return costs.hops

    assert run({"a": echo, "b": middle, "c": slow}).results["b"] == 2


# Scoring


def round_and_scoring(feature_first: str, label_first: str) -> dict[str, Program[list[float]]]:
    """Two rounds with scoring between them; each party computes its own phase before a round."""

    async def feature(channel: Channel, costs: Costs) -> list[float]:
        times = []
        for step in range(2):
            async with costs.compute(feature_first):
                pass
            await channel.send("label", predictions(step))
            await channel.receive(["label"], Residuals, step)
            times.append(now(costs))
            async with costs.compute(SCORING):
                pass
            await channel.send("label", HeldOutPredictions(step, np.zeros((1000, 1))))
            await channel.receive(["label"], Verdict, step)
            times.append(now(costs))
        return times

    async def label(channel: Channel, costs: Costs) -> list[float]:
        times = []
        for step in range(2):
            async with costs.compute(label_first):
                pass
            await channel.receive(["feature"], Predictions, step)
            await channel.send("feature", Residuals(step, np.zeros((1, 1))))
            async with costs.compute("encrypt"):
                pass
            times.append(now(costs))
            await channel.receive(["feature"], HeldOutPredictions, step)
            async with costs.compute(SCORING):
                pass
            await channel.send("feature", Verdict(step, stop=False))
            times.append(now(costs))
        return times

    return {"feature": feature, "label": label}


@pytest.mark.parametrize(
    ("feature_first", "label_first"), [("local", "evaluate"), ("evaluate", "local")]
)
def test_neither_party_gains_or_loses_time_by_scoring(feature_first: str, label_first: str) -> None:
    """By hand: the label party is 2 s behind or ahead when scoring begins, and after it."""
    one = LATENCY + transfer(predictions())
    times = run(round_and_scoring(feature_first, label_first)).results
    if feature_first == "local":
        # The label party begins round 2 at 6 and finds the feature party's predictions there.
        feature_at, label_at = [4 + one, 10 + one], [6.0, 12.0]
    else:
        feature_at = [4 + 2 * one, 2 * (4 + 2 * one)]
        label_at = [6 + one, 4 + 2 * one + 6 + one]
    assert times["feature"] == pytest.approx([t for t in feature_at for _ in range(2)])
    assert times["label"] == pytest.approx([t for t in label_at for _ in range(2)])
