"""Products of a matrix with encrypted vectors in C, where this machine has the library.

They are the ones that SEAL's evaluator makes of the same bytes, encryptions of zero and masks, word
for word. An encryption of zero (p₀u + e₀, p₁u + e₁) is one more product of the sum, that of u with
the public key. C makes it modulo the ciphertext's primes. SEAL makes it modulo one prime more and
divides by this prime, which leaves less noise; sizes have room for both (bfv_parameters).

Whether the library agrees with the installed SEAL is tested once in a process; if it does not, or
there is none, `chosen` gives None, and `why_not` the reason. Inputs whose seed is no plain one of
SEAL's default generator, and words that are no residues, are left to SEAL, which reads or refuses
them.
"""

from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from functools import cache
from math import prod
from typing import Any, Protocol

import numpy as np
import tenseal.sealapi as seal
from numpy.typing import NDArray

from securevfl.arrays import IntArray, RingArray
from securevfl.crypto import native
from securevfl.crypto.bfv_parameters import DEGREE, BfvSizes
from securevfl.crypto.native import (
    LARGEST_ENTRY,
    LARGEST_WIDE,
    TRANSFORM_PRIMES,
    Arithmetic,
    Missing,
    library,
)
from securevfl.crypto.native_key import NativeKey, fresh_blinder
from securevfl.crypto.residues import pack, scaled_message, uniform_below
from securevfl.crypto.seal_codec import (
    SEED_BYTES,
    SEED_START,
    ciphertext_of,
    coefficients_of,
    from_seeded,
    plaintext,
    polynomials_of,
    seal_errors,
    seeded_parts,
)
from securevfl.crypto.seeded_keys import ternary_of
from securevfl.crypto.slot_parameters import SlotParameters
from securevfl.errors import CryptoError, RangeExceeded
from securevfl.threads import by_block

_TOGETHER = 8  # chunks whose products are added at once, as in products.c
_WINDOW = 64  # encryptions of zero that are taken together
Blinder = tuple[NDArray[np.int32], NDArray[np.int32]]  # u and noise of an encryption of zero


class ByBlock(Protocol):
    """M of shape (outputs, inner), whose columns are made when slices of them are asked for."""

    def __len__(self) -> int: ...

    def __getitem__(self, block: tuple[slice, slice], /) -> NDArray[np.int32]: ...


@dataclass(frozen=True)
class Layout:
    """How rows of M and inputs meet, see ring_layout: `side` rows a reply, `chunk` entries each.

    A vector has `chunks` times `groups` inputs. `wide` is for `combinations`, entries up to 2^47.
    """

    chunk: int
    side: int
    chunks: int
    groups: int = 1
    wide: bool = False


