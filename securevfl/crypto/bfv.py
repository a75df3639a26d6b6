"""BFV (Fan, Vercauteren 2012) by coefficient packing, on TenSEAL's SEAL: the fast default.

Exact integers modulo t = 2^plain_bits: no rotations, no Galois keys, one plaintext multiplication
for ⌊DEGREE/chunk⌋ inner products. Sizes and layout: bfv_parameters.

On the wire: an input is its c₀, bit-packed, and the seed of its c₁; a reply is its c₁ modulo the
first prime and only those c₀ coefficients that the owner needs, bit-packed.

Guarantees, for semi-honest parties:
    - The owner sees Xᵀv + r, r uniform modulo t; every coefficient of a reply has such a mask, so
      the sums over parts of X in unused ones are hidden as well.
    - A reply's c₁ is that of a fresh public-key encryption plus a·X: without that encryption the
      owner, who knows a, divides it out (200 of 200 coefficients of X).
    - A reply's noise holds X·e, e known to the owner. Flooding hides it within a statistical
      distance of 2^−40 over all coefficients that the job reveals.
    - Replies of another key, and bytes that are none, have too much noise and are refused. That
      is no checksum: most single bits, and 3 of 8 single words, change numbers without making
      noise. Lines are authentic.
Not protected: an evaluator that has a crafted ciphertext decrypted; see SECURITY.md.
Source: docs/decisions/0008-bfv-sizes-follow-the-job.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import tenseal.sealapi as seal
from numpy.typing import NDArray

from securevfl.arrays import IntArray, RingArray
from securevfl.crypto.bfv_parameters import DEGREE, BfvParameters, BfvSizes
from securevfl.crypto.bfv_wire import pack_reply, unpack_input
from securevfl.crypto.fixed_point import require_matrix, to_ring
from securevfl.crypto.pool import BlinderPool
from securevfl.crypto.residues import uniform_noise, uniform_words
from securevfl.crypto.scheme import MODULUS_BITS, MaskedReply, ProductFormat
from securevfl.crypto.seal_codec import (
    SEED_BYTES,
    coefficient_ciphertext,
    from_bytes,
    from_seeded,
    of_other_context,
    plaintext,
    polynomials_of,
    seal_errors,
    split,
)
from securevfl.errors import CryptoError, KeyMismatch, RangeExceeded

_LARGEST_KEY = 1 << 20


@dataclass(frozen=True)
class PreparedPolynomials:
    """X as plaintexts in NTT form, [reply][input]; None where all entries are zero."""

    product_format: ProductFormat
    columns: int
    plaintexts: tuple[tuple[seal.Plaintext | None, ...], ...]


@dataclass(frozen=True)
class _Blinder:
    """Enc(mask) under the public key, with flooding noise; used once."""

    ciphertext: seal.Ciphertext
    mask: RingArray


class BfvMultiplier:
    """A public key: inputs as they come, blinders, and sums of products as they go.

    Args:
        public_bytes: the owner's public key.
        sizes: of the job.
        inputs: ciphertexts of what is encrypted together.
        capacity: blinders made ahead at most.
        matrix_bits: t = 2^matrix_bits of what this end computes with, the key's unless told.

    Raises:
        KeyMismatch: bytes that are no public key of these sizes.
    """

    def __init__(
        self,
        public_bytes: bytes,
        sizes: BfvSizes,
        inputs: int,
        capacity: int,
        matrix_bits: int | None = None,
    ) -> None:
        self._sizes = sizes
        self._inputs = inputs
        self._context = sizes.context(matrix_bits)
        self._evaluator = seal.Evaluator(self._context)
        self._plain_mask = np.uint64((1 << sizes.plain_bits) - 1)
        self._reply_level = sizes.reply_level(matrix_bits)
        (piece,) = split(public_bytes, 1, _LARGEST_KEY)
        public_key = from_bytes(sizes.context(), seal.PublicKey(), piece)
        if matrix_bits is not None:
            public_key = of_other_context(self._context, public_key)
        self._encryptor = seal.Encryptor(self._context, public_key)
        trial = seal.Ciphertext()
        self._encryptor.encrypt_zero(trial)
        if trial.is_transparent():
            raise KeyMismatch("the BFV public key would encrypt nothing")
        self._pool = BlinderPool(self._blinder, capacity)

    @property
    def modulus_bits(self) -> int:
        """`plain_bits`, of t = 2^plain_bits."""
        return self._sizes.plain_bits

    def make_blinder(self) -> bool:
        """Make one blinder ahead; False where a round's worth is in stock."""
        return self._pool.make_one()

    def _take_in(self, encrypted: bytes) -> Iterator[seal.Ciphertext]:
        """The inputs, in NTT form, one after the other."""
        size = self._sizes.input_bytes + SEED_BYTES
        if len(encrypted) != self._inputs * size:
            raise CryptoError(
                f"{len(encrypted)} bytes, {self._inputs} bfv inputs of {size} bytes expected"
            )
        for start in range(0, len(encrypted), size):
            c0, seed = unpack_input(self._sizes, encrypted[start : start + size])
            vector = from_seeded(self._context, c0, seed)
            self._evaluator.transform_to_ntt_inplace(vector)
            yield vector

    def _added(
        self, total: seal.Ciphertext | None, vector: seal.Ciphertext, plain: seal.Plaintext
    ) -> seal.Ciphertext:
        """Adds vector·plain to a sum in NTT form, None for 0."""
        product = seal.Ciphertext()
        self._evaluator.multiply_plain(vector, plain, product)
        if total is None:
            return product
        self._evaluator.add_inplace(total, product)
        return total

    def _finished(
        self,
        total: seal.Ciphertext | None,
        blinder: seal.Ciphertext,
        positions: NDArray[np.int64],
    ) -> bytes:
        """A sum of products in NTT form, None for 0, re-randomized, flooded and masked."""
        if total is not None:
            self._evaluator.transform_from_ntt_inplace(total)
            self._evaluator.add_inplace(blinder, total)
        self._evaluator.mod_switch_to_inplace(blinder, self._reply_level)
        return pack_reply(self._sizes, polynomials_of(blinder), positions)

    def _blinder(self) -> _Blinder:
        mask = uniform_words(DEGREE) & self._plain_mask
        encrypted = seal.Ciphertext()
        self._encryptor.encrypt(plaintext(self._context, mask), encrypted)
        primes = self._sizes.primes()
        noise = uniform_noise(self._sizes.flood_bits, DEGREE, primes)
        flood = coefficient_ciphertext(self._context, noise)
        self._evaluator.add_inplace(encrypted, flood)
        return _Blinder(encrypted, mask)


