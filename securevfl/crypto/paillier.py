"""Paillier (EUROCRYPT 1999): keys on phe's objects, and products through phe's public API.

All engines use these keys; phe's products are the baseline for every other scheme. Integers only:
every phe number has exponent 0, so nothing is rounded and no exponent is sent. A vector on the wire
is its ciphertexts, big-endian, 2·key_bytes each.

Guarantees:
    - A reply is a uniform unit modulo n², whatever the owner encrypted: its mask is uniform modulo
      n, and it is multiplied with ρⁿ, ρ uniform below n (phe's encryption of the mask). A blinder
      with a short exponent would leave the Jacobi symbol of the reply, which is a parity of X.
    - What the owner decrypts and the mask are shares of the product, see paillier_slots.
    - n has no hidden way around this: its owner proves it, see paillier_modulus.

Not protected: an owner that learns a product (`opened`) reads as much in it as with an input of its
choice. A reply that was damaged, or made under another key, decrypts to uniform numbers.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import gmpy2
import phe.util
from phe.encoding import EncodedNumber
from phe.paillier import (
    EncryptedNumber,
    PaillierPrivateKey,
    PaillierPublicKey,
    generate_paillier_keypair,
)
from typing_extensions import override

from securevfl.arrays import IntArray, RingArray
from securevfl.crypto.fixed_point import require_matrix, require_values
from securevfl.crypto.paillier_modulus import modulus_of, with_roots
from securevfl.crypto.paillier_slots import Slots
from securevfl.crypto.scheme import (
    PAILLIER_KEY_SIZES,
    Evaluator,
    KeyOwner,
    MaskedReply,
    ProductFormat,
)
from securevfl.errors import ConfigError, CryptoError, KeyMismatch


class PaillierKeyOwner(KeyOwner):
    """The party with p and q: a given key, or a fresh one of this many bits.

    3072 bits give 128-bit security, 2048 bits 112-bit.

    Raises:
        ConfigError: a key of other than 3072 or 2048 bits, or a phe without gmpy2.
        RangeExceeded: a format whose products do not fit.
    """

    _packs = False

    def __init__(
        self, product_format: ProductFormat, key: int | PaillierPrivateKey = PAILLIER_KEY_SIZES[0]
    ) -> None:
        _require_gmpy2()
        key_bits = key if isinstance(key, int) else key.public_key.n.bit_length()
        if key_bits not in PAILLIER_KEY_SIZES:
            sizes = " or ".join(map(str, PAILLIER_KEY_SIZES))
            raise ConfigError(f"key_bits is {key_bits}, {sizes} expected for Paillier")
        if isinstance(key, int):
            key = generate_paillier_keypair(n_length=key)[1]
        self._format = product_format
        self._private_key = key
        self._public_key = key.public_key
        self._public_bytes = with_roots(key.p, key.q)
        self._slots = Slots.of(product_format, key_bits, packed=self._packs)

    @property
    @override
    def public_bytes(self) -> bytes:
        """The modulus n and its roots, big-endian; see paillier_modulus."""
        return self._public_bytes

    @property
    @override
    def key_bits(self) -> int:
        return int(self._public_key.n.bit_length())

    @override
    def decrypt(self, ciphertext: bytes, columns: int) -> RingArray:
        numbers = split_ciphertexts(self._public_key, ciphertext, self._slots.replies(columns))
        plains = [self._private_key.raw_decrypt(number) for number in numbers]
        return self._slots.shares(plains, columns)


class PaillierKeyPeer(Evaluator):
    """A party that multiplies under another party's key, of the agreed or any allowed size.

    Raises:
        ConfigError: a phe without gmpy2.
        KeyMismatch: a modulus of another size, or one that might not hide X; see `modulus_of`.
        RangeExceeded: a format whose products do not fit.
    """

    _packs = False

    def __init__(
        self, public_bytes: bytes, product_format: ProductFormat, key_bits: int | None = None
    ) -> None:
        _require_gmpy2()
        allowed = PAILLIER_KEY_SIZES if key_bits is None else (key_bits,)
        n = modulus_of(public_bytes, allowed)
        self._public_key = PaillierPublicKey(n)
        self._format = product_format
        self._slots = Slots.of(product_format, n.bit_length(), packed=self._packs)

    def _fresh_mask(self) -> int:
        """A mask of a whole plaintext, uniform modulo n."""
        return secrets.randbelow(self._public_key.n)


def ciphertext_bytes(public_key: PaillierPublicKey) -> int:
    """Bytes of one ciphertext on the wire."""
    return 2 * _key_bytes(public_key)


def split_ciphertexts(public_key: PaillierPublicKey, data: bytes, count: int) -> list[int]:
    """The integers of a vector on the wire, big-endian, units modulo n².

    Raises:
        CryptoError: another number of bytes.
        KeyMismatch: a number that is not a unit below n².
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
        raise KeyMismatch("a Paillier ciphertext is not a unit modulo n^2")
    return numbers


