import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securevfl.arrays import IntArray
from securevfl.crypto.bfv import BfvEvaluator, BfvOwner
from securevfl.crypto.fixed_point import unmask
from securevfl.crypto.scheme import ProductFormat
from tests.ciphertexts import format_of, product


def ends(product_format: ProductFormat) -> tuple[BfvOwner, BfvEvaluator]:
    owner = BfvOwner(product_format)
    return owner, BfvEvaluator(owner.public_bytes, product_format)


def extremes(fmt: ProductFormat, rows: int, columns: int) -> tuple[IntArray, IntArray]:
    values = np.full(rows, fmt.largest_value)
    matrix = np.full((rows, columns), fmt.largest_entry)
    matrix[:, ::2] *= -1
    return values, matrix


@pytest.mark.parametrize(
    ("rows", "columns"),
    [
        (1, 1),
        (1, 8192),
        (3, 8191),
        (64, 15),
        (256, 64),
        (257, 33),
        (100, 3000),
        (8192, 1),
        (8193, 2),
        (20_000, 3),
    ],
)
@pytest.mark.parametrize("fraction_bits", [(12, 8), (20, 14)])
def test_any_shape_is_exact_with_random_and_extreme_numbers(
    rows: int, columns: int, fraction_bits: tuple[int, int]
) -> None:
    generator = np.random.default_rng(rows + columns)
    fmt = format_of(rows, columns, 8.0, fraction_bits, rounds=100)
    owner, evaluator = ends(fmt)
    values = generator.integers(-fmt.largest_value, fmt.largest_value + 1, rows)
    matrix = generator.integers(-fmt.largest_entry, fmt.largest_entry + 1, (rows, columns))
    for v, x in ((values, matrix), extremes(fmt, rows, columns)):
        assert np.array_equal(product(owner, evaluator, v, x), x.T @ v)


SMALL = format_of(300, 90, 4.0, (20, 14), rounds=1000, summands=3)
WIDE = ProductFormat(
    rows=300, value_bound=1.0, matrix_bound=4.0, columns=90, rounds=1000, vectors=2
)
KEYS = {fmt: ends(fmt) for fmt in (SMALL, WIDE)}


@pytest.mark.parametrize("fmt", [SMALL, WIDE], ids=["three summands", "two vectors"])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_fewer_rows_and_columns_than_agreed_are_exact(
    fmt: ProductFormat, data: st.DataObject
) -> None:
    rows = data.draw(st.integers(1, fmt.rows))
    columns = data.draw(st.integers(1, fmt.columns))
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    share = data.draw(st.sampled_from([0.0, 0.1, 1.0]))
    values = generator.integers(-fmt.largest_value, fmt.largest_value + 1, rows)
    matrix = generator.integers(-fmt.largest_entry, fmt.largest_entry + 1, (rows, columns))
    matrix[generator.random((rows, columns)) >= share] = 0
    assert np.array_equal(product(*KEYS[fmt], values, matrix), matrix.T @ values)


@settings(max_examples=15, deadline=None)
@given(
    rows=st.integers(1, 10_000),
    columns=st.integers(1, 300),
    bits=st.sampled_from([(16, 0), (20, 14), (24, 16)]),
    latency_ms=st.sampled_from([0.0, 150.0]),
    extreme=st.booleans(),
)
def test_any_job_is_exact(
    rows: int, columns: int, bits: tuple[int, int], latency_ms: float, extreme: bool
) -> None:
    fmt = format_of(rows, columns, 1.0, bits, rounds=10, latency_ms=latency_ms)
    generator = np.random.default_rng(rows * columns)
    values = generator.integers(-fmt.largest_value, fmt.largest_value + 1, rows)
    matrix = generator.integers(-fmt.largest_entry, fmt.largest_entry + 1, (rows, columns))
    if extreme:
        values, matrix = extremes(fmt, rows, columns)
    assert np.array_equal(product(*ends(fmt), values, matrix), matrix.T @ values)


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("fraction_bits", [(20, 14), (24, 18)])
def test_sums_of_all_senders_products_are_exact_before_the_masks_come_off(
    sign: int, fraction_bits: tuple[int, int]
) -> None:
    """K - 1 owners, one X: the largest sum that a job of K parties can have."""
    fmt = format_of(64, 20, 4.0, fraction_bits, summands=4, rounds=100)
    values, matrix = extremes(fmt, 64, 20)
    masked, masks = np.zeros(20, np.uint64), np.zeros(20, np.uint64)
    keys = [ends(fmt) for _ in range(fmt.summands)]
    for owner, evaluator in keys:
        encrypted = owner.encrypt(sign * values)
        reply = evaluator.masked_product(encrypted, evaluator.prepare(matrix))
        masked += owner.decrypt(reply.ciphertext, 20)
        masks += reply.mask
    found = unmask(masked, masks, keys[0][1].modulus_bits)
    assert np.array_equal(found, sign * fmt.summands * (matrix.T @ values))
    assert int(np.abs(found).max()) == fmt.largest_product
