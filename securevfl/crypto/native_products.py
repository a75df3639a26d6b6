"""Products of a matrix with encrypted vectors in C, where this machine has the library.

They are the ones that SEAL's evaluator makes of the same bytes, encryptions of zero and masks, word
for word. Whether the library agrees with the installed SEAL is tested once in a process; if it does
not, or there is none, `chosen` gives None, and `why_not` the reason.

Inputs whose seed is no plain one of SEAL's default generator, and words that are no residues, are
left to SEAL, which reads or refuses them.
"""

from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np
import tenseal.sealapi as seal
from numpy.typing import NDArray

from securevfl.arrays import IntArray, RingArray
from securevfl.crypto.bfv_parameters import DEGREE, BfvSizes
from securevfl.crypto.native import LARGEST_ENTRY, Arithmetic, Missing, library
from securevfl.crypto.residues import pack, uniform_below
from securevfl.crypto.seal_codec import (
    SEED_BYTES,
    SEED_START,
    ciphertext_of,
    from_seeded,
    plaintext,
    polynomials_of,
    seeded_parts,
)
from securevfl.errors import CryptoError, RangeExceeded
from securevfl.threads import by_block

_TOGETHER = 8  # chunks whose products are added at once, as in products.c
_WINDOW = 64  # encryptions of zero that are taken together


class ByBlock(Protocol):
    """M of shape (outputs, inner), whose columns are made when slices of them are asked for."""

    def __len__(self) -> int: ...

    def __getitem__(self, block: tuple[slice, slice], /) -> NDArray[np.int32]: ...


@dataclass(frozen=True)
class Layout:
    """How rows of M and inputs meet, see ring_layout: `side` rows a reply, `chunk` entries each.

    A vector has `chunks` times `groups` inputs.
    """

    chunk: int
    side: int
    chunks: int
    groups: int = 1


class NativeProducts:
    """The evaluator's side of one format.

    Args:
        arithmetic: of its primes.
        layout: of its plaintexts.
        input_bytes: size of an input's c₀.
        by_seal: reads an input that is not as usual, and raises what SEAL does.
    """

    def __init__(
        self,
        arithmetic: Arithmetic,
        layout: Layout,
        input_bytes: int,
        by_seal: Callable[[bytes], seal.Ciphertext],
    ) -> None:
        self._arithmetic, self._layout, self._by_seal = arithmetic, layout, by_seal
        self._c0_bytes = input_bytes

    def replies(
        self,
        encrypted: bytes,
        matrix: IntArray | NDArray[np.int32] | ByBlock,
        blinder: Callable[[], RingArray],
        mask: Callable[[int], tuple[RingArray, RingArray]],
        positions: NDArray[np.int64],
    ) -> Iterator[tuple[bytes, RingArray]]:
        """Replies of M, (outputs, inner), and this end's shares of their masks, in order.

        Inputs or sums are stored, whichever are fewer; sums, if M is made by block.

        Args:
            encrypted: inputs, of the right size.
            matrix: entries of up to 31 bits and a sign.
            blinder: the next encryption of zero, as words.
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
                part: slice, first: int = first, zeros: list[RingArray] = zeros
            ) -> list[tuple[bytes, RingArray]]:
                found = []
                own = zeros[part.start * groups : part.stop * groups]
                for sums, zero in zip(sums_of(first + part.start), own, strict=True):
                    masks, share = mask(len(positions))
                    found.append((self._arithmetic.reply(sums, zero, masks, positions), share))
                return found

            for replies in by_block(answer, len(blocks), 1):
                yield from replies

    def _sums(
        self, encrypted: bytes, matrix: NDArray[Any] | ByBlock, starts: range
    ) -> Callable[[int], RingArray]:
        """The sums of a block of rows, by its number."""
        arithmetic, (chunk, side, chunks, groups) = self._arithmetic, astuple(self._layout)

        def add(part: NDArray[Any], block: int, held: RingArray, sums: RingArray) -> RingArray:
            rows = np.ascontiguousarray(part[starts[block] : starts[block] + side], np.int32)
            arithmetic.multiply(rows, chunk, 0, held, sums)
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
    by_seal: Callable[[bytes], seal.Ciphertext],
) -> NativeProducts | None:
    """Products in C for these sizes and matrices; None where SEAL has to make them."""
    if why_not() is not None or largest_entry > LARGEST_ENTRY:
        return None
    vector, _ = _tested()
    primes = sizes.primes()
    try:
        arithmetic = Arithmetic(
            primes,
            sizes.reply_primes,
            sizes.prime_bits,
            layout.chunks * DEGREE * largest_entry * max(primes),
            vector=vector,
        )
    except RangeExceeded:
        return None
    return NativeProducts(arithmetic, layout, sizes.input_bytes, by_seal)


def why_not() -> str | None:
    """Why products are SEAL's in this process; None if they are made in C."""
    return _tested()[1]


