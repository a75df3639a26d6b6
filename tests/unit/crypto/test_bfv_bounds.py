"""BFV at the bounds of a format: the largest products are exact, and what could wrap is refused."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from securevfl.crypto.bfv import BfvEvaluator, BfvOwner
from securevfl.crypto.fixed_point import unmask
from securevfl.crypto.scheme import ProductFormat
from securevfl.errors import RangeExceeded

ROWS, COLUMNS = 100, 200
FORMAT = ProductFormat(
    rows=ROWS,
    value_bound=1.0,
    matrix_bound=4.0,
    value_fraction_bits=18,
    matrix_fraction_bits=12,
    columns=COLUMNS,
    rounds=100,
)


@pytest.mark.parametrize("rows", [20_000, 60_000])
def test_products_over_tens_of_thousands_of_rows_are_exact_up_to_their_bound(rows: int) -> None:
    fmt = replace(FORMAT, rows=rows, columns=3, matrix_bound=8.0)
    owner = BfvOwner(fmt)
    evaluator = BfvEvaluator(owner.public_bytes, fmt)
    generator = np.random.default_rng(rows)
    values = np.full(rows, fmt.largest_value)
    entries = np.full((rows, 3), fmt.largest_entry)
    entries[:, 1] *= -1
    entries[:, 2] = generator.integers(-fmt.largest_entry, fmt.largest_entry + 1, rows)
    reply = evaluator.masked_product(owner.encrypt(values), evaluator.prepare(entries))
    found = unmask(owner.decrypt(reply.ciphertext, 3), reply.mask, owner.modulus_bits)
    assert np.array_equal(found, entries.T @ values)
    assert found[0] == -found[1] == fmt.largest_product


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


def test_products_that_could_wrap_are_refused_before_a_key_is_made() -> None:
    with pytest.raises(RangeExceeded, match="more than the 59 of the plaintext space"):
        BfvOwner(ProductFormat(rows=1 << 20, value_bound=1.0, matrix_bound=64.0))


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
    product = fmt.largest_product // 2
    most = (1 << (owner.modulus_bits - 1)) - 1 - product
    assert most >= product  # room for next predictions
    reply = evaluator.partly_open_product(encrypted, prepared, np.array([most]))
    found = unmask(owner.decrypt(reply.ciphertext, 1), np.zeros(1, np.uint64), owner.modulus_bits)
    assert found.tolist() == [product + most]
    with pytest.raises(RangeExceeded, match="addends"):
        evaluator.partly_open_product(encrypted, prepared, np.array([most + 1]))
