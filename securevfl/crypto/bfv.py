"""BFV by coefficient packing: the fast default scheme.

Exact integers modulo t = 2^plain_bits, without rotations or Galois keys: one plaintext
multiplication computes ⌊DEGREE/chunk⌋ inner products. Sizes and layout are in bfv_parameters, the
wire format in bfv_core.

Replies are sealed: every coefficient that is sent has a mask that is uniform modulo the reply's
modulus q'. Whatever the owner encrypted, and with whatever noise, they are uniform. The owner
rounds what it decrypts by t/q', the evaluator its mask: two shares of 2^guard_bits·Xᵀv, off by one
unit at most, and whoever subtracts them rounds this off.

Not protected: an owner that learns a product (`opened`) and chose its own noise reads as much in it
as with an input of its choice; one that chose its p₀ reads u there, and e₁ + a·X of the reply's c₁
(seeded_keys). A reply under another key decrypts to uniform numbers.
Source: docs/decisions/0008-bfv-sizes-follow-the-job.md; masks modulo q: Huang, Lu, Hong, Ding,
"Cheetah" (USENIX Security 2022).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import tenseal.sealapi as seal
from numpy.typing import NDArray
from typing_extensions import override

from securevfl.arrays import IntArray, RingArray
from securevfl.blocks import BlockedRows
from securevfl.crypto.bfv_core import BfvKeyHolder, BfvMultiplier
from securevfl.crypto.bfv_parameters import BfvParameters
from securevfl.crypto.fixed_point import (
    require_matrix,
    require_shape,
    require_values,
    require_within,
)
from securevfl.crypto.native import library
from securevfl.crypto.native_products import Layout
from securevfl.crypto.scheme import (
    MODULUS_BITS,
    BlinderPool,
    Evaluator,
    KeyOwner,
    MaskedReply,
    ProductFormat,
)
from securevfl.crypto.seal_codec import seal_errors
from securevfl.errors import CryptoError, RangeExceeded
from securevfl.sparse import dense
from securevfl.threads import by_block

_TURNED = 256  # rows that are transposed together, within the cache


class BfvOwner(BfvKeyHolder, KeyOwner):
    """The party with the secret key."""

    def __init__(
        self, product_format: ProductFormat, seed: bytes | None = None, *, native: bool = True
    ) -> None:
        self._format = product_format
        self._parameters = parameters = BfvParameters.of(product_format)
        capacity = parameters.inputs * product_format.vectors
        super().__init__(parameters, parameters.chunk, capacity, seed, native=native)

    @property
    @override
    def modulus_bits(self) -> int:
        return self._parameters.product_bits

    @override
    def lacks_blinders(self) -> bool:
        return len(self._pool) < self._parameters.inputs

    @override
    def encrypt(self, values: IntArray) -> bytes:
        """Encrypt integers of shape (S,): each input's packed c₀ and the seed of its c₁."""
        require_values(values, self._format)
        parameters = self._parameters
        padded = np.zeros(parameters.inputs * parameters.chunk, np.int64)
        padded[: len(values)] = values << parameters.guard_bits
        return b"".join(self._input(part) for part in np.split(padded, parameters.inputs))

    @override
    def decrypt(self, ciphertext: bytes, columns: int) -> RingArray:
        if columns < 1:
            raise CryptoError(f"{columns} columns, at least 1 expected")
        parameters = self._parameters
        positions = parameters.positions(columns)
        values = self._opened(ciphertext, parameters.replies(columns), positions)
        found = values[:, : min(parameters.columns_per_reply, columns)].reshape(-1)[:columns]
        return np.left_shift(found, np.uint64(MODULUS_BITS - parameters.plain_bits))


@dataclass(frozen=True, eq=False)
class EncodedTable:
    """Xᵀ of shape (P, S) in fixed point, made of a long table whenever columns are asked for."""

    table: BlockedRows
    fraction_bits: int

    def __len__(self) -> int:
        return self.table.shape[1]

    def __getitem__(self, block: tuple[slice, slice]) -> NDArray[np.int32]:
        """All of some consecutive columns."""
        table, (first, end, _) = self.table, block[1].indices(len(self.table))
        found = np.empty((len(self), max(end - first, 0)), np.int32)

        def fill(part: slice) -> None:
            cells = table.cells(slice(first + part.start, first + part.stop))
            if not library().encode(cells, table.scales, self.fraction_bits, found, part.start):
                raise RangeExceeded("features changed since they were checked")

        by_block(fill, found.shape[1], table.block)
        return found


@dataclass(frozen=True)
class PreparedPolynomials:
    """X for SEAL as plaintexts in NTT form, [reply][input], None if all entries are zero.

    For products in C they are made when they are needed, from `rows`, Xᵀ in fixed point.
    """

    product_format: ProductFormat
    columns: int
    plaintexts: tuple[tuple[seal.Plaintext | None, ...], ...] = ()
    rows: NDArray[np.int32] | EncodedTable | None = None


