"""Every guard of the codec, on bytes written by hand."""

import struct
import tracemalloc
from dataclasses import fields

import numpy as np
import pytest

from securevfl.arrays import FloatArray, RealArray, RingArray
from securevfl.errors import MalformedMessage
from securevfl.protocols.exchanges.homomorphic import EncryptedValues
from securevfl.protocols.session.gathering import Predictions
from securevfl.protocols.session.keys import PublicKey
from securevfl.protocols.session.scoring import Verdict
from securevfl.wire.codec import Blobs, Message, StepMessage, decode, encode, kinds, message_kind
from tests.message_kinds import KINDS, fields_of

UNKNOWN = max(kind.number for kind in KINDS) + 1
HELLO, PUBLIC_KEY, PREDICTIONS, MASKED, ENCRYPTED, VERDICT = 0, 1, 2, 3, 5, 11
BLOCK_UPLOAD = 81
BY_TYPE = {
    int: (0, 7, 2**64 - 1),
    bool: (True, False, True),
    str: ("", "bfv-µ", "key"),
    bytes: (b"", b"\0\xff", b"\1" * 32),
    Blobs: ((), (b"", b"\0", b"ciphertext"), (b"product",)),
    FloatArray: (
        np.array([[0.5, -0.0], [1e-300, -1e300]]),
        np.array([1.5, -2.0]),
        np.zeros((0, 3)),
    ),
    RealArray: (
        np.array([[0.5, -2.0], [3e38, 1e-45]], np.float32),
        np.array([[0.5, -0.0], [1e-300, -1e300]]),
        np.zeros(0, np.float32),
    ),
    RingArray: (
        np.array([[0, 1], [2**63, 2**64 - 1]], np.uint64),
        np.array([2**63], np.uint64),
        np.zeros((0, 2), np.uint64),
    ),
}
EXAMPLES = tuple(
    kind(**{name: values[number] for name, values in fields_of(kind, BY_TYPE).items()})
    for kind in KINDS
    for number in range(3)
)


def wire(kind: int, *parts: bytes) -> bytes:
    """A message by hand."""
    return b"SVFL" + bytes([1, kind]) + b"".join(parts)


def u64(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


def array(*shape: int, data: bytes = b"") -> bytes:
    return bytes([len(shape)]) + u64(*shape) + data


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda m: type(m).__name__)
def test_every_kind_comes_back_as_it_was(message: Message) -> None:
    back = decode(encode(message))
    assert type(back) is type(message)
    for field in fields(message):
        sent, received = getattr(message, field.name), getattr(back, field.name)
        if isinstance(sent, np.ndarray):
            assert received.dtype == sent.dtype
            assert received.tobytes() == sent.tobytes()
            assert received.shape == sent.shape
        else:
            assert type(received) is type(sent)
            assert received == sent


def test_the_layout_on_the_wire_is_the_documented_one() -> None:
    values = np.array([[1.5, -2.0]])
    by_hand = wire(PREDICTIONS, u64(9), array(1, 2, data=struct.pack("<2d", 1.5, -2.0)))
    assert encode(Predictions(9, values)) == by_hand
    key = wire(PUBLIC_KEY, u64(3), b"bfv", u64(2), b"\1\2")
    assert encode(PublicKey("bfv", b"\1\2")) == key
    parts = wire(ENCRYPTED, u64(4, 2), u64(1), b"a", u64(0))
    assert encode(EncryptedValues(4, (b"a", b""))) == parts
    assert encode(Verdict(1, stop=False)) == wire(VERDICT, u64(1), b"\0")


def test_arrays_in_another_order_in_memory_arrive_the_same() -> None:
    values = np.arange(6.0).reshape(2, 3)
    turned = decode(encode(Predictions(0, np.asfortranarray(values))))
    assert isinstance(turned, Predictions)
    np.testing.assert_array_equal(turned.values, values)
    swapped = decode(encode(Predictions(0, values.astype(">f8"))))
    assert isinstance(swapped, Predictions)
    np.testing.assert_array_equal(swapped.values, values)


