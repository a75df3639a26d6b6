"""Calibration figures, against scikit-learn's."""

import numpy as np
import pytest
from scipy.special import expit, softmax
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss, log_loss

from securevfl.models.scores import Bin, calibration


def two(odds: np.ndarray) -> np.ndarray:
    return np.stack([1 - expit(odds), expit(odds)], axis=1)


def test_two_classes_have_scikit_learns_figures(generator: np.random.Generator) -> None:
    odds = 2 * generator.standard_normal(1000)
    labels = (generator.random(1000) < expit(odds)).astype(np.int64)
    found = calibration(two(odds), labels)
    assert found.brier == pytest.approx(brier_score_loss(labels, expit(odds)))
    assert found.log_loss == pytest.approx(log_loss(labels, expit(odds)))
    observed, predicted = calibration_curve(labels, expit(odds), n_bins=10, strategy="quantile")
    assert [each.observed for each in found.curve] == pytest.approx(observed, abs=0.011)
    assert [each.predicted for each in found.curve] == pytest.approx(predicted, abs=0.011)
    assert sum(each.rows for each in found.curve) == 1000


def test_more_classes_are_judged_by_the_likeliest(generator: np.random.Generator) -> None:
    odds = generator.standard_normal((600, 3))
    labels = generator.integers(0, 3, 600)
    given = softmax(odds, axis=1)
    found = calibration(given, labels)
    assert found.log_loss == pytest.approx(log_loss(labels, given))
    one_hot = np.eye(3)[labels]
    assert found.brier == pytest.approx(np.mean(np.sum((given - one_hot) ** 2, axis=1)))
    shares = [each.observed for each in found.curve]
    right = np.mean(given.argmax(axis=1) == labels)
    assert np.average(shares, weights=[each.rows for each in found.curve]) == pytest.approx(right)


def test_overconfidence_shows(generator: np.random.Generator) -> None:
    odds = generator.standard_normal(5000)
    labels = (generator.random(5000) < expit(odds)).astype(np.int64)
    honest, loud = (calibration(two(factor * odds), labels) for factor in (1, 4))
    # Ten shares of 500 rows: each is off by 0.018 on average.
    assert honest.expected_error < 0.04
    assert loud.expected_error > 0.12
    assert loud.brier > honest.brier
    assert loud.log_loss > honest.log_loss


def test_equal_predictions_are_one_bin() -> None:
    labels = np.array([0, 1, 1, 1], np.int64)
    assert calibration(np.full((4, 2), 0.5), labels).curve == (Bin(4, 0.5, 0.75),)


def test_certain_predictions_have_finite_figures() -> None:
    found = calibration(np.eye(2), np.array([0, 1], np.int64))
    assert (found.brier, found.log_loss, found.expected_error) == (0, 0, 0)
    wrong = calibration(np.eye(2), np.array([1, 0], np.int64))
    assert wrong.brier == 1
    assert wrong.log_loss == pytest.approx(36.04, abs=0.01)
