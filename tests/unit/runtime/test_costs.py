import asyncio
import time
from collections.abc import Callable

import numpy as np
import pytest

from securevfl.protocols.exchanges.homomorphic import (
    DecryptedProducts,
    EncryptedProducts,
    EncryptedValues,
)
from securevfl.protocols.session.gathering import HeldOutPredictions, Predictions
from securevfl.protocols.session.keys import PublicKey
from securevfl.protocols.session.scoring import Verdict
from securevfl.runtime.costs import (
    COMMUNICATION,
    PHASES,
    SCORING,
    SETUP,
    Costs,
    FixedCosts,
    Stopwatch,
    job_costs,
)
from securevfl.wire.codec import Message, encode
from tests.programs import size


def ledger(**seconds: float) -> Costs:
    return Costs(FixedCosts(seconds))


def compute(costs: Costs, *phases: str) -> None:
    async def sections() -> None:
        for phase in phases:
            async with costs.compute(phase):
                pass

    asyncio.run(sections())


def send(costs: Costs, *messages: Message) -> None:
    for message in messages:
        costs.sent(message, len(encode(message)))


def test_a_section_counts_by_phase_and_passes_on_the_clock() -> None:
    costs = ledger(local=1.0, encrypt=2.5)
    compute(costs, "local", "encrypt", "local", "decrypt")
    # A phase without fixed seconds is free.
    assert costs.seconds == costs.path == {"local": 2.0, "encrypt": 2.5, "decrypt": 0.0}
    assert costs.now == 4.5


def test_scoring_counts_but_is_no_part_of_the_path_nor_of_the_clock() -> None:
    costs = ledger(scoring=3.0)
    compute(costs, SCORING)
    assert costs.seconds == {SCORING: 3.0}
    assert costs.path == {}
    assert costs.now == 0


def test_a_failed_section_counts_and_its_error_goes_on() -> None:
    costs = ledger(local=1.0)

    async def fails() -> None:
        async with costs.compute("local"):
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        asyncio.run(fails())
    assert (costs.seconds, costs.path, costs.now) == ({"local": 1.0}, {}, 0)
    compute(costs, "local")
    assert costs.path == {"local": 1.0}


def test_a_stopwatch_measures_this_machine() -> None:
    stopwatch = Stopwatch()
    stopwatch.start()
    time.sleep(0.01)
    assert 0.01 <= stopwatch.stop("local") < 1
    stopwatch.start()
    assert stopwatch.stop("local") < 0.01


def test_a_stopwatch_times_one_section_at_a_time() -> None:
    stopwatch = Stopwatch()
    stopwatch.start()
    with pytest.raises(RuntimeError, match="must not wait"):
        stopwatch.start()
    with pytest.raises(RuntimeError, match="'encrypt'"):
        Stopwatch().stop("encrypt")


def test_operations_add_up_by_name() -> None:
    costs = ledger()
    costs.count("encryptions", 5)
    costs.count("encryptions")
    costs.count("products", 2)
    assert costs.operations == {"encryptions": 6, "products": 2}


SETUP_MESSAGE = PublicKey("bfv", bytes(100))
CLEAR = Predictions(0, np.zeros((3, 1)))
CIPHERTEXTS = EncryptedValues(0, (bytes(50),)), EncryptedProducts(0, (bytes(60), bytes(7)))
MASKED = DecryptedProducts(0, np.zeros((2, 1), np.uint64))
SCORED = HeldOutPredictions(0, np.zeros((9, 1))), Verdict(0, stop=False)


def test_all_messages_are_counted_by_kind() -> None:
    costs = ledger()
    send(costs, SETUP_MESSAGE, CLEAR, CLEAR, *SCORED)
    assert costs.messages == {
        "PublicKey": 1,
        "Predictions": 2,
        "HeldOutPredictions": 1,
        "Verdict": 1,
    }
    assert costs.bytes_sent["Predictions"] == 2 * size(CLEAR)
    assert costs.bytes_sent["PublicKey"] == size(SETUP_MESSAGE)


def test_a_rounds_traffic_leaves_out_set_up_and_scoring() -> None:
    costs = ledger()
    send(costs, SETUP_MESSAGE, CLEAR, *CIPHERTEXTS, MASKED, *SCORED)
    costs.end_round()
    (snapshot,) = costs.snapshots
    assert snapshot.traffic.messages == 4
    assert snapshot.traffic.bytes_sent == size(CLEAR, *CIPHERTEXTS, MASKED)
    assert snapshot.traffic.ciphertext_bytes == size(*CIPHERTEXTS)


