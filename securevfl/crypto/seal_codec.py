"""Microsoft SEAL's objects as bytes, through TenSEAL's low-level bindings.

The bindings offer no buffers, only save and load by path: on Linux that is an anonymous file in
memory, elsewhere a temporary file that is removed at once. SEAL's own loaders check parameters,
sizes and coefficient ranges; every exception they raise becomes a CryptoError here.

Format: SEAL 4's serialization (native/src/seal/serialization.h, ciphertext.cpp): a 16-byte header
whose last 8 bytes are the object's whole size, then the (by default compressed) members.
"""

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import tenseal.sealapi as seal

from securevfl.crypto.scheme import UInt64Array
from securevfl.errors import CryptoError, KeyMismatch

_HEADER_BYTES = 16
_SEAL_ERRORS = (RuntimeError, ValueError, IndexError, OverflowError, TypeError, MemoryError)
SealObject = TypeVar("SealObject", bound=Any)


def to_bytes(item: Any) -> bytes:  # noqa: ANN401
    """A key or ciphertext in SEAL's serialization."""
    with _scratch() as path:
        item.save(str(path))
        return path.read_bytes()


def from_bytes(context: seal.SEALContext, empty: SealObject, data: bytes) -> SealObject:
    """Load a peer's key or ciphertext into an empty object of its kind.

    Raises:
        KeyMismatch: bytes that are none, or belong to other parameters.
    """
    with _scratch() as path, seal_errors(f"a SEAL {type(empty).__name__}"):
        path.write_bytes(data)
        empty.load(context, str(path))
    return empty


def split(data: bytes, count: int, largest: int) -> list[bytes]:
    """Cut concatenated serializations apart by the sizes in their headers.

    Raises:
        CryptoError: not exactly `count` pieces of at most `largest` bytes.
    """
    pieces: list[bytes] = []
    at = 0
    while at < len(data) and len(pieces) < count:
        header = data[at : at + _HEADER_BYTES]
        size = int.from_bytes(header[8:], "little")
        if len(header) < _HEADER_BYTES or not _HEADER_BYTES < size <= largest:
            raise CryptoError(f"ciphertext {len(pieces)} has no valid size, <= {largest} expected")
        pieces.append(data[at : at + size])
        at += size
    if len(pieces) != count or at != len(data):
        raise CryptoError(f"{len(data)} bytes do not hold exactly {count} ciphertexts")
    return pieces


def coefficient_ciphertext(context: seal.SEALContext, residues: UInt64Array) -> seal.Ciphertext:
    """The transparent ciphertext (m, 0) of a polynomial in coefficient form.

    It is the one way these bindings add a polynomial with coefficients beyond 64 bits.

    Args:
        context: its parameters.
        residues: coefficients modulo each data prime, shape (primes, N).
    """
    primes, degree = residues.shape
    members = struct.pack("<4Q?3Qdq", *context.first_parms_id(), False, 2, degree, primes, 1.0, 1)
    count = 2 * residues.size
    coefficients = residues.astype("<u8").tobytes() + bytes(8 * residues.size)
    array = _uncompressed(struct.pack("<Q", count) + coefficients)
    return from_bytes(context, seal.Ciphertext(), _uncompressed(members + array))


@contextmanager
def seal_errors(what: str) -> Iterator[None]:
    """Map whatever SEAL raises to KeyMismatch, in one place."""
    try:
        yield
    except _SEAL_ERRORS as error:
        raise KeyMismatch(f"{what} of these parameters expected: {error}") from error


@contextmanager
def _scratch() -> Iterator[Path]:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("seal")
        try:
            yield Path(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)
    else:
        with TemporaryDirectory() as folder:
            yield Path(folder) / "seal"


def _uncompressed(body: bytes) -> bytes:
    size = _HEADER_BYTES + len(body)
    return _HEADER_START + struct.pack("<BHQ", 0, 0, size) + body


# Magic number, header size and version of the SEAL at hand, as it writes them itself.
_HEADER_START = to_bytes(seal.Plaintext())[:5]
