"""The envelope on arbitrary contents and on arbitrary bytes."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securevfl.errors import MalformedMessage
from securevfl.wire.envelope import MAX_ENVELOPE_BYTES, Envelope, open_envelope, seal

u64 = st.integers(0, 2**64 - 1)
names = st.text(max_size=20)
seconds = st.floats(0, 1e300, allow_nan=False)
envelopes = st.builds(
    Envelope,
    job=st.binary(min_size=32, max_size=32),
    sender=names,
    number=u64,
    hops=u64,
    path=st.dictionaries(names, seconds, max_size=5),
    message=st.binary(max_size=40),
)
EXAMPLE = Envelope(bytes(32), "bank", 3, 2, {"local": 1.5, "encrypt": 0.25}, b"message")


def refused_or_the_same(data: bytes) -> None:
    try:
        envelope = open_envelope(data)
    except MalformedMessage:
        return
    assert seal(envelope) == data


@given(envelopes)
def test_what_was_opened_is_what_was_sealed(envelope: Envelope) -> None:
    opened = open_envelope(seal(envelope))
    assert opened == envelope
    # A sum over the path is the same to the bit at both ends.
    assert list(opened.path) == list(envelope.path)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_sealed_to_themselves(data: bytes) -> None:
    refused_or_the_same(data)


@given(st.binary(max_size=200))
def test_any_fields_are_refused_or_sealed_to_themselves(body: bytes) -> None:
    refused_or_the_same(b"SVFE\1" + bytes(32) + body)


@given(envelopes, st.data())
@settings(max_examples=300)
def test_a_changed_envelope_is_refused_or_sealed_to_itself(
    envelope: Envelope, data: st.DataObject
) -> None:
    changed = bytearray(seal(envelope))
    places = st.integers(0, len(changed) - 1)
    for place in data.draw(st.lists(places, min_size=1, max_size=4)):
        changed[place] = data.draw(st.integers(0, 255))
    refused_or_the_same(bytes(changed))


@given(envelopes, st.data())
def test_a_truncated_envelope_is_refused(envelope: Envelope, data: st.DataObject) -> None:
    whole = seal(envelope)
    with pytest.raises(MalformedMessage):
        open_envelope(whole[: data.draw(st.integers(0, len(whole) - 1))])


@given(envelopes, st.binary(min_size=1, max_size=16))
def test_an_envelope_with_bytes_behind_it_is_refused(envelope: Envelope, more: bytes) -> None:
    with pytest.raises(MalformedMessage):
        open_envelope(seal(envelope) + more)


def by_hand(*path: tuple[bytes, float], announced: int | None = None) -> bytes:
    def blob(value: bytes) -> bytes:
        return struct.pack("<Q", len(value)) + value

    phases = b"".join(blob(phase) + struct.pack("<d", spent) for phase, spent in path)
    count = struct.pack("<Q", len(path) if announced is None else announced)
    numbers = struct.pack("<QQ", EXAMPLE.number, EXAMPLE.hops)
    return b"SVFE\1" + bytes(32) + blob(b"bank") + numbers + count + phases + blob(b"message")


def test_the_layout_is_the_documented_one() -> None:
    assert by_hand((b"local", 1.5), (b"encrypt", 0.25)) == seal(EXAMPLE)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"SVFX" + seal(EXAMPLE)[4:], "not a securevfl envelope"),
        (b"SVFE\2" + seal(EXAMPLE)[5:], "envelope version 2, this is 1"),
        (by_hand((b"local", -1.0)), "negative"),
        (by_hand((b"local", float("nan"))), "NaN or infinite"),
        (by_hand((b"local", float("inf"))), "NaN or infinite"),
        (by_hand((b"local", 1.0), (b"local", 1.0)), "'local' twice"),
        (by_hand((b"a", 1.7e308), (b"b", 1.7e308)), "no finite sum"),
        (by_hand((b"\xff", 1.0)), "UTF-8"),
        (by_hand(announced=2**63), "bytes expected"),
        (by_hand(*[(str(n).encode(), 1.0) for n in range(5000)]), f"than {MAX_ENVELOPE_BYTES}"),
    ],
)
def test_what_no_envelope_holds_is_refused(data: bytes, told: str) -> None:
    with pytest.raises(MalformedMessage, match=told):
        open_envelope(data)


def test_an_envelope_is_bounded_with_and_without_its_message() -> None:
    whole = seal(EXAMPLE)
    assert open_envelope(whole, max_message_bytes=7) == EXAMPLE
    long = seal(Envelope(bytes(32), "bank", 0, 0, {}, bytes(MAX_ENVELOPE_BYTES)))
    with pytest.raises(MalformedMessage, match="accepted"):
        open_envelope(long, max_message_bytes=0)


def test_a_job_hash_of_another_length_is_not_sealed() -> None:
    with pytest.raises(ValueError, match="31 bytes, expected 32"):
        seal(Envelope(bytes(31), "bank", 0, 0, {}, b""))
