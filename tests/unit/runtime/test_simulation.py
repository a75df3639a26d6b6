"""The simulated network: when messages arrive, whose path a party is on, what scoring costs."""

import time
from math import inf, nan
from typing import Any

import numpy as np
import pytest

from securevfl.errors import ConfigError
from securevfl.protocols.exchanges.plain import Residuals
from securevfl.protocols.session.gathering import Predictions
from securevfl.protocols.session.keys import PublicKey
from securevfl.runtime.channel import Channel
from securevfl.runtime.costs import COMMUNICATION, SCORING, SETUP, Costs, FixedCosts
from securevfl.runtime.line import PRESETS, Line, LinkCosts
from securevfl.runtime.simulation import Program, Simulated, simulate
from securevfl.wire.codec import Message
from tests.programs import party, predictions, receives, sends, size, works

LATENCY, BANDWIDTH = 0.25, 1000.0
# Seconds of latency, bytes a second.
SLOW = Line(latency_ms=LATENCY * 1e3, bandwidth_mbit=BANDWIDTH * 8 / 1e6)
INSTANT = Line(latency_ms=0, bandwidth_mbit=1e12)
SECONDS = {"local": 1.0, "encrypt": 2.0, "evaluate": 4.0, SETUP: 8.0, SCORING: 64.0}
KEY = PublicKey("bfv", bytes(1000))


def transfer(*messages: Message) -> float:
    return size(*messages) / BANDWIDTH


def run(network: Line = SLOW, /, **programs: Program[Any]) -> Simulated[Any]:
    return simulate(programs, network, stopwatch=FixedCosts(SECONDS))


# Time of messages


def test_a_message_arrives_after_latency_and_its_bytes_over_the_bandwidth() -> None:
    done = run(a=party(sends("b", predictions(rows=10))), b=party(receives("a")))
    arrival = pytest.approx(LATENCY + transfer(predictions(rows=10)))
    assert done.results["b"] == [arrival]
    assert done.costs["a"].path == {}
    assert done.costs["b"].path == {COMMUNICATION: arrival}


def test_what_links_cost_takes_turns_at_each_end_half_at_each() -> None:
    links, messages = LinkCosts(2.0, 0.5), [predictions(0), predictions(1, rows=9)]
    first, second = (links.seconds(size(each)) for each in messages)
    programs = {"a": party(sends("b", *messages)), "b": party(receives("a"), receives("a"))}
    done = simulate(programs, INSTANT, stopwatch=FixedCosts({}), links=links)
    # The receiver's half of the first is over before the sender's half of the second.
    assert done.results["b"] == pytest.approx([first, first / 2 + second])
    assert done.costs["b"].path == {COMMUNICATION: pytest.approx(first / 2 + second)}


def test_a_wait_is_used_for_work_offline_and_only_what_outlasts_it_is_on_the_path() -> None:
    messages, pieces = [predictions(0, 10), predictions(1, 1000)], iter([True, True, False])

    async def receiver(channel: Channel, costs: Costs) -> list[float]:
        costs.idle_work.append(lambda: next(pieces))
        both = party(receives("a", step=0), receives("a", step=1))
        return await both(channel, costs)

    programs = {"a": party(sends("b", *messages)), "b": receiver}
    done = simulate(programs, SLOW, stopwatch=FixedCosts({"offline": 1.0}))
    # The first piece outlasts the first wait, the second is hidden in the next one.
    end = LATENCY + transfer(*messages)
    assert done.results["b"] == pytest.approx([1.0, end])
    assert done.costs["b"].hidden_s == pytest.approx(LATENCY + transfer(messages[0]) + 1.0)
    assert sum(done.costs["b"].path.values()) == pytest.approx(end)


def test_distance_costs_no_real_time() -> None:
    started = time.perf_counter()
    far = Line(latency_ms=4e8, bandwidth_mbit=1)
    done = run(far, a=party(sends("b", predictions())), b=party(receives("a")))
    assert done.results["b"] == pytest.approx([4e5], rel=1e-6)
    assert time.perf_counter() - started < 10


def test_the_senders_ledger_counts_the_bytes_that_travel() -> None:
    sizes = []

    def watch(sender: str, receiver: str, data: bytes) -> bytes:
        sizes.append(len(data))
        return data

    programs = {"a": party(sends("b", predictions(rows=3), KEY)), "b": party()}
    done = simulate(programs, SLOW, tamper=watch)
    assert list(done.costs["a"].bytes_sent.items()) == [
        ("Predictions", sizes[0]),
        ("PublicKey", sizes[1]),
    ]
    assert done.costs["a"].messages.total() == 2
    assert done.costs["b"].messages == {}


def test_messages_of_one_sender_share_its_line() -> None:
    message = predictions(rows=100)
    done = run(
        a=party(sends("b", message), sends("c", message)),
        b=party(receives("a")),
        c=party(receives("a")),
    )
    assert done.results["b"] == pytest.approx([LATENCY + transfer(message)])
    assert done.results["c"] == pytest.approx([LATENCY + transfer(message, message)])


def test_messages_to_one_receiver_share_its_line() -> None:
    message = predictions(rows=100)
    sender = party(sends("c", message))
    done = run(a=sender, b=sender, c=party(receives("ab"), receives("ab")))
    expected = [LATENCY + transfer(message), LATENCY + transfer(message, message)]
    assert done.results["c"] == pytest.approx(expected)


