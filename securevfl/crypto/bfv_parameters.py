"""Ring, primes and layout of BFV for one job's products, derived alike at both ends.

Layout (coefficient packing): `chunk` entries of v are the coefficients of one input polynomial;
⌊DEGREE/chunk⌋ columns of X, rows reversed, fill another. Coefficient (j + 1)·chunk − 1 of their
product is the inner product of v with column j. More rows than `chunk` take several inputs, whose
products add up. Bytes are ⌈S/chunk⌉ inputs up and ⌈P/⌊DEGREE/chunk⌋⌉ replies down: the layout that
takes the least time on the job's lines wins.

Sizes, in bits: t = 2^plain_bits exceeds twice the largest product. A reply is switched to primes
of `GAP_BITS` more than t. Flooding noise is uniform on 2^flood_bits integers, at least
2^STATISTICAL_BITS · B · A, with B the most that X·e can be and A the coefficients that the owner
decrypts over the job; the modulus q leaves room for 32·t times as much.
Source: docs/decisions/0008-bfv-sizes-follow-the-job.md; degree and 218 bits:
HomomorphicEncryption.org standard, ternary secret, 128 bits.
"""

from dataclasses import dataclass
from functools import cache
from math import ceil
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from securevfl.crypto.scheme import ProductFormat
from securevfl.errors import RangeExceeded

if TYPE_CHECKING:
    import tenseal.sealapi as seal

DEGREE = 8192
LARGEST_MODULUS_BITS = 218
LARGEST_PLAIN_BITS = 59
STATISTICAL_BITS = 40
# A reply's noise budget is half of what lies between two plaintexts: after the switch of primes
# 2^GAP_BITS, of which rounding takes 21 (standard deviation) and flooding 2^(GAP_BITS − 6) at most.
# The rest lets the owner notice foreign or damaged replies.
GAP_BITS = 12
ONE_PRIME_BITS = 60 - GAP_BITS
# SEAL's centred binomial noise is at most 21; the message's rounding adds 1/2.
LARGEST_NOISE = 21.5
# A foreign coefficient passes the owner's check 11 times in 16; 48 of them, once in 2^25.
LEAST_REVEALED = 48

SPECIAL_BITS = 30  # SEAL's own prime, which no ciphertext on the wire has
LARGEST_PRIME_BITS, _LEAST_PRIME_BITS = 60, 32
# Milliseconds by data prime, measured: taking in an input; one product; the rest of a reply. Then
# what is made offline: an encryption of zero, and what SEAL's compression adds where it finds zeros
# to squeeze out; a blinder. They weigh computation against bytes and need not be exact.
_INPUT_MS, _PRODUCT_MS, _REPLY_MS = 0.55, 0.08, 0.6
_ZERO_MS, _SQUEEZE_MS, _SQUEEZED_BITS, _BLINDER_MS = 0.75, 0.2, 52, 1.4


