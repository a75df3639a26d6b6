"""What exact block steps promise whatever the data: they never rise where s majorizes."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from securevfl.models.curvature import Curvature
from securevfl.models.linear import LinearModel
from securevfl.models.losses import Logistic, Loss, Multinomial, Squared, TaylorLogistic
from securevfl.protocols.local_steps import LocalRule, LocalSteps, Pace, ResidualSignal
from securevfl.protocols.session.early_stopping import Decision

FloatArray = NDArray[np.float64]
ROUNDING = 1e-9


@dataclass(frozen=True)
class Problem:
    """Parties with columns of every kind; the first has the intercept."""

    blocks: list[FloatArray]
    labels: NDArray[np.int64]
    loss: Loss
    l2: float
    proximal: float

    def parties(
        self, scale: float, generator: np.random.Generator
    ) -> list[tuple[LinearModel, LocalSteps]]:
        rule = LocalRule(self.loss, 1, l2=self.l2, proximal=self.proximal, exact=True)
        pace = Pace(scale, scale, 0, len(self.labels), lambda _: 1.0, derived=True)
        models = [
            LinearModel(generator.standard_normal((x.shape[1], self.loss.outputs)), intercept=not k)
            for k, x in enumerate(self.blocks)
        ]
        return [
            (model, LocalSteps(model, x, rule, pace))
            for model, x in zip(models, self.blocks, strict=True)
        ]

    def predictions(self, parties: list[tuple[LinearModel, LocalSteps]]) -> FloatArray:
        return sum(
            model.predict(x) for (model, _), x in zip(parties, self.blocks, strict=True)
        ) + np.zeros((len(self.labels), self.loss.outputs))

    def objective(self, parties: list[tuple[LinearModel, LocalSteps]]) -> float:
        penalties = [np.sum(model.penalty_gradient(1.0) ** 2) / 2 for model, _ in parties]
        fit = self.loss.value(self.predictions(parties), self.labels)
        return fit + self.l2 * float(sum(penalties))

    def take_round(self, parties: list[tuple[LinearModel, LocalSteps]], index: int) -> None:
        for _, steps in parties:
            steps.begin(index, len(self.labels))
        residuals = self.loss.residuals(self.predictions(parties), self.labels)
        for (model, steps), x in zip(parties, self.blocks, strict=True):
            signal = ResidualSignal(residuals)
            steps.take(Decision(index), x, predictions=model.predict(x), signal=signal)


KINDS = ["usual", "the first party's", "collinear", "zero", "large"]


@st.composite
def problems(draw: st.DrawFn) -> tuple[Problem, np.random.Generator]:
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows = draw(st.integers(3, 30))
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=5))
    blocks: list[FloatArray] = []
    for kind in kinds:
        block = generator.standard_normal((rows, draw(st.integers(1, 6))))
        if kind == "the first party's" and blocks:
            block = blocks[0][:, :-1]
        elif kind == "collinear":
            block = np.hstack([block, block @ generator.standard_normal((block.shape[1], 2))])
        elif kind == "zero":
            block[:, 0] = 0.0
        elif kind == "large":
            block *= 100
        blocks.append(np.hstack([block, np.ones((rows, 1))]) if not blocks else block)
    losses: list[Loss] = [Logistic(), Squared(), TaylorLogistic(), Multinomial(4)]
    loss = draw(st.sampled_from(losses))
    classes = loss.outputs if loss.outputs > 1 else 2
    labels = generator.integers(0, classes, rows)
    l2, proximal = draw(st.sampled_from([0.0, 1e-3, 0.5])), draw(st.sampled_from([0.0, 0.1]))
    return Problem(blocks, labels, loss, l2, proximal), generator


@given(problems())
@settings(max_examples=150)
def test_without_extrapolation_the_objective_never_rises_at_s_equal_to_k(
    drawn: tuple[Problem, np.random.Generator],
) -> None:
    problem, generator = drawn
    parties = problem.parties(len(problem.blocks), generator)
    before = problem.objective(parties)
    for index in range(4):
        problem.take_round(parties, index)
        after = problem.objective(parties)
        assert after <= before + ROUNDING * (1 + before)
        before = after


@pytest.mark.parametrize("parties", [3, 5])
def test_below_k_it_can_rise(parties: int, generator: np.random.Generator) -> None:
    block = np.hstack([generator.standard_normal((20, 3)), np.ones((20, 1))])
    labels = generator.integers(0, 2, 20)
    same = Problem([block] * parties, labels, Squared(), 0.0, 0.0)
    # At s = K/2 a step ends where it mirrors the objective; beyond, it is higher.
    short = same.parties(parties / 2.2, generator)
    before = same.objective(short)
    same.take_round(short, 0)
    assert same.objective(short) > before
    tight = same.parties(parties, generator)
    same.take_round(tight, 0)
    least = np.linalg.lstsq(block, labels, rcond=None)[1][0] / 40
    assert same.objective(tight) == pytest.approx(least, rel=1e-9)


@given(problems())
@settings(max_examples=50)
def test_the_least_s_lies_between_1_and_k(drawn: tuple[Problem, np.random.Generator]) -> None:
    problem, _ = drawn
    largest = least_scale(problem.blocks, 1e-3)
    assert 1 - 1e-6 <= largest <= len(problem.blocks) + 1e-6


def least_scale(blocks: list[FloatArray], l2: float) -> float:
    """The largest eigenvalue of D⁻¹H, H = XᵀX/N + λI over all columns."""
    rows, together = len(blocks[0]), np.hstack(blocks)
    bend = together.T @ together / rows + l2 * np.eye(together.shape[1])
    inverse = np.zeros_like(bend)
    place = 0
    for block in blocks:
        model = LinearModel(np.zeros((block.shape[1], 1)))
        end = place + block.shape[1]
        inverse[place:end, place:end] = Curvature(model, block, 1.0, l2).inverse(1.0, 0.0)
        place = end
    return float(np.max(np.linalg.eigvals(inverse @ bend).real))


def test_of_two_parties_it_is_one_and_the_largest_canonical_correlation(
    generator: np.random.Generator,
) -> None:
    common = generator.standard_normal((60, 1))
    first, second = (generator.standard_normal((60, p)) + common for p in (3, 5))
    orthonormal = [np.linalg.qr(block)[0] for block in (first, second)]
    correlation = np.linalg.svd(orthonormal[0].T @ orthonormal[1])[1][0]
    assert least_scale([first, second], 0.0) == pytest.approx(1 + correlation, rel=1e-9)
    assert least_scale([first], 0.0) == pytest.approx(1)
    assert least_scale([first, first, first], 0.0) == pytest.approx(3)
    apart = np.linalg.qr(np.hstack([first, second]))[0]
    assert least_scale([apart[:, :3], apart[:, 3:]], 0.0) == pytest.approx(1)


@given(problems())
@settings(max_examples=50)
def test_one_party_with_squared_loss_is_done_in_one_step(
    drawn: tuple[Problem, np.random.Generator],
) -> None:
    problem, generator = drawn
    x = problem.blocks[0] / np.abs(problem.blocks[0]).max()
    alone = Problem([x], generator.integers(0, 2, len(x)), Squared(), l2=0.1, proximal=0.0)
    parties = alone.parties(1.0, generator)
    alone.take_round(parties, 0)
    penalty = np.diag([*[0.1] * (x.shape[1] - 1), 0.0])
    ridge = np.linalg.solve(x.T @ x / len(x) + penalty, x.T @ alone.labels / len(x))
    found = parties[0][0].weights[:, 0]
    np.testing.assert_allclose(found, ridge, rtol=0, atol=1e-7 * (1 + np.abs(ridge).max()))


@given(problems(), st.integers(1, 5))
@settings(max_examples=50)
def test_offline_is_where_the_next_exchange_takes_place(
    drawn: tuple[Problem, np.random.Generator], rounds: int
) -> None:
    problem, generator = drawn
    x = problem.blocks[0]
    rows = len(x) - 1
    rule = LocalRule(problem.loss, 1, l2=problem.l2, proximal=0.1, exact=True, accelerated=True)
    pace = Pace(1.0, 4.0, 1, len(x), lambda _: 1.0, derived=True)
    model = LinearModel(generator.standard_normal((x.shape[1], problem.loss.outputs)))
    steps = LocalSteps(model, x, rule, pace)
    for index in range(rounds):
        some = x[: rows + index % 2]
        steps.begin(index, len(some))
        residuals = generator.standard_normal((len(some), problem.loss.outputs))
        matrix, constant = steps.next_point(some)
        foretold = constant - matrix @ (some.T @ residuals / len(some))
        signal = ResidualSignal(residuals)
        steps.take(Decision(index), some, predictions=model.predict(some), signal=signal)
        steps.begin(index + 1, rows + (index + 1) % 2)
        bound = 1e-8 * (1 + np.abs(model.weights).max())
        np.testing.assert_allclose(foretold, model.weights, rtol=0, atol=bound)
        model.weights = steps._iterate