# By the number of the first, the kinds that follow one another.
NAMES_FROM = {
    0: "Hello PublicKey Predictions MaskedPredictions Residuals EncryptedValues EncryptedProducts "
    "EncryptedStep DecryptedProducts HeldOutPredictions MaskedHeldOutPredictions Verdict "
    "PushedPredictions PulledSums Decision SeedOpening",
    20: "EncryptedHeldOut EncryptedHeldOutProducts HeldOutMasks",
    30: "LabelComponents FeatureComponents ScoreVector EncryptedComponents EncryptedScoreVector "
    "EncryptedScores ScoreMasks",
    40: "HeadResiduals",
    45: "Penalties MaskedPenalties StepTaken",
    50: "SelectedCheckpoint",
    55: "ScoringHello",
    60: "EncryptedPads MaskedSteps Corrections MaskedResiduals RevealedShare EncryptedPhases "
    "EncryptedPhaseProducts MaskedPhases PredictionShares",
    70: "HeldOutShares",
    73: "Scales MaskedShares EncryptedPoints StaysInRange OpenedCheck ProvenReplies",
    79: "NamePads ModelSent BlockUpload Doublings ConfirmedCheck",
    90: "Ready Roster MaskedUpload Closed CompressedUpload",
    100: "SizesSealed Sizes CountsAccepted RaisedPoints Overlap Places Order",
    110: "Description GivenLabels",
}


def test_a_number_is_given_once_and_for_ever() -> None:
    found = {kind.number: kind.__name__ for kind in KINDS}
    expected = {
        first + place: name
        for first, names in NAMES_FROM.items()
        for place, name in enumerate(names.split())
    }
    assert found == expected
    for number in (Predictions.number, 256, -1):
        with pytest.raises(ValueError, match="taken, or no byte"):
            message_kind(number, stage="round")(type("Another", (Message,), {}))


def test_what_is_carried_says_what_it_shows() -> None:
    assert all((kind.shows == "nothing") <= (kind.carries == "control") for kind in kinds())
    with pytest.raises(ValueError, match="say what it shows"):
        message_kind(255, stage="round", carries="values")(type("Another", (Message,), {}))
    floats = {"__annotations__": {"values": FloatArray}}
    for declare in (
        message_kind(255, stage="round"),
        message_kind(255, stage="round", carries="ciphertexts", shows="residuals"),
    ):
        with pytest.raises(ValueError, match="and floats are values"):
            declare(type("Another", (StepMessage,), floats))
    assert 255 not in {kind.number for kind in kinds()}


def test_only_the_encrypted_kinds_count_as_ciphertexts() -> None:
    names = (
        "EncryptedValues EncryptedProducts EncryptedStep EncryptedHeldOut EncryptedHeldOutProducts "
        "EncryptedComponents EncryptedScoreVector EncryptedScores EncryptedPads MaskedSteps "
        "MaskedShares EncryptedPoints EncryptedPhases EncryptedPhaseProducts"
    )
    assert {k.__name__ for k in KINDS if k.carries == "ciphertexts"} == set(names.split())


def test_a_message_of_exactly_the_limit_is_accepted_and_one_byte_more_is_refused() -> None:
    data = encode(EXAMPLES[0])
    assert encode(decode(data, len(data))) == data
    with pytest.raises(MalformedMessage, match=f"at most {len(data) - 1} accepted"):
        decode(data, len(data) - 1)


