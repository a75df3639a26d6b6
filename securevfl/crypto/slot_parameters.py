"""Ring and primes of products in slots for one job; both ends derive the same.

The plaintext modulus p is a prime of `PLAIN_BITS` bits with p ≡ 1 modulo 2·DEGREE. A polynomial
then represents its values at DEGREE roots of unity, the *slots*, and products are slotwise. One
prime of 48 bits takes two thirds of the bytes of two primes of 30 bits.

A plaintext in slots has coefficients up to p/2 whatever its values. One unit at one coefficient
changes every slot, so shares have to be exact. Edges as large as their noise would take another
prime in large jobs. So masks have none, and some share is rounded the other way in a job, whose end
is then wrong, with probability 2^−CARRY_BITS (`ExactSizes`).
Source: docs/decisions/0034-logistic-residuals-in-shares.md.
"""

from dataclasses import dataclass
from typing import Self

from typing_extensions import override

from securevfl.crypto.bfv_parameters import CARRY_BITS, DEGREE, LARGEST_MODULUS_BITS, ExactSizes
from securevfl.errors import RangeExceeded

PLAIN_BITS = 48


@dataclass(frozen=True)
class SlotParameters(ExactSizes):
    """The parameters of a job's products in slots."""

    batching = True
    carry_bits = CARRY_BITS
    edge = 0

    @classmethod
    def of(cls, products: int) -> Self:
        """Parameters for this many complex products; a RangeExceeded if none have room."""
        shown = 2 * DEGREE * pairs_of(products)
        # Real and imaginary parts are the sum of two products.
        sizes = cls.fitting(PLAIN_BITS, 2 * DEGREE, 2.0 ** (PLAIN_BITS - 1), shown)
        # SEAL would take p itself for another prime of as many bits.
        fitting = [each for each in sizes if PLAIN_BITS not in each.prime_bits]
        if not fitting:
            raise RangeExceeded(
                f"products in slots: masks that hide {products} products do not fit the "
                f"{LARGEST_MODULUS_BITS} bits that 128-bit security leaves at degree {DEGREE}; use "
                "fewer rounds or rows"
            )
        return min(
            fitting, key=lambda each: (each.input_bytes + each.reply_bytes, len(each.prime_bits))
        )

    @property
    def reply_bytes(self) -> int:
        """Size in bytes of a reply, with all coefficients."""
        return 2 * DEGREE * sum(self.reply_bits) // 8

    @property
    @override
    def plain_modulus(self) -> int:
        """The prime p."""
        value: int = self.context().first_context_data().parms().plain_modulus().value()
        return value


def pairs_of(products: int) -> int:
    """Pairs of ciphertexts that this many complex products take, in each direction."""
    return -(-products // DEGREE)


def failure_probability(products: float, largest: float) -> float:
    """Bound on the probability that any share of these complex products is converted wrongly.

    `largest` bounds a product's absolute value. The sizes of its two parts add up to at most √2
    times as much; 1.5 leaves room for p, which is slightly below 2^PLAIN_BITS.
    """
    return products * 1.5 * largest * 2.0**-PLAIN_BITS
