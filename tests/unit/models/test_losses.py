import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from securevfl.errors import ConfigError
from securevfl.models.losses import (
    CurvedLoss,
    Hinge,
    Logistic,
    Loss,
    Multinomial,
    Squared,
    SquaredHinge,
    TaylorLogistic,
    class_numbers,
    has_probabilities,
    loss_for,
    probabilities,
    quadratic_loss,
)

ALL: list[Loss] = [Logistic(), Squared(), TaylorLogistic(), Multinomial(4), SquaredHinge(), Hinge()]


def named(loss: Loss) -> str:
    return loss.name


def sample(loss: Loss) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    generator = np.random.default_rng(0)
    predictions = 3 * generator.standard_normal((50, loss.outputs))
    return predictions, generator.integers(0, max(loss.outputs, 2), 50)


def torch_value(name: str, predictions: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean losses from torch's own formulas."""
    functional = torch.nn.functional
    if name == "multinomial":
        return functional.cross_entropy(predictions, labels)
    single, targets = predictions[:, 0], labels.to(torch.float64)
    if name == "logistic":
        return functional.binary_cross_entropy_with_logits(single, targets)
    if name == "squared":
        return functional.mse_loss(single, targets) / 2
    if name.endswith("hinge"):
        margins = functional.relu(1 - (2 * targets - 1) * single)
        return (margins**2 if name.startswith("squared") else margins).mean()
    at_zero = torch.zeros_like(single, requires_grad=True)
    sign = 2 * targets - 1
    loss = functional.softplus(-sign * at_zero)
    (first,) = torch.autograd.grad(loss.sum(), at_zero, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), at_zero)
    at_zero_value, slope, curvature = loss.detach(), first.detach(), second.detach()
    return (at_zero_value + slope * single + curvature * single**2 / 2).mean()


