import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit, softmax
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

from securevfl.models.scores import (
    Bin,
    accuracy,
    accuracy_difference,
    auc,
    auc_difference,
    auc_error,
    calibration,
)


def test_auc_of_two_classes_ranks_the_predictions() -> None:
    predictions = np.array([[0.1], [0.4], [0.35], [0.8]])
    labels = np.array([0, 0, 1, 1])
    assert auc(predictions, labels) == 0.75
    assert accuracy(predictions - 0.375, labels) == 0.5


@given(
    st.lists(st.tuples(st.booleans(), st.integers(-3, 3)), min_size=2, max_size=30).filter(
        lambda rows: len({positive for positive, _ in rows}) == 2
    )
)
def test_ties_count_as_half(rows: list[tuple[bool, int]]) -> None:
    labels = np.array([int(positive) for positive, _ in rows])
    predictions = np.array([[float(score)] for _, score in rows])
    assert auc(predictions, labels) == pytest.approx(roc_auc_score(labels, predictions[:, 0]))


def test_one_class_has_no_auc() -> None:
    with pytest.raises(ValueError, match="both classes"):
        auc(np.zeros((3, 1)), np.ones(3, np.int64))


def test_auc_beyond_two_classes_is_macro_one_against_the_rest() -> None:
    generator = np.random.default_rng(0)
    predictions, labels = generator.standard_normal((60, 3)) * 900, np.arange(60) % 3
    shifted = np.exp(predictions - predictions.max(axis=1, keepdims=True))
    probabilities = shifted / shifted.sum(axis=1, keepdims=True)
    single = [roc_auc_score(labels == k, probabilities[:, k]) for k in range(3)]
    assert auc(predictions, labels) == pytest.approx(np.mean(single))


def test_accuracy_beyond_two_classes_takes_the_most_likely() -> None:
    assert accuracy(np.eye(3), np.array([0, 1, 1])) == pytest.approx(2 / 3)


def test_a_class_without_held_out_rows_is_left_out_of_the_mean() -> None:
    generator = np.random.default_rng(0)
    predictions, labels = generator.standard_normal((40, 3)), np.arange(40) % 2
    assert 0 < auc(predictions, labels) < 1


def test_the_error_of_scores_that_say_nothing(generator: np.random.Generator) -> None:
    labels = np.repeat([0, 1], [300, 60])
    found = [auc(generator.standard_normal((360, 1)), labels) for _ in range(2000)]
    assert auc_error(labels) == pytest.approx(np.std(found), rel=0.1)  # 6 of its standard errors
    assert auc_error(np.repeat([0, 1, 2], [300, 60, 2])) == pytest.approx(
        auc_error(np.repeat([0, 1], [300, 62]))
    )


def test_the_error_of_scores_that_say_something(generator: np.random.Generator) -> None:
    labels = np.repeat([0, 1], [300, 60])
    lengths = np.repeat([1.0, 4.0], [300, 60])  # exponential: an area of 4/5
    found = [auc(generator.exponential(lengths)[:, None], labels) for _ in range(2000)]
    assert np.mean(found) == pytest.approx(0.8, abs=0.005)
    assert auc_error(labels, 0.8) == pytest.approx(np.std(found), rel=0.1)


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
