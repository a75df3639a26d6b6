"""Probabilities that follow from predictions."""

import numpy as np
import pytest

from securevfl.models.losses import class_numbers, has_probabilities, loss_for, probabilities


@pytest.mark.parametrize("loss", ["logistic", "squared", "taylor-logistic", "squared-hinge"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_the_prediction_with_the_least_expected_loss_gives_the_share_back(
    loss: str, share: float
) -> None:
    labels = (np.arange(1000) < 1000 * share).astype(np.int64)
    grid = np.linspace(-3, 3, 6001)
    values = [loss_for(loss, 2).value(np.full((1000, 1), h), labels) for h in grid[::10]]
    best = np.array([[grid[::10][int(np.argmin(values))]]])
    found = probabilities(loss, best)
    np.testing.assert_allclose(found, [[1 - share, share]], atol=0.01)
    if share != 0.5:
        assert class_numbers(loss, best) == int(share > 0.5)


def test_no_probability_leaves_its_range_and_none_overflows() -> None:
    far = np.array([[-1e6], [1e6]])
    for loss in ("logistic", "squared", "taylor-logistic", "squared-hinge"):
        with np.errstate(over="raise", invalid="raise"):
            np.testing.assert_allclose(probabilities(loss, far), [[1.0, 0.0], [0.0, 1.0]])


def test_several_classes_share_one() -> None:
    predictions = np.array([[1000.0, 0.0, 0.0], [0.0, 0.0, np.log(2)]])
    with np.errstate(over="raise"):
        found = probabilities("multinomial", predictions)
    np.testing.assert_allclose(found, [[1.0, 0.0, 0.0], [0.25, 0.25, 0.5]])
    assert class_numbers("multinomial", predictions).tolist() == [0, 2]


def test_a_hinge_tells_classes_alone() -> None:
    assert not has_probabilities("hinge")
    assert class_numbers("hinge", np.array([[-0.1], [0.1]])).tolist() == [0, 1]