class NativeProducts:
    """The evaluator's side of one format.

    Args:
        arithmetic: of its primes.
        layout: of its plaintexts.
        input_bytes: size of an input's c₀.
        public: (p₀, p₁) modulo the primes, (2, primes, DEGREE).
        by_seal: reads an input that is not as usual, and raises what SEAL does.
    """

    def __init__(
        self,
        arithmetic: Arithmetic,
        layout: Layout,
        input_bytes: int,
        public: RingArray,
        by_seal: Callable[[bytes], seal.Ciphertext],
    ) -> None:
        self._arithmetic, self._layout, self._by_seal = arithmetic, layout, by_seal
        self._c0_bytes = input_bytes
        self._public = arithmetic.inputs(1)
        arithmetic.take_words(public, self._public[0])

    def replies(
        self,
        encrypted: bytes,
        matrix: IntArray | NDArray[np.int32] | ByBlock,
        blinder: Callable[[], Blinder],
        mask: Callable[[int], tuple[RingArray, RingArray]],
        positions: NDArray[np.int64],
    ) -> Iterator[tuple[bytes, RingArray]]:
        """Replies of M, (outputs, inner), and this end's shares of their masks, in order.

        Inputs or sums are stored, whichever are fewer; sums, if M is made by block.

        Args:
            encrypted: inputs, of the right size.
            matrix: entries of up to 31 bits and a sign.
            blinder: what the next encryption of zero is made of.
            mask: masks and shares for so many coefficients; threads call it.
            positions: which coefficients of c₀ are sent.
        """
        starts = range(0, len(matrix), self._layout.side)
        groups = self._layout.groups
        sums_of = self._sums(encrypted, matrix, starts)
        window = max(_WINDOW // groups, 4)
        for first in range(0, len(starts), window):
            blocks = starts[first : first + window]
            zeros = [blinder() for _ in range(len(blocks) * groups)]

            def answer(
                part: slice, first: int = first, zeros: list[Blinder] = zeros
            ) -> list[tuple[bytes, RingArray]]:
                own = zeros[part.start * groups : part.stop * groups]
                each = zip(sums_of(first + part.start), own, strict=True)
                return [self._sealed(sums, zero, mask, positions) for sums, zero in each]

            for replies in by_block(answer, len(blocks), 1):
                yield from replies

    def combinations(
        self,
        encrypted: bytes,
        polynomials: IntArray,
        zeros: list[Blinder],
        mask: Callable[[int], tuple[RingArray, RingArray]],
    ) -> list[tuple[bytes, RingArray]]:
        """As `replies`, of the sum of inputs times polynomials, (replies, inputs, DEGREE)."""
        held, everywhere = self._taken_in(encrypted, 0, self._layout.chunks), np.arange(DEGREE)

        def answer(part: slice) -> tuple[bytes, RingArray]:
            (sums,) = self._arithmetic.sums(1)
            self._arithmetic.add(polynomials[part.start], held[:, 0], sums)
            return self._sealed(sums, zeros[part.start], mask, everywhere)

        return by_block(answer, len(polynomials), 1)

    def _sealed(
        self,
        sums: RingArray,
        zero: Blinder,
        mask: Callable[[int], tuple[RingArray, RingArray]],
        positions: NDArray[np.int64],
    ) -> tuple[bytes, RingArray]:
        """A reply and this end's share of its masks."""
        masks, share = mask(len(positions))
        u, noise = zero
        self._arithmetic.multiply(u[None], DEGREE, self._public[:, None], sums[None])
        return self._arithmetic.reply(sums, noise, masks, positions), share

    def _sums(
        self, encrypted: bytes, matrix: NDArray[Any] | ByBlock, starts: range
    ) -> Callable[[int], RingArray]:
        """The sums of a block of rows, by its number."""
        arithmetic, (chunk, side, chunks, groups, _) = self._arithmetic, astuple(self._layout)

        def add(part: NDArray[Any], block: int, held: RingArray, sums: RingArray) -> RingArray:
            rows = np.ascontiguousarray(part[starts[block] : starts[block] + side], np.int32)
            arithmetic.multiply(rows, chunk, held, sums)
            return sums

        if chunks <= len(starts) and isinstance(matrix, np.ndarray):
            held = self._taken_in(encrypted, 0, chunks)
            return lambda block: add(matrix, block, held, arithmetic.sums(groups))
        totals = [arithmetic.sums(groups) for _ in starts]
        for first in range(0, chunks, _TOGETHER):
            held = self._taken_in(encrypted, first, min(first + _TOGETHER, chunks))

            part = matrix[:, first * chunk : (first + _TOGETHER) * chunk]

            def more(block: slice, held: RingArray = held, part: NDArray[Any] = part) -> None:
                add(part, block.start, held, totals[block.start])

            if part.size:  # there may be fewer rows than were agreed
                by_block(more, len(totals), 1)
        return totals.__getitem__

    def _taken_in(self, encrypted: bytes, first: int, last: int) -> RingArray:
        """Inputs of these chunks as cells, (chunks, groups, …)."""
        groups, size = self._layout.groups, self._c0_bytes + SEED_BYTES
        view = memoryview(encrypted)
        room = self._arithmetic.inputs((last - first) * groups)

        def take(part: slice) -> None:
            index = part.start
            at = (first * groups + index) * size
            c0, seed = view[at : at + self._c0_bytes], view[at + self._c0_bytes : at + size]
            start = len(SEED_START)
            usual = seed[:start] == SEED_START
            if not (usual and self._arithmetic.take_in(c0, seed[start:], room[index])):
                words = polynomials_of(self._by_seal(bytes(view[at : at + size])))
                self._arithmetic.take_words(words, room[index])

        by_block(take, len(room), 1)
        return room.reshape(last - first, groups, *room.shape[1:])


def chosen(
    sizes: BfvSizes,
    layout: Layout,
    largest_entry: int,
    public: Callable[[], RingArray],
    by_seal: Callable[[bytes], seal.Ciphertext],
) -> NativeProducts | None:
    """Products in C for these sizes and matrices; None where SEAL has to make them."""
    if why_not() is not None or largest_entry > (LARGEST_WIDE if layout.wide else LARGEST_ENTRY):
        return None
    primes = sizes.primes()
    try:
        arithmetic = Arithmetic(
            primes,
            sizes.reply_primes,
            sizes.prime_bits,
            (layout.chunks * largest_entry + 1) * DEGREE * max(primes),
            vector=uses_vector(),
        )
    except RangeExceeded:
        return None
    return NativeProducts(arithmetic, layout, sizes.input_bytes, public(), by_seal)


def chosen_key(sizes: BfvSizes, secret: Callable[[], NDArray[np.int32]]) -> NativeKey | None:
    """The owner's side in C; None where SEAL has to do it."""
    if why_not() is not None:
        return None
    return NativeKey(sizes, secret(), vector=uses_vector())


def why_not() -> str | None:
    """Why products are SEAL's in this process; None if they are made in C."""
    return _tested()[1]


def uses_vector() -> bool:
    """Whether C takes its path of AVX2 and FMA in this process."""
    return _tested()[0]


@cache
def _tested() -> tuple[bool, str | None]:
    """Whether the vector path is used; and why nothing of the library is, if so."""
    try:
        paths = (True, False) if library().has_vector else (False,)
    except Missing as error:
        return False, str(error)
    try:
        for vector in paths:
            with seal_errors("a product"):
                agrees = _agrees(vector=vector) and _opens(vector=vector)
            if agrees:
                return vector, None
    except CryptoError as error:
        return False, f"no self-test: {error}"
    return False, "its words are not the installed SEAL's"


_TESTED = BfvSizes(20, (60, 56, 32), 2)


def _agrees(transforms: int = 3, *, vector: bool) -> bool:
    """Whether a sum of products, made by every function, has the very words that SEAL computes."""
    sizes, bound = _TESTED, (1 << 19) - 1
    context, primes = sizes.context(), sizes.primes()
    generator = seal.KeyGenerator(context)
    encryptor, evaluator = seal.Encryptor(context, generator.secret_key()), seal.Evaluator(context)

    def product_of(taken: seal.Ciphertext, row: NDArray[np.int32]) -> seal.Ciphertext:
        plain, product = seal.Plaintext(), seal.Ciphertext()
        words = row[::-1].astype(np.int64).view(np.uint64) & np.uint64((1 << 20) - 1)
        evaluator.transform_to_ntt_inplace(taken)
        evaluator.transform_to_ntt(plaintext(context, words), context.first_parms_id(), plain)
        evaluator.multiply_plain(taken, plain, product)
        return product

    signs = uniform_below(3, 2 * DEGREE).astype(np.int64) - 1
    rows = (signs * bound).astype(np.int32)[None]
    # The bound decides on the number of transforms.
    largest = (5 * DEGREE * bound * max(primes)) << (16 * (transforms - 2))
    arithmetic = Arithmetic(primes, 2, sizes.prime_bits, largest, vector=vector)
    cells, products = arithmetic.inputs(3), []
    halves = np.split(rows[0], 2)
    for index, half in enumerate(halves):
        c0, seed = seeded_parts(encryptor.encrypt_zero_symmetric(), len(primes), DEGREE)
        packed, start = b"".join(map(pack, c0, sizes.prime_bits)), len(SEED_START)
        if seed[:start] != SEED_START or not arithmetic.take_in(packed, seed[start:], cells[index]):
            return False
        for row in (half, halves[0]):
            products.append(product_of(from_seeded(context, c0, seed), row))
    key = np.array([[uniform_below(p, DEGREE) for p in primes] for _ in range(2)])
    arithmetic.take_words(key, cells[2])
    u, noise = fresh_blinder()
    products.append(product_of(ciphertext_of(context, context.first_parms_id(), key), u))
    sums = arithmetic.sums(1)
    arithmetic.multiply(rows, DEGREE, cells[:2, None], sums)
    arithmetic.multiply(u[None], DEGREE, cells[2:, None], sums)
    arithmetic.add(np.stack([halves[0][::-1]] * 2).astype(np.int64), cells[:2], sums[0])
    masks, everywhere = np.zeros((2, DEGREE), np.uint64), np.arange(DEGREE)
    reply = arithmetic.reply(sums[0], noise, masks, everywhere)
    total = _noisy(context, primes, noise)
    for product in products:
        evaluator.transform_from_ntt_inplace(product)
        evaluator.add_inplace(total, product)
    evaluator.mod_switch_to_inplace(total, sizes.reply_level())
    return reply == _packed(total, sizes)


def _packed(reply: seal.Ciphertext, sizes: BfvSizes) -> bytes:
    """As it travels, with all coefficients."""
    parts = zip(*polynomials_of(reply), sizes.reply_bits, strict=True)
    return b"".join(pack(c1, bits) + pack(c0, bits) for c0, c1, bits in parts)


def _noisy(
    context: seal.SEALContext, primes: list[int], noise: NDArray[np.int32]
) -> seal.Ciphertext:
    words = np.stack([(noise % np.int64(p)).astype(np.uint64) for p in primes], axis=1)
    return ciphertext_of(context, context.first_parms_id(), words)


def _opens(*, vector: bool) -> bool:
    """Whether SEAL decrypts what the key encrypts here, and the key here what SEAL encrypts."""
    sizes, everywhere = _TESTED, np.arange(DEGREE)
    context, primes, plain = sizes.context(), sizes.primes(), sizes.plain_modulus
    secret, found = seal.KeyGenerator(context).secret_key(), seal.Plaintext()
    encryptor, decryptor = seal.Encryptor(context, secret), seal.Decryptor(context, secret)
    key = NativeKey(sizes, ternary_of(context, secret), vector=vector)
    message = uniform_below(plain, DEGREE)
    fresh = encryptor.encrypt_symmetric(plaintext(context, message))
    reply = from_seeded(context, *seeded_parts(fresh, len(primes), DEGREE))
    seal.Evaluator(context).mod_switch_to_inplace(reply, sizes.reply_level())
    opened = key.opened(_packed(reply, sizes), everywhere)
    zero, seed = key.zero()
    for row, prime in zip(zero, primes, strict=True):
        row[:] = (row + scaled_message(message, prod(primes), plain, prime)) % np.uint64(prime)
    decryptor.decrypt(from_seeded(context, zero, seed), found)
    both = opened, coefficients_of(found, everywhere)
    return all(each is not None and np.array_equal(each, message) for each in both)


@cache
def fills_slots() -> bool:
    """Whether C gives the polynomials and values of SEAL's encoder; tested once in a process."""
    parameters, vector = SlotParameters.of(1), uses_vector()
    if why_not() is not None or parameters.plain_modulus != TRANSFORM_PRIMES[0]:
        return False
    context, drawn = parameters.context(), uniform_below(TRANSFORM_PRIMES[0], DEGREE)
    encoder, plain = seal.BatchEncoder(context), seal.Plaintext()
    encoder.encode(drawn.tolist(), plain)
    polynomial = coefficients_of(plain, np.arange(DEGREE))
    same = np.array_equal(native.of_slots(drawn, vector=vector), polynomial)
    return same and np.array_equal(native.to_slots(polynomial, vector=vector), drawn)