@pytest.mark.parametrize("loss", ALL, ids=named)
def test_values_and_residuals_are_those_of_autograd(loss: Loss) -> None:
    predictions, labels = sample(loss)
    tensor = torch.tensor(predictions, requires_grad=True)
    value = torch_value(loss.name, tensor, torch.tensor(labels))
    (gradient,) = torch.autograd.grad(value, tensor)
    assert loss.value(predictions, labels) == pytest.approx(value.item(), rel=1e-12)
    expected = gradient.numpy() * len(labels)
    assert np.allclose(loss.residuals(predictions, labels), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("loss", ALL, ids=named)
def test_curvature_bounds_the_second_derivative(loss: Loss) -> None:
    predictions, labels = sample(loss)
    for row, label in zip(predictions, labels, strict=True):
        hessian = torch.autograd.functional.hessian(  # type: ignore[no-untyped-call]
            lambda h, y=label: torch_value(loss.name, h[None, :], torch.tensor([y])),
            torch.tensor(row),
        )
        assert torch.linalg.eigvalsh(hessian).max() <= loss.curvature + 1e-12


def test_the_curvature_of_the_logistic_loss_is_reached_at_zero() -> None:
    step = 1e-6
    low, high = (Logistic().residuals(np.array([[h]]), np.array([1]))[0, 0] for h in (-step, step))
    assert (high - low) / (2 * step) == pytest.approx(0.25)


def test_the_curvature_of_the_multinomial_loss_is_reached_between_two_equal_classes() -> None:
    def along(h: float) -> float:
        residuals = Multinomial(3).residuals(np.array([[h, -h, -50.0]]), np.array([0]))
        return float(residuals[0, 0] - residuals[0, 1])

    # The direction (1, -1, 0) is of squared length 2.
    assert (along(1e-6) - along(-1e-6)) / (2e-6 * 2) == pytest.approx(Multinomial(3).curvature)


@pytest.mark.parametrize("loss", [Logistic(), Multinomial(3)], ids=named)
@pytest.mark.parametrize("size", [1e4, 1e300])
def test_extreme_predictions_do_not_overflow(loss: Loss, size: float) -> None:
    predictions = np.full((2, loss.outputs), size)
    predictions[1] = -size
    labels = np.array([0, 1])
    assert np.abs(loss.residuals(predictions, labels)).max() <= 1
    assert np.isfinite(loss.value(predictions, labels))


@pytest.mark.parametrize("size", [0.0, 1e-3, 1.0, 30.0, 40.0, 700.0, 1e3])
def test_logistic_losses_have_all_their_digits_however_sure_a_prediction_is(size: float) -> None:
    beyond = math.log1p(math.exp(-size))
    for prediction, label, expected in (
        (size, 1, beyond),
        (-size, 0, beyond),
        (size, 0, size + beyond),
        (-size, 1, size + beyond),
    ):
        with np.errstate(over="raise", invalid="raise"):
            found = Logistic().value(np.array([[prediction]]), np.array([label]))
        assert found == pytest.approx(expected, rel=1e-15, abs=0.0)


def test_the_sign_of_a_logistic_residual_is_the_label_even_where_it_underflows() -> None:
    predictions = np.array([[800.0], [800.0], [-800.0], [-800.0]])
    residuals = Logistic().residuals(predictions, np.array([0, 1, 0, 1]))
    assert np.abs(residuals).max() == 1


@pytest.mark.parametrize("loss", [Squared(), TaylorLogistic()], ids=named)
def test_quadratic_residuals_are_affine_with_a_bounded_label_part(loss: Squared) -> None:
    predictions, labels = sample(loss)
    part = loss.label_part(labels)
    affine = loss.curvature * predictions + part
    assert np.array_equal(loss.residuals(predictions, labels), affine)
    assert np.abs(part).max() == loss.label_bound


def test_logistic_means_multinomial_beyond_two_classes() -> None:
    assert loss_for("logistic", 2).name == "logistic"
    assert loss_for("logistic", 5).outputs == loss_for("multinomial", 5).outputs == 5


@pytest.mark.parametrize("loss", ALL, ids=named)
def test_residuals_keep_within_their_bound_and_reach_it(loss: Loss) -> None:
    largest = 3.0
    corners = np.array([[1.0], [-1.0]]) * np.linspace(-largest, largest, loss.outputs)
    predictions, labels = np.vstack([corners, corners]), np.array([0, 0, 1, 1])
    if loss.outputs == 1:
        predictions = largest * np.array([[1.0], [-1.0], [1.0], [-1.0]])
    most = np.abs(loss.residuals(predictions, labels)).max()
    assert 0.9 * loss.residual_bound(largest) < most <= loss.residual_bound(largest)


@pytest.mark.parametrize("loss", [each for each in ALL if each.outputs == 1], ids=named)
def test_a_label_moves_a_residual_by_no_more_than_it_says(loss: Loss) -> None:
    predictions = np.linspace(-50, 50, 101)[:, None]
    zeros = np.zeros(len(predictions), dtype=np.int64)
    moved = np.abs(loss.residuals(predictions, zeros) - loss.residuals(predictions, zeros + 1))
    if np.isinf(loss.label_change):
        assert moved.max() > 100
    else:
        assert moved.max() == pytest.approx(loss.label_change)


@pytest.mark.parametrize("loss", ALL, ids=named)
def test_no_other_constant_is_better(loss: Loss) -> None:
    labels = np.random.default_rng(3).integers(0, max(loss.outputs, 2), 200)
    labels[:20] = 0
    best = np.broadcast_to(loss.constant(labels), (200, loss.outputs))
    for moved in (-0.01, 0.01):
        other = best.copy()
        other[:, 0] += moved
        assert loss.value(best, labels) <= loss.value(other, labels)


@pytest.mark.parametrize("name", ["squared", "squared-hinge", "hinge"])
def test_some_losses_take_two_classes(name: str) -> None:
    assert loss_for(name, 2).name == name
    with pytest.raises(ConfigError, match=f"'{name}' needs two classes, the data have 3"):
        loss_for(name, 3)


@pytest.mark.parametrize("name", ["logistic", "squared-hinge", "hinge"])
def test_hiding_both_sides_asks_for_a_quadratic_loss(name: str) -> None:
    with pytest.raises(ConfigError, match="'squared' or 'taylor-logistic'"):
        quadratic_loss(name)


def test_a_hinge_bends_without_bound_at_a_margin_of_one() -> None:
    near = np.array([[1 - 1e-9], [1 + 1e-9]])
    low, high = Hinge().residuals(near, np.array([1, 1]))[:, 0]
    assert (high - low) / 2e-9 > 1e8
    assert np.isinf(Hinge().curvature)


@pytest.mark.parametrize("name", ["logistic", "squared", "taylor-logistic", "squared-hinge"])
def test_residuals_tell_how_a_loss_bends(name: str) -> None:
    loss = loss_for(name, 2)
    assert isinstance(loss, CurvedLoss)
    predictions, labels = sample(loss)
    step = 1e-6
    above, below = (loss.residuals(predictions + move, labels) for move in (step, -step))
    bends = loss.second_derivative(loss.residuals(predictions, labels))
    np.testing.assert_allclose(bends, (above - below) / (2 * step), atol=1e-8)
    assert (bends >= 0).all()
    assert (bends <= loss.curvature).all()


@pytest.mark.parametrize("loss", [Hinge(), Multinomial(4)], ids=named)
def test_other_losses_do_not_say(loss: Loss) -> None:
    assert not isinstance(loss, CurvedLoss)


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
