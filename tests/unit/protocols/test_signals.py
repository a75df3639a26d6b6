from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securevfl.errors import TrainingDiverged
from securevfl.models.linear import LinearModel
from securevfl.models.losses import Logistic, Squared
from securevfl.protocols.local_steps import (
    GradientSignal,
    LocalRule,
    PredictionsSignal,
    ResidualSignal,
    Signal,
)
from securevfl.sparse import Matrix, dense

INPUTS = np.random.default_rng(1).standard_normal((40, 5))
START = np.random.default_rng(2).standard_normal((5, 1))
OTHERS = np.random.default_rng(3).standard_normal((40, 1))
LABELS = np.random.default_rng(4).integers(0, 2, 40)
PREDICTIONS = INPUTS @ START


def stepped(rule: LocalRule, signal: Signal, step_size: float = 0.3) -> np.ndarray:
    """θ after the local steps from START."""
    model = LinearModel(START.copy())
    rule.apply(model, INPUTS, predictions=PREDICTIONS, signal=signal, step_size=step_size)
    return model.weights


def signals(loss: Logistic | Squared) -> tuple[ResidualSignal, GradientSignal, PredictionsSignal]:
    residuals = loss.residuals(OTHERS + PREDICTIONS, LABELS)
    gradient = INPUTS.T @ residuals / len(INPUTS)
    return (
        ResidualSignal(residuals),
        GradientSignal(gradient),
        PredictionsSignal(OTHERS, LABELS),
    )


@pytest.mark.parametrize("local_steps", [1, 5, 50])
def test_on_squared_loss_the_curvature_rule_is_the_exact_local_step(local_steps: int) -> None:
    residual, gradient, exact = signals(Squared())
    rule = LocalRule(Squared(), local_steps, l2=0.01, proximal=0.1)
    reference = stepped(rule, exact)
    assert np.allclose(stepped(rule, residual), reference, rtol=0, atol=1e-12)
    assert np.allclose(stepped(rule, gradient), reference, rtol=0, atol=1e-12)


def test_residuals_and_gradient_lead_to_the_same_steps() -> None:
    residual, gradient, _ = signals(Logistic())
    rule = LocalRule(Logistic(), 20, l2=0.02, proximal=0.1)
    assert np.allclose(stepped(rule, residual), stepped(rule, gradient), rtol=0, atol=1e-12)


@pytest.mark.parametrize("frozen", [False, True])
def test_one_local_step_is_a_step_of_sgd_to_the_bit(frozen: bool) -> None:
    residual, _, _ = signals(Logistic())
    expected = START - 0.3 * (INPUTS.T @ residual.residuals / 40 + 0 * START + 0 * START)
    assert np.array_equal(stepped(LocalRule(Logistic(), 1, frozen=frozen), residual), expected)


@pytest.mark.parametrize("index", [0, 1])
def test_the_frozen_rule_repeats_the_exchanged_gradient(index: int) -> None:
    signal = signals(Logistic())[index]
    frozen = stepped(LocalRule(Logistic(), 7, frozen=True), signal)
    gradient = signals(Logistic())[1].value
    assert np.allclose(frozen, START - 7 * 0.3 * gradient, rtol=0, atol=1e-12)


def test_the_label_partys_steps_are_exact_under_either_rule() -> None:
    exact = signals(Logistic())[2]
    weights = START.copy()
    for _ in range(6):
        residuals = 1 / (1 + np.exp(-(OTHERS + INPUTS @ weights))) - LABELS[:, None]
        weights = weights - 0.3 * INPUTS.T @ residuals / 40
    for frozen in (False, True):
        taken = stepped(LocalRule(Logistic(), 6, frozen=frozen), exact)
        assert np.allclose(taken, weights, rtol=0, atol=1e-12)


def test_the_proximal_term_pulls_towards_the_last_exchange() -> None:
    nothing = GradientSignal(np.zeros((5, 1)))
    model = LinearModel(START.copy())
    rule = LocalRule(Logistic(), 2, l2=1.0, proximal=0.5, frozen=True)
    rule.apply(model, INPUTS, predictions=PREDICTIONS, signal=nothing, step_size=0.1)
    once = START - 0.1 * START
    twice = once - 0.1 * (once + 0.5 * (once - START))
    assert np.allclose(model.weights, twice, rtol=0, atol=1e-12)