def test_a_line_is_free_again_after_a_transfer() -> None:
    done = run(
        a=party(sends("b", predictions()), works("local"), sends("b", predictions())),
        b=party(receives("a"), receives("a")),
    )
    assert done.results["b"][-1] == pytest.approx(1.0 + LATENCY + transfer(predictions()))


def test_messages_of_one_sender_arrive_in_order() -> None:
    falling = [predictions(step, rows=50 - 10 * step) for step in range(5)]
    in_order = party(*(receives("a", step=step) for step in range(5)))
    assert len(run(a=party(sends("b", *falling)), b=in_order).results["b"]) == 5


@pytest.mark.parametrize("first", [(), ("evaluate",)], ids=["waits", "is busy"])
def test_the_first_to_arrive_is_the_first_received(first: tuple[str, ...]) -> None:
    async def receiver(channel: Channel, costs: Costs) -> list[str]:
        await works(*first)(channel, costs)
        return [(await channel.receive(["late", "early"], Predictions))[0] for _ in range(2)]

    sending = sends("c", predictions())
    done = run(late=party(works("local"), sending), early=party(sending), c=receiver)
    assert done.results["c"] == ["early", "late"]


# Time of computations, paths and hops


def test_parties_compute_at_the_same_time() -> None:
    done = run(**dict.fromkeys("abc", party(works("local", "local", "local"))))
    assert done.results == {"a": [3.0], "b": [3.0], "c": [3.0]}


def test_measured_computation_passes_in_virtual_time() -> None:
    async def sleeps(channel: Channel, costs: Costs) -> float:
        async with costs.compute("local"):
            time.sleep(0.01)
        return costs.now

    done = simulate({"a": sleeps, "b": sleeps}, INSTANT)
    for name in "ab":
        assert 0.01 <= done.results[name] < 0.1
        assert done.costs[name].path == done.costs[name].seconds
        assert done.costs[name].path["local"] == pytest.approx(done.results[name])


def test_a_party_that_waits_takes_over_the_path_of_whom_it_waited_for() -> None:
    sender = party(works("encrypt"), sends("b", predictions()))
    ledger = run(a=sender, b=party(works("local"), receives("a"))).costs["b"]
    assert ledger.path == {
        "encrypt": 2.0,
        COMMUNICATION: pytest.approx(LATENCY + transfer(predictions())),
    }
    assert ledger.seconds == {"local": 1.0}


def test_a_party_that_need_not_wait_keeps_its_own_path() -> None:
    sender = party(works("local"), sends("b", predictions()))
    done = run(a=sender, b=party(works("evaluate"), receives("a")))
    assert done.results["b"] == [4.0, 4.0]
    assert done.costs["b"].path == {"evaluate": 4.0}


def test_waiting_for_a_busy_line_is_communication() -> None:
    messages = [predictions(rows=100)] * 3
    path = run(a=party(sends("b", *messages)), b=party(*[receives("a")] * 3)).costs["b"].path
    assert path == {COMMUNICATION: pytest.approx(LATENCY + transfer(*messages))}


def test_set_up_messages_are_no_communication_of_rounds() -> None:
    sender = party(works(SETUP), sends("b", KEY))
    ledger = run(a=sender, b=party(receives("a", PublicKey))).costs["b"]
    assert ledger.path == {SETUP: pytest.approx(8.0 + LATENCY + transfer(KEY))}
    assert ledger.hops == 0


def test_hops_count_the_longest_chain_of_round_messages() -> None:
    done = run(
        a=party(sends("b", KEY, predictions()), receives("c", Residuals)),
        b=party(receives("a", PublicKey), receives("a"), sends("c", predictions())),
        c=party(receives("b"), sends("a", Residuals(0, np.zeros(1)))),
    )
    assert {name: costs.hops for name, costs in done.costs.items()} == {"a": 3, "b": 1, "c": 2}


def test_a_short_chain_that_arrives_late_does_not_shorten_the_longest() -> None:
    done = run(
        a=party(receives("b"), sends("b", predictions())),
        b=party(sends("a", predictions()), receives("a"), receives("c")),
        c=party(works("evaluate"), sends("b", predictions())),
    )
    assert done.costs["b"].hops == 2


# Lines


def test_bytes_occupy_a_line_for_their_bits_over_the_bandwidth() -> None:
    network = Line(latency_ms=20, bandwidth_mbit=100)
    assert network.latency_seconds == 0.02
    assert network.transfer_seconds(12_500_000) == 1.0
    assert network.transfer_seconds(0) == 0.0
    assert Line(latency_ms=0, bandwidth_mbit=1).latency_seconds == 0


def test_the_presets_are_the_documented_ones() -> None:
    assert {name: (n.latency_ms, n.bandwidth_mbit) for name, n in PRESETS.items()} == {
        "lan": (0.5, 1000),
        "wan": (20, 100),
        "intercontinental": (150, 20),
    }


@pytest.mark.parametrize(
    ("latency", "bandwidth", "refused"),
    [
        *((bad, 1, r"latency_ms = .*: expected 0 or more") for bad in (-1, -1e-9, nan, inf)),
        *((0, bad, r"bandwidth_mbit = .*: expected more than 0") for bad in (0, -5, nan)),
    ],
)
def test_a_line_that_cannot_be_is_refused(latency: float, bandwidth: float, refused: str) -> None:
    with pytest.raises(ConfigError, match=refused):
        Line(latency_ms=latency, bandwidth_mbit=bandwidth)
