"""What each exchange sends and shows: its description held against ledgers and recorded views."""

from collections import Counter
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from securevfl.arrays import RingArray
from securevfl.crypto.fixed_point import decode, from_ring
from securevfl.data.partition import BatchSchedule
from securevfl.protocols.catalogue import EXCHANGES
from securevfl.protocols.exchanges.homomorphic import (
    DecryptedProducts,
    EncryptedProducts,
    EncryptedValues,
)
from securevfl.protocols.exchanges.plain import Residuals
from securevfl.protocols.session.agreement import Hello
from securevfl.protocols.session.gathering import (
    FRACTION_BITS,
    PREDICTION_BOUND,
    HeldOutPredictions,
    MaskedHeldOutPredictions,
    MaskedPredictions,
    Predictions,
)
from securevfl.protocols.session.joint_seed import SeedOpening
from securevfl.protocols.session.keys import PublicKey
from securevfl.runtime.views import View
from securevfl.training import TrainingResult
from securevfl.wire.codec import Message
from tests.end_to_end.contract import check_contract, few_rows
from tests.jobs import Settings, breast_cancer, once, received


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        pytest.param(name, variant, id=f"{name}-{number}")
        for name, exchange in EXCHANGES.items()
        for number, variant in enumerate(exchange.variants)
    ],
)
def test_views_show_what_the_description_says(name: str, variant: dict[str, Any]) -> None:
    check_contract(EXCHANGES[name], variant, few_rows)


