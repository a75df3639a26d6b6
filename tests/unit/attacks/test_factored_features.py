"""X itself from X up to a rotation, or from hidden units."""

import numpy as np
import pytest
from scipy.stats import ortho_group

from securevfl.arrays import FloatArray
from securevfl.attacks.factored_features import (
    binary_columns,
    features_from_anchors,
    independent_components,
    spread_anchors,
)
from securevfl.auditing.figures import (
    binary_ones,
    feature_error,
    matched_correlation,
    recall_and_precision,
)
from securevfl.auditing.subject import scaled
from securevfl.data.sources import load
from securevfl.job import Job

Generator = np.random.Generator


def rotated(features: FloatArray, generator: Generator) -> FloatArray:
    turned: FloatArray = features @ ortho_group.rvs(features.shape[1], random_state=generator)
    return turned


def one_hot(generator: Generator, rows: int, groups: list[int]) -> FloatArray:
    """Categories with random frequencies."""
    parts = [
        np.eye(size)[generator.choice(size, rows, p=generator.dirichlet(2 * np.ones(size)))]
        for size in groups
    ]
    return np.hstack(parts)


def correlation(features: FloatArray, generator: Generator) -> float:
    found = independent_components(rotated(features, generator), seed=0)
    return matched_correlation(found, features)


@pytest.mark.parametrize(
    ("name", "least"), [("laplace", 0.99), ("uniform", 0.99), ("exponential", 0.98)]
)
def test_independent_columns_come_back(generator: Generator, name: str, least: float) -> None:
    shape = (4000, 15)
    columns = {
        "laplace": generator.laplace(size=shape),
        "uniform": generator.random(shape),
        "exponential": generator.exponential(size=shape),
    }
    assert correlation(columns[name], generator) > least


def test_categories_come_back(generator: Generator) -> None:
    # Six seeds gave 0.66 to 0.71; Gaussian columns, matched by chance, 0.53 at most.
    assert correlation(one_hot(generator, 4000, [5, 5, 5, 4, 4]), generator) > 0.6


def test_constant_columns_do_not_count(generator: Generator) -> None:
    features = generator.laplace(size=(3000, 4))
    with_constant = np.hstack([features, np.ones((3000, 1))])
    found = np.hstack([features, np.zeros((3000, 1))])
    assert matched_correlation(found, with_constant) == pytest.approx(1, abs=1e-9)


def test_what_cannot_be_matched_counts_as_nothing(generator: Generator) -> None:
    features = generator.laplace(size=(3000, 5))
    assert matched_correlation(features[:, :1], features) == pytest.approx(1 / 5)


def test_categories_come_back_as_they_are(generator: Generator) -> None:
    features = one_hot(generator, 2000, [5, 5, 5, 5, 3, 3, 3])
    found = binary_columns(rotated(features, generator))
    recall, precision = recall_and_precision(found, features)
    # Ten seeds gave 0.84 to 1; columns of a wrong rotation are none of these.
    assert recall > 0.75
    assert precision > 0.75


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5])
def test_independent_bits_come_back_whatever_their_frequency(
    generator: Generator, share: float
) -> None:
    features = (generator.random((2000, 20)) < share).astype(np.float64)
    found = binary_columns(rotated(features, generator), starts=200)
    assert recall_and_precision(found, features)[0] > 0.9


def test_standardized_bits_come_back_from_whatever_spans_the_same(generator: Generator) -> None:
    features = (generator.random((2000, 8)) < 0.2).astype(np.float64)
    features = (features - features.mean(axis=0)) / features.std(axis=0)
    redundant = features @ generator.standard_normal((8, 12)) * np.logspace(0, -7, 12)
    found = binary_columns(redundant, starts=100)
    assert recall_and_precision(found, features)[0] > 0.9
    assert recall_and_precision(binary_columns(redundant[:, :4], starts=100), features)[0] == 0


@pytest.mark.parametrize("seed", range(10))
def test_numbers_that_are_no_bits_give_none(seed: int) -> None:
    features = np.random.default_rng(seed).standard_normal((1000, 12))
    assert binary_columns(features, seed, starts=20).shape == (1000, 0)
    assert binary_ones(features).shape == (1000, 0)


def test_a_column_and_its_complement_are_the_same(generator: Generator) -> None:
    features = (generator.random((50, 3)) < 0.4).astype(np.float64)
    np.testing.assert_array_equal(binary_ones(3 * features - 1), features > 0)
    assert recall_and_precision(features < 0.5, features) == (1.0, 1.0)
    assert recall_and_precision(np.zeros((50, 1), dtype=np.bool_), features) == (0.0, 0.0)


def error(features: FloatArray, factor: FloatArray, count: int) -> float:
    rows = spread_anchors(factor, count, np.random.default_rng(2))
    estimate = features_from_anchors(factor, rows, features[rows])
    return feature_error(estimate, features, rows)


def test_as_many_anchors_as_rank_undo_the_rotation_and_fewer_do_not() -> None:
    features = scaled(Job(), load("breast_cancer"))[1].parties[1].train
    factor = rotated(features, np.random.default_rng(1))
    assert error(features, factor, 15) <= 1e-6
    assert error(features, factor, 20) <= 1e-6
    assert error(features, factor, 8) >= 0.05
    assert error(features, factor, 0) >= 0.9


def test_dependent_columns_take_as_many_anchors_as_rank() -> None:
    draws = np.random.default_rng(0)
    features = draws.standard_normal((50, 4)) @ draws.standard_normal((4, 9))
    values, vectors = np.linalg.eigh(features @ features.T)
    factor = vectors[:, -4:] * np.sqrt(values[-4:])
    assert error(features, factor, 4) <= 1e-6
    assert error(features, factor, 3) >= 1e-3


def test_anchors_are_independent_rows_first() -> None:
    factor = np.vstack([np.ones((40, 3)), np.eye(3)])
    rows = spread_anchors(factor, 3, np.random.default_rng(0))
    assert np.linalg.matrix_rank(factor[rows]) == 3


@pytest.mark.parametrize("count", [0, 2, 5])
def test_as_many_anchors_as_asked_for(count: int) -> None:
    factor = np.random.default_rng(0).standard_normal((10, 3))
    assert len(np.unique(spread_anchors(factor, count, np.random.default_rng(0)))) == count
