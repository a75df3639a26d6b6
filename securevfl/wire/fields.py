"""The fields of whatever travels: how each is written, and read from hostile bytes.

Integers are unsigned 64-bit little-endian; text and bytes carry their length; arrays carry
dimensions and little-endian data; floats must be finite.
"""

import struct
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import FloatArray, RingArray
from securevfl.errors import MalformedMessage

MAX_DIMENSIONS = 2

_U64 = struct.Struct("<Q")
_F64 = struct.Struct("<d")


class Reader:
    """Takes fields off a byte string and never past its end."""

    def __init__(self, data: bytes, position: int) -> None:
        self.data = data
        self.position = position

    def take(self, count: int) -> bytes:
        """The next bytes.

        Raises:
            MalformedMessage: there are not as many; so for all that follow.
        """
        end = self.position + count
        if end > len(self.data):
            raise MalformedMessage(
                f"{count} bytes expected at {self.position}, {len(self.data)} in all"
            )
        piece = self.data[self.position : end]
        self.position = end
        return piece

    def finish(self) -> None:
        """Refuse bytes that nobody took."""
        if self.position != len(self.data):
            raise MalformedMessage(
                f"{len(self.data) - self.position} bytes after the end of a message"
            )

    def integer(self) -> int:
        """An unsigned integer of 64 bits."""
        value: int = _U64.unpack(self.take(8))[0]
        return value

    def number(self) -> float:
        """A finite number."""
        value: float = _F64.unpack(self.take(8))[0]
        if not isfinite(value):
            raise MalformedMessage("a number is NaN or infinite")
        return value

    def blob(self) -> bytes:
        """Bytes behind their length."""
        return self.take(self.integer())

    def blobs(self) -> tuple[bytes, ...]:
        """Several blobs behind their number."""
        # A count is bounded by the bytes that follow: every blob has an 8-byte length.
        count = self.integer()
        if count * 8 > len(self.data) - self.position:
            raise MalformedMessage(f"{count} parts announced, the message is too short for them")
        return tuple(self.blob() for _ in range(count))

    def text(self) -> str:
        """UTF-8 behind its length."""
        try:
            return self.blob().decode("utf-8")
        except UnicodeDecodeError as error:
            raise MalformedMessage("a text field is not UTF-8") from error

    def flag(self) -> bool:
        """0 or 1."""
        value = self.take(1)
        if value not in (b"\0", b"\1"):
            raise MalformedMessage("a flag is neither 0 nor 1")
        return value == b"\1"

    def array(self, dtype: str) -> NDArray[Any]:
        """An array of 8-byte items."""
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
        """An array of finite numbers."""
        values = self.array("<f8")
        if not np.isfinite(values).all():
            raise MalformedMessage("an array holds NaN or infinite values")
        return values

    def ring(self) -> RingArray:
        """An array of integers modulo 2^64."""
        return self.array("<u8")


def integer(value: int) -> bytes:
    """The bytes of `Reader.integer`; so for all that follow."""
    return _U64.pack(value)


def number(value: float) -> bytes:
    """A finite number."""
    return _F64.pack(value)


def blob(value: bytes) -> bytes:
    """Bytes behind their length."""
    return _U64.pack(len(value)) + value


def blobs(value: tuple[bytes, ...]) -> bytes:
    """Several blobs behind their number."""
    return _U64.pack(len(value)) + b"".join(map(blob, value))


def array(value: NDArray[Any], dtype: str) -> bytes:
    """An array of 8-byte items."""
    shape = b"".join(map(_U64.pack, value.shape))
    return bytes([value.ndim]) + shape + np.ascontiguousarray(value, dtype).tobytes()
