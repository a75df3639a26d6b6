"""The ring Z_2^59 of additive fixed-point shares: uniform words, truncation, exact products.

2^59 is the largest power of two that BFV supports as plaintext modulus. A residue is a uint64 below
2^59. As 2^59 divides 2^64, NumPy's wrapping arithmetic is correct modulo 2^59 throughout; `reduced`
reduces a result before it is sent, compared or truncated.

*Truncation* drops fraction bits of a number that two parties share, each on its own share: one
computes floor(w/2^g), the other −floor(−a/2^g). The result is the quotient, rounded down or up at
random. It is wrong altogether with probability |value|·2^(1 − 59) over the shares.
Source: Mohassel, Zhang, "SecureML", IEEE S&P 2017, section 4.1 and theorem 1.
"""

from math import ceil, log2

import numpy as np
from numpy.typing import ArrayLike

from securevfl.arrays import FloatArray, IntArray, RingArray
from securevfl.crypto import fixed_point
from securevfl.crypto.residues import uniform_words
from securevfl.crypto.scheme import MODULUS_BITS
from securevfl.errors import RangeExceeded

RING_BITS = 59
EXACT_BITS = 53  # of float64
_MASK = np.uint64((1 << RING_BITS) - 1)
_SPARE = MODULUS_BITS - RING_BITS


def reduced(words: RingArray) -> RingArray:
    """Words modulo 2^59."""
    return words & _MASK


def uniform(*shape: int) -> RingArray:
    """Uniform residues from the operating system."""
    return reduced(uniform_words(int(np.prod(shape)))).reshape(shape)


def encode(values: ArrayLike, fraction_bits: int, bound: float, what: str) -> RingArray:
    """Residues of the integers nearest to values·2^fraction_bits, as `fixed_point.encode`."""
    # `fixed_point` has 64 bits: those above the ring's 59 count as fraction bits.
    fixed_point.encode(0.0, fraction_bits + _SPARE, bound, what)
    return of_integers(fixed_point.encode(values, fraction_bits, bound, what))


def decode(residues: RingArray, fraction_bits: int) -> FloatArray:
    """The numbers in [−2^58, 2^58)/2^fraction_bits in float64."""
    return fixed_point.decode(centred(residues), fraction_bits)


def of_integers(integers: IntArray) -> RingArray:
    """Residues of integers."""
    return reduced(fixed_point.to_ring(integers))


def centred(residues: RingArray) -> IntArray:
    """The representatives in [−2^58, 2^58)."""
    return np.right_shift(fixed_point.from_ring(np.left_shift(residues, np.uint64(_SPARE))), _SPARE)


def truncated(share: RingArray, bits: int, *, first: bool) -> RingArray:
    """A share of value/2^bits, from a share (residues, or words congruent to them) of value.

    Exactly one of the two parties is `first`.
    """
    places = np.uint64(bits)
    if first:
        return reduced(share) >> places
    return reduced(-(reduced(-share) >> places))


def failure_probability(values: float, largest: float) -> float:
    """Bound on the probability that any of `values` truncations of |value| ≤ largest is wrong."""
    return values * largest * 2.0 ** (1 - RING_BITS)


class Factor:
    """A matrix of shape (outputs, inner) that multiplies shares exactly modulo 2^59.

    Uses float64 products of the shares' limbs, whose sums stay below 2^53.

    Raises:
        RangeExceeded: entries of 2^48 or more, or so many columns that limbs have no bits left.
    """

    def __init__(self, matrix: IntArray) -> None:
        largest = max(int(matrix.max(initial=0)), -int(matrix.min(initial=0)), 1)
        columns = max(matrix.shape[1], 2)
        self._limb_bits = EXACT_BITS - largest.bit_length() - ceil(log2(columns))
        if self._limb_bits < 1:
            raise RangeExceeded(
                f"a matrix of {columns} columns with entries up to {largest} has no exact product "
                f"in {EXACT_BITS} bits"
            )
        self._matrix = matrix.astype(np.float64)

    def __matmul__(self, shares: RingArray) -> RingArray:
        """matrix·shares: shape (outputs,) of (inner,), (outputs, R) of (inner, R)."""
        words, bits = reduced(shares), self._limb_bits
        total = np.zeros((len(self._matrix), *shares.shape[1:]), np.uint64)
        limb_mask = np.uint64((1 << bits) - 1)
        for at in range(0, RING_BITS, bits):
            limb = ((words >> np.uint64(at)) & limb_mask).astype(np.float64)
            total += (self._matrix @ limb).astype(np.int64).view(np.uint64) << np.uint64(at)
        return reduced(total)
