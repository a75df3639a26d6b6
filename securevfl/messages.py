"""Every message that parties exchange, and the only codec between messages and bytes.

Bytes from a peer are hostile: `decode` accepts exactly what `encode` writes and refuses
everything else with `MalformedMessage`. No pickle, no evaluation, no allocation beyond the
bytes at hand.

Layout: b"SVFL", version, kind, then the fields in the order of the dataclass. Integers are
unsigned 64-bit little-endian; text and bytes carry their length; arrays carry dimensions and
little-endian data; floats must be finite.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from securevfl.errors import MalformedMessage

PROTOCOL_VERSION = 1
MAX_MESSAGE_BYTES = 1 << 30
MAX_DIMENSIONS = 2

FloatArray = NDArray[np.float64]
RingArray = NDArray[np.uint64]
Blobs = tuple[bytes, ...]
Stage = Literal["setup", "round", "evaluation"]


@dataclass(frozen=True, eq=False)
class Message:
    """Base of all messages; `stage` says which part of a job a message belongs to."""

    stage: ClassVar[Stage]


@dataclass(frozen=True, eq=False)
class StepMessage(Message):
    """A message of one exchange; `step` counts the exchanges of a job from 0."""

    step: int


@dataclass(frozen=True, eq=False)
class Hello(Message):
    """Set-up, everyone to everyone: is this the same job, over the same rows?

    `feature_bound_bits` b says that the sender's features stay within ±2^b: products are sized
    by it. With `feature_fraction_bits` behind the point they are exact (32: not with fewer).
    `mask_key` is a fresh X25519 public key.
    """

    stage = "setup"
    job_hash: bytes
    rows: int
    test_rows: int
    columns: int
    feature_bound_bits: int
    feature_fraction_bits: int
    mask_key: bytes


@dataclass(frozen=True, eq=False)
class PublicKey(Message):
    """Set-up: what a peer needs to compute under the sender's homomorphic key."""

    stage = "setup"
    scheme: str
    material: bytes


@dataclass(frozen=True, eq=False)
class Predictions(StepMessage):
    """Local predictions H_k of a batch in clear, shape (S, C)."""

    stage = "round"
    values: FloatArray


@dataclass(frozen=True, eq=False)
class MaskedPredictions(StepMessage):
    """H_k in fixed point plus masks that cancel in the sum over parties, shape (S, C)."""

    stage = "round"
    values: RingArray


@dataclass(frozen=True, eq=False)
class Residuals(StepMessage):
    """Residuals d = ∂f/∂H of a batch in clear, shape (S, C)."""

    stage = "round"
    values: FloatArray


@dataclass(frozen=True, eq=False)
class EncryptedValues(StepMessage):
    """C encrypted vectors of S values each under the sender's key."""

    stage = "round"
    vectors: Blobs


@dataclass(frozen=True, eq=False)
class EncryptedProducts(StepMessage):
    """C masked products Enc(Xᵀv + r) under the receiver's key."""

    stage = "round"
    products: Blobs


@dataclass(frozen=True, eq=False)
class EncryptedStep(StepMessage):
    """C products of [X | Aᵀ]: the masked Xᵀv + r, and the sender's next predictions, open.

    The predictions, S' rows, are in fixed point times 2^(scale − SCALE_OFFSET).
    """

    stage = "round"
    products: Blobs
    scale: int


@dataclass(frozen=True, eq=False)
class DecryptedProducts(StepMessage):
    """The masked products in clear, shape (P, C), modulo 2^64; only the receiver knows r."""

    stage = "round"
    values: RingArray


@dataclass(frozen=True, eq=False)
class HeldOutPredictions(StepMessage):
    """Local predictions of the held-out rows in clear, for scoring."""

    stage = "evaluation"
    values: FloatArray


@dataclass(frozen=True, eq=False)
class MaskedHeldOutPredictions(StepMessage):
    """Local predictions of the held-out rows under masks that cancel in the sum."""

    stage = "evaluation"
    values: RingArray


@dataclass(frozen=True, eq=False)
class Verdict(StepMessage):
    """The label party's word after scoring: go on, or stop here."""

    stage = "evaluation"
    stop: bool


