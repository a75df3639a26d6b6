import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securevfl.errors import MalformedMessage
from securevfl.wire.codec import Envelope, open_envelope, seal

u64 = st.integers(0, 2**64 - 1)
names = st.text(max_size=20)
phases = names.map(lambda name: name.replace("\0", "") or "local")
seconds = st.floats(0, 1e300, allow_nan=False)
envelopes = st.builds(
    Envelope,
    job=st.binary(min_size=32, max_size=32),
    sender=names,
    number=u64,
    hops=u64,
    path=st.dictionaries(phases, seconds, max_size=5),
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


@given(st.integers(0, 9), st.integers(0, 30), st.binary(max_size=200))
def test_any_names_and_paths_are_refused_or_sealed_to_themselves(
    sender: int, phases: int, body: bytes
) -> None:
    refused_or_the_same(header(sender, phases) + body)


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
def test_an_envelope_that_was_cut_is_refused(envelope: Envelope, data: st.DataObject) -> None:
    """A message that was cut is the codec's to refuse."""
    whole = seal(envelope)
    size = len(whole) - len(envelope.message)
    with pytest.raises(MalformedMessage):
        open_envelope(whole[: data.draw(st.integers(0, size - 1))])


def header(sender: int, phases: int) -> bytes:
    return (
        b"SVFE\1" + bytes(32) + struct.pack("<QQHH", EXAMPLE.number, EXAMPLE.hops, sender, phases)
    )


def by_hand(names: bytes, *seconds: float) -> bytes:
    path = struct.pack(f"<{len(seconds)}d", *seconds)
    return header(4, len(names)) + b"bank" + names + path + b"message"


def test_the_layout_is_the_documented_one() -> None:
    assert by_hand(b"local\0encrypt", 1.5, 0.25) == seal(EXAMPLE)


@pytest.mark.parametrize(
    ("data", "error_text"),
    [
        (b"", "0 bytes is shorter than its header"),
        (b"SVFX" + seal(EXAMPLE)[4:], "not a securevfl envelope"),
        (b"SVFE\2" + seal(EXAMPLE)[5:], "envelope version 2, this party has 1"),
        (by_hand(b"local", -1.0), "negative"),
        (by_hand(b"local", float("nan")), "no finite sum"),
        (by_hand(b"a\0b", 1.0, float("nan")), "no finite sum"),
        (by_hand(b"local", float("inf")), "no finite sum"),
        (by_hand(b"a\0b", 1.7e308, 1.7e308), "no finite sum"),
        (by_hand(b"local\0local", 1.0, 1.0), "a phase twice"),
        (by_hand(b"local\0", 1.0, 1.0), "without a name"),
        (by_hand(b"\xff", 1.0), "not UTF-8"),
        (by_hand(b"a\0b\0c", 1.0), "shorter than it says"),
        (header(200, 0) + b"bank", "shorter than it says"),
    ],
)
def test_what_no_envelope_holds_is_refused(data: bytes, error_text: str) -> None:
    with pytest.raises(MalformedMessage, match=error_text):
        open_envelope(data)


def test_a_message_longer_than_accepted_is_refused_without_its_envelope_counting() -> None:
    whole = seal(EXAMPLE)
    assert open_envelope(whole, max_message_bytes=7) == EXAMPLE
    with pytest.raises(MalformedMessage, match="message of 7 bytes, at most 6"):
        open_envelope(whole, max_message_bytes=6)


def test_what_could_not_be_opened_is_not_sealed() -> None:
    with pytest.raises(ValueError, match="31 bytes, expected 32"):
        seal(Envelope(bytes(31), "bank", 0, 0, {}, b""))
    with pytest.raises(ValueError, match="without a name"):
        seal(Envelope(bytes(32), "bank", 0, 0, {"": 1.0}, b""))
