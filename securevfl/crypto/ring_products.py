"""BFV products M·V modulo 2^59 of uniform V, masked: correlated randomness for secret shares.

The owner encrypts residues V of shape (n, r). The evaluator, who holds integers M of shape (m, n),
replies with M·V plus a uniform mask that it keeps. If V is one party's share and M the other's
matrix, the two then hold shares of the product. Layout and sizes are in ring_layout.

A reply is re-randomized, and every coefficient that is sent has a mask modulo the reply's modulus
q', within 2^−40 of uniform over the job (`ExactSizes`). So the owner decrypts uniform numbers
whatever it encrypted, with whatever noise; honest shares add up to M·V exactly. SEAL encodes a
residue as round(q·v/t); for uniform residues this adds noise of ½·‖M‖₁, which sizes cover together
with the noise of the encryption.

Plaintexts of M exist for a few chunks at a time; all of them would take hundreds of times M's own
memory.

Learns: the owner learns M·V + mask, which is uniform, and nothing about M; the evaluator nothing.
Source: docs/decisions/0033-products-in-the-ring.md.
"""

from collections.abc import Iterator
from itertools import chain, islice

import numpy as np
import tenseal.sealapi as seal
from numpy.typing import NDArray

from securevfl.arrays import IntArray, RingArray
from securevfl.crypto.bfv_core import BfvKeyHolder, BfvMultiplier
from securevfl.crypto.native_products import Layout
from securevfl.crypto.ring import RING_BITS
from securevfl.crypto.ring_layout import RingLayout, RingProductFormat
from securevfl.crypto.scheme import BlinderPool
from securevfl.crypto.seal_codec import seal_errors
from securevfl.errors import RangeExceeded


class RingProductOwner(BfvKeyHolder):
    """The party with the secret key; a RangeExceeded if no parameters have room for masks.

    A dry run gives the `layout` of a larger format, at both ends.
    """

    def __init__(
        self,
        product_format: RingProductFormat,
        seed: bytes | None = None,
        *,
        layout: RingLayout | None = None,
        native: bool = True,
    ) -> None:
        self.product_format = product_format
        self._layout = layout = layout or RingLayout.of(product_format)
        super().__init__(layout.sizes, layout.extent, layout.inputs, seed, native=native)

    def encrypt(self, values: RingArray) -> bytes:
        """Encrypt V, residues below 2^59 of shape (inner, columns); a RangeExceeded for others."""
        fmt, layout = self.product_format, self._layout
        expected = (fmt.inner, fmt.columns)
        if values.shape != expected or values.dtype != np.uint64 or values.max() >> RING_BITS:
            raise RangeExceeded(
                f"values are {values.dtype} of shape {values.shape}, residues of {RING_BITS} bits "
                f"of shape {expected} expected"
            )
        padded = np.zeros(
            (layout.chunks * layout.chunk, layout.groups * layout.together), np.uint64
        )
        padded[: fmt.inner, : fmt.columns] = values
        # By chunk, row, group and column.
        blocks = padded.reshape(layout.chunks, layout.chunk, layout.groups, layout.together)
        return b"".join(self._of_block(block.T) for part in blocks for block in part.swapaxes(0, 1))

    def _of_block(self, columns: RingArray) -> bytes:
        layout = self._layout
        spread = np.zeros((layout.together, layout.side * layout.chunk), np.uint64)
        spread[:, : layout.chunk] = columns
        return self._input(spread.reshape(-1)[: layout.extent].view(np.int64))

    def decrypt(self, ciphertext: bytes) -> RingArray:
        """Decrypt M·V + mask to residues of shape (outputs, columns); a CryptoError if invalid."""
        values = self._opened(ciphertext, self._layout.replies, self._layout.positions())
        return _of_replies(self._layout, values)


