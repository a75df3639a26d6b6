"""Residues modulo primes of up to 60 bits as 64-bit words: arithmetic, uniform noise, bytes.

On the wire, residues of b bits (32 ≤ b ≤ 60, a multiple of 4) are packed without gaps. Two of them
take b/4 ≥ 8 bytes, which are read and written as two overlapping 64-bit words.
"""

import os
from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import RingArray
from securevfl.crypto import native
from securevfl.crypto.scheme import MODULUS_BITS
from securevfl.errors import CryptoError

_TESTED = 64  # numbers that C rounds as integers do, before it is relied on
_HALF = np.uint64(32)
_WORD, _LOW = (1 << MODULUS_BITS) - 1, np.uint64((1 << 32) - 1)


def uniform_words(count: int) -> RingArray:
    """Uniform 64-bit words from the operating system, shape (count,)."""
    return np.frombuffer(os.urandom(8 * count), np.uint64)


def uniform_below(
    modulus: int, count: int, source: Callable[[int], RingArray] | None = None
) -> RingArray:
    """Exactly uniform integers in [0, modulus), shape (count,).

    `source` gives uniform 64-bit words, by default from the operating system.
    """
    mask, source = np.uint64((1 << (modulus - 1).bit_length()) - 1), source or uniform_words
    words = source(count) & mask
    while (beyond := np.flatnonzero(words >= np.uint64(modulus))).size:
        words[beyond] = source(beyond.size) & mask
    return words


def uniform_mask(primes: Sequence[int], plain_bits: int, count: int) -> tuple[RingArray, RingArray]:
    """A mask that is uniform modulo the product q of some primes, and a share of it.

    Returns the mask modulo each prime, (primes, count), and round(t·mask/q) modulo t =
    2^plain_bits, (count,). C rounds fractions of 64 bits, so a tie within 2^−62 goes either way.
    """
    # Uniform modulo each prime, so modulo q.
    residues = np.stack([uniform_below(prime, count) for prime in primes])
    compiled = isinstance(native.found(), native.Library)
    if compiled and (rounder := _rounder(tuple(primes), plain_bits)) is not None:
        return residues, rounder.rounded(residues)
    return residues, share_of(whole(residues, primes), prod(primes), plain_bits)


