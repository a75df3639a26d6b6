import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securevfl.errors import TrainingDiverged
from securevfl.models.linear import LinearModel
from securevfl.models.losses import Logistic, Squared
from securevfl.protocols.signals import (
    GradientSignal,
    LocalRule,
    PredictionsSignal,
    ResidualSignal,
    Signal,
)

GENERATOR = np.random.default_rng(3)
INPUTS = GENERATOR.standard_normal((40, 5))
START = GENERATOR.standard_normal((5, 1))
OTHERS = GENERATOR.standard_normal((40, 1))
LABELS = GENERATOR.integers(0, 2, 40)
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
    assert np.allclose(model.weights, twice, rtol=0, atol=1e-15)


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
