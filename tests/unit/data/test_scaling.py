import numpy as np
import pytest

from securevfl.data import Scaling
from securevfl.data.labels import TargetScaling
from securevfl.errors import DataError


def test_training_rows_come_out_with_mean_zero_and_deviation_one() -> None:
    train = np.random.default_rng(0).normal(5, 3, (50, 4))
    scaled = Scaling.fit(train).apply(train)
    assert np.allclose(scaled.mean(axis=0), 0)
    assert np.allclose(scaled.std(axis=0), 1)


def test_other_rows_are_scaled_by_the_training_rows() -> None:
    scaling = Scaling.fit(np.array([[0.0], [2.0]]))
    assert scaling.apply(np.array([[5.0]])).tolist() == [[4.0]]


def test_a_constant_column_has_scale_one_and_becomes_exactly_zero() -> None:
    train = np.full((3, 1), 0.1)  # its mean rounds to something else
    scaling = Scaling.fit(train)
    assert scaling.scale.tolist() == [1.0]
    assert scaling.apply(train).tolist() == [[0.0]] * 3
    # So does one whose deviation rounds to zero.
    assert Scaling.fit(np.array([[0.0], [1e-200]])).scale.tolist() == [1.0]


@pytest.mark.parametrize(
    ("train", "told"),
    [
        (np.array([[0.0, 1e308], [1.0, -1e308]]), "column 1 has no finite mean"),
        (np.empty((0, 2)), "no training rows"),
        (np.eye(2), "1 columns, expected 2"),
    ],
)
def test_rows_that_cannot_be_scaled_are_refused(train: np.ndarray, told: str) -> None:
    with pytest.raises(DataError, match=told):
        Scaling.fit(train).apply(np.eye(1))


@pytest.mark.parametrize("targets", [[3.0, 3.0], [1e308, -1e308], [np.nan, 1.0]])
def test_targets_without_a_scale_are_refused(targets: list[float]) -> None:
    with pytest.raises(DataError, match="targets have no finite mean and standard deviation"):
        TargetScaling.fit(np.array(targets), centered=True)
