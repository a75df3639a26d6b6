"""Random n-th residues modulo n² for the encryptions of whoever knows p and q.

Never for a peer's replies: those carry X, and need the uniform residues of `uniform_residue`.
"""

import secrets

import gmpy2
from gmpy2 import mpz
from phe.paillier import PaillierPrivateKey

EXPONENT_BITS = 320
_WINDOW_BITS = 8


class _ModuloPrimeSquares:
    """Arithmetic modulo n² as pairs modulo p² and q²."""

    def __init__(self, private_key: PaillierPrivateKey) -> None:
        self._primes = mpz(private_key.p), mpz(private_key.q)
        self._squares = self._primes[0] ** 2, self._primes[1] ** 2
        self._inverse = gmpy2.invert(*self._squares)

    def _combined(self, modulo_p: mpz, modulo_q: mpz) -> mpz:
        p_squared, q_squared = self._squares
        return modulo_p + p_squared * ((modulo_q - modulo_p) * self._inverse % q_squared)


class ShortExponentResidues(_ModuloPrimeSquares):
    """Powers of an n-th residue, the h_n of Damgård, Jurik, Nielsen (2010, section 4.2).

    h_n = −square to the n, the square that of a secret uniform unit; exponents are of 320 uniform
    bits. Assumes, besides Paillier's assumption, that powers with such short exponents look like
    those with full ones: the best attacks known take 2^(320/2) steps, and 2^10 fewer against the
    first of 2^20 ciphertexts. Given that, minus the square of a number uniform modulo n² in place
    of h_n hides every plaintext, for any primes of n. (DJN take |n|/2 bits; their primes are 3 mod
    4 so that Jacobi symbols are all 1. Otherwise the symbol may show an exponent's lowest bit, and
    nothing of the plaintext: (1 + n)^v is 1 modulo n.)

    Powers are from a fixed-base table of 8-bit windows (Brickell et al., EUROCRYPT 1992).
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
    """Residues ρⁿ, ρ uniform among the units below n: no assumption but Paillier's.

    ρⁿ modulo p² is (ρ^q)^p, and runs through the p-th powers of all units below p evenly.
    """

    def draw(self) -> mpz:
        """A fresh residue modulo n²."""
        (p, q), (p_squared, q_squared) = self._primes, self._squares
        return self._combined(
            gmpy2.powmod(_unit(p), p, p_squared), gmpy2.powmod(_unit(q), q, q_squared)
        )


def uniform_residue(n: mpz) -> mpz:
    """ρⁿ modulo n², ρ uniform among the units below n, for whoever knows n only."""
    return gmpy2.powmod(_unit(n), n, n * n)


def _unit(modulus: mpz) -> mpz:
    while True:
        candidate = mpz(secrets.randbelow(int(modulus)))
        if gmpy2.gcd(candidate, modulus) == 1:
            return candidate


def _powers(base: mpz, modulus: mpz) -> list[list[mpz]]:
    """base^(d·2^(8i)) for every digit d of every window i."""
    tables = []
    for _ in range(EXPONENT_BITS // _WINDOW_BITS):
        row = [mpz(1)]
        for _ in range(1 << _WINDOW_BITS):
            row.append(row[-1] * base % modulus)
        base = row.pop()
        tables.append(row)
    return tables
