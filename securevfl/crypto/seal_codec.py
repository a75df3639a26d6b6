"""Microsoft SEAL's objects as bytes and polynomials, through TenSEAL's low-level bindings.

The bindings have no buffers and can only save to and load from paths. On Linux this is an anonymous
file in memory, elsewhere a temporary file that is removed at once. SEAL's own loaders check
parameters, sizes and coefficient ranges; every exception that they raise becomes a CryptoError
here.

Format: SEAL 4's serialization (native/src/seal/serialization.h, ciphertext.cpp): a 16-byte header
whose last 8 bytes are the object's total size, then the members, compressed by default. What this
module reads and writes without SEAL is compared with SEAL's objects at import.
"""

import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np
import tenseal.sealapi as seal
import zstandard
from numpy.typing import NDArray

from securevfl.arrays import RingArray
from securevfl.errors import CryptoError, KeyMismatch

SEED_BYTES = 81

_HEADER_BYTES = 16
_PLAIN, _ZSTANDARD = 0, 2
_PLAINTEXT_MEMBERS = struct.Struct("<4QQd")
_CIPHERTEXT_MEMBERS = struct.Struct("<4Q?3Qdq")
_SEAL_ERRORS = (RuntimeError, ValueError, IndexError, OverflowError, TypeError, MemoryError)
_FEW = 400  # up to this many coefficients, reading them one by one is faster
SealObject = TypeVar("SealObject", bound=Any)


def to_bytes(item: Any) -> bytes:  # noqa: ANN401
    """A key or ciphertext in SEAL's serialization."""
    with _scratch() as (descriptor, path):
        item.save(path)
        os.lseek(descriptor, 0, os.SEEK_SET)
        return os.read(descriptor, os.fstat(descriptor).st_size)


def from_bytes(
    context: seal.SEALContext, empty: SealObject, *parts: bytes | memoryview
) -> SealObject:
    """Load a peer's key or ciphertext into an empty object; a KeyMismatch if it is invalid."""
    with _scratch() as (descriptor, path), seal_errors(f"a SEAL {type(empty).__name__}"):
        os.lseek(descriptor, 0, os.SEEK_SET)
        written = sum(os.write(descriptor, part) for part in parts)
        # Old content must not complete data that a peer truncated.
        os.ftruncate(descriptor, written)
        empty.load(context, path)
    return empty


def split(data: bytes, count: int, largest: int) -> list[bytes]:
    """Split concatenated serializations by their headers; a CryptoError if they do not fit."""
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


def plaintext(context: seal.SEALContext, coefficients: RingArray) -> seal.Plaintext:
    """A plaintext polynomial, coefficients of shape (up to DEGREE,); a KeyMismatch from t on."""
    members = _PLAINTEXT_MEMBERS.pack(0, 0, 0, 0, coefficients.size, 1.0)
    return from_bytes(context, seal.Plaintext(), *_framed([members, *_array(coefficients)]))


def coefficients_of(plain: seal.Plaintext, positions: NDArray[np.int64]) -> RingArray:
    """Coefficients modulo t at these positions, shape (positions,)."""
    present = plain.coeff_count()  # leading zeros are not stored
    if len(positions) < _FEW:
        at = (plain.data(i) if i < present else 0 for i in positions.tolist())
        return np.fromiter(at, np.uint64, len(positions))
    words = np.zeros(max(present, int(positions.max()) + 1), np.uint64)
    body = _body(to_bytes(plain))
    words[:present] = _words(body, len(body) - 8 * present)
    return words[positions]


def coefficient_ciphertext(context: seal.SEALContext, residues: RingArray) -> seal.Ciphertext:
    """The transparent ciphertext (m, 0), (primes, DEGREE): the way to add large coefficients."""
    both = np.stack([residues, np.zeros_like(residues)])
    return ciphertext_of(context, context.first_parms_id(), both)


def ciphertext_of(
    context: seal.SEALContext, parms_id: list[int], polynomials: RingArray, *, ntt: bool = False
) -> seal.Ciphertext:
    """The ciphertext of two polynomials, (2, primes, DEGREE); a KeyMismatch if they do not fit."""
    members = _members(parms_id, polynomials.shape[1], polynomials.shape[2], ntt=ntt)
    return from_bytes(context, seal.Ciphertext(), *_framed([members, *_array(polynomials)]))


def public_key_of(context: seal.SEALContext, polynomials: RingArray) -> seal.PublicKey:
    """The public key (p₀, p₁) in NTT form, (2, all primes, DEGREE); KeyMismatch as above."""
    members = _members(context.key_parms_id(), *polynomials.shape[1:], ntt=True)
    return from_bytes(context, seal.PublicKey(), *_framed([members, *_array(polynomials)]))


def polynomials_of(ciphertext: seal.Ciphertext) -> RingArray:
    """(c₀, c₁) as residues modulo each prime, shape (2, primes, DEGREE)."""
    shape = (2, ciphertext.coeff_modulus_size(), ciphertext.poly_modulus_degree())
    body = _body(to_bytes(ciphertext))
    return _words(body, len(body) - 16 * shape[1] * shape[2]).reshape(shape)


def seeded_parts(serializable: Any, primes: int, degree: int) -> tuple[RingArray, bytes]:  # noqa: ANN401
    """c₀, shape (primes, DEGREE), and the seed of c₁ of a fresh encryption under the secret key."""
    body = _body(to_bytes(serializable))
    end = len(body) - SEED_BYTES
    c0 = _words(body[:end], end - 8 * primes * degree)
    return c0.reshape(primes, degree), body[end:]


