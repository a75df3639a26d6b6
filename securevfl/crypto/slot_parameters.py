"""Ring, primes and flooding of products in slots for one job, derived alike at both ends.

The plaintext modulus p is a prime of `PLAIN_BITS` bits with p ≡ 1 modulo 2·DEGREE, so that a
polynomial stands for its values at DEGREE roots of unity, the *slots*, and products go slot by
slot. One prime of 48 bits takes two thirds of the bytes of two of 30, whose products have to be
flooded twice.

Sizes, in bits: a reply is switched to one prime of `GAP_BITS` more than p. A plaintext in slots has
coefficients up to p/2 whatever its values, so that two inputs' noise grows to at most B in a reply;
flooding noise is uniform on 2^flood_bits integers, at least 2^STATISTICAL_BITS·B·A, A the
coefficients that the owner decrypts over the job; the modulus q leaves room for 32·p times as much.
B holds but for a chance of 2^−STATISTICAL_BITS over the job and the owner's own noise, a sum of
independent signs (Hoeffding, 1963, theorem 2).
Source: docs/decisions/0034-logistic-residuals-in-shares.md.
"""

from dataclasses import dataclass
from functools import cache, cached_property
from math import ceil, log, sqrt
from typing import TYPE_CHECKING

from securevfl.crypto.bfv_parameters import (
    DEGREE,
    GAP_BITS,
    LARGEST_MODULUS_BITS,
    STATISTICAL_BITS,
)
from securevfl.errors import RangeExceeded

if TYPE_CHECKING:
    import tenseal.sealapi as seal

PLAIN_BITS = 48
REPLY_BITS = PLAIN_BITS + GAP_BITS
# Of c₀ in a reply, as a rounding error of 1/32 of what lies between two plaintexts.
DROPPED_BITS = GAP_BITS - 4
# SEAL's noise is a sum of 42 signs of 1/2 each.
_NOISE_VARIANCE = 10.5
_LARGEST_PRIME_BITS = 60
_SPECIAL_BITS = 30


@dataclass(frozen=True)
class SlotParameters:
    """One choice.

    Attributes:
        prime_bits: of the data primes; a reply keeps the first.
        flood_bits: flooding noise is uniform on 2^flood_bits integers around 0.
    """

    prime_bits: tuple[int, ...]
    flood_bits: int

    @classmethod
    def of(cls, products: int) -> "SlotParameters":
        """The choice for so many complex products over the job.

        Raises:
            RangeExceeded: so many that 128-bit security has no room for their flooding.
        """
        revealed = 2 * DEGREE * pairs_of(products)
        flood_bits = STATISTICAL_BITS + (_largest_noise(revealed) * revealed - 1).bit_length()
        rest = flood_bits + PLAIN_BITS + 5 - REPLY_BITS
        others = _shared_out(rest, 2 if rest <= 2 * _LARGEST_PRIME_BITS else 3)
        prime_bits = (REPLY_BITS, *others)
        if sum(prime_bits) + _SPECIAL_BITS > LARGEST_MODULUS_BITS:
            raise RangeExceeded(
                f"products in slots: flooding of {flood_bits} bits for {products} products does "
                f"not fit the primes of 128-bit security at degree {DEGREE}; use fewer rounds or "
                "rows"
            )
        return cls(prime_bits, flood_bits)

    @cached_property
    def context(self) -> "seal.SEALContext":
        """SEAL's tables for these sizes, at 128 bits of security."""
        return _context(self.prime_bits)

    @cached_property
    def plain_modulus(self) -> int:
        """The prime p."""
        value: int = self.context.first_context_data().parms().plain_modulus().value()
        return value

    @cached_property
    def primes(self) -> list[int]:
        """The data primes."""
        moduli = self.context.first_context_data().parms().coeff_modulus()
        return [modulus.value() for modulus in moduli]

    @cached_property
    def reply_level(self) -> list[int]:
        """SEAL's name of the level that has a reply's prime only."""
        level = self.context.first_context_data()
        while len(level.parms().coeff_modulus()) > 1:
            level = level.next_context_data()
        found: list[int] = level.parms_id()
        return found


def pairs_of(products: int) -> int:
    """Pairs of ciphertexts that so many complex products take, each way."""
    return -(-products // DEGREE)


def _largest_noise(revealed: int) -> int:
    """B: two inputs' noise times plaintexts of p/2, their rounding, and a fresh encryption's."""
    entry = 2.0 ** (PLAIN_BITS - 1)
    deviations = sqrt(2 * log(2 * revealed * 2.0**STATISTICAL_BITS))
    of_noise = sqrt(2 * DEGREE * _NOISE_VARIANCE) * deviations
    return ceil((of_noise + 2 * DEGREE / 2) * entry) + DEGREE


def _shared_out(bits: int, primes: int) -> tuple[int, ...]:
    """Bits of so many primes, in whole nibbles, which pack."""
    nibbles = -(-bits // 4)
    return tuple(4 * -(-(nibbles - place) // primes) for place in range(primes))


@cache
def _context(prime_bits: tuple[int, ...]) -> "seal.SEALContext":
    import tenseal.sealapi as seal  # noqa: PLC0415  # sizes are asked for without any key

    parameters = seal.EncryptionParameters(seal.SCHEME_TYPE.BFV)
    parameters.set_poly_modulus_degree(DEGREE)
    sizes = [*prime_bits, _SPECIAL_BITS]
    parameters.set_coeff_modulus(seal.CoeffModulus.Create(DEGREE, sizes))
    parameters.set_plain_modulus(seal.PlainModulus.Batching(DEGREE, PLAIN_BITS))
    context = seal.SEALContext(parameters, True, seal.SEC_LEVEL_TYPE.TC128)
    if not context.parameters_set():
        raise RangeExceeded(f"products in slots: SEAL refuses primes of {sizes} bits")
    return context


def failure_probability(products: float, largest: float) -> float:
    """Bound on the probability that any share of so many products is converted wrongly.

    Args:
        products: complex ones.
        largest: bound on a product's absolute value; its parts' sizes add up to √2 of that, and
            the 1.5 leaves room for p, which is a little below 2^PLAIN_BITS.
    """
    return products * 1.5 * largest * 2.0**-PLAIN_BITS
