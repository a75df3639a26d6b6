"""Ring, primes and layout of BFV for one job's products; both ends derive the same.

Layout (coefficient packing): `chunk` entries of v are the coefficients of one input polynomial.
⌊DEGREE/chunk⌋ columns of X, rows reversed, fill another. Coefficient (j + 1)·chunk − 1 of the
product is the inner product of v with column j. If there are more rows than `chunk`, a vector has
several inputs, whose products are added. Traffic is ⌈S/chunk⌉ inputs up and ⌈P/⌊DEGREE/chunk⌋⌉
replies down; the layout with the least estimated time on the job's network is chosen.

Sizes, in bits: t = 2^plain_bits exceeds twice the largest product. A reply is switched to primes of
`GAP_BITS` more than t. Flooding noise is uniform on 2^flood_bits integers, at least
2^STATISTICAL_BITS · B · A, with B a bound on X·e and A the number of coefficients that the owner
decrypts over the job. The modulus q leaves room for 32·t times as much.
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
# A reply's noise budget is half the distance between two plaintexts, 2^GAP_BITS after the switch of
# primes. Rounding takes 21 of it (standard deviation), flooding at most 2^(GAP_BITS − 6). The rest
# lets the owner detect replies under another key and damaged ones.
GAP_BITS = 12
ONE_PRIME_BITS = 60 - GAP_BITS
# SEAL's centred binomial noise is at most 21; the message's rounding adds 1/2.
LARGEST_NOISE = 21.5
# A coefficient under another key passes the owner's check 11 times in 16, 48 of them once in 2^25.
LEAST_REVEALED = 48

SPECIAL_BITS = 30  # SEAL's special prime, which ciphertexts on the wire lack
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
        plain_bits: t = 2^plain_bits, or with `batching` (slots) a prime of this many bits.
        prime_bits: sizes of the data primes; a reply keeps the first `reply_primes` of them.
        flood_bits: flooding noise is uniform on 2^flood_bits integers around 0.
        dropped_bits: low bits of each c₀ in a reply that are not sent.
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
        """Sizes with `others` primes of `least_bits` or more that replies drop, or None."""
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
        """Size in bytes of an input, without the seed."""
        return DEGREE * sum(self.prime_bits) // 8

    @property
    def reply_bits(self) -> tuple[int, ...]:
        """Sizes of a reply's primes."""
        return self.prime_bits[: self.reply_primes]

    def context(self, plain_bits: int | None = None) -> "seal.SEALContext":
        """SEAL's context for these sizes at 128 bits of security, optionally for another t."""
        return _context(self.prime_bits, plain_bits or self.plain_bits, self.batching)

    def primes(self) -> list[int]:
        """The data primes."""
        moduli = self.context().first_context_data().parms().coeff_modulus()
        return [modulus.value() for modulus in moduli]

    def reply_level(self, plain_bits: int | None = None) -> list[int]:
        """SEAL's id of the level with a reply's primes only, optionally for another t."""
        level = self.context(plain_bits).first_context_data()
        while len(level.parms().coeff_modulus()) > self.reply_primes:
            level = level.next_context_data()
        found: list[int] = level.parms_id()
        return found


@dataclass(frozen=True)
class BfvParameters(BfvSizes):
    """The parameters of a job: `chunk` entries of v per input, `inputs` ciphertexts per vector."""

    chunk: int
    inputs: int

    @classmethod
    def of(cls, product_format: ProductFormat) -> "BfvParameters":
        """The parameters for a format, the same at both ends; a RangeExceeded if none have room."""
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
        """Number of replies for this many columns."""
        return -(-columns // self.columns_per_reply)

    def positions(self, columns: int) -> NDArray[np.int64]:
        """Coefficients of every reply whose c₀ is sent: those of its columns, then fillers.

        Fillers are masked like all others; with them, a reply under another key is detected even if
        there are few columns.
        """
        return positions(self.chunk, min(self.columns_per_reply, columns))

    def seconds(self, product_format: ProductFormat) -> float:
        """Estimated time of one product, without latency and what waits hide."""
        inputs, replies = self.inputs, self.replies(product_format.columns)
        up, down = inputs * self.input_bytes, replies * DEGREE * sum(self.reply_bits) // 8
        # The owner's line receives one evaluator's reply while it still sends to the others.
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
    """Bits of flooding that hide the noise of this many revealed coefficients.

    `norm` is the largest sum of absolute entries of a reply's plaintexts.
    """
    # A fresh encryption's noise, at most DEGREE, depends on its randomness and is hidden as well.
    largest = ceil(LARGEST_NOISE * norm) + DEGREE
    return STATISTICAL_BITS + (largest * revealed - 1).bit_length()


def _nibbles(bits: int, primes: int) -> int:
    """Bits of each of several primes, rounded to whole nibbles for packing."""
    each = -(-bits // primes)
    return max(_LEAST_PRIME_BITS, -(-each // 4) * 4)


def revealed(needed: int) -> int:
    """Coefficients of a reply to send if this many are needed: even, and enough for checks."""
    return max(needed + needed % 2, LEAST_REVEALED)


@cache
def positions(chunk: int, needed: int) -> NDArray[np.int64]:
    """The coefficients of a reply that are sent: the last of every chunk, then fillers."""
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