def _key_bytes(public_key: PaillierPublicKey) -> int:
    return int(public_key.n.bit_length() + 7) // 8


def _require_gmpy2() -> None:
    if not phe.util.HAVE_GMP:
        raise ConfigError("phe runs without gmpy2, ten times slower; install gmpy2")


class PaillierOwner(PaillierKeyOwner):
    """The party with p and q."""

    @override
    def encrypt(self, values: IntArray) -> bytes:
        """Encrypt integers of shape (S,): S·2·key_bytes bytes."""
        require_values(values, self._format)
        return _to_bytes(
            self._public_key, [_encrypt(self._public_key, value) for value in values.tolist()]
        )


@dataclass(frozen=True)
class PreparedColumns:
    """X as its nonzero entries, column by column: (row, entry) pairs."""

    rows: int
    columns: tuple[tuple[tuple[int, int], ...], ...]


class PaillierEvaluator(PaillierKeyPeer):
    """A party that multiplies under another party's key."""

    @override
    def prepare(self, matrix: IntArray) -> PreparedColumns:
        require_matrix(matrix, self._format)
        columns = tuple(
            tuple((row, entry) for row, entry in enumerate(column) if entry)
            for column in matrix.T.tolist()
        )
        return PreparedColumns(len(matrix), columns)

    @override
    def masked_product(self, encrypted: bytes, prepared: object) -> MaskedReply:
        if not isinstance(prepared, PreparedColumns):
            raise CryptoError(f"prepared is a {type(prepared).__name__}, not Paillier columns")
        positive = _from_bytes(self._public_key, encrypted, prepared.rows)
        negative: dict[int, EncryptedNumber] = {}  # one inversion per row instead of one per entry
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
                if abs(entry) > 1:
                    factor = factor * _encoded(self._public_key, abs(entry))
                total += factor
            masks.append(mask)
            replies.append(total)
        shares = self._slots.shares(masks, len(masks))
        return MaskedReply(_to_bytes(self._public_key, replies), shares)


def _encoded(public_key: PaillierPublicKey, value: int) -> EncodedNumber:
    return EncodedNumber(public_key, value % public_key.n, 0)


def _encrypt(public_key: PaillierPublicKey, value: int) -> EncryptedNumber:
    return public_key.encrypt(_encoded(public_key, value))  # blinds with ρⁿ, ρ below n


def _to_bytes(public_key: PaillierPublicKey, numbers: Sequence[EncryptedNumber]) -> bytes:
    width = ciphertext_bytes(public_key)
    # Every number here has a full ρⁿ from `_encrypt`.
    return b"".join(n.ciphertext(be_secure=False).to_bytes(width, "big") for n in numbers)


def _from_bytes(public_key: PaillierPublicKey, data: bytes, count: int) -> list[EncryptedNumber]:
    numbers = split_ciphertexts(public_key, data, count)
    return [EncryptedNumber(public_key, number, 0) for number in numbers]
