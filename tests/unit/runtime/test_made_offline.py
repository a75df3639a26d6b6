"""What is made before rounds: time, bytes and messages of its own, and totals that hold them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np
import pytest

from securevfl.protocols.exchanges.homomorphic import EncryptedValues
from securevfl.protocols.session.gathering import Predictions
from securevfl.protocols.session.keys import PublicKey
from securevfl.runtime.channel import Channel
from securevfl.runtime.costs import (
    COMMUNICATION,
    CORRELATED_RANDOMNESS,
    OFFLINE_COMMUNICATION,
    SETUP,
    Costs,
    FixedCosts,
    job_costs,
)
from securevfl.runtime.line import Line
from securevfl.runtime.simulation import simulate
from securevfl.wire.codec import Message
from tests.made_offline import Pad, PadRequest
from tests.programs import Step, ends_round, party, receives, sends, size, works

Ledgers = Mapping[str, Costs]
LATENCY, BANDWIDTH = 0.25, 1000.0
# Seconds of latency, bytes a second.
SLOW = Line(latency_ms=LATENCY * 1e3, bandwidth_mbit=BANDWIDTH * 8 / 1e6)
SECONDS = {SETUP: 8.0, CORRELATED_RANDOMNESS: 4.0, "local": 1.0, "encrypt": 2.0, "offline": 0.125}
KEY = PublicKey("bfv", bytes(100))
REQUEST, PAD = PadRequest(0, (bytes(500),)), Pad(0, np.zeros((20, 1)))
SHARES, CIPHERTEXTS = Predictions(0, np.zeros((5, 1))), EncryptedValues(0, (bytes(40),))


def on_the_line(*messages: Message) -> float:
    """Seconds of messages that wait for one another."""
    return LATENCY * len(messages) + size(*messages) / BANDWIDTH


ASKS = sends("b", REQUEST), receives("b", Pad)
MAKES = receives("a", PadRequest), works(CORRELATED_RANDOMNESS), sends("a", PAD)
SPEAKS = works("local"), sends("b", SHARES), receives("b", EncryptedValues), ends_round
ANSWERS = receives("a"), works("encrypt"), sends("a", CIPHERTEXTS), ends_round


def run(a: Sequence[Step], b: Sequence[Step], seconds: Mapping[str, float] = SECONDS) -> Ledgers:
    """The ledgers of both parties."""
    return simulate({"a": party(*a), "b": party(*b)}, SLOW, stopwatch=FixedCosts(seconds)).costs


@pytest.fixture(scope="module")
def job() -> Ledgers:
    """Two rounds; before each "a" gets a pad, and then it speaks first."""
    return run(
        [sends("b", KEY), *(ASKS + SPEAKS) * 2],
        [works(SETUP), receives("a", PublicKey), *(MAKES + ANSWERS) * 2],
    )


@pytest.mark.parametrize("rounds", [1, 2])
def test_time_offline_is_of_its_own_and_part_of_the_totals(job: Ledgers, rounds: int) -> None:
    """Of all that was made offline until then, in whichever round."""
    costs = job_costs(job, rounds)
    # The first request waits at "b", whose keys take longer than its way.
    offline = on_the_line(*[PAD] * rounds, *[REQUEST] * (rounds - 1))
    online = on_the_line(*[SHARES, CIPHERTEXTS] * rounds)
    assert costs.offline_compute_s == pytest.approx(4.0 * rounds)
    assert costs.offline_communication_s == pytest.approx(offline)
    assert costs.compute_by_phase_s[CORRELATED_RANDOMNESS] == costs.offline_compute_s
    assert costs.compute_s == pytest.approx((4.0 + 1.0 + 2.0) * rounds)
    assert costs.compute_s == pytest.approx(sum(costs.compute_by_phase_s.values()))
    assert costs.communication_s == pytest.approx(offline + online)
    assert costs.total_s == pytest.approx(7.0 * rounds + offline + online)
    assert costs.offline_s == pytest.approx(4.0 * rounds + offline)
    clock = max(sum(each.snapshots[rounds - 1].path.values()) for each in job.values())
    assert costs.total_s + costs.setup_s == pytest.approx(clock)


@pytest.mark.parametrize("rounds", [1, 2])
def test_bytes_and_messages_offline_are_counted_apart_and_in_all(job: Ledgers, rounds: int) -> None:
    costs = job_costs(job, rounds)
    assert costs.messages == 4 * rounds
    assert costs.bytes_sent == rounds * size(REQUEST, PAD, SHARES, CIPHERTEXTS)
    assert costs.ciphertext_bytes == rounds * size(REQUEST, CIPHERTEXTS)
    assert costs.offline_messages == 2 * rounds
    assert costs.offline_bytes == rounds * size(REQUEST, PAD)
    assert costs.offline_ciphertext_bytes == rounds * size(REQUEST)


def test_round_trips_are_of_rounds(job: Ledgers) -> None:
    assert [job_costs(job, rounds).round_trips for rounds in (1, 2)] == [1.0, 2.0]


def test_a_chain_of_rounds_goes_on_through_a_message_offline() -> None:
    programs = {
        "a": party(sends("b", SHARES)),
        "b": party(receives("a"), sends("c", PAD)),
        "c": party(receives("b", Pad)),
    }
    costs = simulate(programs, SLOW).costs
    assert {name: each.hops for name, each in costs.items()} == {"a": 0, "b": 1, "c": 1}


def test_a_row_and_what_is_shown_say_what_was_made_offline(job: Ledgers) -> None:
    costs = job_costs(job, 2)
    row = costs.row()
    assert row["total_s"] == costs.compute_s + costs.communication_s
    assert row["offline_bytes"] == costs.offline_bytes
    assert f"made offline: {costs.offline_s:.3g} s and " in repr(costs)


def test_a_job_that_makes_nothing_offline_has_no_figure_of_it() -> None:
    costs = job_costs(run(SPEAKS * 2, ANSWERS * 2), 2)
    figures = [each for name, each in asdict(costs).items() if name.startswith("offline_")]
    assert figures == [0] * 6
    assert set(costs.compute_by_phase_s) == {"local", "encrypt", "evaluate", "decrypt", "offline"}
    assert costs.communication_s == pytest.approx(on_the_line(*[SHARES, CIPHERTEXTS] * 2))
    assert costs.total_s == pytest.approx(6.0 + costs.communication_s)
    assert "made offline" not in repr(costs)


def test_what_an_earlier_run_made_offline_counts_as_if_it_were_made_here() -> None:
    made = {name: costs.made_offline() for name, costs in run(ASKS, MAKES).items()}

    async def brings(channel: Channel, costs: Costs) -> None:
        costs.bring(made[channel.name])
        assert costs.now == pytest.approx(sum(costs.path.values()))

    speaks, hears = (sends("b", SHARES), ends_round), (receives("a"), ends_round)
    at_once = run([*ASKS, *speaks], [*MAKES, *hears])
    later = run([brings, *speaks], [brings, *hears], {})
    both, again = (asdict(job_costs(each, 1)) for each in (at_once, later))
    assert both.pop("compute_by_phase_s") == pytest.approx(again.pop("compute_by_phase_s"))
    assert again == pytest.approx(both)
    assert again["offline_compute_s"] == 4.0


def test_a_round_takes_its_own_message_past_one_that_was_sent_offline() -> None:
    """And what came meanwhile is there at once when it is asked for."""

    hears = party(receives("a"), receives("a", Pad))
    done = simulate({"a": party(sends("b", PAD, SHARES)), "b": hears}, SLOW)
    at, then = done.results["b"]
    assert at == then
    # The line was busy with the other.
    assert done.costs["b"].path == {
        COMMUNICATION: pytest.approx(on_the_line(SHARES) + size(PAD) / BANDWIDTH)
    }


@pytest.mark.parametrize(
    ("message", "line", "phase"),
    [(PAD, OFFLINE_COMMUNICATION, CORRELATED_RANDOMNESS), (SHARES, COMMUNICATION, "offline")],
    ids=["offline", "round"],
)
def test_work_that_outlasts_a_wait_counts_as_what_was_waited_for(
    message: Message, line: str, phase: str
) -> None:
    pieces = iter([True, False])

    async def has_work(_: Channel, costs: Costs) -> None:
        costs.idle_work.append(lambda: next(pieces))

    hears = [has_work, receives("a", type(message))]
    ledger = run([sends("b", message)], hears, {"offline": 2.0})["b"]
    wait = on_the_line(message)
    assert ledger.hidden_s == pytest.approx(wait)
    assert ledger.path == pytest.approx({line: wait, phase: 2.0 - wait})
    assert ledger.now == pytest.approx(2.0)
