"""Paillier's fast engine: phe's numbers, slots, residues, and products in several processes.

What short exponents in replies would tell see tests/unit/auditing/test_ciphertexts.py.
"""

import json
import os
import signal
from pathlib import Path
from typing import Any

import gmpy2
import numpy as np
import pytest
from gmpy2 import mpz
from phe.paillier import (
    EncryptedNumber,
    PaillierPrivateKey,
    PaillierPublicKey,
    generate_paillier_keypair,
)

from securevfl.crypto import multi_exponentiation
from securevfl.crypto.fixed_point import unmask
from securevfl.crypto.paillier import PaillierOwner
from securevfl.crypto.paillier_fast import (
    FastPaillierEvaluator,
    FastPaillierOwner,
    FullPaillierOwner,
    ShortExponentResidues,
    UniformResidues,
    uniform_residue,
)
from securevfl.crypto.scheme import ProductFormat
from securevfl.crypto.schemes import make_evaluator, make_owner
from securevfl.errors import ConfigError, CryptoError, RangeExceeded
from securevfl.job import Job
from tests.ciphertexts import drawn, numbers, product, wire
from tests.small_keys import insecure

KEY_BITS = 512  # breakable at once: for speed
WIDTH = 2 * KEY_BITS // 8
FORMAT = ProductFormat(rows=24, value_bound=1.0, matrix_bound=2.0, columns=12, vectors=2)
VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "paillier.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def owner() -> FastPaillierOwner:
    return insecure(FastPaillierOwner, FORMAT, KEY_BITS)


@pytest.fixture(scope="module")
def evaluator(owner: FastPaillierOwner) -> FastPaillierEvaluator:
    return insecure(FastPaillierEvaluator, owner.public_bytes, FORMAT)


def modulus(owner: FastPaillierOwner) -> int:
    return int(owner._private_key.public_key.n)


@pytest.mark.parametrize("kind", [FastPaillierOwner, FullPaillierOwner])
def test_a_key_that_a_job_makes_works_end_to_end(kind: type[FastPaillierOwner]) -> None:
    product_format = ProductFormat(rows=256, value_bound=1.0, matrix_bound=2.0, columns=64)
    owner = kind(product_format, 2048)
    evaluator = FastPaillierEvaluator(owner.public_bytes, product_format, 2048)
    generator = np.random.default_rng(3)
    values = generator.integers(-(2**20), 2**20, 8)
    matrix = generator.integers(-(2**17), 2**17, (8, 64))
    np.testing.assert_array_equal(product(owner, evaluator, values, matrix), matrix.T @ values)
    encrypted = owner.encrypt(values)
    assert len(encrypted) == 8 * 512
    reply = evaluator.masked_product(encrypted, evaluator.prepare(matrix))
    assert len(reply.ciphertext) == 4 * 512  # 21 slots each
    assert (owner.key_bits, evaluator.modulus_bits) == (2048, 64)


@pytest.mark.parametrize("key", VECTORS["keys"], ids=lambda key: f"{key['bits']} bits")
def test_vectors_of_phe_decrypt_here_and_vectors_from_here_in_phe(key: dict[str, Any]) -> None:
    p, q = int(key["p"], 16), int(key["q"], 16)
    private, width = PaillierPrivateKey(PaillierPublicKey(p * q), p, q), key["bits"] // 4
    product_format = ProductFormat(**VECTORS["format"])
    owner = insecure(FastPaillierOwner, product_format, private)
    for vector in key["phe"]:
        theirs = int(vector["ciphertext"], 16).to_bytes(width, "big")
        assert owner.decrypt(theirs, 1).tolist() == [int(vector["plain"], 16) % 2**64]
    ours = key["ours"]
    for engine in ("fast", "fast-full"):
        found = [private.raw_decrypt(c) for c in numbers(bytes.fromhex(ours[engine]), width)]
        assert found == [value % (p * q) for value in ours["values"]]
    reply, matrix = ours["reply"], np.array(ours["reply"]["matrix"])
    masked = owner.decrypt(bytes.fromhex(reply["ciphertext"]), matrix.shape[1])
    mask = np.array([int(each) for each in reply["mask"]], np.uint64)
    np.testing.assert_array_equal(unmask(masked, mask), matrix.T @ np.array(ours["values"]))


def test_phe_objects_decrypt_ours_and_ours_multiplies_phes() -> None:
    public, private = generate_paillier_keypair(n_length=KEY_BITS)
    owner = insecure(FastPaillierOwner, FORMAT, private)
    baseline = insecure(PaillierOwner, FORMAT, private)
    evaluator = insecure(FastPaillierEvaluator, owner.public_bytes, FORMAT)
    ours = [
        EncryptedNumber(public, c) for c in numbers(owner.encrypt(np.array([-123456, 7])), WIDTH)
    ]
    assert [private.decrypt(number) for number in ours] == [-123456, 7]
    theirs = public.encrypt(987654321).ciphertext()
    assert owner.decrypt(wire(WIDTH, theirs), 1).tolist() == [987654321]
    reply = evaluator.masked_product(
        baseline.encrypt(np.array([40000, -3])), evaluator.prepare(np.array([[-2, 9], [5, 0]]))
    )
    assert unmask(owner.decrypt(reply.ciphertext, 2), reply.mask).tolist() == [-80015, 360000]


