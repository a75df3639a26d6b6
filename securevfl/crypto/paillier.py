"""Paillier (EUROCRYPT 1999) through phe's public API: the baseline every other scheme is held to.

Integers only: every phe number has exponent 0, so nothing is rounded and no exponent travels. A
vector on the wire is its ciphertexts, big-endian in 2·key_bytes each, one after the other.

Guarantees, for evaluators that follow the protocol:
    - The owner sees Xᵀv + largest_product + r per column, r uniform on 2^MASK_BITS·(2^bit length
      of largest_product) integers: within 2^−64 of independent of X and v. No sum of those wraps
      modulo n; the format is refused otherwise.
    - Every reply is multiplied with ρⁿ, ρ uniform below n (phe's encryption of the mask), so it is
      distributed like a fresh encryption. A blinder with a short exponent would leave the Jacobi
      symbol of the reply, which is a parity of X.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from phe.encoding import EncodedNumber
from phe.paillier import EncryptedNumber, PaillierPublicKey

from securevfl.arrays import IntArray, RingArray
from securevfl.crypto.fixed_point import require_matrix, require_values
from securevfl.crypto.paillier_keys import (
    PaillierKeyOwner,
    PaillierKeyPeer,
    ciphertext_bytes,
    split_ciphertexts,
)
from securevfl.crypto.scheme import MODULUS_BITS, MaskedReply
from securevfl.errors import CryptoError, KeyMismatch

_RING_MASK = (1 << MODULUS_BITS) - 1


class PaillierOwner(PaillierKeyOwner):
    """The party that holds p and q."""

    def make_blinder(self) -> bool:
        """False: this engine makes none ahead."""
        return False

    def lacks_blinders(self) -> bool:
        """False: every encryption makes its own."""
        return False

    def encrypt(self, values: IntArray) -> bytes:
        """Encrypt integers of shape (S,): S·2·key_bytes bytes.

        Raises:
            RangeExceeded: a value beyond the format's bound, or too many rows.
        """
        require_values(values, self._format)
        return _to_bytes(
            self._public_key, [_encrypt(self._public_key, value) for value in values.tolist()]
        )

    def decrypt(self, ciphertext: bytes, columns: int) -> RingArray:
        """Decrypt a masked product: (columns,) integers modulo 2^64.

        Raises:
            CryptoError: bytes that are no reply of this key with so many columns.
        """
        numbers = _from_bytes(self._public_key, ciphertext, columns)
        plain = [self._private_key.raw_decrypt(n.ciphertext(be_secure=False)) for n in numbers]
        # A ciphertext of another key decrypts to something uniform below n.
        if max(plain) > self._largest_masked:
            raise KeyMismatch("a reply decrypts to more than any masked product of this job")
        return np.array([value & _RING_MASK for value in plain], np.uint64)


@dataclass(frozen=True)
class PreparedColumns:
    """X as its nonzero entries, column by column: (row, entry) pairs."""

    rows: int
    columns: tuple[tuple[tuple[int, int], ...], ...]


class PaillierEvaluator(PaillierKeyPeer):
    """A party that multiplies under another party's key."""

    def make_blinder(self) -> bool:
        """False: this engine makes none ahead."""
        return False

    def lacks_blinders(self, prepared: object) -> bool:
        """False: every product makes its own."""
        del prepared
        return False

    def prepare(self, matrix: IntArray) -> PreparedColumns:
        """Bring X of shape (S, P) into sparse columns.

        Raises:
            RangeExceeded: an entry beyond the format's bound, or too many rows.
        """
        require_matrix(matrix, self._format)
        columns = tuple(
            tuple((row, entry) for row, entry in enumerate(column) if entry)
            for column in matrix.T.tolist()
        )
        return PreparedColumns(len(matrix), columns)

    def masked_product(self, encrypted: bytes, prepared: object) -> MaskedReply:
        """Compute Enc(Xᵀv + r), re-randomized, with a fresh mask r.

        Raises:
            CryptoError: bytes that are no encryption of S values under this key.
        """
        if not isinstance(prepared, PreparedColumns):
            raise CryptoError(f"prepared is a {type(prepared).__name__}, not Paillier columns")
        positive = _from_bytes(self._public_key, encrypted, prepared.rows)
        negative: dict[int, EncryptedNumber] = {}  # one inversion a row, not one an entry
        masks, replies = [], []
        for column in prepared.columns:
            mask = self._fresh_mask()
            total = _encrypt(self._public_key, mask)
            for row, entry in column:
                factor = positive[row]
                if entry < 0:
                    if row not in negative:
                        negative[row] = factor * _encoded(self._public_key, -1)
                    factor = negative[row]
                total += _multiple(factor, abs(entry))
            masks.append(mask & _RING_MASK)
            replies.append(total)
        return MaskedReply(_to_bytes(self._public_key, replies), np.array(masks, np.uint64))


def _multiple(number: EncryptedNumber, factor: int) -> EncryptedNumber:
    return number if factor == 1 else number * _encoded(number.public_key, factor)


def _encoded(public_key: PaillierPublicKey, value: int) -> EncodedNumber:
    return EncodedNumber(public_key, value % public_key.n, 0)


def _encrypt(public_key: PaillierPublicKey, value: int) -> EncryptedNumber:
    return public_key.encrypt(_encoded(public_key, value))  # blinds with ρⁿ, ρ below n


def _to_bytes(public_key: PaillierPublicKey, numbers: Sequence[EncryptedNumber]) -> bytes:
    width = ciphertext_bytes(public_key)
    # Every number that comes here carries a full ρⁿ from `_encrypt`.
    return b"".join(n.ciphertext(be_secure=False).to_bytes(width, "big") for n in numbers)


def _from_bytes(public_key: PaillierPublicKey, data: bytes, count: int) -> list[EncryptedNumber]:
    numbers = split_ciphertexts(public_key, data, count)
    return [EncryptedNumber(public_key, number, 0) for number in numbers]
