"""Steps from signals, what they keep from round to round, and how far they go."""

from collections.abc import Callable
from dataclasses import replace
from math import inf, sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import lsq_linear

from securevfl.arrays import FloatArray
from securevfl.errors import TrainingDiverged
from securevfl.models.linear import LinearModel
from securevfl.models.local_model import LocalModel
from securevfl.models.losses import Logistic, Squared
from securevfl.protocols.local_steps import (
    GradientSignal,
    LocalRule,
    LocalSteps,
    Pace,
    PredictionsSignal,
    ResidualSignal,
    Signal,
)
from securevfl.protocols.session.early_stopping import Decision
from securevfl.sparse import Matrix, dense

ROWS, COLUMNS = 40, 3
KEEP, BACK, NOTHING = (Decision(0, best=True), Decision(0, backtrack=True), Decision(0))


def party(
    *,
    scale: float = 1.0,
    most: float = 8.0,
    columns: int = 0,
    derived: bool = True,
    growth: float = 1.0,
    plain: bool = False,
    rule: LocalRule | None = None,
    signs: FloatArray | None = None,
    **changes: Any,  # noqa: ANN401
) -> tuple[LinearModel, LocalSteps, FloatArray]:
    generator = np.random.default_rng(5)
    inputs = generator.standard_normal((ROWS, COLUMNS))
    model = LinearModel(generator.standard_normal((COLUMNS, 1)), signs=signs)
    usual = rule or LocalRule(Logistic(), 1, l2=0.1, exact=True)
    pace = Pace(scale, most, columns, ROWS, lambda i: 1 / (i + 1), derived, growth, plain)
    return model, LocalSteps(model, inputs, replace(usual, **changes), pace), inputs


def descend(  # noqa: PLR0917
    rule: LocalRule,
    model: LocalModel,
    inputs: FloatArray,
    predictions: FloatArray,
    signal: Signal,
    step_size: float,
) -> None:
    """All local steps of a rule from an exchanged signal."""
    block = rule.block(model, inputs, predictions)
    rule.descend(model, lambda: signal.gradient(block), step_size)


def signal_of(seed: int) -> GradientSignal:
    return GradientSignal(np.random.default_rng(seed).standard_normal((COLUMNS, 1)))


def take(
    steps: LocalSteps,
    model: LinearModel,
    inputs: FloatArray,
    index: int,
    decision: Decision = NOTHING,
) -> FloatArray:
    """A round with a signal of its number; returns where the exchange took place."""
    steps.begin(index, len(inputs))
    point = model.weights.copy()
    steps.take(decision, inputs, predictions=model.predict(inputs), signal=signal_of(index))
    return point


def bend(inputs: FloatArray, scale: float = 1.0, proximal: float = 0.0) -> FloatArray:
    matrix = 0.25 * inputs.T @ inputs / ROWS + 0.1 * np.eye(COLUMNS)
    return scale * matrix + proximal * np.eye(COLUMNS)


def close(first: FloatArray, second: FloatArray) -> bool:
    return bool(np.allclose(first, second, rtol=0, atol=1e-10))


