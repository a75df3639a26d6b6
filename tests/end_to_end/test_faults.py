"""Bytes that a peer should not have sent: the round ends, the peer is named, nothing changes."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from securevfl.errors import (
    ConfigError,
    MalformedMessage,
    PeerTimeout,
    PeerViolation,
    RangeExceeded,
    UnexpectedMessage,
)
from securevfl.job import ExchangeSettings, Job, JobSettings
from securevfl.protocols.exchanges.encrypted import EncryptedStep
from securevfl.protocols.exchanges.homomorphic import (
    DecryptedProducts,
    EncryptedProducts,
    EncryptedValues,
)
from securevfl.protocols.exchanges.plain import Residuals
from securevfl.protocols.session.agreement import Hello
from securevfl.protocols.session.early_stopping import Course
from securevfl.protocols.session.gathering import MaskedPredictions, Predictions
from securevfl.protocols.session.keys import PublicKey
from securevfl.training import Environment, train
from securevfl.wire.codec import Message, decode, encode
from tests.jobs import SmallKeys, breast_cancer, run_job

Change = Callable[[Message], Message | None]


def tampering(kind: type[Message], change: Change, step: int = 1) -> Environment:
    """A network that changes messages of one kind at one step (set-up messages: always)."""

    def tamper(sender: str, receiver: str, data: bytes) -> bytes | None:
        del sender, receiver
        message = decode(data)
        if not isinstance(message, kind) or getattr(message, "step", step) != step:
            return data
        changed = change(message)
        return None if changed is None else encode(changed)

    return Environment(keys=SmallKeys(), tamper=tamper)


def run(exchange: dict[str, object], environment: Environment, parties: int = 2) -> None:
    both = exchange.get("hide") == "both"
    job = Job(
        job=JobSettings(
            rounds=3, batch_size=64, loss="taylor-logistic" if both else "logistic", eval_every=0
        ),
        exchange=ExchangeSettings.model_validate(exchange),
    )
    train(job, breast_cancer(parties), environment)


def damaged_first(message: Message) -> Message:
    """The first ciphertext with its last byte changed and one byte less."""
    field = "vectors" if isinstance(message, EncryptedValues) else "products"
    first, *others = vars(message)[field]
    return replace(message, **{field: (first[:-1], *others)})


def zeroed_first(message: Message) -> Message:
    field = "vectors" if isinstance(message, EncryptedValues) else "products"
    first, *others = vars(message)[field]
    return replace(message, **{field: (bytes(len(first)), *others)})


def fewer(message: Message) -> Message:
    field = "vectors" if isinstance(message, EncryptedValues) else "products"
    return replace(message, **{field: ()})


def shorter(message: Message) -> Message:
    return replace(message, values=vars(message)["values"][1:])  # type: ignore[call-arg]


def replayed(message: Message) -> Message:
    return replace(message, step=0)  # type: ignore[call-arg]


TWO_TRIPS: dict[str, dict[str, object]] = {"paillier": {}, "ckks": {}, "bfv": {"round_trips": 2}}


@pytest.mark.parametrize("scheme", ["paillier", "ckks", "bfv"])
@pytest.mark.parametrize("hide", ["residuals", "both"])
@pytest.mark.parametrize("kind", [EncryptedValues, EncryptedProducts])
@pytest.mark.parametrize("change", [damaged_first, zeroed_first])
def test_a_bad_ciphertext_ends_the_round_and_names_the_peer(
    scheme: str, hide: str, kind: type[Message], change: Change
) -> None:
    sender = "party[12]" if hide == "both" else ("party1" if kind is EncryptedValues else "party2")
    with pytest.raises(MalformedMessage, match=f"from {sender}"):
        run({"scheme": scheme, "hide": hide, **TWO_TRIPS[scheme]}, tampering(kind, change))


@pytest.mark.parametrize("change", [damaged_first, zeroed_first])
def test_a_bad_ciphertext_ends_a_round_of_one_trip_as_well(change: Change) -> None:
    with pytest.raises(MalformedMessage, match="from party2"):
        run({"scheme": "bfv", "round_trips": 1}, tampering(EncryptedStep, change))


def test_a_scale_beyond_all_doubles_is_refused() -> None:
    def scaled(message: Message) -> Message:
        return replace(message, scale=200)  # type: ignore[call-arg]

    with pytest.raises(MalformedMessage, match=r"party2 scales by 2\^136"):
        run({"scheme": "bfv", "round_trips": 1}, tampering(EncryptedStep, scaled))


@pytest.mark.parametrize("kind", [EncryptedValues, EncryptedProducts])
def test_another_number_of_ciphertexts_than_due_is_refused(kind: type[Message]) -> None:
    with pytest.raises(UnexpectedMessage, match=r"0 (vectors|products).* due"):
        run({"scheme": "paillier"}, tampering(kind, fewer))


@pytest.mark.parametrize(
    ("exchange", "kind"),
    [
        ({"scheme": "plain"}, Predictions),
        ({"scheme": "plain"}, Residuals),
        ({"scheme": "paillier"}, DecryptedProducts),
    ],
)
@pytest.mark.parametrize(("change", "told"), [(shorter, "array of"), (replayed, "step 0")])
def test_an_array_of_another_shape_or_step_is_refused(
    exchange: dict[str, object], kind: type[Message], change: Change, told: str
) -> None:
    with pytest.raises(UnexpectedMessage, match=told):
        run(exchange, tampering(kind, change))


@pytest.mark.parametrize("rows", [slice(1, None), slice(1)])
def test_a_masked_array_of_another_shape_is_refused(rows: slice) -> None:
    """One row would be added to all, and a sum of other rows is no number."""

    def cut(message: Message) -> Message:
        return replace(message, values=vars(message)["values"][rows])  # type: ignore[call-arg]

    with pytest.raises(UnexpectedMessage, match=r"party\d.* array of"):
        run({"scheme": "masked"}, tampering(MaskedPredictions, cut), parties=3)


def test_a_lost_message_stalls_the_job_and_says_who_waits() -> None:
    with pytest.raises(PeerTimeout, match="party1 for Predictions from party2"):
        run({"scheme": "plain"}, tampering(Predictions, lambda _: None))


def test_a_key_of_another_scheme_is_refused() -> None:
    environment = tampering(PublicKey, lambda m: replace(m, scheme="ckks"))  # type: ignore[call-arg]
    with pytest.raises(PeerViolation, match="party1 sent a key of 'ckks'"):
        run({"scheme": "paillier"}, environment)


def test_a_peer_with_another_job_is_refused() -> None:
    environment = tampering(Hello, lambda m: replace(m, job_hash=bytes(32)))  # type: ignore[call-arg]
    with pytest.raises(PeerViolation, match=r"party\d runs another job"):
        run({"scheme": "plain"}, environment)


def test_a_peer_with_another_number_of_rows_is_refused() -> None:
    environment = tampering(Hello, lambda m: replace(m, rows=7))  # type: ignore[call-arg]
    with pytest.raises(PeerViolation, match="holds 7 training rows"):
        run({"scheme": "plain"}, environment)


@pytest.mark.parametrize("scheme", ["paillier", "ckks", "bfv"])
def test_products_that_could_overflow_are_refused_before_anything_is_encrypted(scheme: str) -> None:
    sent: list[type[Message]] = []

    def watch(sender: str, receiver: str, data: bytes) -> bytes:
        del sender, receiver
        sent.append(type(decode(data)))
        return data

    exchange = {"scheme": scheme, "value_fraction_bits": 40, "feature_fraction_bits": 32}
    with pytest.raises(RangeExceeded, match="bits"):
        run(exchange, Environment(tamper=watch))
    assert set(sent) == {Hello}


def test_residuals_beyond_the_agreed_bound_are_refused_not_wrapped() -> None:
    exchange: dict[str, object] = {"scheme": "paillier", "prediction_bound": 0.25}
    with pytest.raises(RangeExceeded, match="residuals"):
        run_job(breast_cancer(), exchange, rounds=1, batch_size=64, loss="squared")


@pytest.mark.parametrize("bits", [512, 1024, 4096])
def test_no_job_gets_a_key_of_another_size(bits: int) -> None:
    with pytest.raises(ConfigError, match="3072"):
        run({"scheme": "paillier", "key_bits": bits}, Environment())


def test_predictions_that_explode_are_refused() -> None:
    with np.errstate(all="ignore"), pytest.raises((RangeExceeded, MalformedMessage)):
        run_job(
            breast_cancer(3),
            {"scheme": "masked"},
            rounds=60,
            batch_size=64,
            learning_rate=1e6,
            loss="squared",
        )


@pytest.mark.parametrize("word", ["back", "stop"])
def test_a_word_that_contradicts_itself_is_refused(word: str) -> None:
    contradiction = Course(0, keep=True, back=word == "back", stop=word == "stop")
    environment = tampering(Course, lambda _: contradiction, step=0)
    with pytest.raises(UnexpectedMessage, match="says to keep a point and to leave it"):
        run_job(breast_cancer(), None, environment, learning_rate="auto", rounds=3)
