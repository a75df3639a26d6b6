"""BFV's two ends: what they share, what they refuse, and products at the bounds of a format."""

import tracemalloc
from dataclasses import replace
from math import prod

import numpy as np
import pytest

from securevfl.crypto.bfv import BfvEvaluator, BfvOwner, PreparedPolynomials
from securevfl.crypto.fixed_point import shifted, unmask
from securevfl.crypto.inspection import with_noise
from securevfl.crypto.seal_codec import SEED_BYTES
from securevfl.errors import CryptoError, KeyMismatch, RangeExceeded
from tests.ciphertexts import drawn, format_of

ROWS, COLUMNS = 100, 200
FORMAT = format_of(ROWS, COLUMNS, 4.0, (18, 12), rounds=100)
VALUES, MATRIX = drawn(FORMAT, ROWS, COLUMNS, 1)


@pytest.fixture(scope="module")
def owner() -> BfvOwner:
    return BfvOwner(FORMAT)


@pytest.fixture(scope="module")
def evaluator(owner: BfvOwner) -> BfvEvaluator:
    return BfvEvaluator(owner.public_bytes, FORMAT)


@pytest.fixture(scope="module")
def prepared(evaluator: BfvEvaluator) -> PreparedPolynomials:
    return evaluator.prepare(MATRIX)


@pytest.fixture(scope="module")
def encrypted(owner: BfvOwner) -> bytes:
    return owner.encrypt(VALUES)


@pytest.fixture(scope="module")
def reply(evaluator: BfvEvaluator, encrypted: bytes, prepared: PreparedPolynomials) -> bytes:
    return evaluator.masked_product(encrypted, prepared).ciphertext


def test_hundreds_of_honest_replies_are_accepted(owner: BfvOwner, evaluator: BfvEvaluator) -> None:
    extreme = np.full(ROWS, FORMAT.largest_value)
    signs = np.where(MATRIX < 0, -FORMAT.largest_entry, FORMAT.largest_entry)
    prepared = evaluator.prepare(signs)
    expected = signs.T @ extreme
    for _ in range(100):
        reply = evaluator.masked_product(owner.encrypt(extreme), prepared)
        found = unmask(owner.decrypt(reply.ciphertext, COLUMNS), reply.mask, owner.modulus_bits)
        assert np.array_equal(found, expected)


def test_more_columns_than_agreed_are_refused(evaluator: BfvEvaluator) -> None:
    with pytest.raises(RangeExceeded, match="columns"):
        evaluator.prepare(np.zeros((ROWS, COLUMNS + 1), np.int64))


@pytest.mark.parametrize("generator", [0, 3, 255])
def test_a_seed_for_no_generator_does_not_pass(
    evaluator: BfvEvaluator, encrypted: bytes, prepared: PreparedPolynomials, generator: int
) -> None:
    damaged = bytearray(encrypted)
    assert damaged[16 - SEED_BYTES] == 1  # BLAKE2xb; 2 is SHAKE256
    damaged[16 - SEED_BYTES] = generator
    with pytest.raises(KeyMismatch):
        evaluator.masked_product(bytes(damaged), prepared)


@pytest.mark.parametrize("summands", [1, 2, 3, 4])
def test_carries_round_off_even_where_noise_makes_one_in_most_products(summands: int) -> None:
    """Noise of up to 19/20 of a unit, of its owner's choice, and sums of products."""
    fmt = replace(FORMAT, columns=16, summands=summands)
    owner = BfvOwner(fmt)
    evaluator = BfvEvaluator(owner.public_bytes, fmt)
    parameters, matrix = owner._parameters, MATRIX[:, :16].copy()
    matrix[0] = np.linspace(-fmt.largest_entry, fmt.largest_entry, 16).astype(np.int64)
    noise = prod(owner._primes) * 19 // 20 // fmt.largest_entry >> parameters.plain_bits
    prepared = evaluator.prepare(matrix)
    off = []
    for _ in range(30):
        total = np.zeros(16, np.uint64)
        for _ in range(summands):
            encrypted = with_noise(owner._parameters, owner.encrypt(VALUES), 0, noise)
            reply = evaluator.masked_product(encrypted, prepared)
            total += owner.decrypt(reply.ciphertext, 16) - reply.mask
        found = unmask(total, np.zeros(16, np.uint64), owner.modulus_bits)
        assert np.array_equal(found, summands * (matrix.T @ VALUES))
        rest = total - shifted(found, owner.modulus_bits)
        off.append(rest.view(np.int64) >> (64 - parameters.plain_bits))
    assert np.abs(off).max() == summands
    assert 0.2 < np.mean(np.abs(off)) / summands < 0.8


@pytest.mark.parametrize("columns", [0, -1, COLUMNS - 60, COLUMNS + 60])
def test_a_reply_with_another_number_of_columns_is_refused(
    owner: BfvOwner, reply: bytes, columns: int
) -> None:
    with pytest.raises(CryptoError, match="expected"):
        owner.decrypt(reply if columns > 0 else reply[:0], columns)


def test_words_of_a_reply_that_are_no_residues_are_refused(owner: BfvOwner, reply: bytes) -> None:
    # c₁ comes first, the revealed c₀ last.
    for cut in (slice(0, 20), slice(-20, None)):
        damaged = bytearray(reply)
        damaged[cut] = b"\xff" * 20
        with pytest.raises(KeyMismatch, match="Ciphertext"):
            owner.decrypt(bytes(damaged), COLUMNS)


def test_what_was_prepared_for_other_bounds_or_by_another_scheme_is_refused(
    owner: BfvOwner, evaluator: BfvEvaluator, encrypted: bytes
) -> None:
    """The same ring and primes: one round more."""
    other = replace(FORMAT, rounds=FORMAT.rounds + 1)
    prepared = BfvEvaluator(owner.public_bytes, other).prepare(MATRIX)
    with pytest.raises(CryptoError, match="another format"):
        evaluator.masked_product(encrypted, prepared)
    with pytest.raises(CryptoError, match="another format"):
        evaluator.lacks_blinders(prepared)
    with pytest.raises(CryptoError, match="not BFV polynomials"):
        evaluator.lacks_blinders(object())


def test_preparing_a_large_matrix_keeps_half_of_it_at_most() -> None:
    fmt = replace(FORMAT, rows=20_000, columns=64)
    evaluator = BfvEvaluator(BfvOwner(fmt).public_bytes, fmt)
    matrix = np.ones((fmt.rows, fmt.columns), np.int64)
    tracemalloc.start()
    try:
        evaluator.prepare(matrix)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < matrix.nbytes * 0.51  # integers of 32 bits, or what is SEAL's and not traced


def test_maximal_products_of_many_replies_are_exact() -> None:
    fmt = replace(
        FORMAT, value_fraction_bits=24, matrix_fraction_bits=16, columns=3000, latency_ms=20.0
    )
    owner = BfvOwner(fmt)
    assert owner._parameters.replies(3000) > 4
    evaluator = BfvEvaluator(owner.public_bytes, fmt)
    prepared = evaluator.prepare(np.full((ROWS, 3000), -fmt.largest_entry))
    extreme = np.full(ROWS, fmt.largest_value)
    for _ in range(3):
        reply = evaluator.masked_product(owner.encrypt(extreme), prepared)
        found = unmask(owner.decrypt(reply.ciphertext, 3000), reply.mask, owner.modulus_bits)
        assert np.all(found == -ROWS * fmt.largest_value * fmt.largest_entry)