class BfvEvaluator(BfvMultiplier):
    """A party that multiplies under another party's key.

    Args:
        public_bytes: the owner's public key.
        product_format: fixed point, bounds and size of the job.

    Raises:
        KeyMismatch: bytes that are no public key of these parameters.
        RangeExceeded: products or flooding for which no 128-bit set has room.
    """

    def __init__(self, public_bytes: bytes, product_format: ProductFormat) -> None:
        self._format = product_format
        self._parameters = parameters = BfvParameters.of(product_format)
        capacity = parameters.replies(product_format.columns) * product_format.vectors
        super().__init__(public_bytes, parameters, parameters.inputs, capacity)

    def prepare(self, matrix: IntArray) -> PreparedPolynomials:
        """Bring X of shape (S, P) into plaintext polynomials in NTT form.

        Raises:
            RangeExceeded: an entry beyond the format's bound, or too many rows or columns.
        """
        require_matrix(matrix, self._format)
        parameters = self._parameters
        columns = matrix.shape[1]
        if columns > self._format.columns:
            raise RangeExceeded(f"{columns} columns, at most {self._format.columns} agreed")
        side = parameters.columns_per_reply
        # Reply by reply: a copy of all of X would double the memory that this takes.
        plaintexts = [self._of_reply(matrix[:, at : at + side]) for at in range(0, columns, side)]
        return PreparedPolynomials(self._format, columns, tuple(plaintexts))

    def _of_reply(self, matrix: IntArray) -> tuple[seal.Plaintext | None, ...]:
        """The plaintexts of one reply's columns, one for each input."""
        parameters, (rows, columns) = self._parameters, matrix.shape
        padded = np.zeros((columns, parameters.inputs * parameters.chunk), np.int64)
        padded[:, :rows] = matrix.T
        blocks = padded.reshape(columns, parameters.inputs, parameters.chunk)
        # (input, columns one after the other, rows reversed)
        coefficients = blocks[:, :, ::-1].transpose(1, 0, 2).reshape(parameters.inputs, -1)
        return tuple(self._transformed(part) if part.any() else None for part in coefficients)

    def _transformed(self, coefficients: IntArray) -> seal.Plaintext:
        plain = plaintext(self._context, _residues(coefficients, self._parameters.plain_bits))
        transformed = seal.Plaintext()
        level = self._context.first_parms_id()
        self._evaluator.transform_to_ntt(plain, level, transformed)
        return transformed

    def lacks_blinders(self, prepared: object) -> bool:
        """Whether the next product would have to make some."""
        return len(self._pool) < len(self._own(prepared).plaintexts)

    def masked_product(self, encrypted: bytes, prepared: object) -> MaskedReply:
        """Compute Enc(Xᵀv + r), re-randomized and flooded, with a fresh mask r.

        Raises:
            CryptoError: bytes that are no encryption of S values under these parameters.
        """
        return self.partly_open_product(encrypted, prepared, np.empty(0, np.int64))

    def partly_open_product(
        self, encrypted: bytes, prepared: object, addend: IntArray
    ) -> MaskedReply:
        """As `masked_product`, but the last columns become Xᵀv + addend, without a mask.

        Raises:
            RangeExceeded: an addend beyond the format's largest product.
            CryptoError: bytes that are no encryption of S values under these parameters.
        """
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
                shown = addend[offset : offset + open_at.size]
                self._open(blinder, open_at, shown)
            replies.append(self._reply(vectors, row, blinder.ciphertext, positions))
            masks.append(blinder.mask[of_columns])
        mask = np.concatenate(masks)[:closed]
        shift = np.uint64(MODULUS_BITS - self._parameters.plain_bits)
        return MaskedReply(b"".join(replies), np.left_shift(mask, shift))

    def _open(self, blinder: _Blinder, positions: NDArray[np.int64], shown: IntArray) -> None:
        """Put numbers in the place of the mask at some coefficients."""
        change = np.zeros(DEGREE, np.uint64)
        change[positions] = to_ring(shown) - blinder.mask[positions]
        message = plaintext(self._context, change & self._plain_mask)
        self._evaluator.add_plain_inplace(blinder.ciphertext, message)

    def _reply(
        self,
        vectors: list[seal.Ciphertext],
        row: tuple[seal.Plaintext | None, ...],
        blinder: seal.Ciphertext,
        positions: NDArray[np.int64],
    ) -> bytes:
        total: seal.Ciphertext | None = None
        with seal_errors("an encrypted vector"):
            for vector, plain in zip(vectors, row, strict=True):
                if plain is not None:
                    total = self._added(total, vector, plain)
            return self._finished(total, blinder, positions)

    def _own(self, prepared: object) -> PreparedPolynomials:
        """What was prepared for this format: flooding follows from its bounds."""
        if not isinstance(prepared, PreparedPolynomials):
            raise CryptoError(f"prepared is a {type(prepared).__name__}, not BFV polynomials")
        if prepared.product_format != self._format:
            raise CryptoError("prepared are BFV polynomials of another format")
        return prepared


def _residues(integers: IntArray, plain_bits: int) -> RingArray:
    return to_ring(integers) & np.uint64((1 << plain_bits) - 1)