class BfvEvaluator(BfvMultiplier, Evaluator):
    """A party that multiplies under another party's key."""

    def __init__(
        self, public_bytes: bytes, product_format: ProductFormat, *, native: bool = True
    ) -> None:
        self._format = product_format
        self._parameters = parameters = BfvParameters.of(product_format)
        largest = product_format.largest_entry
        layout = Layout(parameters.chunk, parameters.columns_per_reply, parameters.inputs)
        super().__init__(
            public_bytes,
            parameters,
            parameters.inputs,
            max(largest.bit_length() + 1, 2),
            layout=layout if native else None,
            largest_entry=largest,
        )
        capacity = parameters.replies(product_format.columns) * product_format.vectors
        self._pool = BlinderPool(self._blinder, capacity)

    @property
    @override
    def modulus_bits(self) -> int:
        return self._parameters.product_bits

    @override
    def make_blinder(self) -> bool:
        return self._pool.make_one()

    @override
    def prepare(self, matrix: IntArray) -> PreparedPolynomials:
        """Convert X of shape (S, P) to what products take."""
        require_matrix(matrix, self._format)
        columns = self._columns(matrix.shape)
        if self._native is not None:
            rows = np.empty((columns, len(matrix)), np.int32)
            for at in range(0, len(matrix), _TURNED):
                rows[:, at : at + _TURNED] = matrix[at : at + _TURNED].T
            return PreparedPolynomials(self._format, columns, rows=rows)
        return PreparedPolynomials(self._format, columns, self._plaintexts(matrix))

    @override
    def prepare_table(self, table: BlockedRows) -> PreparedPolynomials | None:
        if self._native is None:
            return None
        require_shape(table.shape, self._format)

        def check(rows: slice) -> None:
            require_within(dense(table[rows]), self._format.matrix_bound, "features")

        by_block(check, len(table), table.block)
        encoded = EncodedTable(table, self._format.matrix_fraction_bits)
        return PreparedPolynomials(self._format, self._columns(table.shape), rows=encoded)

    def _columns(self, shape: tuple[int, ...]) -> int:
        if shape[1] > self._format.columns:
            raise RangeExceeded(f"{shape[1]} columns, at most {self._format.columns} agreed")
        return shape[1]

    def _plaintexts(self, matrix: IntArray) -> tuple[tuple[seal.Plaintext | None, ...], ...]:
        side, chunk = self._parameters.columns_per_reply, self._parameters.chunk
        return tuple(
            tuple(
                self._part(matrix[at : at + chunk, first : first + side].T, chunk)
                for at in range(0, self._parameters.inputs * chunk, chunk)
            )
            for first in range(0, matrix.shape[1], side)
        )

    @override
    def lacks_blinders(self, prepared: object) -> bool:
        return len(self._pool) < self._parameters.replies(self._own(prepared).columns)

    @override
    def masked_product(self, encrypted: bytes, prepared: object) -> MaskedReply:
        product, parameters = self._own(prepared), self._parameters
        positions = parameters.positions(product.columns)
        if product.rows is None:
            made = self._made_by_seal(encrypted, product, positions)
        else:
            made = self._made_natively(encrypted, product.rows, positions)
        replies, masks = zip(*made, strict=True)
        # The positions of a reply end with fillers.
        share = np.concatenate([mask[: parameters.columns_per_reply] for mask in masks])
        share = share[: product.columns]
        shift = np.uint64(MODULUS_BITS - parameters.plain_bits)
        return MaskedReply(b"".join(replies), np.left_shift(share, shift))

    def _made_by_seal(
        self, encrypted: bytes, product: PreparedPolynomials, positions: NDArray[np.int64]
    ) -> Iterator[tuple[bytes, RingArray]]:
        vectors = list(self._take_in(encrypted))
        for row in product.plaintexts:
            blinder = self._pool.take()
            with seal_errors("an encrypted vector"):
                yield self._sealed(self._sum(vectors, row), blinder, positions)

    def _sum(
        self, vectors: list[seal.Ciphertext], row: tuple[seal.Plaintext | None, ...]
    ) -> seal.Ciphertext | None:
        total: seal.Ciphertext | None = None
        for vector, plain in zip(vectors, row, strict=True):
            if plain is not None:
                total = self._added(total, vector, plain)
        return total

    def _own(self, prepared: object) -> PreparedPolynomials:
        """Require X prepared for this very format: its bounds determine the primes."""
        if not isinstance(prepared, PreparedPolynomials):
            raise CryptoError(f"prepared is a {type(prepared).__name__}, not BFV polynomials")
        if prepared.product_format != self._format:
            raise CryptoError("prepared are BFV polynomials of another format")
        if (prepared.rows is None) != (self._native is None):
            raise CryptoError("prepared are BFV polynomials for another engine")
        return prepared