def two_ledgers() -> dict[str, Costs]:
    """Two rounds; "shop" ends the first one last, "bank" the second."""
    bank = ledger(setup=8.0, local=1.0, encrypt=2.0)
    shop = ledger(setup=4.0, local=3.0, evaluate=16.0)
    compute(bank, SETUP, "local")
    compute(shop, SETUP, "local", "evaluate")
    send(bank, SETUP_MESSAGE, CLEAR)
    send(shop, *CIPHERTEXTS)
    bank.hops, shop.hops = 1, 2
    shop.path[COMMUNICATION] = 0.5
    bank.end_round()
    shop.end_round()
    compute(bank, *["encrypt"] * 20)
    send(bank, *CIPHERTEXTS, *SCORED)
    bank.path[COMMUNICATION] = 0.25
    bank.hops, shop.hops = 5, 4
    bank.end_round()
    shop.end_round()
    return {"bank": bank, "shop": shop}


def test_a_jobs_costs_follow_the_party_that_ends_a_round_last_and_count_all_traffic() -> None:
    first, second = (job_costs(two_ledgers(), rounds) for rounds in (1, 2))
    nothing = dict.fromkeys(PHASES, 0.0)
    assert first.compute_by_phase_s == {**nothing, "local": 3.0, "evaluate": 16.0}
    assert (first.compute_s, first.communication_s, first.setup_s) == (19.0, 0.5, 4.0)
    assert second.compute_by_phase_s == {**nothing, "local": 1.0, "encrypt": 40.0}
    assert (second.compute_s, second.communication_s, second.setup_s) == (41.0, 0.25, 8.0)
    assert (first.total_s, second.total_s) == (19.5, 41.25)
    assert (first.messages, second.messages) == (3, 5)
    assert first.bytes_sent == size(CLEAR, *CIPHERTEXTS)
    assert second.bytes_sent == size(CLEAR, *CIPHERTEXTS, *CIPHERTEXTS)
    assert first.ciphertext_bytes == size(*CIPHERTEXTS)
    assert second.ciphertext_bytes == 2 * size(*CIPHERTEXTS)
    assert (first.round_trips, second.round_trips) == (1.0, 2.5)


def test_the_costs_of_a_round_stay_as_they_were_at_its_end() -> None:
    ledgers = two_ledgers()
    before = job_costs(ledgers, 1)
    for costs in ledgers.values():
        compute(costs, "local")
        costs.path["local"] = 1e9
        costs.hops = 99
    assert job_costs(ledgers, 1) == before


def test_a_row_holds_every_figure_with_the_total() -> None:
    costs = job_costs(two_ledgers(), 2)
    row = costs.row()
    assert row["total_s"] == row["compute_s"] + row["communication_s"] == 41.25
    assert row["compute_by_phase_s"]["encrypt"] == 40.0
    assert set(row) >= {"setup_s", "round_trips", "bytes_sent", "ciphertext_bytes", "messages"}


def pieces(count: int) -> Callable[[], bool]:
    """So many pieces of work that can be done offline."""
    left = iter([True] * count)
    return lambda: next(left, False)


@pytest.mark.parametrize(
    ("sources", "wait", "outlasts", "hidden", "left"),
    [
        ([10], 5.0, 1.0, 5.0, 7),  # the last piece is finished
        ([1], 5.0, 0.0, 2.0, 0),
        ([1, 2], 10.0, 0.0, 6.0, 0),  # every source has its turn
        ([], 5.0, 0.0, 0.0, 0),
        ([1], 0.0, 0.0, 0.0, 1),
        ([1], -3.0, 0.0, 0.0, 1),  # a message that was there before the party asked for it
    ],
)
def test_a_wait_is_filled_with_work_offline(
    sources: list[int], wait: float, outlasts: float, hidden: float, left: int
) -> None:
    costs = ledger(offline=2.0)
    costs.idle_work += map(pieces, sources)
    assert costs.work_for(wait) == outlasts
    assert costs.hidden_s == hidden
    assert costs.seconds.get("offline", 0.0) == 2.0 * (sum(sources) - left)
    assert sum(work() for work in costs.idle_work for _ in range(left)) == left
    assert costs.path == {}