@dataclass(frozen=True)
class BfvSizes:
    """Ring and primes.

    Attributes:
        plain_bits: t = 2^plain_bits, or with `batching`, for slots, a prime of so many bits.
        prime_bits: of the data primes; a reply keeps the first `reply_primes` of them.
        flood_bits: flooding noise is uniform on 2^flood_bits integers around 0.
        dropped_bits: of each c₀ in a reply that are not sent.
    """

    batching: ClassVar[bool] = False
    dropped_bits: ClassVar[int] = 0
    plain_bits: int
    prime_bits: tuple[int, ...]
    reply_primes: int
    flood_bits: int

    @classmethod
    def fitting(
        cls, plain_bits: int, flood_bits: int, others: int, least_bits: int
    ) -> "BfvSizes | None":
        """The set with so many primes of so many bits or more that fall from replies, if any."""
        modulus_bits = flood_bits + plain_bits + 5
        reply_primes = 1 if plain_bits <= ONE_PRIME_BITS else 2
        least = max(plain_bits + GAP_BITS, modulus_bits - others * LARGEST_PRIME_BITS)
        reply_bits = _nibbles(least, reply_primes)
        other_bits = max(least_bits, _nibbles(modulus_bits - reply_primes * reply_bits, others))
        prime_bits = (reply_bits,) * reply_primes + (other_bits,) * others
        fits = sum(prime_bits) + SPECIAL_BITS <= LARGEST_MODULUS_BITS
        if not fits or max(prime_bits) > LARGEST_PRIME_BITS:
            return None
        return cls(plain_bits, prime_bits, reply_primes, flood_bits)

    @property
    def input_bytes(self) -> int:
        """One input on the wire, up to the seed."""
        return DEGREE * sum(self.prime_bits) // 8

    @property
    def reply_bits(self) -> tuple[int, ...]:
        """Of the primes that a reply has."""
        return self.prime_bits[: self.reply_primes]

    def context(self, plain_bits: int | None = None) -> "seal.SEALContext":
        """SEAL's tables for these sizes, at 128 bits of security; for another t if told."""
        return _context(self.prime_bits, plain_bits or self.plain_bits, self.batching)

    def primes(self) -> list[int]:
        """The data primes."""
        moduli = self.context().first_context_data().parms().coeff_modulus()
        return [modulus.value() for modulus in moduli]

    def reply_level(self, plain_bits: int | None = None) -> list[int]:
        """SEAL's name of the level that has a reply's primes only; for another t if told."""
        level = self.context(plain_bits).first_context_data()
        while len(level.parms().coeff_modulus()) > self.reply_primes:
            level = level.next_context_data()
        found: list[int] = level.parms_id()
        return found


