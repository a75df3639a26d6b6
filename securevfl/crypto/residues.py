"""Arithmetic modulo primes of up to 61 bits on arrays of 64-bit words, and uniform noise."""

import os
from collections.abc import Sequence

import numpy as np

from securevfl.arrays import IntArray, RingArray
from securevfl.crypto.fixed_point import from_ring, to_ring
from securevfl.crypto.scheme import MODULUS_BITS

LIMB_BITS = 32


def uniform_words(count: int) -> RingArray:
    """Uniform 64-bit words from the operating system, shape (count,)."""
    return np.frombuffer(os.urandom(8 * count), np.uint64)


def uniform_below(modulus: int, count: int) -> RingArray:
    """Exactly uniform integers in [0, modulus) from the operating system, shape (count,)."""
    mask = np.uint64((1 << (modulus - 1).bit_length()) - 1)
    words = uniform_words(count) & mask
    while (beyond := np.flatnonzero(words >= np.uint64(modulus))).size:
        words[beyond] = uniform_words(beyond.size) & mask
    return words


def uniform_noise(bits: int, degree: int, primes: Sequence[int]) -> RingArray:
    """Integers uniform on [−2^(bits − 1), 2^(bits − 1)) modulo each prime: (primes, degree)."""
    rows = -(-bits // LIMB_BITS)
    drawn = np.frombuffer(os.urandom(rows * degree * LIMB_BITS // 8), np.uint32)
    limbs = drawn.reshape(rows, degree).astype(np.uint64)
    limbs[0] >>= np.uint64(-bits % LIMB_BITS)
    return np.stack([reduced(limbs, 1 << (bits - 1), prime) for prime in primes])


def reduced(limbs: RingArray, offset: int, prime: int) -> RingArray:
    """(Σ limbs·2^(32·place) − offset) mod prime, of words below 2^32, most significant first.

    Args:
        limbs: shape (limbs, degree).
        offset: subtracted.
        prime: between 2^31 and 2^61.
    """
    value = np.zeros(limbs.shape[1], np.uint64)
    radix = np.uint64(1 << LIMB_BITS)
    for limb in limbs:
        value = (multiplied(value, radix, prime) + limb) % np.uint64(prime)
    return (value + np.uint64(-offset % prime)) % np.uint64(prime)


def scaled_message(values: IntArray, modulus: int, plain_bits: int, prime: int) -> RingArray:
    """round(q·v/t) modulo a prime factor of q, t = 2^plain_bits; rounding is at most 1/2.

    q·v = t·quotient + remainder with |remainder| ≤ t/2, and q is 0 modulo the prime, so the
    quotient is −remainder/t there.
    """
    unused = np.uint64(MODULUS_BITS - plain_bits)
    wrapped = to_ring(values) * np.uint64(modulus % (1 << MODULUS_BITS)) << unused
    remainder = from_ring(wrapped) >> np.int64(unused)
    size = np.abs(remainder).view(np.uint64)
    over_t = pow(1 << plain_bits, -1, prime)
    low, high = size & np.uint64((1 << LIMB_BITS) - 1), size >> np.uint64(LIMB_BITS)
    of_high = multiplied(np.uint64((over_t << LIMB_BITS) % prime), high, prime)
    quotient = (of_high + multiplied(np.uint64(over_t), low, prime)) % np.uint64(prime)
    return np.where(remainder > 0, (np.uint64(prime) - quotient) % np.uint64(prime), quotient)


def multiplied(
    values: RingArray | np.uint64, factor: RingArray | np.uint64, prime: int
) -> RingArray:
    """values·factor mod prime, for values below the prime and factors up to 2^32.

    The quotient comes from float64 and may be off by one, which is put right after.

    Args:
        values: shape (degree,), or one for all factors.
        factor: shape (degree,), or one for all values.
        prime: between 2^31 and 2^61.
    """
    quotient = (values.astype(np.float64) * np.asarray(factor, np.float64) / prime).astype(
        np.uint64
    )
    # Both products wrap modulo 2^64, their difference is within one prime of its place.
    rest = (values * factor - quotient * np.uint64(prime)).view(np.int64)
    rest = np.where(rest < 0, rest + prime, rest)
    return np.where(rest >= prime, rest - prime, rest).view(np.uint64)
