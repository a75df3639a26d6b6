"""What each exchange sends and shows: its description held against ledgers and recorded views."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from securevfl.data.partition import BatchSchedule
from securevfl.protocols.catalogue import EXCHANGES
from securevfl.protocols.exchanges.homomorphic import (
    DecryptedProducts,
    EncryptedProducts,
    EncryptedValues,
)
from securevfl.protocols.exchanges.plain import Residuals
from securevfl.protocols.session.agreement import Hello
from securevfl.protocols.session.gathering import MaskedPredictions, Predictions
from securevfl.protocols.session.keys import PublicKey
from securevfl.runtime.views import Received, View
from securevfl.training import TrainingResult
from securevfl.wire.codec import Message
from tests.end_to_end.contract import check_contract, few_rows
from tests.jobs import breast_cancer, run_job


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
def test_the_contract_holds_with_masked_predictions(name: str) -> None:
    variant = {"exchange": {"predictions": "masked"}}
    exchange = EXCHANGES[name]
    assert exchange.fewest_parties == 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(exchange), "fewest_parties", 3)
        check_contract(exchange, variant, few_rows)


ROUNDS = 4
PLAIN: dict[str, object] = {"scheme": "plain"}
MASKED: dict[str, object] = {"scheme": "masked"}
PAILLIER: dict[str, object] = {"scheme": "paillier"}
CKKS: dict[str, object] = {"scheme": "ckks"}
BFV: dict[str, object] = {"scheme": "bfv", "round_trips": 2}
MASKED_PAILLIER: dict[str, object] = {"scheme": "paillier", "predictions": "masked"}
BOTH: dict[str, object] = {"scheme": "paillier", "hide": "both"}
BFV_BOTH: dict[str, object] = {"scheme": "bfv", "hide": "both"}


Run = Callable[[dict[str, object], int], TrainingResult]


@pytest.fixture(scope="module")
def run() -> Run:
    """A short job without held-out scoring, so that views hold rounds only; each is run once."""
    done: dict[str, TrainingResult] = {}

    def recorded(exchange: dict[str, object], parties: int) -> TrainingResult:
        name = f"{exchange}, {parties} parties"
        if name not in done:
            dataset = breast_cancer(parties)
            loss = "taylor-logistic" if exchange.get("hide") == "both" else "logistic"
            settings = {"rounds": ROUNDS, "batch_size": 114, "eval_every": 0, "local_steps": 3}
            done[name] = run_job(dataset, exchange, loss=loss, **settings)
        return done[name]

    return recorded


def round_kinds(view: View, sender: str | None = None) -> Counter[type[Message]]:
    """Kinds of the round messages in a view."""
    return Counter(
        type(entry.message)
        for entry in view.received()
        if entry.message.stage == "round" and sender in {None, entry.sender}
    )


def per_round(exchange: dict[str, object], k: int) -> tuple[int, int]:
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
def test_messages_a_round_are_as_many_as_the_design_says(
    run: Run, exchange: dict[str, object], parties: int
) -> None:
    result = run(exchange, parties)
    messages, with_ciphertexts = per_round(exchange, parties)
    assert result.costs().messages == ROUNDS * messages
    sent: Counter[str] = Counter()
    for ledger in result.ledgers.values():
        sent.update(ledger.messages)
    assert sent["EncryptedValues"] + sent["EncryptedProducts"] == ROUNDS * with_ciphertexts


def arrays(view: View, kind: type[Message], sender: str | None = None) -> list[NDArray[Any]]:
    """The arrays of the messages of one kind."""
    return [
        vars(entry.message)["values"]
        for entry in view.received(kind)
        if sender in {None, entry.sender}
    ]


@pytest.mark.parametrize(
    ("exchange", "trips"), [(PLAIN, 1), (PAILLIER, 2), (BOTH, 1.5)], ids=["plain", "HE", "both"]
)
def test_round_trips_are_counted_along_the_longest_chain(
    run: Run, exchange: dict[str, object], trips: float
) -> None:
    assert run(exchange, 2).costs().round_trips == ROUNDS * trips


def test_the_set_up_shows_counts_bounds_and_keys_only(run: Run) -> None:
    result = run(PAILLIER, 3)
    for name, view in result.views.items():
        kinds = Counter(
            type(entry.message) for entry in view.received() if entry.message.stage == "setup"
        )
        expected = {Hello: 2} if name == "party1" else {Hello: 2, PublicKey: 1}
        assert kinds == expected


def test_plain_shows_every_prediction_to_the_label_party_and_residuals_to_the_others(
    run: Run,
) -> None:
    result = run(PLAIN, 3)
    assert round_kinds(result.views["party1"]) == {Predictions: 2 * ROUNDS}
    for feature_party in ("party2", "party3"):
        assert round_kinds(result.views[feature_party]) == {Residuals: ROUNDS}
    # The table's warning: the sign of every residual is a label.
    dataset = breast_cancer()
    schedule = BatchSchedule(dataset.row_digests, 114, result.job.job.seed)
    for step, residuals in enumerate(arrays(result.views["party2"], Residuals)):
        labels = dataset.train_labels[schedule.batch(step)]
        assert np.array_equal(np.signbit(residuals[:, 0]), labels == 1)


def test_masked_shows_the_label_party_uniform_shares_that_only_sum_to_something(run: Run) -> None:
    result = run(MASKED, 3)
    view = result.views["party1"]
    assert round_kinds(view) == {MaskedPredictions: 2 * ROUNDS}
    assert round_kinds(result.views["party2"]) == {Residuals: ROUNDS}
    top_bits = np.concatenate(
        [values.ravel() >> np.uint64(60) for values in arrays(view, MaskedPredictions)]
    )
    counts = np.bincount(top_bits.astype(int), minlength=16)
    expected = len(top_bits) / 16
    # Chi-squared with 15 degrees of freedom passes 57 once in 10^6 true runs.
    assert float(((counts - expected) ** 2 / expected).sum()) < 57


@pytest.mark.parametrize("exchange", [PAILLIER, CKKS, BFV], ids=["paillier", "ckks", "bfv"])
def test_encrypted_residuals_show_feature_parties_ciphertexts_and_their_masked_gradient(
    run: Run, exchange: dict[str, object]
) -> None:
    result = run(exchange, 3)
    label = result.views["party1"]
    assert round_kinds(label) == {Predictions: 2 * ROUNDS, EncryptedProducts: 2 * ROUNDS}
    assert len(label.decrypted()) == 2 * ROUNDS
    assert all(entry.values.shape == (10, 1) for entry in label.decrypted())
    for feature_party in ("party2", "party3"):
        view = result.views[feature_party]
        assert round_kinds(view) == {EncryptedValues: ROUNDS, DecryptedProducts: ROUNDS}
        assert round_kinds(view, "party1") == round_kinds(view)
        assert view.decrypted() == []
        # Its own gradient, and nothing else.
        assert [entry.values.shape for entry in view.learned()] == [(10, 1)] * ROUNDS


def test_masked_predictions_leave_only_their_sum_beside_the_products(run: Run) -> None:
    result = run(MASKED_PAILLIER, 3)
    assert round_kinds(result.views["party1"]) == {
        MaskedPredictions: 2 * ROUNDS,
        EncryptedProducts: 2 * ROUNDS,
    }


def decrypted_in_rounds(view: View) -> list[NDArray[np.uint64]]:
    """Products of one output; those of a scoring have two columns, by class."""
    return [each.values for each in view.decrypted() if each.values.shape[1] == 1]


@pytest.mark.parametrize("exchange", [BOTH, BFV_BOTH], ids=["paillier", "bfv"])
@pytest.mark.parametrize("parties", [2, 3])
def test_hiding_both_sides_shows_no_prediction_and_no_residual_to_anyone(
    run: Run, exchange: dict[str, object], parties: int
) -> None:
    result = run(exchange, parties)
    for view in result.views.values():
        assert round_kinds(view) == {
            EncryptedValues: (parties - 1) * ROUNDS,
            EncryptedProducts: (parties - 1) * ROUNDS,
            DecryptedProducts: (parties - 1) * ROUNDS,
        }
        assert len(decrypted_in_rounds(view)) == (parties - 1) * ROUNDS


@pytest.mark.parametrize("exchange", [PAILLIER, BFV], ids=["paillier", "bfv"])
def test_what_the_key_owner_decrypts_is_not_the_gradient(
    run: Run, exchange: dict[str, object]
) -> None:
    """The decrypted values are uniform up to 2^64: their top bits carry nothing."""
    result = run(exchange, 2)
    values = np.concatenate([e.values.ravel() for e in result.views["party1"].decrypted()])
    # 60 values: 16 buckets of the top bits; all in one half happens once in 2^59.
    assert 0 < np.count_nonzero(values >> np.uint64(63)) < len(values)


@pytest.mark.parametrize("exchange", [BOTH, BFV_BOTH], ids=["paillier", "bfv"])
@pytest.mark.parametrize("parties", [3, 4])
def test_a_share_hides_which_sender_a_summand_came_from(
    run: Run, exchange: dict[str, object], parties: int
) -> None:
    """With three parties or more no single DecryptedProducts is the masked product itself."""
    result = run(exchange, parties)
    receiver, owner = "party2", "party3"
    sent = arrays(result.views[receiver], DecryptedProducts, owner)
    decrypted = [e.values for e in result.views[owner].decrypted() if e.sender == receiver]
    assert len(sent) == len(decrypted) == ROUNDS
    for masked, shared in zip(decrypted, sent, strict=True):
        assert not np.any(masked == shared)


def test_with_two_parties_there_is_nobody_to_share_with(run: Run) -> None:
    result = run(BOTH, 2)
    sent = arrays(result.views["party2"], DecryptedProducts)
    decrypted = decrypted_in_rounds(result.views["party1"])
    assert all(np.array_equal(a, b) for a, b in zip(sent, decrypted, strict=True))


@pytest.mark.parametrize(
    "exchange", [PLAIN, MASKED, PAILLIER, BOTH], ids=["plain", "masked", "paillier", "both"]
)
def test_scoring_adds_held_out_predictions_and_nothing_else(exchange: dict[str, object]) -> None:
    dataset = breast_cancer(3)
    loss = "taylor-logistic" if exchange.get("hide") == "both" else "logistic"
    result = run_job(dataset, exchange, rounds=2, batch_size=114, loss=loss, eval_every=1)
    kinds = {
        name: {type(e.message).__name__ for e in view.received() if e.message.stage == "evaluation"}
        for name, view in result.views.items()
    }
    clear = exchange in (PLAIN, PAILLIER)
    assert kinds["party1"] == {"HeldOutPredictions" if clear else "MaskedHeldOutPredictions"}
    # Which state all keep is said once, after the last round.
    assert kinds["party2"] == kinds["party3"] == {"Verdict", "SelectedCheckpoint"}


def test_views_hold_received_messages_with_their_senders(run: Run) -> None:
    result = run(PLAIN, 2)
    entries = result.views["party1"].entries
    assert all(isinstance(entry, Received) and entry.sender == "party2" for entry in entries)
