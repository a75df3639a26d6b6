import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securevfl.crypto.ckks import CkksEvaluator, CkksOwner
from securevfl.crypto.fixed_point import decode, encode
from securevfl.crypto.scheme import ProductFormat
from tests.ciphertexts import product


@given(st.data())
@settings(deadline=None, max_examples=25)
def test_the_masked_product_is_the_clear_product_within_the_stated_error(
    data: st.DataObject,
) -> None:
    rows, columns = data.draw(st.integers(1, 200)), data.draw(st.integers(1, 60))
    product_format = ProductFormat(
        rows=data.draw(st.integers(rows, 300)),
        value_bound=data.draw(st.sampled_from([0.25, 1.0, 3.5])),
        matrix_bound=data.draw(st.sampled_from([1.0, 12.0])),
    )
    values = np.array(data.draw(vectors(product_format.value_bound, rows)))
    entries = vectors(product_format.matrix_bound, 7)
    matrix = np.resize(np.array(data.draw(entries)), (rows, columns))
    compare(product_format, values, matrix)


@pytest.mark.parametrize(
    ("rows", "columns"), [(1, 1), (1, 4097), (64, 65), (4095, 2), (4096, 1), (4097, 2), (9000, 1)]
)
def test_any_number_of_rows_and_columns_fits(rows: int, columns: int) -> None:
    random = np.random.default_rng(rows)
    product_format = ProductFormat(rows, value_bound=1.0, matrix_bound=12.0)
    values = random.uniform(-1, 1, rows)
    compare(product_format, values, random.standard_normal((rows, columns)).clip(-12, 12))
    compare(product_format, np.ones(rows), np.full((rows, 1), -12.0))


def compare(product_format: ProductFormat, values: np.ndarray, matrix: np.ndarray) -> None:
    fmt = product_format
    v = encode(values, fmt.value_fraction_bits, fmt.value_bound, "values")
    x = encode(matrix, fmt.matrix_fraction_bits, fmt.matrix_bound, "matrix")
    owner = CkksOwner(fmt)
    evaluator = CkksEvaluator(owner.public_bytes, fmt)
    error = decode(product(owner, evaluator, v, x) - x.T @ v, fmt.product_fraction_bits)
    inputs = -(-fmt.rows // 4096)
    bound = 4 * fmt.value_bound * fmt.matrix_bound * 2 * inputs
    # 2^−21·b·√S is the standard deviation; b may be 4 times the bounds' product; 8 of them
    assert np.max(np.abs(error)) < 8 * 2**-21 * bound * min(fmt.rows, 4096) ** 0.5


def vectors(bound: float, size: int) -> st.SearchStrategy[list[float]]:
    numbers = st.sampled_from([-bound, 0.0, bound]) | st.floats(-bound, bound)
    return st.lists(numbers, min_size=size, max_size=size)
