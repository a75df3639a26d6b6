"""Held-out predictions under masks: no message, no difference and no partial sum shows any."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from securevfl.crypto.fixed_point import decode, from_ring
from securevfl.protocols.exchanges.homomorphic import DecryptedProducts
from securevfl.protocols.session.gathering import (
    FRACTION_BITS,
    PREDICTION_BOUND,
    HeldOutPredictions,
    MaskedHeldOutPredictions,
    Predictions,
)
from securevfl.training import TrainingResult
from tests.jobs import breast_cancer, run_job

ROUNDS = 2
EXCHANGES: dict[str, tuple[dict[str, object], str]] = {
    "masked": ({"scheme": "masked"}, "logistic"),
    "bfv, masked predictions": ({"scheme": "bfv", "predictions": "masked"}, "logistic"),
    "bfv, hide both": ({"scheme": "bfv", "hide": "both"}, "taylor-logistic"),
    "paillier, hide both": ({"scheme": "paillier", "hide": "both"}, "taylor-logistic"),
}


def run(case: str, parties: int) -> TrainingResult:
    exchange, loss = EXCHANGES[case]
    settings: dict[str, Any] = {"rounds": ROUNDS, "batch_size": 228, "loss": loss, "eval_every": 1}
    return run_job(breast_cancer(parties), exchange, **settings)


def held_out(result: TrainingResult, step: int) -> dict[str, NDArray[np.uint64]]:
    """What the label party received of a scoring, by sender."""
    received = result.views["party1"].received(MaskedHeldOutPredictions)
    return {
        entry.sender: entry.message.values
        for entry in received
        if isinstance(entry.message, MaskedHeldOutPredictions) and entry.message.step == step
    }


def total(summands: list[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    summed: NDArray[np.uint64] = np.add.reduce(summands, axis=0, dtype=np.uint64)
    return summed


def plausible(values: NDArray[np.uint64]) -> float:
    """The share that could be a prediction; 2^24 of 2^31 among uniform numbers."""
    return float(np.mean(np.abs(decode(from_ring(values), FRACTION_BITS)) <= PREDICTION_BOUND))


@pytest.mark.parametrize("parties", [3, 4])
@pytest.mark.parametrize("case", EXCHANGES)
def test_only_all_held_out_messages_together_are_predictions(case: str, parties: int) -> None:
    result = run(case, parties)
    assert not result.views["party1"].received(Predictions)
    assert not result.views["party1"].received(HeldOutPredictions)
    scorings = [held_out(result, step) for step in range(ROUNDS)]
    senders = [name for name in result.outcomes if name != "party1"]
    for sent in scorings:
        assert set(sent) == set(senders)
        for size in range(1, len(senders)):
            for some in combinations(senders, size):
                # 113 rows, 1 in 128 by chance: more than 15 once in 10^12.
                assert plausible(total([sent[name] for name in some])) < 16 / 113
    # A mask that comes again would show how predictions moved.
    for name in senders:
        assert plausible(scorings[1][name] - scorings[0][name]) < 16 / 113
    expected = np.sum([result.outcomes[name].held_out for name in senders], axis=0)
    rounding = len(senders) * 2.0**-FRACTION_BITS
    found = decode(from_ring(total(list(scorings[-1].values()))), FRACTION_BITS)
    np.testing.assert_allclose(found, expected, atol=rounding)


@pytest.mark.parametrize("case", ["bfv, hide both", "paillier, hide both"])
def test_what_one_sender_returns_is_no_product_of_its_values_even_without_the_mask(
    case: str,
) -> None:
    """The receiver knows its own mask r: sender by sender, only the share is left to hide v."""
    result = run(case, 3)
    for receiver in result.outcomes:
        view = result.views[receiver]
        for sender in (name for name in result.outcomes if name != receiver):
            returned = [
                entry.message.values
                for entry in view.received(DecryptedProducts)
                if entry.sender == sender and isinstance(entry.message, DecryptedProducts)
            ]
            decrypted = [
                entry.values
                for entry in result.views[sender].decrypted()
                if entry.sender == receiver
            ]
            assert len(returned) == len(decrypted) == ROUNDS
            shares = [
                np.subtract(*pair, dtype=np.uint64)
                for pair in zip(returned, decrypted, strict=True)
            ]
            # Ten words or more a round, none of them small, and none used twice.
            words = np.concatenate([share.ravel() for share in shares])
            assert len(np.unique(words)) == len(words) >= 2 * 10
            assert plausible(words) < 0.5
