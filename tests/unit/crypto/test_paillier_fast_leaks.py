"""What anyone reads off replies blinded with short exponents, and not off ours."""

import gmpy2
import numpy as np
import pytest
from gmpy2 import mpz
from numpy.typing import NDArray
from phe.paillier import PaillierPrivateKey, PaillierPublicKey, generate_paillier_keypair

from securevfl.attacks.ciphertexts import parities_from_symbols
from securevfl.crypto.inspection import jacobi_symbols
from securevfl.crypto.paillier_fast import (
    FastPaillierEvaluator,
    FullPaillierOwner,
    ShortExponentResidues,
    UniformResidues,
    uniform_residue,
)
from securevfl.crypto.scheme import ProductFormat
from tests.small_keys import insecure
from tests.weakened import ShortBlinders

KEY_BITS = 256  # breakable at once: for speed
ROWS, REPLIES = 24, 60
FORMAT = ProductFormat(rows=ROWS, value_bound=1.0, matrix_bound=1.0, matrix_fraction_bits=0)
TINY = PaillierPrivateKey(PaillierPublicKey(11 * 13), 11, 13)
TINY_RESIDUES = 120


def blum_key() -> PaillierPrivateKey:
    """A key as Damgård, Jurik and Nielsen ask: all powers of −y² have Jacobi symbol 1."""
    while True:
        private: PaillierPrivateKey = generate_paillier_keypair(n_length=KEY_BITS)[1]
        if private.p % 4 == private.q % 4 == 3:
            return private


def attack(
    owner: FullPaillierOwner, evaluator: FastPaillierEvaluator, column: NDArray[np.int64]
) -> NDArray[np.int64] | None:
    """The 0/1 column from public ciphertexts alone, or None where the symbols contradict it."""
    n = owner.public_bytes
    prepared = evaluator.prepare(column[:, None])
    equations = []
    for _ in range(REPLIES):
        encrypted = owner.encrypt(np.arange(ROWS))
        reply = evaluator.masked_product(encrypted, prepared)
        equations.append(
            np.concatenate([jacobi_symbols(encrypted, n), jacobi_symbols(reply.ciphertext, n)])
        )
    return parities_from_symbols(np.array(equations), ROWS)


@pytest.fixture(scope="module")
def owner() -> FullPaillierOwner:
    return insecure(FullPaillierOwner, FORMAT, blum_key())


@pytest.fixture
def column() -> NDArray[np.int64]:
    return np.random.default_rng(5).integers(0, 2, ROWS)


def test_short_blinders_give_a_column_away(
    owner: FullPaillierOwner, column: NDArray[np.int64]
) -> None:
    evaluator = insecure(ShortBlinders, owner.public_bytes, FORMAT)
    evaluator.residues = ShortExponentResidues(owner._private_key)
    # fails where 60 random equations have no rank of 24: 2^-36
    found = attack(owner, evaluator, column)
    assert found is not None
    np.testing.assert_array_equal(found, column)


def test_our_blinders_contradict_every_column(
    owner: FullPaillierOwner, column: NDArray[np.int64]
) -> None:
    evaluator = insecure(FastPaillierEvaluator, owner.public_bytes, FORMAT)
    # false alarm: 36 coins that all fit, 2^-36
    assert attack(owner, evaluator, column) is None


def test_uniform_residues_of_the_owner_and_of_peers_are_uniform() -> None:
    n, uniform = mpz(TINY.public_key.n), UniformResidues(TINY)
    for draw in (uniform.draw, lambda: uniform_residue(n)):
        found, counts = np.unique([int(draw()) for _ in range(12000)], return_counts=True)
        expected = {pow(r, 143, 143**2) for r in range(143) if gmpy2.gcd(r, n) == 1}
        assert set(found.tolist()) == expected
        assert len(expected) == TINY_RESIDUES
        # chi-square with 119 degrees of freedom: 119 +- 15.4; false alarm under 1e-9
        assert ((counts - 100) ** 2 / 100).sum() < 119 + 8 * 15.4


def test_short_residues_are_powers_of_one_secret_residue(monkeypatch: pytest.MonkeyPatch) -> None:
    private = blum_key()
    residues, n = ShortExponentResidues(private), private.public_key.n

    def with_exponent(exponent: int) -> int:
        data = exponent.to_bytes(40, "little")
        monkeypatch.setattr("securevfl.crypto.paillier_fast.secrets.token_bytes", lambda _: data)
        return int(residues.draw())

    base = with_exponent(1)
    assert pow(base, (private.p - 1) * (private.q - 1), n * n) == 1  # an n-th residue
    for _ in range(8):  # of −y²: another base passes once in 4^8
        for table, prime in zip(
            ShortExponentResidues(private)._tables, (private.p, private.q), strict=True
        ):
            assert gmpy2.legendre(table[0][1], prime) == -1
    for exponent in (0, 2, 255, 256, 3**200, 2**320 - 1):
        assert with_exponent(exponent) == pow(base, exponent, n * n)


def test_two_keys_have_two_bases() -> None:
    private = blum_key()
    draws = {int(ShortExponentResidues(private)._tables[0][0][1]) for _ in range(3)}
    assert len(draws) == 3
