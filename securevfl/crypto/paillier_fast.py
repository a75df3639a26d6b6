"""Paillier on phe's keys and ciphertexts, fast and compatible with phe.

The owner encrypts with residues modulo p² and q² from a fixed-base table. The evaluator raises to
all of X at once (multi_exponentiation) and packs many results into one ciphertext. Ciphertexts on
the wire are those of `paillier`.

Guarantees: those of `paillier`, whose masks cover the whole plaintext. The short exponents of the
owner's encryptions would not suffice for replies: all powers of one number have the same residues
modulo the primes of n up to a power, and the Jacobi symbol of a reply would be a parity of X.
"""

import secrets
from dataclasses import dataclass

import gmpy2
from gmpy2 import mpz
from phe.paillier import PaillierPrivateKey
from typing_extensions import override

from securevfl.arrays import IntArray
from securevfl.crypto.fixed_point import require_matrix, require_values
from securevfl.crypto.multi_exponentiation import (
    Accumulate,
    Exponents,
    Workers,
    accumulated,
    products,
)
from securevfl.crypto.paillier import (
    PaillierKeyOwner,
    PaillierKeyPeer,
    ciphertext_bytes,
    split_ciphertexts,
)
from securevfl.crypto.scheme import (
    PAILLIER_KEY_SIZES,
    BlinderPool,
    MaskedReply,
    ProductFormat,
)
from securevfl.errors import CryptoError, RangeExceeded

EXPONENT_BITS = 320
_WINDOW_BITS = 8


class _ModuloPrimeSquares:
    """Arithmetic modulo n² as pairs modulo p² and q², for the owner's own encryptions only."""

    def __init__(self, private_key: PaillierPrivateKey) -> None:
        self._primes = mpz(private_key.p), mpz(private_key.q)
        self._squares = self._primes[0] ** 2, self._primes[1] ** 2
        self._inverse = gmpy2.invert(*self._squares)

    def _combined(self, modulo_p: mpz, modulo_q: mpz) -> mpz:
        p_squared, q_squared = self._squares
        return modulo_p + p_squared * ((modulo_q - modulo_p) * self._inverse % q_squared)


