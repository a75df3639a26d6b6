"""The only codec between messages and bytes.

Every protocol declares its messages in its own file: a class under `message_kind`, which says by
what number it travels, in which part of a job, and what it carries. Bytes from a peer are
hostile: `decode` accepts exactly what `encode` writes and refuses everything else with
`MalformedMessage`. No pickle, no evaluation, no allocation beyond the bytes at hand.

Layout: b"SVFL", version, number, then the fields in the order of the class, as `wire.fields` has
them.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import fields as fields_of
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, dataclass_transform

from securevfl.arrays import FloatArray, RingArray
from securevfl.errors import MalformedMessage
from securevfl.wire import fields
from securevfl.wire.fields import Reader

PROTOCOL_VERSION = 1
MAX_MESSAGE_BYTES = 1 << 30

Blobs = tuple[bytes, ...]
Stage = Literal["setup", "round", "evaluation"]
Carries = Literal["control", "values", "shares", "masked", "ciphertexts"]
M = TypeVar("M", bound="Message")


@dataclass(frozen=True, eq=False)
class Message:
    """Base of all messages.

    Attributes:
        number: by which it travels; never given to another kind.
        stage: which part of a job it belongs to.
        carries: `values` in clear; `shares` of a sum, under masks that cancel in it; `masked`
            values, whose mask the receiver knows; `ciphertexts`; or only `control`.
    """

    number: ClassVar[int]
    stage: ClassVar[Stage]
    carries: ClassVar[Carries]


@dataclass(frozen=True, eq=False)
class StepMessage(Message):
    """A message of one exchange; `step` counts the exchanges of a job from 0."""

    step: int


_KINDS: dict[int, type[Message]] = {}


@dataclass_transform(eq_default=False, frozen_default=True)
def message_kind(
    number: int, *, stage: Stage, carries: Carries = "control"
) -> Callable[[type[M]], type[M]]:
    """Declare a kind of message: makes the class a frozen dataclass that the codec knows.

    Raises:
        ValueError: the number is another kind's, or no byte.
        KeyError: a field of a type that does not travel.
    """

    def declare(kind: type[M]) -> type[M]:
        if number in _KINDS or not 0 <= number < 256:  # noqa: PLR2004
            raise ValueError(f"message number {number} of {kind.__name__}: taken, or no byte")
        kind.number, kind.stage, kind.carries = number, stage, carries
        declared = dataclass(frozen=True, eq=False)(kind)
        _LAYOUTS[declared] = tuple(
            (field.name, _FIELD_CODECS[field.type]) for field in fields_of(declared)
        )
        _KINDS[number] = declared
        return declared

    return declare


def kinds() -> tuple[type[Message], ...]:
    """Every kind that has been declared, by number."""
    return tuple(_KINDS[number] for number in sorted(_KINDS))


_HEADER = struct.Struct("<4sBB")


class _FieldCodec(NamedTuple):
    encode: Callable[[Any], bytes]
    decode: Callable[[Reader], Any]


_FIELD_CODECS: dict[Any, _FieldCodec] = {
    int: _FieldCodec(fields.integer, Reader.integer),
    bool: _FieldCodec(lambda value: bytes([value]), Reader.flag),
    str: _FieldCodec(lambda value: fields.blob(value.encode()), Reader.text),
    bytes: _FieldCodec(fields.blob, Reader.blob),
    Blobs: _FieldCodec(fields.blobs, Reader.blobs),
    FloatArray: _FieldCodec(lambda value: fields.array(value, "<f8"), Reader.floats),
    RingArray: _FieldCodec(lambda value: fields.array(value, "<u8"), Reader.ring),
}
_LAYOUTS: dict[type[Message], tuple[tuple[str, _FieldCodec], ...]] = {}


def encode(message: Message) -> bytes:
    """The bytes of a message."""
    kind = type(message)
    header = _HEADER.pack(b"SVFL", PROTOCOL_VERSION, kind.number)
    layout = _LAYOUTS[kind]
    return header + b"".join(codec.encode(getattr(message, name)) for name, codec in layout)


def decode(data: bytes, max_bytes: int = MAX_MESSAGE_BYTES) -> Message:
    """The message that `data` encodes.

    Raises:
        MalformedMessage: anything but the exact encoding of one message of at most `max_bytes`.
    """
    if len(data) > max_bytes:
        raise MalformedMessage(f"message of {len(data)} bytes, at most {max_bytes} accepted")
    if len(data) < _HEADER.size:
        raise MalformedMessage(f"message of {len(data)} bytes is shorter than its header")
    magic, version, number = _HEADER.unpack_from(data)
    if magic != b"SVFL":
        raise MalformedMessage("not a securevfl message")
    if version != PROTOCOL_VERSION:
        raise MalformedMessage(f"protocol version {version}, this is {PROTOCOL_VERSION}")
    if number not in _KINDS:
        raise MalformedMessage(f"unknown kind {number}")
    reader = Reader(data, _HEADER.size)
    kind = _KINDS[number]
    decoded = kind(**{name: codec.decode(reader) for name, codec in _LAYOUTS[kind]})
    reader.finish()
    return decoded
