from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.typing import NDArray

from securevfl.arrays import FloatArray, RealArray, RingArray
from securevfl.errors import MalformedMessage
from securevfl.wire.codec import Blobs, Message, decode, encode, kinds
from tests.message_kinds import KINDS, fields_of

u64 = st.integers(0, 2**64 - 1)
blob = st.binary(max_size=40)
blobs = st.lists(blob, max_size=4).map(tuple)
shapes = array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=4)
floats: st.SearchStrategy[NDArray[Any]] = arrays(
    np.float64, shapes, elements=st.floats(allow_nan=False, allow_infinity=False)
)
singles: st.SearchStrategy[NDArray[Any]] = arrays(
    np.float32, shapes, elements=st.floats(allow_nan=False, allow_infinity=False, width=32)
)
reals = floats | singles
ring: st.SearchStrategy[NDArray[Any]] = arrays(np.uint64, shapes)

BY_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    int: u64,
    bool: st.booleans(),
    str: st.text(max_size=20),
    bytes: blob,
    Blobs: blobs,
    FloatArray: floats,
    RealArray: reals,
    RingArray: ring,
}
messages = st.one_of([st.builds(kind, **fields_of(kind, BY_TYPE)) for kind in KINDS])


def refused_or_the_same(data: bytes) -> None:
    try:
        message = decode(data)
    except MalformedMessage:
        return
    assert encode(message) == data


@given(messages)
def test_what_was_decoded_encodes_to_the_same_bytes(message: Message) -> None:
    data = encode(message)
    back = decode(data)
    assert type(back) is type(message)
    assert encode(back) == data


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_encode_to_themselves(data: bytes) -> None:
    refused_or_the_same(data)


@given(st.integers(0, len(kinds()) + 1), st.binary(max_size=200))
def test_any_fields_are_refused_or_encode_to_themselves(kind: int, body: bytes) -> None:
    refused_or_the_same(b"SVFL\1" + bytes([kind]) + body)


@given(messages, st.data())
@settings(max_examples=300)
def test_a_changed_message_is_refused_or_encodes_to_itself(
    message: Message, data: st.DataObject
) -> None:
    changed = bytearray(encode(message))
    places = st.integers(0, len(changed) - 1)
    for place in data.draw(st.lists(places, min_size=1, max_size=4)):
        changed[place] = data.draw(st.integers(0, 255))
    refused_or_the_same(bytes(changed))


@given(messages, st.data())
def test_a_truncated_message_is_refused(message: Message, data: st.DataObject) -> None:
    whole = encode(message)
    piece = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(MalformedMessage):
        decode(piece)


@given(messages, st.binary(min_size=1, max_size=16))
def test_a_message_with_bytes_behind_it_is_refused(message: Message, more: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode(encode(message) + more)
