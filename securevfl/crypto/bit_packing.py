"""Residues of b bits as bytes without the gaps of 64-bit words, for b a multiple of 4."""

import numpy as np

from securevfl.crypto.scheme import UInt64Array
from securevfl.errors import CryptoError


def packed_size(count: int, bits: int) -> int:
    """Bytes of `count` packed residues; two residues of an odd number of nibbles share a byte.

    Raises:
        CryptoError: a width or a count that does not pack.
    """
    if not (4 <= bits <= 64 and bits % 4 == 0):  # noqa: PLR2004
        raise CryptoError(f"residues of {bits} bits: a multiple of 4 up to 64 expected")
    if count % 2:
        raise CryptoError(f"{count} residues: an even number expected")
    return count * bits // 8


def pack(residues: UInt64Array, bits: int) -> bytes:
    """An even number of residues below 2^bits, little-endian.

    Raises:
        CryptoError: a residue of more bits, which would be cut off.
    """
    packed_size(residues.size, bits)
    words = np.ascontiguousarray(residues, "<u8").reshape(-1)
    if bits < 64 and int(words.max(initial=0)) >> bits:  # noqa: PLR2004
        raise CryptoError(f"a residue of more than {bits} bits")
    whole = bits // 8
    if bits % 8 == 0:
        return words.view(np.uint8).reshape(-1, 8)[:, :whole].tobytes()
    low, high = words[::2], words[1::2]
    pairs = np.empty((low.size, bits // 4), np.uint8)
    pairs[:, :whole] = _octets(low)[:, :whole]
    pairs[:, whole] = (low >> np.uint64(8 * whole)) | ((high & np.uint64(15)) << np.uint64(4))
    pairs[:, whole + 1 :] = _octets(high >> np.uint64(4))[:, :whole]
    return pairs.tobytes()


def unpack(data: bytes, count: int, bits: int) -> UInt64Array:
    """The residues that `pack` made into bytes, shape (count,).

    Raises:
        CryptoError: another number of bytes.
    """
    if len(data) != packed_size(count, bits):
        raise CryptoError(f"{len(data)} bytes, {packed_size(count, bits)} expected")
    octets = np.frombuffer(data, np.uint8)
    whole = bits // 8
    words = np.zeros((count, 8), np.uint8)
    if bits % 8 == 0:
        words[:, :whole] = octets.reshape(count, whole)
        return words.view("<u8").reshape(-1).astype(np.uint64)
    pairs = octets.reshape(count // 2, bits // 4)
    words[::2, : whole + 1] = pairs[:, : whole + 1]
    words[::2, whole] &= 15
    words[1::2, :whole] = pairs[:, whole + 1 :]
    residues = words.view("<u8").reshape(-1).astype(np.uint64)
    residues[1::2] = residues[1::2] << np.uint64(4) | (pairs[:, whole] >> 4)
    return residues


def _octets(words: UInt64Array) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    return np.ascontiguousarray(words, "<u8").view(np.uint8).reshape(-1, 8)
