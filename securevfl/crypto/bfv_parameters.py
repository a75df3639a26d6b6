"""Ring, primes and layout of BFV for one job's products; both ends derive the same.

Layout (coefficient packing): `chunk` entries of v are the coefficients of one input polynomial.
⌊DEGREE/chunk⌋ columns of X, rows reversed, fill another. Coefficient (j + 1)·chunk − 1 of the
product is the inner product of v with column j. If there are more rows than `chunk`, a vector has
several inputs, whose products are added. Traffic is ⌈S/chunk⌉ inputs up and ⌈P/⌊DEGREE/chunk⌋⌉
replies down; the layout with the least estimated time on the job's network is chosen.

Sizes, in bits: t = 2^plain_bits exceeds twice the largest product, and has guard bits below it. Two
ends that each round their share of a number modulo q' by t/q' are one unit off at most, the noise n
being less than a unit; so a sum of `summands` products is off by less than half of 2^guard_bits.

The modulus q' of a reply is so much larger than t that a job's roundings tell no noise. A party
that learns a number and knows one share of it sees where the other was rounded: with probability
|n|·t/q' that depends on n. Over A numbers of a job this adds up to at most 2^−c by

    q' ≥ 2^c · t · A · E|n|.

An evaluator learns products, and would compare the owner's noise, a linear form of its key, with
one known number: c = CARRY_BITS. Where an owner learns products (`opened`), n also depends on X:
c = STATISTICAL_BITS. E|n| is at most the root of the mean square of X·e for SEAL's noise e, the
rounding of v in an input (1/2 each), and that of a fresh encryption or of a switch of primes.
Source: docs/decisions/0008-bfv-sizes-follow-the-job.md; degree and 218 bits:
HomomorphicEncryption.org standard, ternary secret, 128 bits.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil, log, log2, prod, sqrt
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from securevfl.arrays import RingArray
from securevfl.crypto.residues import exact_mask, uniform_mask
from securevfl.crypto.scheme import ProductFormat
from securevfl.errors import RangeExceeded

if TYPE_CHECKING:
    import tenseal.sealapi as seal

DEGREE = 8192
LARGEST_MODULUS_BITS = 218
LARGEST_PLAIN_BITS = 59
HANDY_BITS = 48  # two primes take products up to this size in usual jobs
STATISTICAL_BITS = 40
CARRY_BITS = 20
# SEAL's noise is a sum of 42 signs of 1/2 each.
NOISE_VARIANCE = 10.5
# Rounding (c₀, c₁) leaves noise of variance (1 + ‖s‖²)/12, for a ternary s at most this.
ROUNDING_NOISE = sqrt((1 + DEGREE) / 12)
# A fresh encryption (p₀u + e₀, p₁u + e₁) leaves e₀ + e₁·s − e·u, ternary s and u; SEAL's leaves
# no more than rounding, as it is scaled down from a further prime.
FRESH_NOISE = sqrt(NOISE_VARIANCE * (1 + 2 * DEGREE))

LEAST_REVEALED = 48  # fillers let the audit of replies count a few columns

SPECIAL_BITS = 30  # SEAL's special prime, which ciphertexts on the wire lack
LARGEST_PRIME_BITS, _LEAST_PRIME_BITS = 60, 32
# Milliseconds by data prime of products in C, measured: an input, encrypted and taken in; one
# product; a reply at both ends. Then what is made offline: an encryption of zero; a blinder. They
# weigh computation against bytes and need not be exact.
_INPUT_MS, _PRODUCT_MS, _REPLY_MS = 0.23, 0.032, 0.4
_ZERO_MS, _BLINDER_MS = 0.3, 0.05


@dataclass(frozen=True)
class BfvSizes:
    """Ring and primes.

    Attributes:
        plain_bits: t = 2^plain_bits, or with `batching` (slots) a prime of this many bits.
        prime_bits: sizes of the data primes; a reply keeps the first `reply_primes` of them.
    """

    batching: ClassVar[bool] = False
    plain_bits: int
    prime_bits: tuple[int, ...]
    reply_primes: int

    @property
    def plain_modulus(self) -> int:
        """The modulus t."""
        return 1 << self.plain_bits

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

    def mask(self, primes: Sequence[int], count: int) -> tuple[RingArray, RingArray]:
        """A fresh mask modulo each of a reply's primes, and a share of it modulo t, (count,)."""
        return uniform_mask(primes, self.plain_bits, count)


