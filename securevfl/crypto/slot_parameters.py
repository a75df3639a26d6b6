"""Ring, primes and flooding of products in slots for one job; both ends derive the same.

The plaintext modulus p is a prime of `PLAIN_BITS` bits with p ≡ 1 modulo 2·DEGREE. A polynomial
then represents its values at DEGREE roots of unity, the *slots*, and products are slotwise. One
prime of 48 bits takes two thirds of the bytes of two primes of 30 bits, whose products would have
to be flooded twice.

Sizes, in bits: a reply is switched to one prime of `GAP_BITS` more than p. A plaintext in slots has
coefficients up to p/2 whatever its values, so the noise of two inputs grows to at most B in a
reply. Flooding noise is uniform on 2^flood_bits integers, at least 2^STATISTICAL_BITS·B·A, with A
the number of coefficients that the owner decrypts over the job; the modulus q leaves room for 32·p
times as much. B holds except with probability 2^−STATISTICAL_BITS over the job and the owner's own
noise, a sum of independent signs (Hoeffding, 1963, theorem 2).
Source: docs/decisions/0034-logistic-residuals-in-shares.md.
"""

from dataclasses import dataclass
from math import ceil, log, sqrt

from securevfl.crypto.bfv_parameters import (
    DEGREE,
    LARGEST_MODULUS_BITS,
    LARGEST_PRIME_BITS,
    NOISE_VARIANCE,
    SPECIAL_BITS,
    STATISTICAL_BITS,
)
from securevfl.crypto.flooded_sizes import GAP_BITS, FloodedSizes
from securevfl.errors import RangeExceeded

PLAIN_BITS = 48
REPLY_BITS = PLAIN_BITS + GAP_BITS


@dataclass(frozen=True)
class SlotParameters(FloodedSizes):
    """The parameters of a job's products in slots."""

    batching = True
    # Dropped bits of c₀ in a reply: a rounding error of 1/32 of the distance of two plaintexts.
    dropped_bits = GAP_BITS - 4

    @classmethod
    def of(cls, products: int) -> "SlotParameters":
        """Parameters for this many complex products; a RangeExceeded if flooding has no room."""
        revealed = 2 * DEGREE * pairs_of(products)
        flood_bits = STATISTICAL_BITS + (_largest_noise(revealed) * revealed - 1).bit_length()
        rest = flood_bits + PLAIN_BITS + 5 - REPLY_BITS
        others = _shared_out(rest, 2 if rest <= 2 * LARGEST_PRIME_BITS else 3)
        prime_bits = (REPLY_BITS, *others)
        if sum(prime_bits) + SPECIAL_BITS > LARGEST_MODULUS_BITS:
            raise RangeExceeded(
                f"products in slots: flooding of {flood_bits} bits for {products} products does "
                f"not fit the primes of 128-bit security at degree {DEGREE}; use fewer rounds or "
                "rows"
            )
        return cls(PLAIN_BITS, prime_bits, reply_primes=1, flood_bits=flood_bits)

    @property
    def plain_modulus(self) -> int:
        """The prime p."""
        value: int = self.context().first_context_data().parms().plain_modulus().value()
        return value


def pairs_of(products: int) -> int:
    """Pairs of ciphertexts that this many complex products take, in each direction."""
    return -(-products // DEGREE)


def _largest_noise(revealed: int) -> int:
    """B: noise of two inputs times plaintexts of p/2, their rounding, and a fresh encryption."""
    entry = 2.0 ** (PLAIN_BITS - 1)
    deviations = sqrt(2 * log(2 * revealed * 2.0**STATISTICAL_BITS))
    of_noise = sqrt(2 * DEGREE * NOISE_VARIANCE) * deviations
    return ceil((of_noise + 2 * DEGREE / 2) * entry) + DEGREE


def _shared_out(bits: int, primes: int) -> tuple[int, ...]:
    nibbles = -(-bits // 4)
    return tuple(4 * -(-(nibbles - place) // primes) for place in range(primes))


def failure_probability(products: float, largest: float) -> float:
    """Bound on the probability that any share of these complex products is converted wrongly.

    `largest` bounds a product's absolute value. The sizes of its two parts add up to at most √2
    times as much; 1.5 leaves room for p, which is slightly below 2^PLAIN_BITS.
    """
    return products * 1.5 * largest * 2.0**-PLAIN_BITS
