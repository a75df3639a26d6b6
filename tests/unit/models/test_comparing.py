"""Differences of models on the same rows."""

import numpy as np

from securevfl.models.scores import accuracy_difference, auc, auc_difference

ROWS = 400


def draws(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    labels = random.integers(0, 2, ROWS)
    common = labels + random.standard_normal(ROWS)
    return common, np.round(common + 0.5 * random.standard_normal(ROWS), 1), labels


def test_it_is_the_difference_of_the_areas_ties_and_all() -> None:
    first, second, labels = draws(1)
    apart = auc(first[:, None], labels) - auc(second[:, None], labels)
    np.testing.assert_allclose(auc_difference(first, second, labels)[0], apart, atol=1e-12)


def test_its_error_is_how_much_it_varies() -> None:
    found = np.array([auc_difference(*draws(seed)) for seed in range(300)])
    # The deviation of 300 draws is within 13 % at 3 standard errors.
    np.testing.assert_allclose(found[:, 1].mean(), found[:, 0].std(), rtol=0.2)


def test_a_model_is_as_good_as_itself() -> None:
    first, _, labels = draws(2)
    assert auc_difference(first, first, labels) == (0.0, 0.0)


def test_accuracies_differ_by_the_rows_that_do() -> None:
    labels = np.array([0, 1, 2, 0])
    right, wrong = np.eye(3)[labels], np.eye(3)[[0, 1, 2, 1]]
    better, error = accuracy_difference(right, wrong, labels)
    np.testing.assert_allclose([better, error], [0.25, 0.25])