@pytest.mark.parametrize("name", ["plain", "bfv"])
def test_the_contract_holds_with_masked_predictions(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variant = {"exchange": {"predictions": "masked"}}
    exchange = EXCHANGES[name]
    assert exchange.fewest_parties == 2
    monkeypatch.setattr(type(exchange), "fewest_parties", 3)
    check_contract(exchange, variant, few_rows)


ROUNDS = 4
PLAIN, MASKED, PAILLIER, CKKS = (
    {"scheme": name} for name in ("plain", "masked", "paillier", "ckks")
)
BFV: Settings = {"scheme": "bfv", "round_trips": 2}
MASKED_PAILLIER, MASKED_BFV = ({**each, "predictions": "masked"} for each in (PAILLIER, BFV))
BOTH, BFV_BOTH = ({"scheme": scheme, "hide": "both"} for scheme in ("paillier", "bfv"))


def run(exchange: Settings, parties: int, **settings: object) -> TrainingResult:
    """A short job without held-out scoring, so that views hold rounds only; each is run once."""
    both = exchange.get("hide") == "both"
    loss = "taylor-logistic" if both else "logistic"
    if both and parties > 2:
        exchange = {**exchange, "scores": "rows"}
    steps = {"rounds": ROUNDS, "batch_size": 114, "eval_every": 0, "local_steps": 3, "loss": loss}
    return once(breast_cancer(parties), exchange, **{**steps, **settings})


def round_kinds(view: View, sender: str | None = None) -> Counter[type[Message]]:
    return Counter(
        type(entry.message)
        for entry in view.received()
        if entry.message.stage == "round" and sender in {None, entry.sender}
    )


def per_round(exchange: Settings, k: int) -> tuple[int, int]:
    """The design's messages a round, and those of them with ciphertexts."""
    if exchange in (PLAIN, MASKED):
        return 2 * (k - 1), 0
    if exchange in (BOTH, BFV_BOTH):
        return 3 * (k * k - k), 2 * (k * k - k)
    return 4 * (k - 1), 2 * (k - 1)


@pytest.mark.parametrize(
    ("exchange", "parties"),
    [
        (exchange, parties)
        for exchange in (PLAIN, MASKED, PAILLIER, CKKS, BFV, BOTH, BFV_BOTH)
        for parties in (2, 3, 5)
        if (exchange, parties) != (MASKED, 2)
    ],
)
def test_messages_a_round_are_as_many_as_the_design_says(exchange: Settings, parties: int) -> None:
    result = run(exchange, parties)
    messages, with_ciphertexts = per_round(exchange, parties)
    assert result.costs().messages == ROUNDS * messages
    sent: Counter[str] = Counter()
    for ledger in result.ledgers.values():
        sent.update(ledger.messages)
    assert sent["EncryptedValues"] + sent["EncryptedProducts"] == ROUNDS * with_ciphertexts


@pytest.mark.parametrize(
    ("exchange", "trips"), [(PLAIN, 1), (PAILLIER, 2), (BOTH, 1.5)], ids=["plain", "HE", "both"]
)
def test_round_trips_are_counted_along_the_longest_chain(exchange: Settings, trips: float) -> None:
    assert run(exchange, 2).costs().round_trips == ROUNDS * trips


def test_the_set_up_shows_counts_bounds_and_keys_only() -> None:
    for name, view in run(PAILLIER, 3).views.items():
        kinds = Counter(type(e.message) for e in view.received() if e.message.stage == "setup")
        greeting = {Hello: 2, SeedOpening: 2}
        assert kinds == (greeting if name == "party1" else {**greeting, PublicKey: 1})


ENCRYPTED = {EncryptedValues: 1, DecryptedProducts: 1}
BOTH_SIDES = {EncryptedValues: 2, EncryptedProducts: 2, DecryptedProducts: 2}


@pytest.mark.parametrize(
    ("exchange", "label", "feature"),
    [
        (PLAIN, {Predictions: 2}, {Residuals: 1}),
        (MASKED, {MaskedPredictions: 2}, {Residuals: 1}),
        *(
            (exchange, {Predictions: 2, EncryptedProducts: 2}, ENCRYPTED)
            for exchange in (PAILLIER, CKKS, BFV)
        ),
        (MASKED_PAILLIER, {MaskedPredictions: 2, EncryptedProducts: 2}, ENCRYPTED),
        *((exchange, BOTH_SIDES, BOTH_SIDES) for exchange in (BOTH, BFV_BOTH)),
    ],
)
def test_a_round_of_three_shows_each_party_these_messages_and_no_other(
    exchange: Settings, label: dict[type[Message], int], feature: dict[type[Message], int]
) -> None:
    result = run(exchange, 3)
    for name, view in result.views.items():
        due = label if name == "party1" else feature
        assert round_kinds(view) == {kind: count * ROUNDS for kind, count in due.items()}
        if feature is ENCRYPTED:
            # The products are of one party's 10 columns each, as is its own gradient.
            own = name == "party1"
            assert [e.values.shape for e in view.decrypted()] == [(10, 1)] * (2 * ROUNDS * own)
            assert [e.values.shape for e in view.learned()] == [(10, 1)] * (ROUNDS * (not own))
        if feature is not BOTH_SIDES and name != "party1":
            assert round_kinds(view, "party1") == round_kinds(view)


@pytest.mark.parametrize("exchange", [BOTH, BFV_BOTH], ids=["paillier", "bfv"])
@pytest.mark.parametrize("parties", [2, 3])
def test_hiding_both_sides_every_party_decrypts_a_product_of_each_other_one(
    exchange: Settings, parties: int
) -> None:
    for view in run(exchange, parties).views.values():
        assert len(decrypted_in_rounds(view)) == (parties - 1) * ROUNDS
        assert set(round_kinds(view)) == set(BOTH_SIDES)


def decrypted_in_rounds(view: View) -> list[NDArray[np.uint64]]:
    """Products of one output; those of a scoring have two columns, by class."""
    return [each.values for each in view.decrypted() if each.values.shape[1] == 1]


def test_residuals_in_clear_tell_every_label_by_their_sign() -> None:
    result, dataset = run(PLAIN, 3), breast_cancer()
    schedule = BatchSchedule(dataset.row_digests, 114, result.job.job.seed)
    for step, message in enumerate(received(result, "party2", Residuals)):
        labels = dataset.train_labels[schedule.batch(step)]
        assert np.array_equal(np.signbit(message.values[:, 0]), labels == 1)


def test_masked_shows_the_label_party_uniform_shares_that_only_sum_to_something() -> None:
    shares = received(run(MASKED, 3), "party1", MaskedPredictions)
    top_bits = np.concatenate([each.values.ravel() >> np.uint64(60) for each in shares])
    counts = np.bincount(top_bits.astype(int), minlength=16)
    expected = len(top_bits) / 16
    # Chi-squared with 15 degrees of freedom passes 57 once in 10^6 true runs.
    assert float(((counts - expected) ** 2 / expected).sum()) < 57


@pytest.mark.parametrize("exchange", [PAILLIER, BFV], ids=["paillier", "bfv"])
def test_what_the_key_owner_decrypts_is_not_the_gradient(exchange: Settings) -> None:
    """The decrypted values are uniform up to 2^64: their top bits carry nothing."""
    result = run(exchange, 2)
    values = np.concatenate([e.values.ravel() for e in result.views["party1"].decrypted()])
    # 60 values: 16 buckets of the top bits; all in one half happens once in 2^59.
    assert 0 < np.count_nonzero(values >> np.uint64(63)) < len(values)


@pytest.mark.parametrize("exchange", [BOTH, BFV_BOTH], ids=["paillier", "bfv"])
@pytest.mark.parametrize("parties", [3, 4])
def test_what_one_sender_returns_is_no_product_of_its_values_even_without_the_mask(
    exchange: Settings, parties: int
) -> None:
    """The receiver knows its own mask r: sender by sender, only the share is left to hide v."""
    result = run(exchange, parties)
    for receiver in result.outcomes:
        for sender in (name for name in result.outcomes if name != receiver):
            returned = received(result, receiver, DecryptedProducts, sender)
            views = result.views[sender].decrypted()
            decrypted = [entry.values for entry in views if entry.sender == receiver]
            assert len(returned) == len(decrypted) == ROUNDS
            pairs = zip(returned, decrypted, strict=True)
            shares = [np.subtract(each.values, own, dtype=np.uint64) for each, own in pairs]
            # Seven words or more a round, none of them small, and none used twice.
            words = np.concatenate([share.ravel() for share in shares])
            assert len(np.unique(words)) == len(words) >= 7 * ROUNDS
            assert plausible(words) < 0.5


def test_with_two_parties_there_is_nobody_to_share_with() -> None:
    result = run(BOTH, 2)
    sent = [each.values for each in received(result, "party2", DecryptedProducts)]
    decrypted = decrypted_in_rounds(result.views["party1"])
    assert all(np.array_equal(a, b) for a, b in zip(sent, decrypted, strict=True))


@pytest.mark.parametrize(
    "exchange", [PLAIN, MASKED, PAILLIER, BOTH], ids=["plain", "masked", "paillier", "both"]
)
def test_scoring_adds_held_out_predictions_and_nothing_else(exchange: Settings) -> None:
    kinds = {
        name: {type(e.message).__name__ for e in view.received() if e.message.stage == "evaluation"}
        for name, view in run(exchange, 3, rounds=2, eval_every=1).views.items()
    }
    clear = exchange in (PLAIN, PAILLIER)
    assert kinds["party1"] == {"HeldOutPredictions" if clear else "MaskedHeldOutPredictions"}
    # Which state all keep is said once, after the last round.
    assert kinds["party2"] == kinds["party3"] == {"Verdict", "SelectedCheckpoint"}


# --------------------------------------------------------- held-out predictions under masks


def held_out(result: TrainingResult, step: int) -> dict[str, RingArray]:
    entries = result.views["party1"].received(MaskedHeldOutPredictions)
    messages = {(each.sender, vars(each.message)["step"]): each.message for each in entries}
    return {name: vars(each)["values"] for (name, at), each in messages.items() if at == step}


def total(summands: list[RingArray]) -> RingArray:
    summed: RingArray = np.add.reduce(summands, axis=0, dtype=np.uint64)
    return summed


def plausible(values: RingArray) -> float:
    """The share that could be a prediction; 2^24 of 2^31 among uniform numbers."""
    return float(np.mean(np.abs(decode(from_ring(values), FRACTION_BITS)) <= PREDICTION_BOUND))


@pytest.mark.parametrize("parties", [3, 4])
@pytest.mark.parametrize("exchange", [MASKED, MASKED_BFV, BFV_BOTH, BOTH])
def test_only_all_held_out_messages_together_are_predictions(
    exchange: Settings, parties: int
) -> None:
    result = run(exchange, parties, rounds=2, batch_size=228, eval_every=1)
    assert not result.views["party1"].received(Predictions)
    assert not result.views["party1"].received(HeldOutPredictions)
    scorings = [held_out(result, step) for step in range(2)]
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