@pytest.mark.parametrize(("scale", "proximal"), [(1.0, 0.0), (3.0, 0.0), (2.0, 0.4)])
@pytest.mark.parametrize("signs", [[-1.0, 1.0, 0.0], [1.0, 1.0, 1.0], [-1.0, -1.0, -1.0]])
def test_a_signed_step_is_the_least_value_that_signs_allow(
    scale: float, proximal: float, signs: list[float]
) -> None:
    bounds = [(0.0, inf) if s > 0 else (-inf, 0.0 if s else inf) for s in signs]
    model, steps, inputs = party(
        scale=scale, signs=np.array(signs), accelerated=True, proximal=proximal
    )
    matrix = bend(inputs, scale, proximal)

    def least(point: FloatArray, gradient: FloatArray) -> tuple[FloatArray, float]:
        """Another solver's minimum, and how far it lies below the point's value."""
        root = np.linalg.cholesky(matrix).T
        target = root @ point - np.linalg.solve(root.T, gradient)
        found = lsq_linear(root, target[:, 0], np.array(bounds).T, method="bvls", tol=1e-15)
        moved = found.x[:, None] - point
        return found.x[:, None], -float(np.sum(moved * (gradient + 0.5 * matrix @ moved)))

    gained, best = 0.0, (model.weights, model.weights)
    for index in range(8):
        point = take(steps, model, inputs, index, KEEP if index == 2 else NOTHING)
        assert index == 0 or (np.array(signs) * point[:, 0] >= 0).all()
        gradient = signal_of(index).value + 0.1 * point
        minimum, gain = least(point, gradient)
        gained += gain
        np.testing.assert_allclose(model.weights, minimum, atol=1e-7)
        if index == 2:
            best = point, gradient
    assert steps.gained == pytest.approx(gained)
    take(steps, model, inputs, 8, BACK)
    matrix = bend(inputs, 2 * scale, proximal)
    np.testing.assert_allclose(model.weights, least(*best)[0], atol=1e-7)


@pytest.mark.parametrize(("scale", "proximal"), [(1.0, 0.0), (3.0, 0.0), (2.0, 0.4)])
def test_a_step_is_the_minimum_of_the_quadratic(scale: float, proximal: float) -> None:
    model, steps, inputs = party(scale=scale, proximal=proximal)
    point = take(steps, model, inputs, 0)
    gradient = signal_of(0).value + 0.1 * point
    move = np.linalg.solve(bend(inputs, scale, proximal), gradient)
    assert close(model.weights, point - move)
    assert steps.gained == pytest.approx(0.5 * float(np.sum(gradient * move)))


def test_momentum_follows_nesterovs_sequence() -> None:
    model, steps, inputs = party(accelerated=True)
    iterates, t = [model.weights.copy()], 1.0
    for index in range(6):
        point = take(steps, model, inputs, index)
        if index >= 2:
            following = (1 + sqrt(1 + 4 * t * t)) / 2
            extrapolated = iterates[-1] + (t - 1) / following * (iterates[-1] - iterates[-2])
            assert close(point, extrapolated)
            t = following
        elif index == 1:
            assert close(point, iterates[-1])
            t = (1 + sqrt(5)) / 2
        iterates.append(model.weights.copy())


def test_without_acceleration_exchanges_take_place_at_iterates() -> None:
    model, steps, inputs = party()
    for index in range(4):
        before = model.weights.copy()
        assert np.array_equal(take(steps, model, inputs, index), before)


def test_a_way_back_is_from_the_best_point_and_half_as_far() -> None:
    model, steps, inputs = party(accelerated=True)
    for index in range(3):
        take(steps, model, inputs, index)
    best = take(steps, model, inputs, 3, KEEP)
    gradient = signal_of(3).value + 0.1 * best
    for index in (4, 5):
        take(steps, model, inputs, index)
    for number, scale in enumerate((2.0, 4.0, 8.0, 8.0)):
        take(steps, model, inputs, 6 + number, BACK)
        assert close(model.weights, best - np.linalg.solve(bend(inputs, scale), gradient))
    # Momentum begins anew: no extrapolation in this round and the next.
    for index in (10, 11):
        iterate = model.weights.copy()
        assert np.array_equal(take(steps, model, inputs, index), iterate)
    iterate = model.weights.copy()
    assert not close(take(steps, model, inputs, 12), iterate)


def test_before_anything_is_kept_the_way_back_is_to_the_start() -> None:
    model, steps, inputs = party()
    start = model.weights.copy()
    take(steps, model, inputs, 0)
    take(steps, model, inputs, 1, BACK)
    np.testing.assert_array_equal(model.weights, start)


