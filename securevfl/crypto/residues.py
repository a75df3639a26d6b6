"""Arithmetic modulo primes of up to 61 bits on arrays of 64-bit words, and uniform noise."""

import os
from collections.abc import Sequence

import numpy as np

from securevfl.arrays import IntArray, RingArray
from securevfl.crypto.fixed_point import to_ring
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
        limbs: shape (up to 5, degree).
        offset: subtracted.
        prime: between 2^31 and 2^61.
    """
    places = [1 << (LIMB_BITS * place) for place in reversed(range(len(limbs)))]
    return combined(limbs, places, -offset, prime)


def scaled_message(values: IntArray, modulus: int, plain_bits: int, prime: int) -> RingArray:
    """round(q·v/t) modulo a prime factor of q, t = 2^plain_bits; rounding is at most 1/2.

    q·v = t·quotient + remainder with |remainder| ≤ t/2, and q is 0 modulo the prime, so the
    quotient is −remainder/t there.
    """
    unused, half = np.uint64(MODULUS_BITS - plain_bits), 1 << (plain_bits - 1)
    wrapped = to_ring(values) * np.uint64(modulus % (1 << MODULUS_BITS)) + np.uint64(half)
    shifted = (wrapped << unused) >> unused  # remainder + t/2
    over_t = pow(1 << plain_bits, -1, prime)
    limbs = np.stack([shifted >> np.uint64(LIMB_BITS), shifted & np.uint64((1 << LIMB_BITS) - 1)])
    return combined(limbs, [-over_t << LIMB_BITS, -over_t], half * over_t, prime)


def combined(limbs: RingArray, factors: Sequence[int], offset: int, prime: int) -> RingArray:
    """(Σ limbs·factors + offset) mod prime, of words below 2^32.

    Args:
        limbs: shape (up to 5, degree).
        factors: one a limb, of any size.
        offset: added.
        prime: between 2^31 and 2^61.
    """
    total = np.full(limbs.shape[1], offset % prime + prime, np.uint64)
    for limb, factor in zip(limbs, factors, strict=True):
        known = factor % prime
        # The quotient comes from float64 and may be off by one where the rest is next to nothing:
        # a term is between −1/2^20 and 1 + 1/2^20 primes. Its parts wrap modulo 2^64.
        quotient = (limb * (known / prime)).astype(np.uint64)
        total += limb * np.uint64(known) - quotient * np.uint64(prime)
    return total % np.uint64(prime)