@cache
def _rounder(primes: tuple[int, ...], plain_bits: int) -> native.Arithmetic | None:
    """Rounds residues modulo these primes to shares modulo 2^plain_bits, if C does it right."""
    fits = len(primes) <= native.MOST_PRIMES and plain_bits < native.LARGEST_PLAIN.bit_length()
    if not fits:
        return None
    sizes, modulus = (60,) * len(primes), prod(primes)
    made = native.Arithmetic(primes, len(primes), sizes, 0, vector=False, plain=1 << plain_bits)
    some = np.array(
        [[each * prime // _TESTED for each in range(_TESTED)] for prime in primes], np.uint64
    )
    same = np.array_equal(made.rounded(some), share_of(whole(some, primes), modulus, plain_bits))
    return made if same else None


def whole(residues: NDArray[Any], primes: Sequence[int]) -> NDArray[np.object_]:
    """The integers below the primes' product, (count,), of these residues, (primes, count)."""
    modulus, total = prod(primes), np.zeros(residues.shape[1], object)
    for row, prime in zip(residues, primes, strict=True):
        others = modulus // prime
        total += row.astype(object) * (pow(others, -1, prime) * others)
    found: NDArray[np.object_] = total % modulus
    return found


def share_of(total: NDArray[np.object_], modulus: int, plain_bits: int) -> RingArray:
    """round(t·total/q) modulo t = 2^plain_bits, of integers modulo q, any shape."""
    share = ((total << plain_bits) + modulus // 2) // modulus % (1 << plain_bits)
    return np.asarray(share, np.uint64)


def exact_mask(
    primes: Sequence[int], plain: int, edge: int, count: int
) -> tuple[RingArray, RingArray]:
    """A mask modulo the product q of some primes, `edge` away from where it rounds to another z.

    It is uniform on the residues round(q·z/t) + f for z < t = `plain` and |f| ≤ q/(2t) − edge − 1:
    whoever adds it to q·v/t + n with |n| ≤ edge, and rounds by t/q, has v + z exactly.

    Returns the mask modulo each prime, (primes, count), and z, (count,).
    """
    modulus = prod(primes)
    reach = modulus // (2 * plain) - edge - 1
    off = _uniform_words(2 * reach + 1, count)
    places = [1 << (MODULUS_BITS * place) for place in reversed(range(len(off)))]
    found = uniform_below(plain, count)
    words = np.stack([_remainder(found, modulus, plain), *off])
    residues = np.empty((len(primes), count), np.uint64)
    for row, prime in zip(residues, primes, strict=True):
        over_t = pow(plain, -1, prime)
        row[:] = combined(words, [-over_t, *places], plain // 2 * over_t - reach, prime)
    return residues, found


def _uniform_words(bound: int, count: int) -> RingArray:
    """Exactly uniform integers in [0, bound) as words, the highest first, (words, count)."""
    rows = -(-bound.bit_length() // MODULUS_BITS)
    largest = [bound >> MODULUS_BITS * place & _WORD for place in range(rows)]
    found, missing = np.empty((rows, count), np.uint64), np.arange(count)
    while missing.size:
        words = uniform_words(rows * missing.size).reshape(rows, -1).copy()
        words[0] >>= np.uint64(-bound.bit_length() % MODULUS_BITS)
        found[:, missing] = words
        beyond = np.ones(missing.size, np.bool_)
        for word, most in zip(reversed(words), map(np.uint64, largest), strict=True):
            beyond = (word > most) | ((word == most) & beyond)
        missing = missing[beyond]
    return found


def scaled_message(values: RingArray, modulus: int, plain: int, prime: int) -> RingArray:
    """round(q·v/t) modulo a prime factor of q, t = `plain`; rounding is at most 1/2.

    t is a power of two, and v any words congruent to residues; or t is odd, and v is below t.
    """
    over_t = pow(plain, -1, prime)
    shifted = _remainder(values, modulus, plain)
    return combined(shifted[None], [-over_t], plain // 2 * over_t, prime)


def _remainder(values: RingArray, modulus: int, plain: int) -> RingArray:
    """t/2 plus the remainder of q·v = t·quotient + remainder, |remainder| ≤ t/2.

    As q is 0 modulo its prime factors, the quotient is −remainder/t there.
    """
    half = plain // 2
    if plain % 2:
        return combined(values[None], [modulus], half, plain)
    wrapped = values * np.uint64(modulus & _WORD) + np.uint64(half)
    return wrapped & np.uint64(plain - 1)


def combined(words: RingArray, factors: Sequence[int], offset: int, prime: int) -> RingArray:
    """(Σ words·factors + offset) mod prime, of up to 5 rows of 64-bit words, (words, count).

    Each row has one factor, of any size; the prime is between 2^31 and 2^60.
    """
    if isinstance(native.found(), native.Library):
        reduced = [factor % prime for factor in factors]
        return native.library().combined(words, reduced, offset % prime, prime)
    total = np.full(words.shape[1], offset % prime + prime, np.uint64)
    for row, factor in zip(words, factors, strict=True):
        for limb, place in ((row >> _HALF, 32), (row & _LOW, 0)):
            known = (factor << place) % prime
            # The quotient is computed in float64 and may be off by one if the remainder is tiny:
            # a term is between −1/2^20 and 1 + 1/2^20 primes. Its parts wrap modulo 2^64.
            quotient = (limb * (known / prime)).astype(np.uint64)
            total += limb * np.uint64(known) - quotient * np.uint64(prime)
    return total % np.uint64(prime)


def packed_size(count: int, bits: int) -> int:
    """Size in bytes of `count` packed residues, an even number."""
    if not (32 <= bits <= 60 and bits % 4 == 0):  # noqa: PLR2004
        raise CryptoError(f"residues of {bits} bits: a multiple of 4 from 32 to 60 expected")
    if count < 2 or count % 2:  # noqa: PLR2004
        raise CryptoError(f"{count} residues: an even number from 2 on expected")
    return count * bits // 8


def pack(residues: RingArray, bits: int) -> bytes:
    """Pack an even number of residues, little-endian; a CryptoError if one has more bits."""
    data = np.empty(packed_size(residues.size, bits), np.uint8)
    if int(residues.max(initial=0)) >> bits:
        raise CryptoError(f"a residue of more than {bits} bits")
    low, high = residues[::2], residues[1::2]
    first, last = _words(data, bits, 0), _words(data, bits, bits // 4 - 8)
    first[...] = low
    last[...] = low >> np.uint64(2 * bits - MODULUS_BITS) | high << np.uint64(MODULUS_BITS - bits)
    return data.tobytes()


def unpack(data: bytes, count: int, bits: int) -> RingArray:
    """The inverse of `pack`, shape (count,)."""
    if len(data) != packed_size(count, bits):
        raise CryptoError(f"{len(data)} bytes, {packed_size(count, bits)} expected")
    octets = np.frombuffer(data, np.uint8)
    first, last = _words(octets, bits, 0), _words(octets, bits, bits // 4 - 8)
    residues = np.empty(count, np.uint64)
    np.bitwise_and(first, np.uint64((1 << bits) - 1), out=residues[::2])
    np.right_shift(last, np.uint64(MODULUS_BITS - bits), out=residues[1::2])
    return residues


def _words(data: NDArray[np.uint8], bits: int, offset: int) -> NDArray[np.uint64]:
    """One 64-bit word of every pair, at a byte offset within it."""
    stride = bits // 4
    return np.ndarray(data.size // stride, "<u8", data.data, offset, (stride,))
