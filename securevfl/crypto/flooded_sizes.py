"""Primes of BFV products whose replies are flooded: noise that hides the noise of honest inputs.

Sizes, in bits: a reply is switched to primes of `GAP_BITS` more than t. Flooding noise is uniform
on 2^flood_bits integers, at least 2^STATISTICAL_BITS · B · A, with B a bound on M·e and A the
number of coefficients that the owner decrypts over the job. The modulus q leaves room for 32·t
times as much.
Source: docs/decisions/0033-products-in-the-ring.md.
"""

from dataclasses import dataclass
from math import ceil

from securevfl.crypto.bfv_parameters import DEGREE, STATISTICAL_BITS, BfvSizes, shared_out

# A reply's noise budget is half the distance between two plaintexts, 2^GAP_BITS after the switch of
# primes. Rounding takes 21 of it (standard deviation), flooding at most 2^(GAP_BITS − 6). The rest
# lets the owner detect replies under another key and damaged ones.
GAP_BITS = 12
_ONE_PRIME_BITS = 60 - GAP_BITS
# SEAL's centred binomial noise is at most 21; the message's rounding adds 1/2.
LARGEST_NOISE = 21.5


@dataclass(frozen=True)
class FloodedSizes(BfvSizes):
    """Ring and primes; flooding noise is uniform on 2^flood_bits integers around 0."""

    flood_bits: int

    @classmethod
    def fitting(
        cls, plain_bits: int, flood_bits: int, others: int, least_bits: int
    ) -> "FloodedSizes | None":
        """Sizes with `others` primes of `least_bits` or more that replies drop, or None."""
        reply_primes = 1 if plain_bits <= _ONE_PRIME_BITS else 2
        modulus_bits, reply_bits = flood_bits + plain_bits + 5, plain_bits + GAP_BITS
        prime_bits = shared_out(modulus_bits, reply_bits, reply_primes, others, least_bits)
        return None if prime_bits is None else cls(plain_bits, prime_bits, reply_primes, flood_bits)


def flooding_bits(norm: int, revealed: int) -> int:
    """Bits of flooding that hide the noise of this many revealed coefficients.

    `norm` is the largest sum of absolute entries of a reply's plaintexts.
    """
    # A fresh encryption's noise, at most DEGREE, depends on its randomness and is hidden as well.
    largest = ceil(LARGEST_NOISE * norm) + DEGREE
    return STATISTICAL_BITS + (largest * revealed - 1).bit_length()
