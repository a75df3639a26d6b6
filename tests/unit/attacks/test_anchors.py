import numpy as np
import pytest
from scipy.stats import ortho_group

from securevfl.arrays import FloatArray
from securevfl.attacks.factored_features import features_from_anchors, spread_anchors
from securevfl.auditing.scoring import feature_error
from securevfl.auditing.subject import scaled
from securevfl.data.sources import load
from securevfl.job import Job


def rotated(features: FloatArray) -> FloatArray:
    turn = ortho_group.rvs(features.shape[1], random_state=np.random.default_rng(1))
    turned: FloatArray = features @ turn
    return turned


def error(features: FloatArray, factor: FloatArray, count: int) -> float:
    rows = spread_anchors(factor, count, np.random.default_rng(2))
    estimate = features_from_anchors(factor, rows, features[rows])
    return feature_error(estimate, features, rows)


def test_as_many_anchors_as_rank_undo_the_rotation_and_fewer_do_not() -> None:
    features = scaled(Job(), load("breast_cancer"))[1].parties[1].train
    factor = rotated(features)
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


def test_known_rows_of_other_people_are_no_help() -> None:
    draws = np.random.default_rng(0)
    features, factor = draws.standard_normal((50, 6)), draws.standard_normal((50, 6))
    assert error(features, factor, 6) >= 0.9


def test_anchors_are_independent_rows_first() -> None:
    factor = np.vstack([np.ones((40, 3)), np.eye(3)])
    rows = spread_anchors(factor, 3, np.random.default_rng(0))
    assert np.linalg.matrix_rank(factor[rows]) == 3


@pytest.mark.parametrize("count", [0, 2, 5])
def test_as_many_anchors_as_asked_for(count: int) -> None:
    factor = np.random.default_rng(0).standard_normal((10, 3))
    assert len(np.unique(spread_anchors(factor, count, np.random.default_rng(0)))) == count
