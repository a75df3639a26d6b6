"""What the label party guesses of a peer's columns without any view: the bar for what it reads."""

import numpy as np
import pytest
from numpy.typing import NDArray

from securevfl.auditing.figures import features_alone
from securevfl.auditing.judging import Finding
from securevfl.auditing.measures import features as measure
from securevfl.auditing.measures.features import Recovered
from securevfl.auditing.scoring import binary_ones, feature_error, recall_and_precision
from securevfl.auditing.subject import Subject
from securevfl.data.sources import load
from securevfl.job import Job

FloatArray = NDArray[np.float64]


def columns(seed: int, count: int) -> FloatArray:
    return np.random.default_rng(seed).standard_normal((400, count))


def subject() -> Subject:
    return Subject(Job.of(job={}), load("breast_cancer"), 0)


def recovered(own: FloatArray, features: FloatArray) -> Recovered:
    """A factor that says nothing."""
    return Recovered(columns(9, features.shape[1]), features, own, "made", 3)


def test_columns_that_follow_from_ones_own_are_guessed_from_a_few_known_rows() -> None:
    own = columns(0, 5)
    features = own @ columns(1, 3)[:5] + 0.01 * columns(2, 3)
    known = np.arange(20)
    assert feature_error(features_alone(own, features, known), features, known) < 0.05
    for strange in (columns(3, 5), own):
        told = known if strange is not own else known[:1]
        error = feature_error(features_alone(strange, features, told), features, told)
        assert error == pytest.approx(1, abs=0.15)
    # Only the known rows are used.
    changed = features.copy()
    changed[20:] = 0
    np.testing.assert_array_equal(
        features_alone(own, changed, known), features_alone(own, features, known)
    )


def test_a_view_that_says_less_than_ones_own_columns_is_no_leak() -> None:
    # Four known rows, as the factor has rank 4, are enough for two columns and a mean.
    own = columns(0, 2)
    features = own @ columns(1, 4)[:2]
    related = measure._anchors(subject(), recovered(own, features))
    strange = measure._anchors(subject(), recovered(columns(5, 4), features))
    assert related.model_alone is not None
    assert related.bar == related.model_alone
    assert related.bar < 0.3
    assert strange.bar > 0.8
    assert related.keeps


def test_components_and_bits_are_held_against_ones_own() -> None:
    generator = np.random.default_rng(4)
    bits = generator.integers(0, 2, size=(400, 3)).astype(np.float64)
    same = recovered(np.hstack([bits[:, :2], columns(6, 1)]), bits)
    found = measure._binary(subject(), same)
    assert found.model_alone == pytest.approx(2 / 3)
    others = measure._binary(subject(), recovered(columns(6, 3), bits))
    assert others.model_alone == 0
    component: Finding = measure._components(subject(), recovered(bits, bits))
    assert component.model_alone == pytest.approx(1)
    assert binary_ones(same.own).shape == (400, 2)
    assert recall_and_precision(binary_ones(bits), bits) == (1, 1)
