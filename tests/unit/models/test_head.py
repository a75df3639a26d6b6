import numpy as np
import pytest

from securevfl.models.head import Head, HeadedModel, head_start
from securevfl.models.linear import random_start
from securevfl.models.local_model import LocalModel
from securevfl.models.neural import mlp, neural_start

WIDTH, COLUMNS, NAMES = 3, 4, ("bank", "shop", "lab")
ROWS = np.random.default_rng(2).standard_normal((20, COLUMNS + 2 * WIDTH))


def base(kind: str) -> LocalModel:
    generator, own = np.random.default_rng(5), ROWS[:, :COLUMNS]
    if kind == "linear":
        return random_start(own, WIDTH, False, generator, deviation=1.0)
    return neural_start(
        mlp((5,), "tanh", represents=True), own, WIDTH, generator, data_independent=True
    )


def headed(kind: str = "mlp", outputs: int = 2) -> HeadedModel:
    head = head_start(len(NAMES), WIDTH, outputs, np.random.default_rng(6))
    head[-1] = 0.7
    return HeadedModel(base(kind), COLUMNS, NAMES, head)


def test_a_start_is_a_dense_layers() -> None:
    head = head_start(2, 50, 4, np.random.default_rng(1))
    assert head.shape == (101, 4)
    assert not head[-1].any()
    assert 0.09 < np.abs(head).max() <= 0.1


@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_own_part_and_the_others_weighed_are_the_whole(kind: str) -> None:
    model = headed(kind)
    own, others = ROWS[:, :COLUMNS], ROWS[:, COLUMNS:]
    parts = {"bank": model.predict(own), "shop": others[:, :WIDTH], "lab": others[:, WIDTH:]}
    whole = model.predict(ROWS)
    head = Head(NAMES, model.head)
    np.testing.assert_allclose(head.together(parts), whole, rtol=0, atol=1e-12)
    by_hand = model.model.predict(own) @ head.part("bank") + 0.7
    np.testing.assert_allclose(parts["bank"], by_hand, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(model.part("lab"), model.head[2 * WIDTH : 3 * WIDTH])


@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_pulling_back_is_the_jacobian_transposed_and_the_derivative(kind: str) -> None:
    model = headed(kind)
    start, before = model.weights, model.predict(ROWS)
    tangent = model.tangent(ROWS)
    generator = np.random.default_rng(3)
    step = 1e-7 * generator.standard_normal(start.shape)
    model.weights = start + step
    moved = model.predict(ROWS) - before
    # Asked for now, it is still that of the weights it was taken at.
    np.testing.assert_allclose(tangent() @ step, moved.reshape(-1, 1), rtol=0, atol=1e-10)
    np.testing.assert_array_equal(model.weights, start + step)
    model.weights = start
    residuals = generator.standard_normal(before.shape)
    predictions, pull_back = model.linearize(ROWS)
    np.testing.assert_allclose(predictions, before, rtol=0, atol=1e-14)
    expected = tangent().T @ residuals.reshape(-1, 1)
    np.testing.assert_allclose(pull_back(residuals), expected, rtol=0, atol=1e-12)


def test_the_penalty_leaves_biases_alone() -> None:
    model = headed()
    gradient = model.penalty_gradient(0.5)
    assert not gradient[-2:].any()
    np.testing.assert_allclose(gradient[-2 - 2 * 9 : -2], 0.5 * model.weights[-2 - 2 * 9 : -2])
    np.testing.assert_array_equal(gradient[: -2 - 2 * 9], model.model.penalty_gradient(0.5))
