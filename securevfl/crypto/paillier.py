"""Paillier (EUROCRYPT 1999) through phe's public API: the baseline every other scheme is held to.

Integers only: every phe number has exponent 0, so nothing is rounded and no exponent travels. A
vector on the wire is its ciphertexts, big-endian in 2·key_bytes each, one after the other.

Guarantees, for evaluators that follow the protocol:
    - The owner sees Xᵀv + L + r per column, L the format's largest product and r uniform on
      2^MASK_BITS·(2^bit length of L) integers: within 2^−64 of independent of X and v. No sum of
      those wraps modulo n; the format is refused otherwise.
    - Every reply is multiplied with ρⁿ, ρ uniform below n (phe's encryption of the mask), so it is
      distributed like a fresh encryption. A short-exponent blinder h^α would leave the Jacobi
      symbol of the reply, which is a parity of X.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

import gmpy2
import numpy as np
import phe.util
from phe.encoding import EncodedNumber
from phe.paillier import (
    EncryptedNumber,
    PaillierPrivateKey,
    PaillierPublicKey,
    generate_paillier_keypair,
)

from securevfl.crypto.fixed_point import require_matrix, require_values
from securevfl.crypto.keys import fingerprint
from securevfl.crypto.scheme import (
    MODULUS_BITS,
    Int64Array,
    MaskedReply,
    ProductFormat,
    UInt64Array,
)
from securevfl.errors import ConfigError, CryptoError, KeyMismatch, RangeExceeded

KEY_SIZES = (3072, 2048)
MASK_BITS = 64
_SMALL_PRIMES = gmpy2.primorial(1 << 16)
_RING_MASK = (1 << MODULUS_BITS) - 1


class PaillierOwner:
    """The party that holds p and q.

    Args:
        product_format: fixed point and bounds of the job.
        private_key: phe's key of 3072 or 2048 bits.

    Raises:
        ConfigError: another key size, or a phe that works without gmpy2.
        RangeExceeded: a format whose masked products do not fit.
    """

    def __init__(self, product_format: ProductFormat, private_key: PaillierPrivateKey) -> None:
        _require_key_size(private_key.public_key.n.bit_length())
        self._set_up(product_format, private_key)

    @classmethod
    def generate(
        cls, product_format: ProductFormat, key_bits: int = KEY_SIZES[0]
    ) -> "PaillierOwner":
        """A fresh key of 3072 bits (128-bit security) or 2048 bits (112-bit)."""
        _require_gmpy2()
        _require_key_size(key_bits)
        return cls(product_format, generate_paillier_keypair(n_length=key_bits)[1])

    @classmethod
    def insecure_for_tests(cls, product_format: ProductFormat, key_bits: int) -> "PaillierOwner":
        """A key of any size, for tests only: no job reaches this."""
        owner = cls.__new__(cls)
        owner._set_up(product_format, generate_paillier_keypair(n_length=key_bits)[1])
        return owner

    def _set_up(self, product_format: ProductFormat, private_key: PaillierPrivateKey) -> None:
        _require_gmpy2()
        self._format = product_format
        self._private_key = private_key
        self._public_key = private_key.public_key
        self._largest_masked = _largest_masked(product_format, self._public_key)

    @property
    def public_bytes(self) -> bytes:
        """n, big-endian."""
        n: int = self._public_key.n
        return n.to_bytes(_key_bytes(self._public_key), "big")

    @property
    def fingerprint(self) -> str:
        """Names the key in results."""
        return fingerprint(self.public_bytes)

    @property
    def key_bits(self) -> int:
        """Size of n."""
        return int(self._public_key.n.bit_length())

    def make_blinder(self) -> bool:
        """False: this engine makes none ahead."""
        return False

    def lacks_blinders(self) -> bool:
        """False: every encryption makes its own."""
        return False

    def encrypt(self, values: Int64Array) -> bytes:
        """Encrypt integers of shape (S,): S·2·key_bytes bytes.

        Raises:
            RangeExceeded: a value beyond the format's bound, or too many rows.
        """
        require_values(values, self._format)
        return _to_bytes(
            self._public_key, [_encrypt(self._public_key, value) for value in values.tolist()]
        )

    def decrypt(self, ciphertext: bytes, columns: int) -> UInt64Array:
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


class PaillierEvaluator:
    """A party that multiplies under another party's key.

    Args:
        public_bytes: n, big-endian, as the owner sent it.
        product_format: fixed point and bounds of the job.
        key_bits: the size the job agreed; None takes any allowed one.

    Raises:
        ConfigError: a phe that works without gmpy2.
        KeyMismatch: no modulus of an allowed size, or one that is no product of two big primes as
            far as that is cheap to see.
        RangeExceeded: a format whose masked products do not fit.
    """

    def __init__(
        self, public_bytes: bytes, product_format: ProductFormat, key_bits: int | None = None
    ) -> None:
        allowed = KEY_SIZES if key_bits is None else (key_bits,)
        if 8 * len(public_bytes) not in allowed:
            sizes = " or ".join(map(str, allowed))
            raise KeyMismatch(f"Paillier key of {8 * len(public_bytes)} bits, {sizes} expected")
        self._set_up(public_bytes, product_format)

    @classmethod
    def insecure_for_tests(
        cls, public_bytes: bytes, product_format: ProductFormat
    ) -> "PaillierEvaluator":
        """A key of any size, for tests only: no job reaches this."""
        evaluator = cls.__new__(cls)
        evaluator._set_up(public_bytes, product_format)
        return evaluator

    def _set_up(self, public_bytes: bytes, product_format: ProductFormat) -> None:
        _require_gmpy2()
        self._public_key = _public_key(public_bytes)
        self._format = product_format
        self._largest_mask = _largest_mask(product_format)
        _largest_masked(product_format, self._public_key)

    @property
    def modulus_bits(self) -> int:
        """64: integers arrive as they are."""
        return MODULUS_BITS

    def make_blinder(self) -> bool:
        """False: this engine makes none ahead."""
        return False

    def lacks_blinders(self, prepared: object) -> bool:
        """False: every product makes its own."""
        del prepared
        return False

    def prepare(self, matrix: Int64Array) -> PreparedColumns:
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
            # Uniform, and shifted so that the sum is never below zero.
            mask = self._format.largest_product + secrets.randbelow(self._largest_mask + 1)
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


def _largest_mask(product_format: ProductFormat) -> int:
    return (1 << (product_format.largest_product.bit_length() + MASK_BITS)) - 1


def _largest_masked(product_format: ProductFormat, public_key: PaillierPublicKey) -> int:
    product_format.require_room(MODULUS_BITS)
    largest = 2 * product_format.largest_product + _largest_mask(product_format)
    if 2 * largest >= public_key.n:
        raise RangeExceeded(
            f"masked products need {largest.bit_length() + 1} bits, more than the "
            f"{public_key.n.bit_length()} of the Paillier key"
        )
    return largest


def _key_bytes(public_key: PaillierPublicKey) -> int:
    return int(public_key.n.bit_length() + 7) // 8


def _to_bytes(public_key: PaillierPublicKey, numbers: Sequence[EncryptedNumber]) -> bytes:
    width = 2 * _key_bytes(public_key)
    # Every number that comes here carries a full ρⁿ from `_encrypt`.
    return b"".join(n.ciphertext(be_secure=False).to_bytes(width, "big") for n in numbers)


def _from_bytes(public_key: PaillierPublicKey, data: bytes, count: int) -> list[EncryptedNumber]:
    width = 2 * _key_bytes(public_key)
    if count < 1 or len(data) != count * width:
        raise CryptoError(
            f"{len(data)} bytes, {count} Paillier ciphertexts of {width} bytes expected"
        )
    numbers = [int.from_bytes(data[at : at + width], "big") for at in range(0, len(data), width)]
    for number in numbers:
        if number >= public_key.nsquare or gcd(number, public_key.n) != 1:  # gcd(0, n) = n
            raise KeyMismatch("a Paillier ciphertext is no unit modulo n^2")
    return [EncryptedNumber(public_key, number, 0) for number in numbers]


def _public_key(public_bytes: bytes) -> PaillierPublicKey:
    n = int.from_bytes(public_bytes, "big")
    if n.bit_length() != 8 * len(public_bytes):
        raise KeyMismatch(f"Paillier modulus of {n.bit_length()} bits in {len(public_bytes)} bytes")
    if gmpy2.gcd(n, _SMALL_PRIMES) != 1 or gmpy2.is_power(n) or gmpy2.is_prime(n):
        raise KeyMismatch("Paillier modulus is a prime, a power or has a small factor")
    return PaillierPublicKey(n)


def _require_key_size(key_bits: int) -> None:
    if key_bits not in KEY_SIZES:
        sizes = " or ".join(map(str, KEY_SIZES))
        raise ConfigError(f"key_bits is {key_bits}, {sizes} expected for Paillier")


def _require_gmpy2() -> None:
    if not phe.util.HAVE_GMP:
        raise ConfigError("phe runs without gmpy2, ten times slower; install gmpy2")
