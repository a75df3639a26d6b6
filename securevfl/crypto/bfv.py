"""BFV by coefficient packing: the fast default scheme.

Exact integers modulo t = 2^plain_bits, without rotations or Galois keys: one plaintext
multiplication computes ⌊DEGREE/chunk⌋ inner products. The owner sees Xᵀv + r with r uniform modulo
t. Sizes and layout are in bfv_parameters, wire format and guarantees in bfv_core.
Source: docs/decisions/0008-bfv-sizes-follow-the-job.md.
"""

from dataclasses import dataclass

import numpy as np
import tenseal.sealapi as seal
from numpy.typing import NDArray
from typing_extensions import override

from securevfl.arrays import IntArray, RingArray
from securevfl.crypto.bfv_core import BfvKeyHolder, BfvMultiplier, Blinder
from securevfl.crypto.bfv_parameters import DEGREE, BfvParameters
from securevfl.crypto.fixed_point import require_matrix, require_values, to_ring
from securevfl.crypto.scheme import (
    MODULUS_BITS,
    KeyOwner,
    MaskedReply,
    OpenEvaluator,
    ProductFormat,
)
from securevfl.crypto.seal_codec import plaintext, seal_errors
from securevfl.errors import CryptoError, RangeExceeded


class BfvOwner(BfvKeyHolder, KeyOwner):
    """The party with the secret key."""

    def __init__(self, product_format: ProductFormat) -> None:
        self._format = product_format
        self._parameters = parameters = BfvParameters.of(product_format)
        super().__init__(parameters, parameters.chunk, parameters.inputs * product_format.vectors)

    @override
    def lacks_blinders(self) -> bool:
        return len(self._pool) < self._parameters.inputs

    @override
    def encrypt(self, values: IntArray) -> bytes:
        """Encrypt integers of shape (S,): each input's packed c₀ and the seed of its c₁."""
        require_values(values, self._format)
        parameters = self._parameters
        padded = np.zeros(parameters.inputs * parameters.chunk, np.int64)
        padded[: len(values)] = values
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


@dataclass(frozen=True)
class PreparedPolynomials:
    """X as plaintexts in NTT form, [reply][input]; None if all entries are zero."""

    product_format: ProductFormat
    columns: int
    plaintexts: tuple[tuple[seal.Plaintext | None, ...], ...]


class BfvEvaluator(BfvMultiplier, OpenEvaluator):
    """A party that multiplies under another party's key."""

    def __init__(self, public_bytes: bytes, product_format: ProductFormat) -> None:
        self._format = product_format
        self._parameters = parameters = BfvParameters.of(product_format)
        capacity = parameters.replies(product_format.columns) * product_format.vectors
        super().__init__(public_bytes, parameters, parameters.inputs, capacity)

    @override
    def prepare(self, matrix: IntArray) -> PreparedPolynomials:
        """Convert X of shape (S, P) to plaintext polynomials in NTT form."""
        require_matrix(matrix, self._format)
        columns = matrix.shape[1]
        if columns > self._format.columns:
            raise RangeExceeded(f"{columns} columns, at most {self._format.columns} agreed")
        side, chunk = self._parameters.columns_per_reply, self._parameters.chunk
        plaintexts = tuple(
            tuple(
                self._part(matrix[at : at + chunk, first : first + side].T, chunk)
                for at in range(0, self._parameters.inputs * chunk, chunk)
            )
            for first in range(0, columns, side)
        )
        return PreparedPolynomials(self._format, columns, plaintexts)

    @override
    def lacks_blinders(self, prepared: object) -> bool:
        return len(self._pool) < len(self._own(prepared).plaintexts)

    @override
    def masked_product(self, encrypted: bytes, prepared: object) -> MaskedReply:
        return self.partly_open_product(encrypted, prepared, np.empty(0, np.int64))

    @override
    def partly_open_product(
        self, encrypted: bytes, prepared: object, addend: IntArray
    ) -> MaskedReply:
        product = self._own(prepared)
        closed = product.columns - len(addend)
        # Product and addend together stay under t/2; abs() of the least int64 would not.
        largest = self._format.largest_product // self._format.summands
        room = (1 << (self._parameters.plain_bits - 1)) - 1 - largest
        fits = addend.dtype == np.int64 and addend.ndim == 1
        if not (fits and closed >= 0 and np.all(addend <= room) and np.all(addend >= -room)):
            raise RangeExceeded(
                f"{len(addend)} {addend.dtype} addends to {product.columns} columns, int64 within "
                f"{room} expected"
            )
        vectors = list(self._take_in(encrypted))
        positions = self._parameters.positions(product.columns)
        side = self._parameters.columns_per_reply
        replies, masks = [], []
        for index, row in enumerate(product.plaintexts):
            blinder = self._pool.take()
            of_columns = positions[: min(side, product.columns - index * side)]
            open_at = of_columns[max(0, closed - index * side) :]
            if open_at.size:
                offset = max(0, index * side - closed)
                self._open(blinder, open_at, addend[offset : offset + open_at.size])
            with seal_errors("an encrypted vector"):
                total = self._sum(vectors, row)
                replies.append(self._finished(total, blinder.ciphertext, positions))
            masks.append(blinder.mask[of_columns])
        mask = np.concatenate(masks)[:closed]
        shift = np.uint64(MODULUS_BITS - self._parameters.plain_bits)
        return MaskedReply(b"".join(replies), np.left_shift(mask, shift))

    def _sum(
        self, vectors: list[seal.Ciphertext], row: tuple[seal.Plaintext | None, ...]
    ) -> seal.Ciphertext | None:
        total: seal.Ciphertext | None = None
        for vector, plain in zip(vectors, row, strict=True):
            if plain is not None:
                total = self._added(total, vector, plain)
        return total

    def _open(self, blinder: Blinder, positions: NDArray[np.int64], shown: IntArray) -> None:
        change = np.zeros(DEGREE, np.uint64)
        change[positions] = to_ring(shown) - blinder.mask[positions]
        message = plaintext(self._context, change & self._plain_mask)
        self._evaluator.add_plain_inplace(blinder.ciphertext, message)

    def _own(self, prepared: object) -> PreparedPolynomials:
        """Require X prepared for this very format: its bounds determine the flooding."""
        if not isinstance(prepared, PreparedPolynomials):
            raise CryptoError(f"prepared is a {type(prepared).__name__}, not BFV polynomials")
        if prepared.product_format != self._format:
            raise CryptoError("prepared are BFV polynomials of another format")
        return prepared
