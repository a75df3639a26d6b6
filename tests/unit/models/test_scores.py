import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from securevfl.models.scores import accuracy, auc, auc_error


def test_auc_of_two_classes_ranks_the_predictions() -> None:
    predictions = np.array([[0.1], [0.4], [0.35], [0.8]])
    labels = np.array([0, 0, 1, 1])
    assert auc(predictions, labels) == 0.75
    assert accuracy(predictions - 0.375, labels) == 0.5


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