def losses_of_steps(seed: int, *, frozen: bool) -> list[float]:
    """Loss after 0, 1, … 50 local steps of the longest size that a majorizer bears."""
    generator = np.random.default_rng(seed)
    inputs = generator.standard_normal((30, 4)) * generator.uniform(0.1, 5)
    start, others = generator.standard_normal((4, 1)), generator.standard_normal((30, 1))
    labels = generator.integers(0, 2, 30)
    loss = Logistic()
    signal = ResidualSignal(loss.residuals(others + inputs @ start, labels))
    largest = 0.25 * np.linalg.eigvalsh(inputs.T @ inputs / 30).max()
    values = [loss.value(others + inputs @ start, labels)]
    for local_steps in range(1, 51):
        model = LinearModel(start)
        LocalRule(loss, local_steps, frozen=frozen).apply(
            model, inputs, predictions=inputs @ start, signal=signal, step_size=1 / largest
        )
        values.append(loss.value(others + inputs @ model.weights, labels))
    return values


@given(st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_curvature_steps_never_raise_the_loss_while_the_others_stand_still(seed: int) -> None:
    """d⁰ + c(H − H⁰) is the gradient of a majorizer: any step up to 1/L descends on it."""
    before, *after = losses_of_steps(seed, frozen=False)
    assert max(after) <= before + 1e-12


def test_frozen_steps_of_the_same_size_overshoot() -> None:
    before, *after = losses_of_steps(0, frozen=True)
    assert after[-1] > before


def test_weights_that_are_no_longer_finite_are_told() -> None:
    residual, _, _ = signals(Squared())
    with pytest.raises(TrainingDiverged, match=r"learning rate 1e\+200"):
        stepped(LocalRule(Squared(), 5), residual, step_size=1e200)


class Curved:
    """H(θ) = sin(Xθ) for two outputs from one vector θ, and its derivatives by hand."""

    is_linear = intercept = False

    def __init__(self, weights: np.ndarray) -> None:
        self.weights = weights

    def inputs(self, features: Matrix) -> Matrix:
        return features

    def predict(self, inputs: Matrix) -> np.ndarray:
        predictions: np.ndarray = np.sin(inputs @ self.weights) * [1.0, 2.0]
        return predictions

    def linearize(self, inputs: Matrix) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
        jacobian = self.tangent(inputs)()
        return self.predict(inputs), lambda residuals: jacobian.T @ residuals.reshape(-1, 1)

    def tangent(self, inputs: Matrix) -> Callable[[], np.ndarray]:
        slope = np.cos(inputs @ self.weights)[:, :, None] * dense(inputs)[:, None, :]
        jacobian = (slope * np.array([[1.0], [2.0]])).reshape(-1, inputs.shape[1])
        return lambda: jacobian

    def state(self) -> None:
        return None

    def penalty_gradient(self, l2: float) -> np.ndarray:
        return l2 * self.weights


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("gauss_newton", [False, True])
def test_residuals_step_on_the_model_or_on_its_linearization(
    generator: np.random.Generator, frozen: bool, gauss_newton: bool
) -> None:
    residuals = generator.standard_normal((40, 2))
    rule = LocalRule(Squared(), 4, frozen=frozen, gauss_newton=gauss_newton)
    model, weights = Curved(START), START
    before, first = model.predict(INPUTS), model.tangent(INPUTS)()
    rule.apply(model, INPUTS, predictions=before, signal=ResidualSignal(residuals), step_size=0.05)
    for _ in range(4):
        here = Curved(weights)
        moved = here.predict(INPUTS) - before
        jacobian = here.tangent(INPUTS)()
        if gauss_newton:
            moved, jacobian = (first @ (weights - START)).reshape(40, 2), first
        stepped_on = residuals + (0 if frozen else 1) * moved
        weights = weights - 0.05 * jacobian.T @ stepped_on.reshape(-1, 1) / 40
    assert np.allclose(model.weights, weights, rtol=0, atol=1e-12)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_gradient_steps_on_the_linearization_that_residuals_may_choose(
    generator: np.random.Generator, frozen: bool
) -> None:
    residuals = generator.standard_normal((40, 2))
    ends = []
    for gauss_newton, signal in (
        (True, ResidualSignal(residuals)),
        (False, GradientSignal(Curved(START).tangent(INPUTS)().T @ residuals.reshape(-1, 1) / 40)),
    ):
        model = Curved(START)
        rule = LocalRule(Squared(), 4, l2=0.1, frozen=frozen, gauss_newton=gauss_newton)
        rule.apply(model, INPUTS, predictions=model.predict(INPUTS), signal=signal, step_size=0.05)
        ends.append(model.weights)
    assert np.allclose(ends[0], ends[1], rtol=0, atol=1e-12)
