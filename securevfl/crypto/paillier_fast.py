"""Paillier on phe's keys and ciphertexts, fast: what phe encrypts this decrypts, and vice versa.

The owner encrypts with residues modulo p² and q² from a fixed-base table (nth_residues), the
evaluator raises to all of X at once (multi_exponentiation) and packs many results into one
ciphertext (packing). On the wire ciphertexts are as in `paillier`.

Guarantees, for semi-honest parties:
    - The owner sees Xᵀv + largest_product + r per column, r uniform on 2^64·(2^bit length of
      largest_product) integers: within 2^−64 of independent of X and v. Every slot is masked, also
      unused ones. No slot overflows; the format is refused otherwise.
    - Every reply is multiplied with ρⁿ, ρ uniform among the units below n, so it is distributed
      like a fresh encryption. The short exponents of the owner's own encryptions would not do
      here: all powers of one number share what it is modulo the primes of n, and the Jacobi symbol
      of a reply would be a parity of X.
"""

from dataclasses import dataclass

import numpy as np
from gmpy2 import mpz
from phe.paillier import PaillierPrivateKey
from typing_extensions import override

from securevfl.arrays import IntArray, RingArray
from securevfl.crypto.fixed_point import require_matrix, require_values
from securevfl.crypto.multi_exponentiation import Accumulate, Exponents, accumulated, products
from securevfl.crypto.nth_residues import ShortExponentResidues, UniformResidues, uniform_residue
from securevfl.crypto.packing import Slots
from securevfl.crypto.paillier_keys import (
    PaillierKeyOwner,
    PaillierKeyPeer,
    ciphertext_bytes,
    split_ciphertexts,
)
from securevfl.crypto.pool import BlinderPool
from securevfl.crypto.scheme import MODULUS_BITS, MaskedReply, ProductFormat
from securevfl.crypto.workers import Workers
from securevfl.errors import CryptoError, KeyMismatch, RangeExceeded

_RING_MASK = (1 << MODULUS_BITS) - 1


class FastPaillierOwner(PaillierKeyOwner):
    """The party that holds p and q; it encrypts with short exponents."""

    _residues_of: type[ShortExponentResidues | UniformResidues] = ShortExponentResidues

    @override
    def _set_up(self, product_format: ProductFormat, private_key: PaillierPrivateKey) -> None:
        super()._set_up(product_format, private_key)
        self._slots = Slots.of(product_format, self.key_bits)
        capacity = product_format.rows * product_format.vectors
        self._pool = BlinderPool(self._residues_of(private_key).draw, capacity)

    def make_blinder(self) -> bool:
        """Make one residue ahead; False where a round's worth is in stock."""
        return self._pool.make_one()

    def lacks_blinders(self) -> bool:
        """Whether the next vector might have to make some."""
        return len(self._pool) < self._format.rows

    def encrypt(self, values: IntArray) -> bytes:
        """Encrypt integers of shape (S,): S·2·key_bytes bytes.

        Raises:
            RangeExceeded: a value beyond the format's bound, or too many rows.
        """
        require_values(values, self._format)
        n, width = mpz(self._public_key.n), ciphertext_bytes(self._public_key)
        modulus = n * n
        return b"".join(
            ((1 + n * value) * self._pool.take() % modulus).to_bytes(width, "big")
            for value in values.tolist()
        )

    def decrypt(self, ciphertext: bytes, columns: int) -> RingArray:
        """Decrypt a masked product: (columns,) integers modulo 2^64.

        Raises:
            CryptoError: bytes that are no reply of this key with so many columns.
        """
        replies = self._slots.replies(columns)
        numbers = split_ciphertexts(self._public_key, ciphertext, replies)
        plains = [self._private_key.raw_decrypt(number) for number in numbers]
        values = [value for plain in plains for value in self._slots.parted(plain)]
        # A ciphertext of another key decrypts to something uniform below n.
        if max(values) > self._largest_masked:
            raise KeyMismatch("a reply decrypts to more than any masked product of this job")
        return np.array([value & _RING_MASK for value in values[:columns]], np.uint64)


class FullPaillierOwner(FastPaillierOwner):
    """As FastPaillierOwner, but it encrypts with ρⁿ, ρ uniform, as phe does."""

    _residues_of = UniformResidues


@dataclass(frozen=True)
class PreparedExponents:
    """X of shape (S, columns), recoded."""

    columns: int
    exponents: Exponents


class FastPaillierEvaluator(PaillierKeyPeer):
    """A party that multiplies under another party's key."""

    @override
    def _set_up(self, public_bytes: bytes, product_format: ProductFormat) -> None:
        super()._set_up(public_bytes, product_format)
        self._n = mpz(self._public_key.n)
        self._slots = Slots.of(product_format, self._n.bit_length())
        capacity = self._slots.replies(product_format.columns) * product_format.vectors
        self._pool = BlinderPool(self._blinder, capacity)
        self._accumulate: Accumulate = accumulated

    def spread_over(self, workers: int) -> None:
        """Do products in so many processes, this one included."""
        self._accumulate = Workers(workers).accumulated

    def _blinder(self) -> mpz:
        return uniform_residue(self._n)

    def make_blinder(self) -> bool:
        """Make one blinder ahead; False where a round's worth is in stock."""
        return self._pool.make_one()

    def lacks_blinders(self, prepared: object) -> bool:
        """Whether the next product would have to make some."""
        return len(self._pool) < _own(prepared).exponents.results

    def prepare(self, matrix: IntArray) -> PreparedExponents:
        """Recode X of shape (S, P) for many exponentiations at once.

        Raises:
            RangeExceeded: an entry beyond the format's bound, or too many rows or columns.
        """
        require_matrix(matrix, self._format)
        columns = matrix.shape[1]
        if columns > self._format.columns:
            raise RangeExceeded(f"{columns} columns, at most {self._format.columns} agreed")
        exponents = Exponents.of(matrix, self._slots.width, self._slots.count)
        return PreparedExponents(columns, exponents)

    def masked_product(self, encrypted: bytes, prepared: object) -> MaskedReply:
        """Compute Enc(Xᵀv + r), re-randomized, with a fresh mask r.

        Raises:
            CryptoError: bytes that are no encryption of S values under this key.
        """
        product = _own(prepared)
        numbers = split_ciphertexts(self._public_key, encrypted, product.exponents.rows)
        n, width = self._n, ciphertext_bytes(self._public_key)
        modulus = n * n
        masks, replies = [], []
        for unit, term in products(numbers, product.exponents, n, self._accumulate):
            fresh = [self._fresh_mask() for _ in range(self._slots.count)]
            shifted = 1 + n * ((term + self._slots.joined(fresh)) % n)
            reply = unit * shifted % modulus * self._pool.take() % modulus
            replies.append(reply.to_bytes(width, "big"))
            masks += [mask & _RING_MASK for mask in fresh]
        return MaskedReply(b"".join(replies), np.array(masks[: product.columns], np.uint64))


def _own(prepared: object) -> PreparedExponents:
    if not isinstance(prepared, PreparedExponents):
        raise CryptoError(f"prepared is a {type(prepared).__name__}, not Paillier exponents")
    return prepared