REFUSED = {
    "nothing": (b"", "shorter than its header"),
    "half a header": (b"SVFL\1", "shorter than its header"),
    "another magic": (b"SVFX" + wire(VERDICT, u64(0), b"\0")[4:], "not a securevfl message"),
    "a newer version": (b"SVFL\2" + wire(VERDICT, u64(0), b"\0")[5:], "protocol version 2"),
    "version 0": (b"SVFL\0" + wire(VERDICT, u64(0), b"\0")[5:], "protocol version 0"),
    "the first unknown kind": (wire(UNKNOWN, u64(0), b"\0"), f"unknown kind {UNKNOWN}"),
    "the last unknown kind": (wire(255), "unknown kind 255"),
    "no fields": (wire(VERDICT), "8 bytes expected"),
    "half an integer": (wire(VERDICT, b"\0\0\0"), "8 bytes expected"),
    "a missing flag": (wire(VERDICT, u64(0)), "1 bytes expected"),
    "flag 2": (wire(VERDICT, u64(0), b"\2"), "neither 0 nor 1"),
    "flag 255": (wire(VERDICT, u64(0), b"\xff"), "neither 0 nor 1"),
    "a trailing byte": (wire(VERDICT, u64(0), b"\1\0"), "1 bytes after the end"),
    "two messages": (wire(VERDICT, u64(0), b"\1") * 2, "bytes after the end"),
    "text beyond the end": (wire(PUBLIC_KEY, u64(4), b"bfv"), "4 bytes expected"),
    "text near 2^64": (wire(PUBLIC_KEY, u64(2**64 - 1), b"bfv"), f"{2**64 - 1} bytes expected"),
    "text that is not UTF-8": (wire(PUBLIC_KEY, u64(2), b"\xc3\x28", u64(0)), "not UTF-8"),
    "text with a surrogate": (wire(PUBLIC_KEY, u64(3), b"\xed\xa0\x80", u64(0)), "not UTF-8"),
    "bytes beyond the end": (wire(HELLO, u64(33), bytes(32)), "33 bytes expected"),
    "one part too many": (wire(ENCRYPTED, u64(0, 2), u64(0)), "2 parts announced"),
    "2^64 - 1 parts": (wire(ENCRYPTED, u64(0, 2**64 - 1), bytes(80)), "parts announced"),
    "a part beyond the end": (wire(ENCRYPTED, u64(0, 1), u64(1)), "1 bytes expected"),
    "a part near 2^64": (wire(ENCRYPTED, u64(0, 1), u64(2**64 - 8)), "bytes expected"),
    "no dimensions": (wire(PREDICTIONS, u64(0)), "1 bytes expected"),
    "three dimensions": (
        wire(PREDICTIONS, u64(0), array(1, 1, 1, data=bytes(8))),
        "array of 3 dimensions, at most 2",
    ),
    "255 dimensions": (wire(PREDICTIONS, u64(0), b"\xff"), "array of 255 dimensions"),
    "a missing extent": (wire(PREDICTIONS, u64(0), b"\2", u64(1)), "16 bytes expected"),
    "an array beyond the end": (
        wire(PREDICTIONS, u64(0), array(2, 2, data=bytes(31))),
        "32 bytes expected",
    ),
    "an array of 2^63 rows": (wire(PREDICTIONS, u64(0), array(2**63)), "bytes expected"),
    "an array whose size wraps to 0": (
        wire(PREDICTIONS, u64(0), array(2**32, 2**32)),
        f"{2**67} bytes expected",
    ),
    "no rows, 2^63 columns": (wire(PREDICTIONS, u64(0), array(0, 2**63)), "no array can have"),
    "2^64 - 1 rows, no columns": (wire(MASKED, u64(0), array(2**64 - 1, 0)), "no array can have"),
    "floats of 2 bytes": (wire(BLOCK_UPLOAD, u64(0), b"\2", array(1, data=b"\0\0")), "4 or 8"),
    "half a float32": (wire(BLOCK_UPLOAD, u64(0), b"\4", array(1, data=b"\0\0")), "4 bytes"),
    "a float32 NaN": (
        wire(BLOCK_UPLOAD, u64(0), b"\4", array(1, data=struct.pack("<f", np.nan))),
        "NaN or infinite",
    ),
    "NaN": (wire(PREDICTIONS, u64(0), array(1, data=struct.pack("<d", np.nan))), "NaN or inf"),
    "infinity": (wire(PREDICTIONS, u64(0), array(1, data=struct.pack("<d", np.inf))), "NaN or"),
    "minus infinity": (
        wire(PREDICTIONS, u64(0), array(2, data=struct.pack("<2d", 0.0, -np.inf))),
        "NaN or infinite",
    ),
}


@pytest.mark.parametrize(("data", "complaint"), REFUSED.values(), ids=REFUSED)
def test_what_no_party_would_send_is_refused(data: bytes, complaint: str) -> None:
    with pytest.raises(MalformedMessage) as refused:
        decode(data)
    assert complaint in str(refused.value)


def test_ring_arrays_may_hold_the_bits_of_nan() -> None:
    nan = struct.pack("<d", np.nan)
    message = decode(wire(MASKED, u64(0), array(1, data=nan)))
    assert encode(message) == wire(MASKED, u64(0), array(1, data=nan))


@pytest.mark.parametrize(
    "data",
    [
        wire(PUBLIC_KEY, u64(2**64 - 1)),
        wire(ENCRYPTED, u64(0, 2**40)),
        wire(ENCRYPTED, u64(0, 1), u64(2**40)),
        wire(PREDICTIONS, u64(0), array(2**20, 2**20)),
        wire(MASKED, u64(0), array(2**40)),
    ],
    ids=["text", "parts", "part", "floats", "ring"],
)
def test_announced_lengths_allocate_nothing(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(MalformedMessage):
            decode(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000