def from_seeded(context: seal.SEALContext, c0: RingArray, seed: bytes) -> seal.Ciphertext:
    """The ciphertext whose c₁ SEAL expands from its seed; a KeyMismatch for invalid values."""
    members = _members(context.first_parms_id(), *c0.shape)
    return from_bytes(context, seal.Ciphertext(), *_framed([members, *_array(c0), seed]))


@contextmanager
def seal_errors(what: str) -> Iterator[None]:
    """Convert all exceptions of SEAL to KeyMismatch."""
    try:
        yield
    except _SEAL_ERRORS as error:
        raise KeyMismatch(f"{what} of these parameters expected: {error}") from error


@contextmanager
def _scratch() -> Iterator[tuple[int, str]]:
    """A private empty file: its descriptor and a path to it."""
    if hasattr(os, "memfd_create"):
        if _memory.descriptor is None:
            _memory.descriptor = os.memfd_create("seal")
        yield _memory.descriptor, f"/proc/self/fd/{_memory.descriptor}"
    else:
        with TemporaryDirectory() as folder:
            path = os.path.join(folder, "seal")
            flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0)
            descriptor = os.open(path, flags, 0o600)
            try:
                yield descriptor, path
            finally:
                os.close(descriptor)


class _Memory(threading.local):
    """A file in memory per thread, reused: allocating its pages costs more than writing them."""

    descriptor: int | None = None


def _forget() -> None:
    global _memory  # noqa: PLW0603
    _memory = _Memory()


_memory = _Memory()
# A child would write into its parent's file.
if hasattr(os, "register_at_fork"):  # pragma: no branch
    os.register_at_fork(after_in_child=_forget)


def _members(parms_id: list[int], primes: int, degree: int, *, ntt: bool = False) -> bytes:
    return _CIPHERTEXT_MEMBERS.pack(*parms_id, ntt, 2, degree, primes, 1.0, 1)


def _array(words: RingArray) -> list[bytes | memoryview]:
    octets = np.ascontiguousarray(words, "<u8").reshape(-1).view(np.uint8)
    return _framed([struct.pack("<Q", words.size), octets.data])


def _framed(parts: list[bytes | memoryview]) -> list[bytes | memoryview]:
    size = _HEADER_BYTES + sum(map(len, parts))
    return [_HEADER_START + struct.pack("<BHQ", _PLAIN, 0, size), *parts]


def _body(data: bytes) -> bytes:
    """The members of one serialized object of our own, uncompressed."""
    if data[5] == _PLAIN:
        return data[_HEADER_BYTES:]
    if data[5] != _ZSTANDARD:
        raise CryptoError(f"SEAL compressed with mode {data[5]}, none or Zstandard expected")
    # A streaming frame: its header does not contain the size.
    return zstandard.ZstdDecompressor().decompressobj().decompress(data[_HEADER_BYTES:])


def _words(body: bytes, start: int) -> RingArray:
    return np.frombuffer(body, "<u8", offset=start).astype(np.uint64)


def _check_layout() -> None:
    """Compare the layout written here with SEAL's own objects."""
    degree, plain_modulus = 1024, 1 << 10
    parameters = seal.EncryptionParameters(seal.SCHEME_TYPE.BFV)
    parameters.set_poly_modulus_degree(degree)
    parameters.set_coeff_modulus(seal.CoeffModulus.Create(degree, [27, 27, 27]))
    parameters.set_plain_modulus(seal.Modulus(plain_modulus))
    context = seal.SEALContext(parameters, True, seal.SEC_LEVEL_TYPE.NONE)
    encryptor = seal.Encryptor(context, seal.KeyGenerator(context).secret_key())
    numbers = np.arange(degree, dtype=np.uint64) % np.uint64(plain_modulus - 1) + np.uint64(1)
    try:
        message = plaintext(context, numbers)
        terms = [f"{numbers[power]:X}x^{power}" for power in range(degree - 1, 0, -1)]
        same = to_bytes(message) == to_bytes(seal.Plaintext(" + ".join([*terms, "1"])))
        fresh = encryptor.encrypt_symmetric(message)
        expanded = from_bytes(context, seal.Ciphertext(), to_bytes(fresh))
        rebuilt = from_seeded(context, *seeded_parts(fresh, 2, degree))
        polynomials = polynomials_of(rebuilt)
        again = ciphertext_of(context, context.first_parms_id(), polynomials)
        same &= to_bytes(expanded) == to_bytes(rebuilt) == to_bytes(again)
        same &= all(expanded.data(at) == int(polynomials[at, 0, 0]) for at in range(2))
    except (CryptoError, struct.error, *_SEAL_ERRORS) as error:
        raise CryptoError(f"{_UNKNOWN_LAYOUT}: {error}") from error
    if not same:
        raise CryptoError(_UNKNOWN_LAYOUT)


# Magic number, header size and version, as the installed SEAL writes them.
_HEADER_START = to_bytes(seal.Plaintext())[:5]
# What precedes the 64 bytes of a seed of SEAL's default generator, BLAKE2Xb.
SEED_START = _HEADER_START + struct.pack("<BHQB", _PLAIN, 0, SEED_BYTES, 1)
_UNKNOWN_LAYOUT = (
    f"this TenSEAL's SEAL {_HEADER_START[3]}.{_HEADER_START[4]} serializes otherwise than "
    "SEAL 4.x; install tenseal 0.3.16"
)
_check_layout()
