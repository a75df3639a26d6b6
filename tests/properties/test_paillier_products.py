import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from securevfl.crypto.fixed_point import unmask
from securevfl.crypto.paillier import PaillierEvaluator, PaillierOwner
from securevfl.crypto.scheme import ProductFormat

KEY_BITS = 256


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_the_masked_product_is_the_clear_integer_product(data: st.DataObject) -> None:
    rows, columns = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 4))
    product_format = ProductFormat(
        rows=data.draw(st.integers(rows, 8)),
        value_bound=data.draw(st.sampled_from([0.25, 1.0, 3.5])),
        matrix_bound=data.draw(st.sampled_from([1.0, 12.0])),
        value_fraction_bits=data.draw(st.sampled_from([0, 24])),
        matrix_fraction_bits=data.draw(st.sampled_from([0, 16])),
        summands=data.draw(st.integers(1, 4)),
    )
    values = np.array(data.draw(vectors(product_format.largest_value, rows)), np.int64)
    entries = data.draw(vectors(product_format.largest_entry, rows * columns))
    matrix = np.array(entries, np.int64).reshape(rows, columns)
    owner = PaillierOwner.insecure_for_tests(product_format, KEY_BITS)
    evaluator = PaillierEvaluator.insecure_for_tests(owner.public_bytes, product_format)
    reply = evaluator.masked_product(owner.encrypt(values), evaluator.prepare(matrix))
    product = unmask(owner.decrypt(reply.ciphertext, columns), reply.mask)
    np.testing.assert_array_equal(product, matrix.T @ values)


def vectors(bound: int, size: int) -> st.SearchStrategy[list[int]]:
    extremes = st.sampled_from(sorted({-bound, -1, 0, 1, bound}))
    return st.lists(extremes | st.integers(-bound, bound), min_size=size, max_size=size)