class RingProductEvaluator(BfvMultiplier):
    """A party that multiplies under another party's key; a RangeExceeded as for the owner."""

    def __init__(
        self,
        public_bytes: bytes,
        product_format: RingProductFormat,
        *,
        native: bool = True,
        layout: RingLayout | None = None,
    ) -> None:
        self.product_format = product_format
        self._layout = layout = layout or RingLayout.of(product_format)
        super().__init__(
            public_bytes,
            layout.sizes,
            layout.inputs,
            product_format.matrix_bits,
            layout=Layout(layout.chunk, layout.side, layout.chunks, layout.groups)
            if native
            else None,
            largest_entry=product_format.matrix_bound,
        )
        self._pool = BlinderPool(self._blinder, layout.replies)
        self._left = product_format.products

    def make_blinder(self) -> bool:
        """Make a blinder offline; False if the stock is full."""
        return self._pool.make_one()

    def lacks_blinders(self) -> bool:
        """Whether the stock is too small for the next product."""
        return len(self._pool) < self._layout.replies

    def product(self, encrypted: bytes, matrix: IntArray) -> tuple[bytes, RingArray]:
        """Enc(M·V + mask), re-randomized, for M of shape (outputs, inner).

        Also returns the fresh mask, residues below 2^59 of shape (outputs, columns), which must not
        leave the evaluator.

        Raises:
            RangeExceeded: another shape, an entry beyond the format's bound, or more products than
                the format's.
            CryptoError: bytes that are not an encryption of V with these parameters.
        """
        self._require(matrix)
        if not self._left:
            raise RangeExceeded(f"masks cover {self.product_format.products} products, no more")
        made = self._made_by_seal if self._native is None else self._made_natively
        replies, masks = zip(*made(encrypted, matrix, self._layout.positions()), strict=True)
        mask = _of_replies(self._layout, np.stack(masks))
        self._left -= 1
        return b"".join(replies), mask

    def _made_by_seal(
        self, encrypted: bytes, matrix: IntArray, positions: NDArray[np.int64]
    ) -> Iterator[tuple[bytes, RingArray]]:
        with seal_errors("an encrypted vector"):
            for total in self._sums(encrypted, matrix):
                yield self._sealed(total, self._pool.take(), positions)

    def _sums(self, encrypted: bytes, matrix: IntArray) -> Iterator[seal.Ciphertext | None]:
        """Sums of products by reply, in NTT form; stores inputs or sums, whichever are fewer."""
        layout, inputs = self._layout, self._take_in(encrypted)
        vectors = (list(islice(inputs, layout.groups)) for _ in range(layout.chunks))
        rows = [matrix[start : start + layout.side] for start in range(0, len(matrix), layout.side)]
        nothing: list[seal.Ciphertext | None] = [None] * layout.groups
        if layout.inputs <= layout.replies:
            held = list(vectors)
            for part in rows:
                totals = nothing
                for index, group in enumerate(held):
                    totals = self._with_chunk(totals, index, group, part)
                yield from totals
        else:
            sums = [nothing] * layout.sides
            for index, group in enumerate(vectors):
                sums = [
                    self._with_chunk(totals, index, group, part)
                    for totals, part in zip(sums, rows, strict=True)
                ]
            yield from chain.from_iterable(sums)

    def _with_chunk(
        self,
        totals: list[seal.Ciphertext | None],
        index: int,
        vectors: list[seal.Ciphertext],
        rows: IntArray,
    ) -> list[seal.Ciphertext | None]:
        """Add a chunk's products with a few rows of M, one sum per group of columns."""
        chunk = self._layout.chunk
        plain = self._part(rows[:, index * chunk : (index + 1) * chunk], chunk)
        if plain is None:
            return totals
        return [
            self._added(total, vector, plain) for total, vector in zip(totals, vectors, strict=True)
        ]

    def _require(self, matrix: IntArray) -> None:
        fmt = self.product_format
        expected, bound = (fmt.outputs, fmt.inner), fmt.matrix_bound
        if matrix.shape != expected or matrix.dtype != np.int64:
            raise RangeExceeded(
                f"matrix is {matrix.dtype} of shape {matrix.shape}, int64 of {expected} expected"
            )
        largest = max(int(matrix.max()), -int(matrix.min()))
        if largest > bound:
            raise RangeExceeded(
                f"largest |entry| of the matrix is {largest}, at most {bound} allowed"
            )


def _of_replies(layout: RingLayout, values: RingArray) -> RingArray:
    """Revealed coefficients of all replies, shape (replies, positions), as (outputs, columns)."""
    known = values[:, : layout.together * layout.side]
    blocks = known.reshape(layout.sides, layout.groups, layout.together, layout.side)
    # By side, row, group and column.
    ordered = blocks.transpose(0, 3, 1, 2).reshape(layout.sides * layout.side, -1)
    fmt = layout.product_format
    return ordered[: fmt.outputs, : fmt.columns].copy()
