"""Bytes that a peer should not have sent: the round ends, the peer is named, nothing changes."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from securevfl import errors
from securevfl.data.tables import VerticalDataset
from securevfl.protocols.exchanges.class_sums import EncryptedHeldOut, EncryptedHeldOutProducts
from securevfl.protocols.exchanges.encrypted import EncryptedStep
from securevfl.protocols.exchanges.homomorphic import (
    DecryptedProducts,
    EncryptedProducts,
    EncryptedValues,
)
from securevfl.protocols.exchanges.plain import HeadResiduals, Residuals
from securevfl.protocols.session.agreement import Hello
from securevfl.protocols.session.early_stopping import Decision
from securevfl.protocols.session.gathering import HeldOutPredictions, MaskedPredictions, Predictions
from securevfl.protocols.session.joint_seed import SeedOpening
from securevfl.protocols.session.keys import KeyMaker, PublicKey
from securevfl.protocols.transfer.sides import (
    EncryptedComponents,
    EncryptedScores,
    EncryptedScoreVector,
    FeatureComponents,
    LabelComponents,
    ScoreMasks,
    ScoreVector,
)
from securevfl.protocols.vertical.dbcd import StepTaken
from securevfl.protocols.vertical.dbcd_block import Penalties
from securevfl.protocols.vertical.fdml import SERVER, PulledSums, PushedPredictions
from securevfl.runtime.simulation import Tamper
from securevfl.training import Environment
from securevfl.wire.codec import Message, decode
from tests import transfer_data
from tests.jobs import Settings, SmallKeys, breast_cancer, fit, run_job
from tests.made_data import made
from tests.tampering import changed

Change = Callable[[Any], Message | None]
FEW = {"rounds": 3, "batch_size": 64, "eval_every": 0}
BOTH = {"loss": "taylor-logistic"}
ONE_TRIP = {"scheme": "bfv", "round_trips": 1}
TWO_TRIPS: dict[str, dict[str, object]] = {
    "paillier": {"scheme": "paillier"},
    "ckks": {"scheme": "ckks"},
    "bfv": {"scheme": "bfv", "round_trips": 2},
}
DBCD = {"algorithm": "dbcd", "rounds": 300, "tolerance": 1e-7, "eval_every": 0, "l1": 0.01}
FDML = {"algorithm": "fdml", "rounds": 40, "batch_size": 64, "learning_rate": 0.5, "start": "zero"}
SEVERAL = {**FDML, "fdml": {"staleness": 3, "batches_per_message": 4}}
SINGLE = {**FDML, "fdml": {"precision": "single"}}
HEAD = {
    **{"head": "logistic", "representation": 3, "model": "mlp", "hidden": [4], "rounds": 6},
    **{"batch_size": 32, "learning_rate": 0.5},
}
FTL = {**transfer_data.FTL, "eval_every": 2}
FTL_BFV = {"scheme": "bfv", "hide": "both"}


def tampered(tamper: Tamper) -> Environment:
    return Environment(keys=SmallKeys(), tamper=tamper)


def run(exchange: str | Settings | None, tamper: Tamper, /, **more: object) -> None:
    fit(breast_cancer(), exchange, tampered(tamper), **{**FEW, **more})


def cut(field: str, part: Any = slice(1, None)) -> Change:  # noqa: ANN401
    return lambda m: replace(m, **{field: vars(m)[field][part]})


def first_changed(change: Callable[[bytes], bytes]) -> Change:
    def apply(message: Message) -> Message:
        field = "vectors" if isinstance(message, EncryptedValues) else "products"
        first, *others = vars(message)[field]
        return replace(message, **{field: (change(first), *others)})

    return apply


BAD_CIPHERTEXTS = [first_changed(lambda first: first[:-1]), first_changed(lambda f: bytes(len(f)))]


@pytest.mark.parametrize("scheme", TWO_TRIPS)
@pytest.mark.parametrize("hide", ["residuals", "both"])
@pytest.mark.parametrize("kind", [EncryptedValues, EncryptedProducts])
@pytest.mark.parametrize("change", BAD_CIPHERTEXTS, ids=["cut", "zeros"])
def test_a_bad_ciphertext_ends_the_round_and_names_the_peer(
    scheme: str, hide: str, kind: type[Message], change: Change
) -> None:
    sender = "party[12]" if hide == "both" else ("party1" if kind is EncryptedValues else "party2")
    more = BOTH if hide == "both" else {}
    with pytest.raises(errors.MalformedMessage, match=f"from {sender}"):
        run({**TWO_TRIPS[scheme], "hide": hide}, changed(kind, change, step=1), **more)


@pytest.mark.parametrize(
    ("change", "error_text"),
    [
        *((change, "from party2") for change in BAD_CIPHERTEXTS),
        (lambda m: replace(m, scale=200), r"party2 scales by 2\^136"),  # beyond all doubles
        (cut("masks"), r"party2 sent masks of shape \(65, 1\)"),
    ],
)
def test_a_bad_step_ends_a_round_of_one_trip_as_well(change: Change, error_text: str) -> None:
    with pytest.raises(errors.MalformedMessage, match=error_text):
        run(ONE_TRIP, changed(EncryptedStep, change, step=1))


def no_ciphertexts(message: EncryptedValues | EncryptedProducts) -> Message:
    if isinstance(message, EncryptedValues):
        return replace(message, vectors=())
    return replace(message, products=())


# One row would be added to all, and a sum of other rows is no number.
ONE_ROW = cut("values", slice(1))
PLAIN, PAILLIER = ("plain", FEW, breast_cancer), ("paillier", FEW, breast_cancer)
MASKED = ("masked", FEW, lambda: breast_cancer(3))
OF_DBCD, OF_FTL = (None, DBCD, breast_cancer), (None, FTL, transfer_data.made)
OF_FDML, OF_SEVERAL = (None, FDML, breast_cancer), (None, SEVERAL, breast_cancer)
OF_SINGLE = (None, SINGLE, breast_cancer)
OF_HEAD = (None, HEAD, lambda: made(1, rows=96, columns=30))
OF_SUMS = (FTL_BFV, {**FEW, **BOTH, "rounds": 1}, breast_cancer)
OF_FTL_BFV = (FTL_BFV, {**FTL, "rounds": 2}, transfer_data.made)


def wider(message: PushedPredictions | PulledSums) -> Message:
    return replace(message, values=message.values.astype(np.float64))


@pytest.mark.parametrize(
    ("job", "kind", "change", "error_text"),
    [
        *((PAILLIER, each, no_ciphertexts, r"0 (vectors|products).* expected")
          for each in (EncryptedValues, EncryptedProducts)),
        (PLAIN, Predictions, cut("values"), "array of"),
        (PLAIN, Residuals, cut("values"), "array of"),
        (PAILLIER, DecryptedProducts, cut("values"), "array of"),
        (MASKED, MaskedPredictions, cut("values"), r"party\d.* array of"),
        (MASKED, MaskedPredictions, ONE_ROW, r"party\d.* array of"),
        (OF_DBCD, StepTaken, lambda m: replace(m, length=np.array([0.7, 0.0])), "not on the grid"),
        (OF_DBCD, StepTaken, lambda m: replace(m, length=np.array([1.0, 0.7])), "not on the grid"),
        (OF_DBCD, StepTaken, lambda m: replace(m, length=np.ones(3)), "array"),
        (OF_DBCD, StepTaken, lambda m: replace(m, step=m.step + 1), "step 0 is expected"),
        (OF_DBCD, Penalties, cut("table"), "array"),
        (OF_DBCD, Penalties, cut("optimality"), "array"),
        (OF_DBCD, Predictions, cut("values"), "array"),
        (OF_DBCD, Residuals, cut("values"), "array"),
        (OF_FDML, PushedPredictions, lambda m: replace(m, step=m.step + 1), "where 0 is"),
        (OF_FDML, PushedPredictions, cut("values"), "array"),
        (OF_FDML, HeldOutPredictions, cut("values"), "array"),
        (OF_FDML, PushedPredictions, lambda m: PulledSums(m.step, m.values), "is expected"),
        # The server takes all batches of a message or none.
        (OF_SEVERAL, PushedPredictions, cut("values"), "sent an array"),
        (OF_SEVERAL, PushedPredictions, cut("values", slice(64)), "sent an array"),
        (OF_SINGLE, PushedPredictions, wider, "sent float64 where float32 is expected"),
        (OF_SINGLE, PulledSums, wider, "sent float64 where float32 is expected"),
        (OF_HEAD, Predictions, cut("values", np.s_[:, :1]), "array of"),
        (OF_HEAD, HeldOutPredictions, cut("values", np.s_[:, :1]), "array of"),
        (OF_HEAD, HeadResiduals, cut("values"), "array of"),
        (OF_HEAD, HeadResiduals, cut("head"), "array of"),
        (OF_SUMS, EncryptedHeldOut, cut("vectors"), "3 vectors where 4 are expected"),
        (OF_SUMS, EncryptedHeldOutProducts, cut("products"), "3 products where 4 are expected"),
        (OF_FTL, LabelComponents, cut("rows"), "sent an array of"),
        (OF_FTL, LabelComponents, cut("phi"), "sent an array of"),
        (OF_FTL, FeatureComponents, cut("rows", np.s_[:, 1:]), "sent an array of"),
        (OF_FTL, ScoreVector, cut("phi", slice(1)), "sent an array of"),
        (OF_FTL, HeldOutPredictions, cut("values"), "sent an array of"),
        (OF_FTL_BFV, EncryptedComponents, cut("vectors"), "4 vectors where 5"),
        (OF_FTL_BFV, EncryptedComponents, lambda m: replace(m, exponent=m.exponent + 10),
         "bounds eigenvalues by"),
        (OF_FTL_BFV, EncryptedProducts, cut("products"), "4 products where 5 are expected"),
        (OF_FTL_BFV, DecryptedProducts, cut("values", np.s_[:, 1:]), "sent an array of"),
        (OF_FTL_BFV, ScoreMasks, cut("values"), "sent an array of"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(
    job: tuple[str | Settings | None, Settings, Callable[[], VerticalDataset]],
    kind: type[Message],
    change: Change,
    error_text: str,
) -> None:
    exchange, settings, data = job
    receiver = SERVER if settings is FDML else None
    with pytest.raises(errors.UnexpectedMessage, match=error_text):
        fit(data(), exchange, tampered(changed(kind, change, receiver=receiver)), **settings)


def test_sums_of_held_out_rows_that_do_not_fit_are_refused_by_fdmls_parties() -> None:
    exchange, settings, data = OF_FDML
    wrong = changed(HeldOutPredictions, cut("values"), sender=SERVER)
    with pytest.raises(errors.UnexpectedMessage, match="server sent an array"):
        fit(data(), exchange, tampered(wrong), **settings)


@pytest.mark.parametrize(
    ("kind", "change", "error_text"),
    [
        (EncryptedComponents, lambda m: replace(m, vectors=(b"", *m.vectors[1:])), "(bank|shop)"),
        (EncryptedScoreVector, cut("vector"), "bank"),
        (EncryptedScores, cut("product"), "shop"),
    ],
)
def test_a_bad_ciphertext_ends_transfer_learning(
    kind: type[Message], change: Change, error_text: str
) -> None:
    exchange, settings, data = OF_FTL_BFV
    with pytest.raises(errors.MalformedMessage, match=f"from {error_text}"):
        fit(data(), exchange, tampered(changed(kind, change)), **settings)


@pytest.mark.parametrize(
    ("exchange", "kind"),
    [("plain", Predictions), ("plain", Residuals), ("paillier", DecryptedProducts)],
)
def test_a_message_that_comes_again_is_refused(exchange: str, kind: type[Message]) -> None:
    with pytest.raises(errors.UnexpectedMessage, match="step 0"):
        run(exchange, changed(kind, lambda m: replace(m, step=0), step=1))


def test_a_lost_message_stalls_the_job_and_says_who_waits() -> None:
    with pytest.raises(errors.PeerTimeout, match="party1 for Predictions from party2"):
        run("plain", changed(Predictions, lambda _: None, step=1))


@pytest.mark.parametrize(
    ("exchange", "more", "kind", "change", "error_text"),
    [
        ("paillier", {}, PublicKey, {"scheme": "ckks"}, "party1 sent a key of 'ckks'"),
        ("plain", {}, Hello, {"job_hash": bytes(32)}, r"party\d runs another job"),
        ("plain", {}, Hello, {"rows": 7}, "holds 7 training rows"),
        (None, FDML, Hello, {"job_hash": b"x" * 32}, "another job"),
        (None, FDML, Hello, {"rows": 457}, "another job"),
    ],
)
def test_a_peer_with_another_job_or_key_is_refused(
    exchange: str | None, more: Settings, kind: type[Message], change: Settings, error_text: str
) -> None:
    receiver = SERVER if more else None
    with pytest.raises(errors.PeerViolation, match=error_text):
        run(exchange, changed(kind, lambda m: replace(m, **change), receiver=receiver), **more)


class SmallKeysOfOwners(SmallKeys):
    """Owners make small keys, and those who receive them look at them as in any job."""

    evaluator = KeyMaker.evaluator


def test_a_key_of_another_size_names_its_owner() -> None:
    environment = Environment(keys=SmallKeysOfOwners())
    with pytest.raises(errors.KeyMismatch, match=r"^key of party1: Paillier key of 384 bits"):
        fit(breast_cancer(), "paillier", environment, **FEW)


@pytest.mark.parametrize("scheme", TWO_TRIPS)
def test_products_that_could_overflow_are_refused_before_anything_is_encrypted(scheme: str) -> None:
    sent: set[type[Message]] = set()

    def watch(sender: str, receiver: str, data: bytes) -> bytes:
        sent.add(type(decode(data)))
        return data

    with pytest.raises(errors.RangeExceeded, match="bits"):
        run({"scheme": scheme, "value_fraction_bits": 40, "feature_fraction_bits": 32}, watch)
    assert sent == {Hello, SeedOpening}


def test_residuals_beyond_the_agreed_bound_are_refused_not_wrapped() -> None:
    exchange = {"scheme": "paillier", "prediction_bound": 0.25}
    with pytest.raises(errors.RangeExceeded, match="residuals"):
        run_job(breast_cancer(), exchange, rounds=1, batch_size=64, loss="squared")


@pytest.mark.parametrize("bits", [512, 1024, 4096])
def test_no_job_gets_a_key_of_another_size(bits: int) -> None:
    with pytest.raises(errors.ConfigError, match="3072"):
        fit(breast_cancer(), {"scheme": "paillier", "key_bits": bits}, Environment(), **FEW)


def test_predictions_that_explode_are_refused() -> None:
    steps = {"rounds": 60, "batch_size": 64, "learning_rate": 1e6, "loss": "squared"}
    with np.errstate(all="ignore"), pytest.raises((errors.RangeExceeded, errors.MalformedMessage)):
        run_job(breast_cancer(3), "masked", **steps)


def test_weights_that_are_not_finite_end_training() -> None:
    settings = {**FTL, "learning_rate": 1e200, "local_steps": 5, "ftl": {"activation": "relu"}}
    with (
        pytest.raises(errors.TrainingDiverged, match="use a smaller one"),
        np.errstate(all="ignore"),
    ):
        fit(transfer_data.made(), **settings)


@pytest.mark.parametrize("word", ["backtrack", "stop"])
def test_a_word_that_contradicts_itself_is_refused(word: str) -> None:
    contradiction = Decision(0, best=True, backtrack=word == "backtrack", stop=word == "stop")
    with pytest.raises(errors.UnexpectedMessage, match="calls a point the best one and leaves it"):
        run(None, changed(Decision, lambda _: contradiction, step=0), batch_size="full")