@dataclass(frozen=True)
class BfvParameters(BfvSizes):
    """One choice: `chunk` entries of v in one input, `inputs` ciphertexts of one vector."""

    chunk: int
    inputs: int

    @classmethod
    def of(cls, product_format: ProductFormat) -> "BfvParameters":
        """The choice for a format; both ends make the same.

        RangeExceeded for products, or flooding over the job's rounds, for which no set of 128-bit
        security has room.
        """
        product_format.require_room(LARGEST_PLAIN_BITS)
        layouts = {}
        for columns in range(1, min(product_format.columns, DEGREE) + 1):
            inputs = -(-product_format.rows // (DEGREE // columns))
            layouts[inputs] = -(-product_format.rows // inputs)
        plain_bits = product_format.largest_product.bit_length() + 1
        fitting = [
            cls(**vars(sizes), chunk=chunk, inputs=inputs)
            for inputs, chunk in layouts.items()
            for others in range(1, 4)
            for least_bits in (_LEAST_PRIME_BITS, _SQUEEZED_BITS + 4)
            for flood_bits in (_flood_bits(product_format, inputs, chunk),)
            if (sizes := BfvSizes.fitting(plain_bits, flood_bits, others, least_bits)) is not None
        ]
        if not fitting:
            flood_bits = _flood_bits(product_format, 1, min(product_format.rows, DEGREE))
            raise RangeExceeded(
                f"bfv: products of {plain_bits} bits and flooding of {flood_bits} bits or more "
                f"({product_format.rounds} rounds x {product_format.vectors} vectors x "
                f"{product_format.columns} columns) do not fit the {LARGEST_MODULUS_BITS} bits "
                f"that 128-bit security leaves at degree {DEGREE}; use fewer fraction bits, rounds "
                "or rows"
            )
        return min(fitting, key=lambda each: each.seconds(product_format))

    @property
    def columns_per_reply(self) -> int:
        """⌊DEGREE/chunk⌋."""
        return DEGREE // self.chunk

    def replies(self, columns: int) -> int:
        """Ciphertexts that carry so many columns."""
        return -(-columns // self.columns_per_reply)

    def positions(self, columns: int) -> NDArray[np.int64]:
        """Coefficients of every reply whose c₀ is sent: those of its columns first, then fillers.

        Fillers, masked like all, make foreign replies noticeable however few columns there are.
        """
        return positions(self.chunk, min(self.columns_per_reply, columns))

    def seconds(self, product_format: ProductFormat) -> float:
        """Estimated time of one product, without latency.

        Transfers, computation, and what is made offline and is not hidden by waits.
        """
        inputs, replies = self.inputs, self.replies(product_format.columns)
        up, down = inputs * self.input_bytes, replies * DEGREE * sum(self.reply_bits) // 8
        # The owner's line takes one evaluator's reply while it still serves the others.
        size = up + down + (product_format.evaluators - 1) * max(up, down)
        transfer_ms = size * 8e-3 / product_format.bandwidth_mbit
        primes = len(self.prime_bits)
        squeezed = sum(bits <= _SQUEEZED_BITS for bits in self.prime_bits)
        online_ms = primes * (inputs * _INPUT_MS + replies * (_REPLY_MS + inputs * _PRODUCT_MS))
        offline_ms = max(
            inputs * (primes * _ZERO_MS + squeezed * _SQUEEZE_MS), replies * primes * _BLINDER_MS
        )
        waits_ms = 2 * product_format.latency_ms + transfer_ms
        return (transfer_ms + online_ms + max(0.0, offline_ms - waits_ms)) * 1e-3


def _flood_bits(product_format: ProductFormat, inputs: int, chunk: int) -> int:
    columns = min(DEGREE // chunk, product_format.columns)
    norm = columns * inputs * chunk * product_format.largest_entry
    replies = -(-product_format.columns // (DEGREE // chunk))
    over_job = replies * revealed(columns) * product_format.vectors * product_format.rounds
    return flooding_bits(norm, over_job)


def flooding_bits(norm: int, revealed: int) -> int:
    """Bits of flooding that hide noise in so many revealed coefficients.

    `norm` is the most that the absolute entries of one reply's plaintexts add up to.
    """
    # A fresh encryption's own noise, DEGREE at most, tells of its randomness and is hidden as well.
    largest = ceil(LARGEST_NOISE * norm) + DEGREE
    return STATISTICAL_BITS + (largest * revealed - 1).bit_length()


def _nibbles(bits: int, primes: int) -> int:
    """Bits of each of so many primes, in whole nibbles, which pack."""
    each = -(-bits // primes)
    return max(_LEAST_PRIME_BITS, -(-each // 4) * 4)


def revealed(needed: int) -> int:
    """How many coefficients of a reply are sent where so many are needed.

    An even number, as pairs pack, and so many that foreign replies are noticed.
    """
    return max(needed + needed % 2, LEAST_REVEALED)


@cache
def positions(chunk: int, needed: int) -> NDArray[np.int64]:
    """The coefficients of a reply that are sent: the last of every chunk first, then fillers."""
    last = np.arange(1, needed + 1) * chunk - 1
    free = np.setdiff1d(np.arange(DEGREE), last)[: revealed(needed) - needed]
    found = np.concatenate([last, free])
    found.flags.writeable = False
    return found


@cache
def _context(
    prime_bits: tuple[int, ...], plain_bits: int, batching: bool = False
) -> "seal.SEALContext":
    import tenseal.sealapi as seal  # noqa: PLC0415  # sizes are asked for without any key

    parameters = seal.EncryptionParameters(seal.SCHEME_TYPE.BFV)
    parameters.set_poly_modulus_degree(DEGREE)
    sizes = [*prime_bits, SPECIAL_BITS]
    parameters.set_coeff_modulus(seal.CoeffModulus.Create(DEGREE, sizes))
    parameters.set_plain_modulus(
        seal.PlainModulus.Batching(DEGREE, plain_bits)
        if batching
        else seal.Modulus(1 << plain_bits)
    )
    context = seal.SEALContext(parameters, True, seal.SEC_LEVEL_TYPE.TC128)
    if not context.parameters_set():
        refused = f"SEAL refuses primes of {sizes} bits"
        if batching:
            raise RangeExceeded(f"products in slots: {refused}")
        raise RangeExceeded(f"bfv: {refused} with t = 2^{plain_bits}")
    return context
