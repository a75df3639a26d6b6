"""Paillier keys (EUROCRYPT 1999) on phe's objects: what every engine's two ends begin with."""

import secrets
from typing import Self

import gmpy2
import phe.util
from phe.paillier import PaillierPrivateKey, PaillierPublicKey, generate_paillier_keypair

from securevfl.crypto.keys import fingerprint
from securevfl.crypto.scheme import MODULUS_BITS, PAILLIER_KEY_SIZES, ProductFormat
from securevfl.errors import ConfigError, CryptoError, KeyMismatch, RangeExceeded

MASK_BITS = 64
_SMALL_PRIMES = gmpy2.primorial(1 << 16)


class PaillierKeyOwner:
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
    def generate(cls, product_format: ProductFormat, key_bits: int = PAILLIER_KEY_SIZES[0]) -> Self:
        """A fresh key of 3072 bits (128-bit security) or 2048 bits (112-bit)."""
        _require_gmpy2()
        _require_key_size(key_bits)
        return cls(product_format, generate_paillier_keypair(n_length=key_bits)[1])

    @classmethod
    def insecure_for_tests(
        cls, product_format: ProductFormat, key: int | PaillierPrivateKey
    ) -> Self:
        """A key of any size, fresh or given, for tests only: no job reaches this."""
        owner = cls.__new__(cls)
        if isinstance(key, int):
            key = generate_paillier_keypair(n_length=key)[1]
        owner._set_up(product_format, key)
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
    def modulus_bits(self) -> int:
        """64: integers arrive as they are."""
        return MODULUS_BITS

    @property
    def key_bits(self) -> int:
        """Size of n."""
        return int(self._public_key.n.bit_length())


class PaillierKeyPeer:
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
        allowed = PAILLIER_KEY_SIZES if key_bits is None else (key_bits,)
        if 8 * len(public_bytes) not in allowed:
            sizes = " or ".join(map(str, allowed))
            raise KeyMismatch(f"Paillier key of {8 * len(public_bytes)} bits, {sizes} expected")
        self._set_up(public_bytes, product_format)

    @classmethod
    def insecure_for_tests(cls, public_bytes: bytes, product_format: ProductFormat) -> Self:
        """A key of any size, for tests only: no job reaches this."""
        peer = cls.__new__(cls)
        peer._set_up(public_bytes, product_format)
        return peer

    def _set_up(self, public_bytes: bytes, product_format: ProductFormat) -> None:
        _require_gmpy2()
        self._public_key = _public_key(public_bytes)
        self._format = product_format
        self._mask_bits = mask_bits(product_format)
        _largest_masked(product_format, self._public_key)

    @property
    def modulus_bits(self) -> int:
        """64: integers arrive as they are."""
        return MODULUS_BITS

    def _fresh_mask(self) -> int:
        """Uniform, and shifted so that no masked product is below zero."""
        return self._format.largest_product + secrets.randbits(self._mask_bits)


def mask_bits(product_format: ProductFormat) -> int:
    """Masks are uniform on 2^so many integers: within 2^−MASK_BITS of hiding a product."""
    return product_format.largest_product.bit_length() + MASK_BITS


def ciphertext_bytes(public_key: PaillierPublicKey) -> int:
    """Bytes of one ciphertext on the wire."""
    return 2 * _key_bytes(public_key)


def split_ciphertexts(public_key: PaillierPublicKey, data: bytes, count: int) -> list[int]:
    """The integers of a vector on the wire, big-endian one after the other, units modulo n².

    Raises:
        CryptoError: not exactly `count` of them.
        KeyMismatch: one that is no unit modulo n², or not below it.
    """
    width = ciphertext_bytes(public_key)
    if count < 1 or len(data) != count * width:
        raise CryptoError(
            f"{len(data)} bytes, {count} Paillier ciphertexts of {width} bytes expected"
        )
    numbers = [int.from_bytes(data[at : at + width], "big") for at in range(0, len(data), width)]
    modulus, product = gmpy2.mpz(public_key.n), gmpy2.mpz(1)
    for number in numbers:
        product = product * (number % modulus) % modulus
    if max(numbers) >= public_key.nsquare or gmpy2.gcd(product, modulus) != 1:
        raise KeyMismatch("a Paillier ciphertext is no unit modulo n^2")
    return numbers


def _largest_masked(product_format: ProductFormat, public_key: PaillierPublicKey) -> int:
    product_format.require_room(MODULUS_BITS)
    largest = 2 * product_format.largest_product + (1 << mask_bits(product_format)) - 1
    if 2 * largest >= public_key.n:
        raise RangeExceeded(
            f"masked products need {largest.bit_length() + 1} bits, more than the "
            f"{public_key.n.bit_length()} of the Paillier key"
        )
    return largest


def _key_bytes(public_key: PaillierPublicKey) -> int:
    return int(public_key.n.bit_length() + 7) // 8


def _public_key(public_bytes: bytes) -> PaillierPublicKey:
    n = int.from_bytes(public_bytes, "big")
    if n.bit_length() != 8 * len(public_bytes):
        raise KeyMismatch(f"Paillier modulus of {n.bit_length()} bits in {len(public_bytes)} bytes")
    if gmpy2.gcd(n, _SMALL_PRIMES) != 1 or gmpy2.is_power(n) or gmpy2.is_prime(n):
        raise KeyMismatch("Paillier modulus is a prime, a power or has a small factor")
    return PaillierPublicKey(n)


def _require_key_size(key_bits: int) -> None:
    if key_bits not in PAILLIER_KEY_SIZES:
        sizes = " or ".join(map(str, PAILLIER_KEY_SIZES))
        raise ConfigError(f"key_bits is {key_bits}, {sizes} expected for Paillier")


def _require_gmpy2() -> None:
    if not phe.util.HAVE_GMP:
        raise ConfigError("phe runs without gmpy2, ten times slower; install gmpy2")