def test_columns_beyond_the_format_are_refused(evaluator: FastPaillierEvaluator) -> None:
    with pytest.raises(RangeExceeded, match="13 columns, at most 12 agreed"):
        evaluator.prepare(np.zeros((1, 13), np.int64))


def test_stocks_last_for_a_round_and_every_blinder_is_used_once() -> None:
    owner = insecure(FastPaillierOwner, FORMAT, KEY_BITS)
    evaluator = insecure(FastPaillierEvaluator, owner.public_bytes, FORMAT)
    prepared = evaluator.prepare(np.ones((2, 12), np.int64))
    assert owner.lacks_blinders()
    assert evaluator.lacks_blinders(prepared)
    assert sum(iter(owner.make_blinder, False)) == 24 * 2
    assert sum(iter(evaluator.make_blinder, False)) == 3 * 2  # 5 slots each
    assert not owner.lacks_blinders()
    for _ in range(2):
        assert not evaluator.lacks_blinders(prepared)
        evaluator.masked_product(owner.encrypt(np.array([1, 2])), prepared)
    assert evaluator.lacks_blinders(prepared)
    assert sum(iter(owner.make_blinder, False)) == 4


TINY = PaillierPrivateKey(PaillierPublicKey(11 * 13), 11, 13)
TINY_RESIDUES = 120


def blum_key() -> PaillierPrivateKey:
    """A key as Damgård, Jurik and Nielsen ask: all powers of −y² have Jacobi symbol 1."""
    while True:
        private: PaillierPrivateKey = generate_paillier_keypair(n_length=KEY_BITS)[1]
        if private.p % 4 == private.q % 4 == 3:
            return private


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


def test_encryptions_of_zero_are_nth_residues(owner: FastPaillierOwner) -> None:
    n = modulus(owner)
    for number in numbers(owner.encrypt(np.array([0, 0, 0])), WIDTH):
        assert (
            gmpy2.powmod(number, (owner._private_key.p - 1) * (owner._private_key.q - 1), n**2) == 1
        )


def test_the_widest_window_serves_where_none_is_cheaper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multi_exponentiation, "_WIDTHS", range(2, 4))
    matrix = np.random.default_rng(3).integers(-(1 << 40), 1 << 40, (2, 50))
    rows, columns, positions, digits = multi_exponentiation._cheapest(matrix)
    rebuilt = np.zeros_like(matrix)
    np.add.at(rebuilt, (rows, columns), digits << positions)
    assert np.array_equal(rebuilt, matrix)
    assert int(np.abs(digits).max()) == 3


ROWS, COLUMNS = 9, 5


@pytest.fixture(scope="module")
def spread(owner: FastPaillierOwner) -> FastPaillierEvaluator:
    evaluator = insecure(FastPaillierEvaluator, owner.public_bytes, FORMAT)
    evaluator.spread_over(3)
    return evaluator


@pytest.mark.parametrize("rows", [1, 2, ROWS])
@pytest.mark.parametrize("extreme", [False, True])
def test_three_processes_find_what_one_finds(
    owner: FastPaillierOwner, spread: FastPaillierEvaluator, rows: int, extreme: bool
) -> None:
    values, matrix = drawn(FORMAT, rows, COLUMNS, rows)
    if extreme:
        values[:] = FORMAT.largest_value
        matrix[:] = -FORMAT.largest_entry
    assert np.array_equal(product(owner, spread, values, matrix), matrix.T @ values)


def test_a_worker_that_dies_ends_the_product(owner: FastPaillierOwner) -> None:
    evaluator = insecure(FastPaillierEvaluator, owner.public_bytes, FORMAT)
    evaluator.spread_over(2)
    encrypted = owner.encrypt(np.ones(ROWS, np.int64))
    prepared = evaluator.prepare(np.ones((ROWS, COLUMNS), np.int64))
    evaluator.masked_product(encrypted, prepared)
    workers = evaluator._accumulate.__self__  # type: ignore[attr-defined]
    (child,) = workers._pool._processes
    os.kill(child, signal.SIGKILL)
    workers._pool._processes[child].join(10)
    with pytest.raises(CryptoError, match="a worker process died"):
        evaluator.masked_product(encrypted, prepared)


@pytest.mark.parametrize(("scheme", "engine"), [("ckks", None), ("paillier", "phe")])
def test_schemes_that_do_not_spread_say_so(scheme: str, engine: str | None) -> None:
    bits = 2048 if engine else None
    owner = make_owner(scheme, FORMAT, key_bits=bits, engine=engine)
    with pytest.raises(ConfigError, match="workers is 2, 1 expected"):
        make_evaluator(scheme, owner.public_bytes, FORMAT, key_bits=bits, engine=engine, workers=2)


def test_the_number_of_workers_is_each_partys_own_affair() -> None:
    one, two = (
        Job.of(exchange={"scheme": "paillier", "workers": count}).hash() for count in (1, 2)
    )
    assert one == two