@dataclass(frozen=True, eq=False)
class PushedPredictions(StepMessage):
    """FDML, a party to the server: its predictions of a batch, shape (S, C)."""

    stage = "round"
    values: FloatArray


@dataclass(frozen=True, eq=False)
class PulledSums(StepMessage):
    """FDML, the server to a party: the newest of the others for the same batch, summed."""

    stage = "round"
    values: FloatArray


KINDS: tuple[type[Message], ...] = (
    Hello,
    PublicKey,
    Predictions,
    MaskedPredictions,
    Residuals,
    EncryptedValues,
    EncryptedProducts,
    EncryptedStep,
    DecryptedProducts,
    HeldOutPredictions,
    MaskedHeldOutPredictions,
    Verdict,
    PushedPredictions,
    PulledSums,
)
CIPHERTEXT_KINDS = (EncryptedValues, EncryptedProducts, EncryptedStep)
SCALE_OFFSET = 64

_HEADER = struct.Struct("<4sBB")
_U64 = struct.Struct("<Q")


class _Reader:
    """Takes fields off a byte string and never past its end."""

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
        # A count is bounded by the bytes that follow: every blob has an 8-byte length.
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

    def array(self, dtype: str) -> NDArray[Any]:
        dimensions = self.take(1)[0]
        if dimensions > MAX_DIMENSIONS:
            raise MalformedMessage(f"array of {dimensions} dimensions, at most {MAX_DIMENSIONS}")
        shape = tuple(self.integer() for _ in range(dimensions))
        count = 1
        for extent in shape:
            count *= extent
        data = np.frombuffer(self.take(8 * count), dtype)
        try:
            return data.reshape(shape)
        except ValueError as error:
            raise MalformedMessage(f"no array can have the dimensions {shape}") from error

    def floats(self) -> FloatArray:
        values = self.array("<f8")
        if not np.isfinite(values).all():
            raise MalformedMessage("an array holds NaN or infinite values")
        return values

    def ring(self) -> RingArray:
        return self.array("<u8")


def _integer(value: int) -> bytes:
    return _U64.pack(value)


def _blob(value: bytes) -> bytes:
    return _U64.pack(len(value)) + value


def _blobs(value: Blobs) -> bytes:
    return _U64.pack(len(value)) + b"".join(map(_blob, value))


def _array(value: NDArray[Any], dtype: str) -> bytes:
    shape = b"".join(map(_U64.pack, value.shape))
    return bytes([value.ndim]) + shape + np.ascontiguousarray(value, dtype).tobytes()


class _FieldCodec(NamedTuple):
    encode: Callable[[Any], bytes]
    decode: Callable[[_Reader], Any]


_FIELD_CODECS: dict[Any, _FieldCodec] = {
    int: _FieldCodec(_integer, _Reader.integer),
    bool: _FieldCodec(lambda value: bytes([value]), _Reader.flag),
    str: _FieldCodec(lambda value: _blob(value.encode()), _Reader.text),
    bytes: _FieldCodec(_blob, _Reader.blob),
    Blobs: _FieldCodec(_blobs, _Reader.blobs),
    FloatArray: _FieldCodec(lambda value: _array(value, "<f8"), _Reader.floats),
    RingArray: _FieldCodec(lambda value: _array(value, "<u8"), _Reader.ring),
}
_LAYOUTS = {
    kind: tuple((field.name, _FIELD_CODECS[field.type]) for field in fields(kind)) for kind in KINDS
}
_NUMBERS = {kind: number for number, kind in enumerate(KINDS)}


def encode(message: Message) -> bytes:
    """The bytes of a message."""
    kind = type(message)
    header = _HEADER.pack(b"SVFL", PROTOCOL_VERSION, _NUMBERS[kind])
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
    if number >= len(KINDS):
        raise MalformedMessage(f"unknown kind {number}")
    reader = _Reader(data, _HEADER.size)
    kind = KINDS[number]
    message: Message = kind(**{name: codec.decode(reader) for name, codec in _LAYOUTS[kind]})
    if reader.position != len(data):
        raise MalformedMessage(f"{len(data) - reader.position} bytes after the end of a message")
    return message
