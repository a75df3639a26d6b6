import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from securevfl.crypto.fixed_point import decode, encode, from_ring, to_ring, unmask

INT64 = st.integers(-(2**63), 2**63 - 1)
VALUES = st.lists(st.floats(-8, 8, allow_subnormal=False), min_size=1)


@given(VALUES, st.integers(0, 48))
def test_decoding_gives_the_value_back_within_half_a_step(values: list[float], bits: int) -> None:
    error = decode(encode(values, bits, 8.0, "values"), bits) - np.array(values)
    assert np.max(np.abs(error)) <= 0.5 * 2.0**-bits


@given(st.lists(INT64), st.integers(0, 2**64 - 1))
def test_a_mask_comes_off_whatever_it_is(integers: list[int], mask: int) -> None:
    values = np.array(integers, np.int64)
    masked = np.array([(value + mask) % 2**64 for value in integers], np.uint64)
    np.testing.assert_array_equal(unmask(masked, np.array(mask, np.uint64)), values)
    np.testing.assert_array_equal(from_ring(to_ring(values)), values)
    assert to_ring(values).tolist() == [value % 2**64 for value in integers]
