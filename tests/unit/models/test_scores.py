import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from securevfl.models.scores import accuracy, auc, auc_error


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
