"""BFV's two ends: what they share, what they refuse, and products at the bounds of a format."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from securevfl.arrays import IntArray
from securevfl.crypto.bfv import BfvEvaluator, BfvOwner, PreparedPolynomials
from securevfl.crypto.bfv_core import pack_reply, reply_bytes, unpack_reply
from securevfl.crypto.fixed_point import unmask
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


@pytest.mark.parametrize(
    "addend",
    [
        np.zeros(3, np.int64),
        np.array([FORMAT.largest_product + 1]),
        np.array([-(1 << 63)]),
        np.array([2.5]),
        np.array([[1, 2]]),
        np.array([True]),
    ],
    ids=["more than columns", "too large", "least", "real", "matrix", "bool"],
)
def test_addends_beyond_the_format_or_the_columns_are_refused(
    evaluator: BfvEvaluator, encrypted: bytes, addend: IntArray
) -> None:
    with pytest.raises(RangeExceeded, match="addends"):
        evaluator.partly_open_product(encrypted, evaluator.prepare(MATRIX[:, :2]), addend)


@pytest.mark.parametrize("generator", [0, 2, 3, 255])
def test_a_seed_for_another_generator_does_not_pass(
    owner: BfvOwner,
    evaluator: BfvEvaluator,
    encrypted: bytes,
    prepared: PreparedPolynomials,
    generator: int,
) -> None:
    damaged = bytearray(encrypted)
    assert damaged[16 - SEED_BYTES] == 1  # BLAKE2xb; 2 is SHAKE256
    damaged[16 - SEED_BYTES] = generator
    with pytest.raises(KeyMismatch):
        owner.decrypt(evaluator.masked_product(bytes(damaged), prepared).ciphertext, COLUMNS)


@pytest.mark.parametrize("columns", [1, 2, 47, COLUMNS])
def test_a_reply_under_another_key_is_refused_however_few_columns_it_has(
    evaluator: BfvEvaluator, encrypted: bytes, columns: int
) -> None:
    reply = evaluator.masked_product(encrypted, evaluator.prepare(MATRIX[:, :columns])).ciphertext
    with pytest.raises(KeyMismatch):
        BfvOwner(FORMAT).decrypt(reply, columns)


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


@pytest.mark.parametrize("odd", [0, 1])
def test_noise_is_noticed_at_every_other_place(owner: BfvOwner, reply: bytes, odd: int) -> None:
    """7/16 of what lies between two plaintexts: too little to change what is decrypted."""
    parameters, prime = owner._parameters, owner._primes[0]
    assert parameters.reply_primes == 1
    positions = parameters.positions(COLUMNS)
    size = reply_bytes(parameters, len(positions))
    polynomials = unpack_reply(parameters, reply[:size], positions)
    noise = (1 - 2 * odd) * (prime * 7 // 16 >> parameters.plain_bits)
    moved = polynomials[0, 0, positions[odd::2]].astype(object) + noise
    polynomials[0, 0, positions[odd::2]] = (moved % prime).astype(np.uint64)
    with pytest.raises(KeyMismatch, match="damaged"):
        owner.decrypt(pack_reply(parameters, polynomials, positions) + reply[size:], COLUMNS)


def test_what_was_prepared_for_other_bounds_or_by_another_scheme_is_refused(
    owner: BfvOwner, evaluator: BfvEvaluator, encrypted: bytes
) -> None:
    """The same ring and primes, but entries 16 times as large: flooding would fall short."""
    other = replace(FORMAT, matrix_bound=64.0, value_fraction_bits=14)
    prepared = BfvEvaluator(owner.public_bytes, other).prepare(MATRIX)
    with pytest.raises(CryptoError, match="another format"):
        evaluator.masked_product(encrypted, prepared)
    with pytest.raises(CryptoError, match="another format"):
        evaluator.lacks_blinders(prepared)
    with pytest.raises(CryptoError, match="not BFV polynomials"):
        evaluator.lacks_blinders(object())


def test_preparing_a_large_matrix_makes_no_copy_of_it() -> None:
    fmt = replace(FORMAT, rows=20_000, columns=64)
    evaluator = BfvEvaluator(BfvOwner(fmt).public_bytes, fmt)
    matrix = np.ones((fmt.rows, fmt.columns), np.int64)
    tracemalloc.start()
    try:
        evaluator.prepare(matrix)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < matrix.nbytes / 2  # SEAL's own memory is not traced


def test_maximal_products_of_many_replies_and_two_primes_are_accepted() -> None:
    """Groups of four replies are tested together, each with all the noise there can be."""
    fmt = replace(
        FORMAT, value_fraction_bits=24, matrix_fraction_bits=16, columns=3000, latency_ms=20.0
    )
    owner = BfvOwner(fmt)
    assert owner._parameters.reply_primes == 2
    assert owner._parameters.replies(3000) > 4
    evaluator = BfvEvaluator(owner.public_bytes, fmt)
    prepared = evaluator.prepare(np.full((ROWS, 3000), -fmt.largest_entry))
    extreme = np.full(ROWS, fmt.largest_value)
    for _ in range(3):
        reply = evaluator.masked_product(owner.encrypt(extreme), prepared)
        found = unmask(owner.decrypt(reply.ciphertext, 3000), reply.mask, owner.modulus_bits)
        assert np.all(found == -ROWS * fmt.largest_value * fmt.largest_entry)


def test_an_addend_that_would_wrap_with_the_product_is_refused() -> None:
    fmt = replace(FORMAT, value_bound=0.999, summands=2)
    owner = BfvOwner(fmt)
    evaluator = BfvEvaluator(owner.public_bytes, fmt)
    prepared = evaluator.prepare(np.full((ROWS, 1), fmt.largest_entry))
    encrypted = owner.encrypt(np.full(ROWS, fmt.largest_value))
    largest = fmt.largest_product // 2
    most = (1 << (owner.modulus_bits - 1)) - 1 - largest
    assert most >= largest  # room for next predictions
    reply = evaluator.partly_open_product(encrypted, prepared, np.array([most]))
    found = unmask(owner.decrypt(reply.ciphertext, 1), np.zeros(1, np.uint64), owner.modulus_bits)
    assert found.tolist() == [largest + most]
    with pytest.raises(RangeExceeded, match="addends"):
        evaluator.partly_open_product(encrypted, prepared, np.array([most + 1]))
