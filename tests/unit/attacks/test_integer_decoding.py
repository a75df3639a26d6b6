"""Labels as bits in exact sums: found where there are bits enough, said to be open elsewhere."""

import numpy as np
import pytest

from securevfl.arrays import FloatArray, IntArray
from securevfl.attacks.integer_decoding import (
    LARGEST_BATCH,
    UNKNOWN,
    Category,
    IntegerKnowledge,
    certain_labels,
    count_categories,
    labels_by_meeting,
)
from securevfl.errors import ConfigError

RESIDUALS = (0.5, -0.5)
EXACT = 1e-9


def batch(rows: int, columns: int, seed: int, bits: int = 14) -> tuple[FloatArray, IntArray]:
    """X in fixed point and labels, a quarter of them 1."""
    generator = np.random.default_rng(seed)
    matrix = np.ldexp(np.rint(np.ldexp(generator.standard_normal((rows, columns)), bits)), -bits)
    return matrix, (generator.random(rows) < 0.25).astype(np.int64)


def gradient(matrix: FloatArray, labels: IntArray) -> FloatArray:
    """Xᵀd/S at zero predictions."""
    return np.asarray(matrix.T @ (0.5 - labels) / len(labels))


def known(matrix: FloatArray, tolerance: float = EXACT) -> IntegerKnowledge:
    return IntegerKnowledge(matrix, RESIDUALS, tolerance)


def flat(rows: int) -> FloatArray:
    return np.full(rows, 0.5)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_four_real_columns_tell_32_labels_of_32(seed: int) -> None:
    matrix, labels = batch(32, 4, seed)
    found = labels_by_meeting(gradient(matrix, labels), known(matrix), flat(32))
    np.testing.assert_array_equal(found, labels)


def test_it_takes_batches_of_its_limit_and_no_larger_ones() -> None:
    matrix, labels = batch(36, 3, seed=3)
    found = labels_by_meeting(gradient(matrix, labels), known(matrix), flat(36))
    np.testing.assert_array_equal(found, labels)
    matrix, labels = batch(LARGEST_BATCH + 1, 4, seed=3)
    with pytest.raises(ConfigError, match=f"{LARGEST_BATCH + 1} rows"):
        labels_by_meeting(gradient(matrix, labels), known(matrix), flat(len(labels)))


def test_an_approximate_gradient_is_enough_where_columns_have_bits_to_spare() -> None:
    matrix, labels = batch(24, 4, seed=4)
    noise = np.random.default_rng(4).uniform(-1e-4, 1e-4, 4)
    seen = gradient(matrix, labels) + noise / 24
    found = labels_by_meeting(seen, known(matrix, 1.5e-4), flat(24))
    np.testing.assert_array_equal(found, labels)


def test_residuals_that_are_others_fit_no_labeling() -> None:
    matrix, labels = batch(32, 4, seed=5)
    with pytest.raises(ConfigError, match="no labeling fits"):
        labels_by_meeting(gradient(matrix, labels) + 1e-4, known(matrix), flat(32))


def test_where_several_labelings_fit_the_own_model_weighs_them() -> None:
    matrix, labels = batch(12, 2, seed=6)
    matrix[1], labels[:2] = matrix[0], (1, 0)  # two rows that no column tells apart
    own = flat(12)
    own[0] = 0.75
    found = labels_by_meeting(gradient(matrix, labels), known(matrix), own)
    np.testing.assert_array_equal(found[2:], labels[2:])
    np.testing.assert_allclose(found[:2], [0.75, 0.25])


def test_columns_of_one_bit_leave_too_many_labelings() -> None:
    generator = np.random.default_rng(7)
    matrix = generator.integers(0, 2, (40, 2)).astype(np.float64)
    labels = generator.integers(0, 2, 40)
    with pytest.raises(ConfigError, match="too few bits"):
        labels_by_meeting(gradient(matrix, labels), known(matrix), flat(40))


@pytest.mark.parametrize("standardized", [False, True])
def test_positives_are_counted_by_category_to_the_last(standardized: bool) -> None:
    generator = np.random.default_rng(8)
    labels = generator.integers(0, 2, 500)
    matrix = (generator.random((500, 5)) < [0.5, 0.2, 0.05, 0.4, 0.1]).astype(np.float64)
    members = [matrix[:, each] == 1 for each in range(5)]
    if standardized:
        matrix = (matrix - matrix.mean(axis=0)) / matrix.std(axis=0)
        matrix = np.ldexp(np.rint(np.ldexp(matrix, 14)), -14)
    matrix = np.hstack([matrix, generator.standard_normal((500, 1))])  # has many values
    found = count_categories(gradient(matrix, labels), known(matrix))
    assert len(found) == (10 if standardized else 5)
    for each in found:
        assert each.positives == labels[each.rows].sum()
    for places in members:
        assert any(np.array_equal(each.rows, np.flatnonzero(places)) for each in found)


def test_sums_that_are_no_counts_are_not_taken_for_some() -> None:
    matrix = np.random.default_rng(9).integers(0, 2, (50, 3)).astype(np.float64)
    assert not count_categories(np.full(3, 0.0123), known(matrix))


def test_labels_follow_from_counts_of_none_and_all_and_of_what_these_leave() -> None:
    categories = [
        Category(np.array([0, 1, 2]), 2),
        Category(np.array([2, 3]), 0),
        Category(np.array([4, 5]), 1),
    ]
    found = certain_labels(categories, 7)
    np.testing.assert_array_equal(found, [1, 1, 0, 0, UNKNOWN, UNKNOWN, UNKNOWN])