class ShortExponentResidues(_ModuloPrimeSquares):
    """Powers of an n-th residue, the h_n of Damgård, Jurik, Nielsen (2010, section 4.2).

    h_n is minus the n-th power of the square of a secret uniform unit; exponents have 320 uniform
    bits. Assumption, besides Paillier's: powers with such short exponents look like those with full
    ones. The best known attacks take 2^(320/2) steps, and 2^10 fewer against the first of 2^20
    ciphertexts. Under this assumption, minus the square of a number uniform modulo n² instead of
    h_n hides every plaintext, for any primes of n. (DJN use |n|/2 bits; their primes are 3 mod 4 so
    that all Jacobi symbols are 1. Otherwise the symbol may show an exponent's lowest bit, but
    nothing of the plaintext: (1 + n)^v is 1 modulo n.)

    Powers are computed from a fixed-base table of 8-bit windows (Brickell et al., EUROCRYPT 1992).
    """

    def __init__(self, private_key: PaillierPrivateKey) -> None:
        super().__init__(private_key)
        n = private_key.public_key.n
        h = -(_unit(mpz(n)) ** 2)
        self._tables = [_powers(gmpy2.powmod(h, n, square), square) for square in self._squares]

    def draw(self) -> mpz:
        """A fresh residue modulo n²."""
        exponent = secrets.token_bytes(EXPONENT_BITS // _WINDOW_BITS)
        return self._combined(self._power(0, exponent), self._power(1, exponent))

    def _power(self, half: int, exponent: bytes) -> mpz:
        square, result = self._squares[half], mpz(1)
        for table, digit in zip(self._tables[half], exponent, strict=True):
            result = result * table[digit] % square
        return result


class UniformResidues(_ModuloPrimeSquares):
    """Residues ρⁿ, ρ uniform among the units below n, under Paillier's assumption only.

    ρⁿ modulo p² is (ρ^q)^p, and takes the p-th powers of all units below p equally often.
    """

    def draw(self) -> mpz:
        """A fresh residue modulo n²."""
        (p, q), (p_squared, q_squared) = self._primes, self._squares
        return self._combined(
            gmpy2.powmod(_unit(p), p, p_squared), gmpy2.powmod(_unit(q), q, q_squared)
        )


def uniform_residue(n: mpz) -> mpz:
    """ρⁿ modulo n², ρ uniform among the units: required for replies, which depend on X."""
    return gmpy2.powmod(_unit(n), n, n * n)


def _unit(modulus: mpz) -> mpz:
    while True:
        candidate = mpz(secrets.randbelow(int(modulus)))
        if gmpy2.gcd(candidate, modulus) == 1:
            return candidate


def _powers(base: mpz, modulus: mpz) -> list[list[mpz]]:
    tables = []
    for _ in range(EXPONENT_BITS // _WINDOW_BITS):
        row = [mpz(1)]
        for _ in range(1 << _WINDOW_BITS):
            row.append(row[-1] * base % modulus)
        base = row.pop()
        tables.append(row)
    return tables


class FastPaillierOwner(PaillierKeyOwner):
    """The party with p and q; it encrypts with short exponents."""

    _packs = True
    _residues_of: type[ShortExponentResidues | UniformResidues] = ShortExponentResidues

    def __init__(
        self, product_format: ProductFormat, key: int | PaillierPrivateKey = PAILLIER_KEY_SIZES[0]
    ) -> None:
        super().__init__(product_format, key)
        capacity = product_format.rows * product_format.vectors
        self._pool = BlinderPool(self._residues_of(self._private_key).draw, capacity)

    @override
    def make_blinder(self) -> bool:
        return self._pool.make_one()

    @override
    def lacks_blinders(self) -> bool:
        return len(self._pool) < self._format.rows

    @override
    def encrypt(self, values: IntArray) -> bytes:
        """Encrypt integers of shape (S,): S·2·key_bytes bytes."""
        require_values(values, self._format)
        n, width = mpz(self._public_key.n), ciphertext_bytes(self._public_key)
        modulus = n * n
        return b"".join(
            ((1 + n * value) * self._pool.take() % modulus).to_bytes(width, "big")
            for value in values.tolist()
        )


class FullPaillierOwner(FastPaillierOwner):
    """As FastPaillierOwner, but encrypts with ρⁿ, ρ uniform, as phe does."""

    _residues_of = UniformResidues


@dataclass(frozen=True)
class PreparedExponents:
    """X of shape (S, columns), recoded."""

    columns: int
    exponents: Exponents


class FastPaillierEvaluator(PaillierKeyPeer):
    """A party that multiplies under another party's key."""

    _packs = True

    def __init__(
        self, public_bytes: bytes, product_format: ProductFormat, key_bits: int | None = None
    ) -> None:
        super().__init__(public_bytes, product_format, key_bits)
        self._n = mpz(self._public_key.n)
        capacity = self._slots.replies(product_format.columns) * product_format.vectors
        self._pool = BlinderPool(self._blinder, capacity)
        self._accumulate: Accumulate = accumulated

    def spread_over(self, workers: int) -> None:
        """Divide products among this many processes, including this one."""
        if workers > 1:
            self._accumulate = Workers(workers).accumulated

    def _blinder(self) -> mpz:
        return uniform_residue(self._n)

    @override
    def make_blinder(self) -> bool:
        return self._pool.make_one()

    @override
    def lacks_blinders(self, prepared: object) -> bool:
        return len(self._pool) < _own(prepared).exponents.results

    @override
    def prepare(self, matrix: IntArray) -> PreparedExponents:
        require_matrix(matrix, self._format)
        columns = matrix.shape[1]
        if columns > self._format.columns:
            raise RangeExceeded(f"{columns} columns, at most {self._format.columns} agreed")
        exponents = Exponents.of(matrix, self._slots.width, self._slots.count)
        return PreparedExponents(columns, exponents)

    @override
    def masked_product(self, encrypted: bytes, prepared: object) -> MaskedReply:
        product = _own(prepared)
        numbers = split_ciphertexts(self._public_key, encrypted, product.exponents.rows)
        n, width = self._n, ciphertext_bytes(self._public_key)
        modulus = n * n
        masks, replies = [], []
        for unit, term in products(numbers, product.exponents, n, self._accumulate):
            mask = self._fresh_mask()
            shifted = 1 + n * ((term + mask) % n)
            reply = unit * shifted % modulus * self._pool.take() % modulus
            replies.append(reply.to_bytes(width, "big"))
            masks.append(mask)
        return MaskedReply(b"".join(replies), self._slots.shares(masks, product.columns))


def _own(prepared: object) -> PreparedExponents:
    if not isinstance(prepared, PreparedExponents):
        raise CryptoError(f"prepared is a {type(prepared).__name__}, not Paillier exponents")
    return prepared
