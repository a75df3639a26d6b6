"""The simulated network: virtual time, order, faults and recorded views."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securevfl.messages import (
    HeldOutPredictions,
    Message,
    Predictions,
    PublicKey,
    Residuals,
    Verdict,
    encode,
)
from securevfl.runtime.channel import Channel, collect
from securevfl.runtime.costs import (
    COMMUNICATION,
    SCORING,
    SETUP,
    Costs,
    FixedCosts,
    job_costs,
)
from securevfl.runtime.network import Network
from securevfl.runtime.simulation import Program, Simulated, simulate

LATENCY, BANDWIDTH = 0.25, 1000.0
# One second of latency-free transfer is 1000 bytes; every figure below is exact in binary.
SLOW = Network(latency_ms=LATENCY * 1e3, bandwidth_mbit=BANDWIDTH * 8 / 1e6)
INSTANT = Network(latency_ms=0, bandwidth_mbit=1e12)
ONE_EACH = FixedCosts({"local": 1.0, "encrypt": 2.0, "evaluate": 4.0, SETUP: 8.0, SCORING: 64.0})


def predictions(step: int = 0, rows: int = 1) -> Predictions:
    return Predictions(step, np.zeros((rows, 1)))


def transfer(message: Message) -> float:
    return len(encode(message)) / BANDWIDTH


def now(costs: Costs) -> float:
    return costs.clock.now()


def run(programs: dict[str, Program[Any]], network: Network = SLOW) -> Simulated[Any]:
    return simulate(programs, network, stopwatch=FixedCosts({**ONE_EACH._seconds}))


async def idle(channel: Channel, costs: Costs) -> None:
    """A party that does nothing."""


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


def test_distance_costs_no_real_time() -> None:
    async def sender(channel: Channel, costs: Costs) -> None:
        await channel.send("b", predictions())

    async def receiver(channel: Channel, costs: Costs) -> float:
        await channel.receive(["a"], Predictions)
        return now(costs)

    started = time.perf_counter()
    done = run({"a": sender, "b": receiver}, Network(latency_ms=4e8, bandwidth_mbit=1))
    assert done.results["b"] == pytest.approx(4e5, rel=1e-6)
    assert time.perf_counter() - started < 10


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


# Random programs. One list of events in one order gives every party its program: what it sends
# stands before what others receive, so no program of this kind stalls.


@dataclass(frozen=True)
class Work:
    party: int
    phase: str


@dataclass(frozen=True)
class Line:
    sender: int
    receiver: int
    size: int
    setup: bool


@dataclass(frozen=True)
class ScoreNow:
    """Held-out predictions from all to party 0, its verdict to all."""


Event = Work | Line | ScoreNow
PHASE_SECONDS = {"start": 0.0113, "local": 0.37, "encrypt": 1.91, "decrypt": 7.3, "offline": 0.0}


def random_work(parties: int) -> st.SearchStrategy[Work]:
    return st.builds(Work, st.integers(0, parties - 1), st.sampled_from(sorted(PHASE_SECONDS)))


def random_line(parties: int) -> st.SearchStrategy[Line]:
    ends = st.lists(st.integers(0, parties - 1), min_size=2, max_size=2, unique=True)
    return ends.flatmap(
        lambda pair: st.builds(
            Line, st.just(pair[0]), st.just(pair[1]), st.integers(0, 3000), st.booleans()
        )
    )


def random_events(parties: int, *, scoring: bool = False) -> st.SearchStrategy[list[Event]]:
    kinds: list[st.SearchStrategy[Any]] = [random_work(parties), random_line(parties)]
    if scoring:
        kinds.append(st.just(ScoreNow()))
    return st.lists(st.one_of(kinds), max_size=25)


@dataclass(frozen=True)
class Moment:
    """Where a party stands after an event."""

    clock: float
    path: dict[str, float]
    hops: int


async def play(
    channel: Channel, costs: Costs, *, me: int, parties: int, events: Sequence[Event]
) -> list[Moment]:
    moments = []
    for event in (Work(me, "start"), *events):
        match event:
            case Work(party, phase) if party == me:
                async with costs.compute(f"{phase} {me}"):
                    pass
            case Line(sender, receiver, size, setup):
                values = np.zeros(size // 8)
                key = PublicKey("x", bytes(size))
                if sender == me:
                    message = key if setup else Predictions(0, values)
                    await channel.send(str(receiver), message)
                elif receiver == me:
                    kind = PublicKey if setup else Predictions
                    await channel.receive([str(sender)], kind)
            case ScoreNow():
                await score(channel, costs, me, parties)
                continue
        moments.append(Moment(now(costs), dict(costs.path), costs.hops))
    costs.end_round()
    return moments


async def score(channel: Channel, costs: Costs, me: int, parties: int) -> None:
    async with costs.compute(SCORING):
        pass
    others = [str(party) for party in range(1, parties)]
    if me:
        await channel.send("0", HeldOutPredictions(0, np.zeros(5000)))
        await channel.receive(["0"], Verdict)
        return
    await collect(channel, others, HeldOutPredictions)
    async with costs.compute(SCORING):
        pass
    for name in others:
        await channel.send(name, Verdict(0, stop=False))


def play_all(
    parties: int, events: Sequence[Event], network: Network = SLOW
) -> Simulated[list[Moment]]:
    programs: dict[str, Program[list[Moment]]] = {
        str(me): partial(play, me=me, parties=parties, events=events) for me in range(parties)
    }
    # No two parties ever do something at the same moment: which of them is first is open then.
    seconds = {
        f"{phase} {me}": took * (1 + me / 31)
        for me in range(parties)
        for phase, took in PHASE_SECONDS.items()
    }
    stopwatch = FixedCosts({**seconds, SCORING: 1000.0})
    return simulate(programs, network, stopwatch=stopwatch)


@given(random_events(4, scoring=True))
def test_the_components_of_a_path_add_up_to_the_clock(events: list[Event]) -> None:
    for moments in play_all(4, events).results.values():
        for moment in moments:
            assert sum(moment.path.values()) == pytest.approx(moment.clock, abs=1e-6)
        clocks = [moment.clock for moment in moments]
        assert clocks == pytest.approx(sorted(clocks))


@given(random_events(4, scoring=True))
def test_two_runs_with_fixed_costs_are_the_same_to_the_bit(events: list[Event]) -> None:
    first, second = play_all(4, events), play_all(4, events)
    assert first.results == second.results
    for name, ledger in first.costs.items():
        again = second.costs[name]
        assert ledger.snapshots == again.snapshots
        assert (ledger.path, ledger.seconds) == (again.path, again.seconds)
        assert (ledger.messages, ledger.bytes_sent) == (again.messages, again.bytes_sent)


def without_scoring(events: Sequence[Event]) -> list[Event]:
    return [event for event in events if not isinstance(event, ScoreNow)]


def assert_the_same_training(
    scored: Simulated[list[Moment]], unscored: Simulated[list[Moment]]
) -> None:
    for name, moments in scored.results.items():
        reference = unscored.results[name]
        assert [m.clock for m in moments] == pytest.approx([m.clock for m in reference])
        assert [m.hops for m in moments] == [m.hops for m in reference]
    with_scores, without = job_costs(scored.costs, 1), job_costs(unscored.costs, 1)
    assert with_scores.communication_s == pytest.approx(without.communication_s, abs=1e-6)
    assert with_scores.bytes_sent == without.bytes_sent
    assert with_scores.messages == without.messages
    assert with_scores.round_trips == without.round_trips


@given(random_events(2, scoring=True))
@settings(max_examples=300)
def test_scoring_at_any_time_leaves_the_time_of_two_parties_unchanged(
    events: list[Event],
) -> None:
    assert_the_same_training(play_all(2, events), play_all(2, without_scoring(events)))


@given(random_events(4, scoring=True))
@settings(max_examples=300)
def test_scoring_at_any_time_leaves_the_time_of_four_parties_unchanged(
    events: list[Event],
) -> None:
    # Lines that are never busy: see the tests above for those that are.
    fast = Network(latency_ms=LATENCY * 1e3, bandwidth_mbit=1e15)
    assert_the_same_training(play_all(4, events, fast), play_all(4, without_scoring(events), fast))