@dataclass(frozen=True)
class BfvParameters(BfvSizes):
    """The parameters of a job.

    Attributes:
        chunk: entries of v per input.
        inputs: ciphertexts per vector.
        guard_bits: an input holds 2^guard_bits·v, so that shares can be rounded.
    """

    chunk: int
    inputs: int
    guard_bits: int

    @classmethod
    def of(cls, product_format: ProductFormat) -> "BfvParameters":
        """The parameters for a format, the same at both ends; a RangeExceeded if none have room."""
        guard_bits = product_format.summands.bit_length() + 1
        product_format.require_room(LARGEST_PLAIN_BITS - guard_bits)
        plain_bits = product_format.largest_product.bit_length() + 1 + guard_bits
        layouts = {}
        for columns in range(1, min(product_format.columns, DEGREE) + 1):
            inputs = -(-product_format.rows // (DEGREE // columns))
            layouts[inputs] = -(-product_format.rows // inputs)
        fitting = [
            cls(plain_bits, prime_bits, reply_primes, chunk, inputs, guard_bits)
            for inputs, chunk in layouts.items()
            for prime_bits, reply_primes in _primes(plain_bits, product_format, inputs, chunk)
        ]
        if not fitting:
            raise RangeExceeded(
                f"bfv: products of {plain_bits - guard_bits} bits whose rounding tells nothing in "
                f"{product_format.rounds} rounds x {product_format.vectors} vectors x "
                f"{product_format.columns} columns do not fit the {LARGEST_MODULUS_BITS} bits "
                f"that 128-bit security leaves at degree {DEGREE}; use fewer fraction bits, rounds "
                "or rows"
            )
        return min(fitting, key=lambda each: each.seconds(product_format))

    @property
    def product_bits(self) -> int:
        """Products are integers modulo 2^product_bits."""
        return self.plain_bits - self.guard_bits

    @property
    def columns_per_reply(self) -> int:
        """⌊DEGREE/chunk⌋."""
        return DEGREE // self.chunk

    def replies(self, columns: int) -> int:
        """Number of replies for this many columns."""
        return -(-columns // self.columns_per_reply)

    def positions(self, columns: int) -> NDArray[np.int64]:
        """Coefficients of every reply whose c₀ is sent: those of its columns, then fillers.

        Fillers are masked like all others.
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
        online_ms = primes * (inputs * _INPUT_MS + replies * (_REPLY_MS + inputs * _PRODUCT_MS))
        offline_ms = primes * max(inputs * _ZERO_MS, replies * _BLINDER_MS)
        waits_ms = 2 * product_format.latency_ms + transfer_ms
        return (transfer_ms + online_ms + max(0.0, offline_ms - waits_ms)) * 1e-3


@dataclass(frozen=True)
class ExactSizes(BfvSizes):
    """Ring and primes of products that stay in shares, which are exact.

    A mask keeps off the edges at which a share would be rounded the other way: its distance from
    them is more than `edge`. It is uniform modulo q' otherwise. So a coefficient's distribution is
    within 2·(edge + 1)·t/q' of the uniform one, whatever it contains, and A coefficients of a job
    are within 2^−STATISTICAL_BITS of it together. Noise beyond the edge can round a share the other
    way, in a job with probability 2^−carry_bits.

    Attributes:
        carry_bits: STATISTICAL_BITS with an edge as large as noise, or less without one.
        noise: bound on the noise of a reply before primes are dropped.
        switch: bound on what dropping primes adds.
    """

    carry_bits: ClassVar[int] = STATISTICAL_BITS
    noise: int
    switch: int

    @classmethod
    def fitting(cls, plain_bits: int, terms: int, entry: float, revealed: int) -> list[Self]:
        """Sizes for A = `revealed` coefficients, each the sum of `terms` inputs times an entry.

        The bounds hold except with probability 2^−STATISTICAL_BITS over the job and the noise of
        honest inputs, sums of independent signs (Hoeffding, 1963, theorem 2).
        """
        deviations = sqrt(2 * log(2 * revealed * 2.0**STATISTICAL_BITS))
        of_inputs = deviations * sqrt(NOISE_VARIANCE * terms) + terms / 2
        # A fresh encryption adds less than DEGREE, 19 times FRESH_NOISE, but for 2^−280.
        noise, switch = ceil(of_inputs * entry) + DEGREE, ceil(deviations * ROUNDING_NOISE)
        # Half of the distance is the product's, half the switch's.
        modulus_bits, kept_bits = (
            ceil(plain_bits + log2(4.02 * revealed) + max(cls.carry_bits + log2(each), least))
            for each, least in ((noise, 0), (switch, STATISTICAL_BITS))
        )
        return [
            cls(plain_bits, prime_bits, kept, noise, switch)
            for prime_bits, kept in _kept_and_dropped(modulus_bits, kept_bits)
        ]

    @property
    def edge(self) -> int:
        """Bound on the noise of a reply on the wire."""
        primes = self.primes()
        if self.reply_primes == len(primes):
            return self.noise
        return self.noise // prod(primes[self.reply_primes :]) + 1 + self.switch

    @override
    def mask(self, primes: Sequence[int], count: int) -> tuple[RingArray, RingArray]:
        return exact_mask(primes, self.plain_modulus, self.edge, count)


def _primes(
    plain_bits: int, product_format: ProductFormat, inputs: int, chunk: int
) -> Iterator[tuple[tuple[int, ...], int]]:
    """Sizes of primes, and how many of them replies keep, that leave noise too little room."""
    fmt = product_format
    columns, rows = min(DEGREE // chunk, fmt.columns), inputs * chunk
    deviation = sqrt(NOISE_VARIANCE * columns * rows) * fmt.largest_entry
    noise = deviation + rows * fmt.largest_entry / 2 + FRESH_NOISE
    # Half of the room is the product's, half the switch's. Primes are a little short of 2^bits.
    numbers = 2.01 * fmt.rounds * fmt.vectors * fmt.columns
    least = plain_bits + (STATISTICAL_BITS if fmt.opened else CARRY_BITS)
    modulus_bits = ceil(least + log2(numbers * noise))
    kept_bits = ceil(least + log2(numbers * ROUNDING_NOISE))
    return _kept_and_dropped(modulus_bits, kept_bits)


def _kept_and_dropped(modulus_bits: int, kept_bits: int) -> Iterator[tuple[tuple[int, ...], int]]:
    for kept in range(1, 4):
        for others in range(4 - kept):
            prime_bits = shared_out(modulus_bits, kept_bits, kept, others)
            if prime_bits is not None:
                yield prime_bits, kept


def shared_out(modulus_bits: int, kept_bits: int, kept: int, others: int) -> tuple[int, ...] | None:
    """Sizes of `kept` primes of `kept_bits` together, then others that a reply drops, or None.

    All together have `modulus_bits`, and leave room for SEAL's own prime.
    """
    each = _nibbles(max(kept_bits, modulus_bits - others * LARGEST_PRIME_BITS), kept)
    rest = _nibbles(modulus_bits - kept * each, others) if others else 0
    prime_bits = (each,) * kept + (rest,) * others
    if (
        sum(prime_bits) + SPECIAL_BITS > LARGEST_MODULUS_BITS
        or max(prime_bits) > LARGEST_PRIME_BITS
    ):
        return None
    return prime_bits


def _nibbles(bits: int, primes: int) -> int:
    """Bits of each of several primes, rounded to whole nibbles for packing."""
    each = -(-bits // primes)
    return max(_LEAST_PRIME_BITS, -(-each // 4) * 4)


def revealed(needed: int) -> int:
    """Coefficients of a reply to send if this many are needed: even, and with fillers."""
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