def test_training_ends_at_the_last_iterate_or_at_the_best_point() -> None:
    model, steps, inputs = party(accelerated=True)
    best = take(steps, model, inputs, 0, KEEP)
    for index in (1, 2, 3):
        take(steps, model, inputs, index)
    iterate = model.weights.copy()
    point = take(steps, model, inputs, 4, Decision(0, stop=True))
    assert not close(point, iterate)
    np.testing.assert_array_equal(model.weights, iterate)
    take(steps, model, inputs, 5, Decision(0, backtrack=True, stop=True))
    np.testing.assert_array_equal(model.weights, best)


def test_with_gradient_steps_a_way_back_halves_them_too() -> None:
    model, steps, inputs = party(rule=LocalRule(Logistic(), 1))
    largest = 0.25 * np.linalg.norm(inputs, 2) ** 2 / ROWS
    best = take(steps, model, inputs, 0, KEEP)
    assert close(model.weights, best - signal_of(0).value / largest)
    take(steps, model, inputs, 1, BACK)
    np.testing.assert_array_equal(model.weights, best)
    take(steps, model, inputs, 2)
    assert close(model.weights, best - signal_of(2).value / (3 * 2 * largest))  # η = 1/3 there


def test_a_step_size_that_is_given_is_taken_as_it_is() -> None:
    model, steps, inputs = party(derived=False, rule=LocalRule(Logistic(), 1), scale=5.0)
    point = take(steps, model, inputs, 1)
    assert close(model.weights, point - 0.5 * signal_of(1).value)


def test_noise_of_minibatches_shortens_steps_and_bounds_momentum() -> None:
    half = ROWS // 2
    model, steps, inputs = party(columns=2, accelerated=True)
    assert steps.pace.noise(ROWS) == 0.0
    noise = steps.pace.noise(half)
    assert noise == pytest.approx(2 / half * (1 - half / ROWS))
    iterates, point = [model.weights.copy()], model.weights
    for index in range(40):
        point = take(steps, model, inputs[:half], index)
        gradient = signal_of(index).value + 0.1 * point
        move = np.linalg.solve(bend(inputs, 1 + noise * (1 + index / 5)), gradient)
        assert close(model.weights, point - move)
        iterates.append(model.weights.copy())
    extrapolated = (1 - 2 * sqrt(noise)) * (iterates[-2] - iterates[-3])
    assert close(point, iterates[-2] + extrapolated)


@pytest.mark.parametrize(("growth", "grown"), [(0.0, 1.0), (0.5, sqrt(3.0)), (1.0, 3.0)])
@pytest.mark.parametrize("plain", [True, False])
def test_noise_grows_no_faster_than_stated_and_of_plain_steps_as_rows_are_long(
    growth: float, grown: float, plain: bool
) -> None:
    size = 8
    rule = LocalRule(Logistic(), 1, l2=0.1)
    _, steps, inputs = party(scale=2.0, columns=30, growth=growth, plain=plain, rule=rule)
    steps.begin(10, size)
    matrix = bend(inputs)
    largest = float(np.linalg.eigvalsh(matrix)[-1])
    noise = (2 * np.trace(matrix) if plain else 30 * largest) / size * (1 - size / ROWS)
    expected = 1 / 11 / (2 * largest + grown * noise)
    assert steps.step_size(inputs[:size]) == pytest.approx(expected)


def test_where_noise_is_larger_than_momentum_can_bear_there_is_none() -> None:
    model, steps, inputs = party(columns=COLUMNS, accelerated=True)
    for index in range(5):
        iterate = model.weights.copy()
        assert np.array_equal(take(steps, model, inputs[:4], index), iterate)


def test_a_signal_that_is_not_finite_ends_training() -> None:
    model, steps, inputs = party()
    steps.begin(0, ROWS)
    broken = GradientSignal(np.full((COLUMNS, 1), inf))
    with pytest.raises(TrainingDiverged, match="not finite"):
        steps.apply(inputs, predictions=model.predict(inputs), signal=broken)