@cache
def _tested() -> tuple[bool, str | None]:
    """Whether the vector path is used; and why nothing of the library is, if so."""
    try:
        paths = (True, False) if library().has_vector else (False,)
    except Missing as error:
        return False, str(error)
    try:
        for vector in paths:
            if _agrees(3, vector=vector):
                return vector, None
    except (CryptoError, MemoryError) as error:
        return False, f"no self-test: {error}"
    return False, "its words are not the installed SEAL's"


def _agrees(transforms: int, *, vector: bool) -> bool:
    """Whether one product of two inputs has the very words that SEAL computes."""
    sizes = BfvSizes(20, (60, 56, 32), 2)
    context, primes, bound = sizes.context(), sizes.primes(), (1 << 19) - 1
    generator = seal.KeyGenerator(context)
    encryptor, evaluator = seal.Encryptor(context, generator.secret_key()), seal.Evaluator(context)
    signs = uniform_below(3, 2 * DEGREE).astype(np.int64) - 1
    rows = (signs * bound).astype(np.int32)[None]
    # The bound decides on the number of transforms.
    largest = (2 * DEGREE * bound * max(primes)) << (16 * (transforms - 2))
    arithmetic = Arithmetic(primes, 2, sizes.prime_bits, largest, vector=vector)
    cells, products = arithmetic.inputs(2), []
    for index, block in enumerate(np.split(rows[0], 2)):
        c0, seed = seeded_parts(encryptor.encrypt_zero_symmetric(), len(primes), DEGREE)
        packed, start = b"".join(map(pack, c0, sizes.prime_bits)), len(SEED_START)
        if seed[:start] != SEED_START or not arithmetic.take_in(packed, seed[start:], cells[index]):
            return False
        taken, plain, product = from_seeded(context, c0, seed), seal.Plaintext(), seal.Ciphertext()
        words = block[::-1].astype(np.int64).view(np.uint64) & np.uint64((1 << 20) - 1)
        evaluator.transform_to_ntt_inplace(taken)
        evaluator.transform_to_ntt(plaintext(context, words), context.first_parms_id(), plain)
        evaluator.multiply_plain(taken, plain, product)
        products.append(product)
    words_of_zero = np.array([[uniform_below(p, DEGREE) for p in primes] for _ in range(2)])
    zero = ciphertext_of(context, context.first_parms_id(), words_of_zero)
    sums = arithmetic.sums(1)
    arithmetic.multiply(rows, DEGREE, 0, cells[:, None], sums)
    masks, everywhere = np.zeros((2, DEGREE), np.uint64), np.arange(DEGREE)
    reply = arithmetic.reply(sums[0], words_of_zero, masks, everywhere)
    evaluator.add_inplace(products[0], products[1])
    evaluator.transform_from_ntt_inplace(products[0])
    evaluator.add_inplace(zero, products[0])
    evaluator.mod_switch_to_inplace(zero, sizes.reply_level())
    expected = zip(*polynomials_of(zero), sizes.reply_bits, strict=True)
    return reply == b"".join(pack(c1, bits) + pack(c0, bits) for c0, c1, bits in expected)
