import numpy as np
import pytest
from scipy.stats import ortho_group

from securevfl.arrays import FloatArray
from securevfl.attacks.binary_columns import BinaryKnowledge, binary_columns
from securevfl.attacks.components import IndependenceKnowledge, independent_components
from securevfl.audit.scoring import (
    has_binary_columns,
    matched_correlation,
    recall_and_precision,
)

DRAWS = np.random.default_rng(5)


def rotated(features: FloatArray) -> FloatArray:
    turned: FloatArray = features @ ortho_group.rvs(features.shape[1], random_state=DRAWS)
    return turned


def one_hot(rows: int, groups: list[int]) -> FloatArray:
    """Categories with random frequencies."""
    parts = [
        np.eye(size)[DRAWS.choice(size, rows, p=DRAWS.dirichlet(2 * np.ones(size)))]
        for size in groups
    ]
    return np.hstack(parts)


def correlation(features: FloatArray) -> float:
    found = independent_components(rotated(features), IndependenceKnowledge())
    return matched_correlation(found, features)


@pytest.mark.parametrize(
    ("name", "least"), [("laplace", 0.99), ("uniform", 0.99), ("exponential", 0.98)]
)
def test_independent_columns_come_back(name: str, least: float) -> None:
    shape = (4000, 15)
    columns = {
        "laplace": DRAWS.laplace(size=shape),
        "uniform": DRAWS.random(shape),
        "exponential": DRAWS.exponential(size=shape),
    }
    assert correlation(columns[name]) > least


def test_gaussian_columns_do_not() -> None:
    assert correlation(DRAWS.standard_normal((4000, 15))) < 0.7


def test_categories_come_back() -> None:
    assert correlation(one_hot(4000, [5, 5, 5, 4, 4])) > 0.9


def test_constant_columns_do_not_count() -> None:
    features = DRAWS.laplace(size=(3000, 4))
    with_constant = np.hstack([features, np.ones((3000, 1))])
    assert matched_correlation(np.hstack([features, np.zeros((3000, 1))]), with_constant) == 1.0


def test_what_cannot_be_matched_counts_as_nothing() -> None:
    features = DRAWS.laplace(size=(3000, 5))
    assert matched_correlation(features[:, :1], features) == 0.0


def test_categories_come_back_as_they_are() -> None:
    features = one_hot(2000, [5, 5, 5, 5, 3, 3, 3])
    found = binary_columns(rotated(features), BinaryKnowledge())
    recall, precision = recall_and_precision(found, features)
    assert recall > 0.9
    assert precision > 0.9


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5])
def test_independent_bits_come_back_whatever_their_frequency(share: float) -> None:
    features = (DRAWS.random((2000, 20)) < share).astype(np.float64)
    found = binary_columns(rotated(features), BinaryKnowledge(starts=200))
    assert recall_and_precision(found, features)[0] > 0.9


def test_numbers_that_are_no_bits_give_none() -> None:
    features = DRAWS.standard_normal((1000, 12))
    assert binary_columns(features, BinaryKnowledge(starts=100)).shape == (1000, 0)
    assert not has_binary_columns(features)


def test_a_column_and_its_complement_are_the_same() -> None:
    features = (DRAWS.random((50, 3)) < 0.4).astype(np.float64)
    assert has_binary_columns(features)
    assert recall_and_precision(features < 0.5, features) == (1.0, 1.0)
    assert recall_and_precision(np.zeros((50, 1), dtype=np.bool_), features) == (0.0, 0.0)
