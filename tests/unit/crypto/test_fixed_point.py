from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from securevfl.crypto.fixed_point import (
    decode,
    encode,
    require_matrix,
    require_values,
    shifted,
    unmask,
)
from securevfl.crypto.scheme import ProductFormat
from securevfl.errors import RangeExceeded

FORMAT = ProductFormat(rows=3, value_bound=1.0, matrix_bound=2.0)


def test_encoding_rounds_to_the_nearest_integer() -> None:
    encoded = encode([0.3, -0.3, 0.2, 1.0], fraction_bits=2, bound=1.0, what="residuals")
    assert encoded.dtype == np.int64
    assert encoded.tolist() == [1, -1, 1, 4]


def test_any_shape_is_encoded_and_decoded() -> None:
    values = np.array([[0.5, -0.25], [0.0, 1.0]])
    np.testing.assert_array_equal(decode(encode(values, 10, 1.0, "values"), 10), values)
    assert encode(np.empty((0, 3)), 10, 1.0, "values").shape == (0, 3)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_refused(bad: float) -> None:
    with pytest.raises(RangeExceeded, match="residuals"):
        encode([0.0, bad], 24, 1.0, "residuals")


def test_a_value_beyond_the_bound_is_refused_and_named() -> None:
    with pytest.raises(RangeExceeded, match=r"residuals: largest \|value\| is 1\.5, at most 1 "):
        encode([0.5, -1.5], 24, 1.0, "residuals")


def test_a_bound_that_64_bits_cannot_hold_is_refused() -> None:
    with pytest.raises(RangeExceeded, match="64 bits"):
        encode([0.0], 62, 2.0, "residuals")
    assert encode([1.0], 62, 1.0, "residuals").tolist() == [2**62]


def test_masks_come_off_modulo_2_64_without_a_warning() -> None:
    mask = np.array([2**64 - 1, 5], np.uint64)
    masked = mask + np.array([2**64 - 7, 3], np.uint64)
    assert unmask(masked, mask).tolist() == [-7, 3]
    assert unmask(masked[0], mask[0]) == -7  # 0-d operands warn in plain NumPy


@pytest.mark.parametrize("off", [-3, -1, 0, 1, 3])
def test_what_shares_are_off_by_rounds_away_over_the_whole_range(off: int) -> None:
    """Of 61 bits in 64: errors of less than half a unit, in either sign."""
    integers = np.array([-(1 << 60), -1, 0, 1, 12345, (1 << 60) - 1])
    mask = np.arange(6, dtype=np.uint64) * np.uint64(0x123456789ABCDEF1)
    masked = shifted(integers, 61) + mask + np.uint64(off % 2**64)
    assert np.array_equal(unmask(masked, mask, 61), integers)


def test_a_vector_is_checked_against_the_format() -> None:
    largest = FORMAT.largest_value
    require_values(np.array([largest, -largest, 0]), FORMAT)
    refused: list[NDArray[Any]] = [
        np.array([largest + 1]),
        np.array([-largest - 1]),
        np.array([-(2**63)]),
        np.zeros(4, np.int64),
        np.zeros(0, np.int64),
        np.zeros((2, 2), np.int64),
        np.zeros(2, np.int32),
    ]
    for bad in refused:
        with pytest.raises(RangeExceeded):
            require_values(bad, FORMAT)


def test_a_matrix_is_checked_against_the_format() -> None:
    largest = FORMAT.largest_entry
    require_matrix(np.full((3, 2), largest), FORMAT)
    refused: list[NDArray[Any]] = [
        np.full((3, 2), largest + 1),
        np.full((3, 2), -(2**63)),
        np.zeros((4, 1), np.int64),
        np.zeros((0, 1), np.int64),
        np.zeros((2, 0), np.int64),
        np.zeros(2, np.int64),
        np.zeros((2, 2), np.float64),
    ]
    for bad in refused:
        with pytest.raises(RangeExceeded):
            require_matrix(bad, FORMAT)
