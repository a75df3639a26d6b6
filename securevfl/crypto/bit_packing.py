"""Residues of b bits as bytes without the gaps of 64-bit words: 32 ≤ b ≤ 60, a multiple of 4.

Two residues take b/4 ≥ 8 bytes, and are read and written as two 64-bit words that overlap.
"""

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import RingArray
from securevfl.errors import CryptoError

_WORD = 64


def packed_size(count: int, bits: int) -> int:
    """Bytes of `count` packed residues; two residues of an odd number of nibbles share a byte.

    Raises:
        CryptoError: a width or a count that does not pack.
    """
    if not (32 <= bits <= 60 and bits % 4 == 0):  # noqa: PLR2004
        raise CryptoError(f"residues of {bits} bits: a multiple of 4 from 32 to 60 expected")
    if count < 2 or count % 2:  # noqa: PLR2004
        raise CryptoError(f"{count} residues: an even number from 2 on expected")
    return count * bits // 8


def pack(residues: RingArray, bits: int) -> bytes:
    """An even number of residues below 2^bits, little-endian.

    Raises:
        CryptoError: a residue of more bits, which would be cut off.
    """
    data = np.empty(packed_size(residues.size, bits), np.uint8)
    if int(residues.max(initial=0)) >> bits:
        raise CryptoError(f"a residue of more than {bits} bits")
    low, high = residues[::2], residues[1::2]
    first, last = _words(data, bits, 0), _words(data, bits, bits // 4 - 8)
    first[...] = low
    last[...] = low >> np.uint64(2 * bits - _WORD) | high << np.uint64(_WORD - bits)
    return data.tobytes()


def unpack(data: bytes, count: int, bits: int) -> RingArray:
    """The residues that `pack` made into bytes, shape (count,).

    Raises:
        CryptoError: another number of bytes.
    """
    if len(data) != packed_size(count, bits):
        raise CryptoError(f"{len(data)} bytes, {packed_size(count, bits)} expected")
    octets = np.frombuffer(data, np.uint8)
    first, last = _words(octets, bits, 0), _words(octets, bits, bits // 4 - 8)
    residues = np.empty(count, np.uint64)
    np.bitwise_and(first, np.uint64((1 << bits) - 1), out=residues[::2])
    np.right_shift(last, np.uint64(_WORD - bits), out=residues[1::2])
    return residues


def _words(data: NDArray[np.uint8], bits: int, offset: int) -> NDArray[np.uint64]:
    """One 64-bit word of every pair, at a byte offset within it."""
    stride = bits // 4
    return np.ndarray(data.size // stride, "<u8", data.data, offset, (stride,))