def test_a_step_offline_that_leaves_float64_ends_training() -> None:
    _, steps, inputs = party(rule=LocalRule(Squared(), 60), derived=False)
    steps.begin(0, ROWS)
    with pytest.raises(TrainingDiverged, match="use a smaller learning rate"):
        steps.next_point(1e10 * inputs)


@pytest.mark.parametrize("cut", range(8))
def test_steps_go_on_from_their_state(cut: int) -> None:
    decisions = [KEEP, NOTHING, KEEP, BACK, NOTHING, NOTHING, KEEP, NOTHING, BACK, NOTHING]
    whole, steps, inputs = party(accelerated=True, columns=1)
    rows = inputs[:30]
    other, fresh, _ = party(accelerated=True, columns=1)
    for index, decision in enumerate(decisions):
        if index == cut:
            other.weights = whole.weights.copy()
            fresh.restore({name: values.copy() for name, values in steps.arrays().items()})
        take(steps, whole, rows, index, decision)
        if index >= cut:
            take(fresh, other, rows, index, decision)
            np.testing.assert_array_equal(other.weights, whole.weights)
    assert fresh.gained == steps.gained


INPUTS = np.random.default_rng(1).standard_normal((40, 5))
START = np.random.default_rng(2).standard_normal((5, 1))
OTHERS = np.random.default_rng(3).standard_normal((40, 1))
LABELS = np.random.default_rng(4).integers(0, 2, 40)
PREDICTIONS = INPUTS @ START


def stepped(rule: LocalRule, signal: Signal, step_size: float = 0.3) -> np.ndarray:
    """θ after the local steps from START."""
    model = LinearModel(START.copy())
    descend(rule, model, INPUTS, PREDICTIONS, signal, step_size)
    return model.weights


def signals(loss: Logistic | Squared) -> tuple[ResidualSignal, GradientSignal, PredictionsSignal]:
    residuals = loss.residuals(OTHERS + PREDICTIONS, LABELS)
    gradient = INPUTS.T @ residuals / len(INPUTS)
    return (ResidualSignal(residuals), GradientSignal(gradient), PredictionsSignal(OTHERS, LABELS))


@pytest.mark.parametrize("local_steps", [1, 5, 50])
def test_on_squared_loss_the_curvature_rule_is_the_exact_local_step(local_steps: int) -> None:
    residual, gradient, exact = signals(Squared())
    rule = LocalRule(Squared(), local_steps, l2=0.01, proximal=0.1)
    reference = stepped(rule, exact)
    assert np.allclose(stepped(rule, residual), reference, rtol=0, atol=1e-12)
    assert np.allclose(stepped(rule, gradient), reference, rtol=0, atol=1e-12)


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
    descend(rule, model, INPUTS, PREDICTIONS, nothing, 0.1)
    once = START - 0.1 * START
    twice = once - 0.1 * (once + 0.5 * (once - START))
    assert np.allclose(model.weights, twice, rtol=0, atol=1e-12)


def losses_of_steps(seed: int) -> list[float]:
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
        model, rule = LinearModel(start), LocalRule(loss, local_steps)
        descend(rule, model, inputs, inputs @ start, signal, 1 / largest)
        values.append(loss.value(others + inputs @ model.weights, labels))
    return values


@given(st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_curvature_steps_never_raise_the_loss_while_the_others_stand_still(seed: int) -> None:
    """d⁰ + c(H − H⁰) is the gradient of a majorizer: any step up to 1/L descends on it."""
    before, *after = losses_of_steps(seed)
    assert max(after) <= before + 1e-12


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
    descend(rule, model, INPUTS, before, ResidualSignal(residuals), 0.05)
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
        descend(rule, model, INPUTS, model.predict(INPUTS), signal, 0.05)
        ends.append(model.weights)
    assert np.allclose(ends[0], ends[1], rtol=0, atol=1e-12)
