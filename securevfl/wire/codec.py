"""The only codec between messages and bytes.

Every protocol declares its messages in its own file with `message_kind`: the message's number, the
part of a job it belongs to, what it carries, and what this shows. Other packages use numbers from
128 on. Bytes from a peer are hostile: `decode` accepts exactly what `encode` writes and refuses
everything else with `MalformedMessage`. It uses no pickle, evaluates nothing and allocates no more
than the received bytes.

Layout: b"SVFL", version, number, then the fields in the order of the class. Integers are unsigned
64-bit little-endian. Text and bytes have length prefixes; arrays have dimensions and little-endian
data. Floats must be finite.

A message travels in an envelope, which names its sender and job and contains the sender's path.
Ledgers count a message's bytes without its envelope, so costs do not depend on the length of names.

Layout of an envelope, little-endian: a header of fixed size (b"SVFE", version, job hash, number,
hops, bytes of the sender's name, bytes of the phases' names); these names in UTF-8, those of phases
separated by a zero byte; one double per phase; the message. Bytes from a peer are hostile:
`open_envelope` accepts exactly what `seal` writes.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from math import isfinite, prod
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, dataclass_transform

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import FloatArray, RealArray, RingArray
from securevfl.errors import MalformedMessage

PROTOCOL_VERSION = 1
MAX_MESSAGE_BYTES = 1 << 30
MAX_DIMENSIONS = 2

Blobs = tuple[bytes, ...]
Stage = Literal["setup", "offline", "round", "evaluation"]
Carries = Literal["control", "values", "shares", "masked", "ciphertexts"]
Shows = Literal[
    "nothing",
    "labels",
    "predictions",
    "sums",
    "residuals",
    "gradients",
    "components",
    "units",
    "weights",
    "updates",
    "penalties",
    "scores",
    "pads",
    "stopping",
]
M = TypeVar("M", bound="Message")


@dataclass(frozen=True, eq=False)
class Message:
    """Base of all messages.

    Attributes:
        number: identifies the kind on the wire; never reused.
        stage: the part of a job it belongs to; `offline` messages prepare later rounds.
        carries: `values` in clear; `shares` of a sum, under masks that cancel; `masked` values,
            whose mask the receiver knows; `ciphertexts`; or only `control`.
        shows: what its first array is, in clear or not: `labels`; one party's `predictions` of
            rows; `sums` of them; `residuals`; `gradients`; the label party's `components` or the
            other party's `units` in transfer learning; `weights` or their `updates`; `penalties`
            of directions; sums from which `scores` are computed; `pads`, which reveal nothing by
            themselves; `stopping` decisions; or `nothing`. The audit reads this and not the
            message's class.
    """

    number: ClassVar[int]
    stage: ClassVar[Stage]
    carries: ClassVar[Carries]
    shows: ClassVar[Shows]


@dataclass(frozen=True, eq=False)
class StepMessage(Message):
    """A message of one exchange; `step` counts the exchanges of a job from 0."""

    step: int


_KINDS: dict[int, type[Message]] = {}


@dataclass_transform(eq_default=False, frozen_default=True)
def message_kind(
    number: int, *, stage: Stage, carries: Carries = "control", shows: Shows = "nothing"
) -> Callable[[type[M]], type[M]]:
    """Declare a kind of message: makes the class a frozen dataclass and registers it.

    Raises:
        ValueError: the number is taken or is not a byte, `shows` is missing, or floats, which are
            in clear, are declared as something else.
        KeyError: a field of an unsupported type.
    """

    def declare(kind: type[M]) -> type[M]:
        if number in _KINDS or not 0 <= number < 256:  # noqa: PLR2004
            raise ValueError(f"message number {number} of {kind.__name__}: taken, or no byte")
        if carries != "control" and shows == "nothing":
            raise ValueError(f"message {kind.__name__} carries {carries}: say what it shows")
        kind.number, kind.stage, kind.carries, kind.shows = number, stage, carries, shows
        declared = dataclass(frozen=True, eq=False)(kind)
        floats = any(field.type in (FloatArray, RealArray) for field in fields(declared))
        if floats and carries != "values" and (carries, shows) != ("control", "stopping"):
            raise ValueError(f"message {kind.__name__} carries {carries}, and floats are values")
        _LAYOUTS[declared] = tuple(
            (field.name, _FIELD_CODECS[field.type]) for field in fields(declared)
        )
        _KINDS[number] = declared
        return declared

    return declare


def kinds() -> tuple[type[Message], ...]:
    """All declared kinds, by number."""
    return tuple(_KINDS[number] for number in sorted(_KINDS))


_DOUBLE, _RING = np.dtype("<f8"), np.dtype("<u8")
_REALS: dict[int, np.dtype[Any]] = {4: np.dtype("<f4"), 8: _DOUBLE}
_HEADER = struct.Struct("<4sBB")
_U64 = struct.Struct("<Q")
_SHAPES = tuple(struct.Struct(f"<{dimensions}Q") for dimensions in range(MAX_DIMENSIONS + 1))


class _Reader:
    """Reads fields from a byte string, never past its end."""

    def __init__(self, data: bytes, position: int) -> None:
        self.data = data
        self.position = position

    def take(self, count: int) -> bytes:
        end = self.position + count
        if end > len(self.data):
            raise MalformedMessage(
                f"{count} bytes expected at {self.position}, {len(self.data)} in all"
            )
        piece = self.data[self.position : end]
        self.position = end
        return piece

    def integer(self) -> int:
        value: int = _U64.unpack(self.take(8))[0]
        return value

    def blob(self) -> bytes:
        return self.take(self.integer())

    def blobs(self) -> Blobs:
        # The following bytes bound the count: every blob has an 8-byte length.
        count = self.integer()
        if count * 8 > len(self.data) - self.position:
            raise MalformedMessage(f"{count} parts announced, the message is too short for them")
        return tuple(self.blob() for _ in range(count))

    def text(self) -> str:
        try:
            return self.blob().decode("utf-8")
        except UnicodeDecodeError as error:
            raise MalformedMessage("a text field is not UTF-8") from error

    def flag(self) -> bool:
        value = self.take(1)
        if value not in (b"\0", b"\1"):
            raise MalformedMessage("a flag is neither 0 nor 1")
        return value == b"\1"

    def array(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        dimensions = self.take(1)[0]
        if dimensions > MAX_DIMENSIONS:
            raise MalformedMessage(f"array of {dimensions} dimensions, at most {MAX_DIMENSIONS}")
        shape = _SHAPES[dimensions].unpack(self.take(8 * dimensions))
        data = np.frombuffer(self.take(dtype.itemsize * prod(shape)), dtype)
        try:
            return data.reshape(shape)
        except ValueError as error:
            raise MalformedMessage(f"no array can have the dimensions {shape}") from error

    def floats(self) -> FloatArray:
        return self.finite(_DOUBLE)

    def reals(self) -> RealArray:
        size = self.take(1)[0]
        if size not in _REALS:
            raise MalformedMessage(f"floats of {size} bytes, expected 4 or 8")
        return self.finite(_REALS[size])

    def finite(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        values = self.array(dtype)
        if not np.isfinite(values).all():
            raise MalformedMessage("an array holds NaN or infinite values")
        return values

    def ring(self) -> RingArray:
        return self.array(_RING)


def _integer(value: int) -> bytes:
    return _U64.pack(value)


def _blob(value: bytes) -> bytes:
    return _U64.pack(len(value)) + value


def _blobs(value: Blobs) -> bytes:
    return _U64.pack(len(value)) + b"".join(map(_blob, value))


def _array(value: NDArray[Any], dtype: np.dtype[Any]) -> bytes:
    shape = _SHAPES[value.ndim].pack(*value.shape)
    return bytes([value.ndim]) + shape + value.astype(dtype, "C", copy=False).tobytes()


def _reals(value: RealArray) -> bytes:
    """The size of an element in bytes, 4 or 8, then the array."""
    return bytes([value.itemsize]) + _array(value, _REALS[value.itemsize])


class _FieldCodec(NamedTuple):
    encode: Callable[[Any], bytes]
    decode: Callable[[_Reader], Any]


_FIELD_CODECS: dict[Any, _FieldCodec] = {
    int: _FieldCodec(_integer, _Reader.integer),
    bool: _FieldCodec(lambda value: bytes([value]), _Reader.flag),
    str: _FieldCodec(lambda value: _blob(value.encode()), _Reader.text),
    bytes: _FieldCodec(_blob, _Reader.blob),
    Blobs: _FieldCodec(_blobs, _Reader.blobs),
    FloatArray: _FieldCodec(lambda value: _array(value, _DOUBLE), _Reader.floats),
    RealArray: _FieldCodec(_reals, _Reader.reals),
    RingArray: _FieldCodec(lambda value: _array(value, _RING), _Reader.ring),
}
_LAYOUTS: dict[type[Message], tuple[tuple[str, _FieldCodec], ...]] = {}


def encode(message: Message) -> bytes:
    """The bytes of a message."""
    kind = type(message)
    header = _HEADER.pack(b"SVFL", PROTOCOL_VERSION, kind.number)
    layout = _LAYOUTS[kind]
    return header + b"".join(codec.encode(getattr(message, name)) for name, codec in layout)


def stage_of(data: bytes) -> Stage | None:
    """The stage of an encoded message, from its number alone; None for unknown kinds."""
    if len(data) < _HEADER.size:
        return None
    kind = _KINDS.get(_HEADER.unpack_from(data)[2])
    return None if kind is None else kind.stage


def decode(data: bytes, max_bytes: int = MAX_MESSAGE_BYTES) -> Message:
    """The message that `data` encodes; a MalformedMessage if it is not exactly one encoding."""
    if len(data) > max_bytes:
        raise MalformedMessage(f"message of {len(data)} bytes, at most {max_bytes} accepted")
    if len(data) < _HEADER.size:
        raise MalformedMessage(f"message of {len(data)} bytes is shorter than its header")
    magic, version, number = _HEADER.unpack_from(data)
    if magic != b"SVFL":
        raise MalformedMessage("not a securevfl message")
    if version != PROTOCOL_VERSION:
        raise MalformedMessage(f"protocol version {version}, this party has {PROTOCOL_VERSION}")
    if number not in _KINDS:
        raise MalformedMessage(f"unknown kind {number}")
    reader = _Reader(data, _HEADER.size)
    kind = _KINDS[number]
    decoded = kind(**{name: codec.decode(reader) for name, codec in _LAYOUTS[kind]})
    if reader.position != len(data):
        raise MalformedMessage(f"{len(data) - reader.position} bytes after the end of a message")
    return decoded


ENVELOPE_VERSION = 1
JOB_HASH_BYTES = 32
KEPT_NAMES = 64

# Lengths of names have 16 bits: an envelope's own part is short.
_ENVELOPE = struct.Struct(f"<4sB{JOB_HASH_BYTES}sQQHH")


@dataclass(frozen=True)
class Envelope:
    """A message's bytes in transit.

    Attributes:
        job: the job's hash, 32 bytes.
        sender: the sending party.
        number: how many messages the sender had sent to this receiver before.
        hops: length of the longest chain of round messages that ends at the sender.
        path: the sender's seconds by phase as it claims them, see `runtime.costs`.
        message: the bytes of one message, not decoded.
    """

    job: bytes
    sender: str
    number: int
    hops: int
    path: Mapping[str, float]
    message: bytes


def seal(envelope: Envelope) -> bytes:
    """The bytes of an envelope; a ValueError for a hash of another length or an unnamed phase."""
    if len(envelope.job) != JOB_HASH_BYTES:
        raise ValueError(f"job hash of {len(envelope.job)} bytes, expected {JOB_HASH_BYTES}")
    sender, path = envelope.sender.encode(), envelope.path
    names = _names(tuple(path))
    header = _ENVELOPE.pack(
        b"SVFE",
        ENVELOPE_VERSION,
        envelope.job,
        envelope.number,
        envelope.hops,
        len(sender),
        len(names),
    )
    # Phases keep their order: sums of seconds come out the same to the bit at both ends.
    seconds = struct.pack(f"<{len(path)}d", *path.values())
    return b"".join((header, sender, names, seconds, envelope.message))


def open_envelope(data: bytes, max_message_bytes: int = MAX_MESSAGE_BYTES) -> Envelope:
    """The envelope in `data`, its message not decoded; a MalformedMessage if not exact."""
    if len(data) < _ENVELOPE.size:
        raise MalformedMessage(f"envelope of {len(data)} bytes is shorter than its header")
    magic, version, job, number, hops, sender_bytes, names_bytes = _ENVELOPE.unpack_from(data)
    if magic != b"SVFE":
        raise MalformedMessage("not a securevfl envelope")
    if version != ENVELOPE_VERSION:
        raise MalformedMessage(f"envelope version {version}, this party has {ENVELOPE_VERSION}")
    names_at = _ENVELOPE.size + sender_bytes
    path_at = names_at + names_bytes
    try:
        sender = data[_ENVELOPE.size : names_at].decode()
        phases = _phases(data[names_at:path_at])
    except UnicodeDecodeError as error:
        raise MalformedMessage("a name in an envelope is not UTF-8") from error
    message_at = path_at + 8 * len(phases)
    if message_at > len(data):
        raise MalformedMessage(f"envelope of {len(data)} bytes is shorter than it says")
    if len(data) - message_at > max_message_bytes:
        raise MalformedMessage(
            f"message of {len(data) - message_at} bytes, at most {max_message_bytes} accepted"
        )
    seconds = struct.unpack_from(f"<{len(phases)}d", data, path_at)
    if min(seconds, default=0.0) < 0 or not isfinite(sum(seconds)):
        raise MalformedMessage("a path whose seconds are negative, or have no finite sum")
    path = dict(zip(phases, seconds, strict=True))
    return Envelope(job, sender, number, hops, path, data[message_at:])


# A party's phases rarely change between messages.
@lru_cache(maxsize=KEPT_NAMES)
def _names(phases: tuple[str, ...]) -> bytes:
    if "" in phases:
        raise ValueError("a phase without a name")
    return "\0".join(phases).encode()


@lru_cache(maxsize=KEPT_NAMES)
def _phases(names: bytes) -> tuple[str, ...]:
    phases = tuple(names.decode().split("\0")) if names else ()
    if len(set(phases)) < len(phases) or "" in phases:
        raise MalformedMessage("a path with a phase twice, or without a name")
    return phases
