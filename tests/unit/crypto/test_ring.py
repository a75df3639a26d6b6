"""The ring of shares: truncation against exact quotients, products against integers."""

import numpy as np
import pytest

from securevfl.crypto import ring
from securevfl.errors import RangeExceeded


@pytest.fixture
def draw() -> np.random.Generator:
    return np.random.default_rng(1)


def test_numbers_come_back(draw: np.random.Generator) -> None:
    values = draw.uniform(-8, 8, 1000)
    assert np.abs(ring.decode(ring.encode(values, 20, 8, "x"), 20) - values).max() <= 2.0**-21


@pytest.mark.parametrize("value", [8.1, np.nan, np.inf])
def test_what_is_beyond_its_bound_is_refused(value: float) -> None:
    with pytest.raises(RangeExceeded, match="at most 8 allowed"):
        ring.encode([value], 20, 8, "x")


def test_a_bound_beyond_the_ring_is_refused() -> None:
    ring.encode([1.0], 54, 8, "x")
    with pytest.raises(RangeExceeded, match="does not fit"):
        ring.encode([1.0], 55, 8, "x")


def test_both_parties_truncate_to_the_quotient(draw: np.random.Generator) -> None:
    values = draw.integers(-(1 << 30), 1 << 30, 10_000)
    words = ring.uniform(10_000)
    others = ring.reduced(ring.of_integers(values) - words)
    parts = ring.truncated(words, 12, first=True), ring.truncated(others, 12, first=False)
    errors = ring.centred(ring.reduced(parts[0] + parts[1])) - values / 4096
    # A share within 2^30 of the end of the ring: once in 2^14 such arrays.
    assert np.abs(errors).max() < 1
    assert abs(errors.mean()) < 0.03


def test_truncation_goes_wrong_as_often_as_it_says() -> None:
    value, count = 1 << 50, 1 << 16
    words = ring.uniform(count)
    parts = (
        ring.truncated(words, 20, first=True),
        ring.truncated(np.uint64(value) - words, 20, first=False),
    )
    wrong = np.abs(ring.centred(ring.reduced(parts[0] + parts[1])) - (value >> 20)) > 1
    expected = ring.failure_probability(count, value)
    assert 0.2 * expected < wrong.sum() < expected


@pytest.mark.parametrize("largest", [1, 1 << 13, 1 << 30, 1 << 44])
@pytest.mark.parametrize("columns", [(), (3,)])
def test_products_are_those_of_integers(
    largest: int, columns: tuple[int, ...], draw: np.random.Generator
) -> None:
    matrix = draw.integers(-largest, largest, (5, 70), endpoint=True)
    shares = ring.uniform(70, *columns)
    exact = (matrix.astype(object) @ shares.astype(object)) % (1 << ring.RING_BITS)
    assert np.array_equal(ring.Factor(matrix) @ shares, exact.astype(np.uint64))


def test_words_are_below_the_modulus_and_fresh() -> None:
    words = ring.uniform(4, 1000)
    assert words.max() < 1 << ring.RING_BITS
    assert words.max() > 1 << (ring.RING_BITS - 2)
    assert not np.array_equal(words, ring.uniform(4, 1000))


def test_a_matrix_without_exact_products_is_refused() -> None:
    with pytest.raises(RangeExceeded, match="no exact product"):
        ring.Factor(np.full((2, 70), 1 << 47))
