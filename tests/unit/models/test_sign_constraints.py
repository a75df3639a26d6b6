"""Minima under sign constraints, by the conditions that only they satisfy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import lsq_linear

from securevfl.arrays import FloatArray
from securevfl.errors import TrainingDiverged
from securevfl.models import sign_constraints
from securevfl.models.sign_constraints import RIDGE, signed_minimum

KINDS = ["usual", "doubled", "nearly the same", "zero", "thresholds", "few rows"]
ROUNDED = 1e-8


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(KINDS), st.sampled_from([0.0, 1e-8, 1e-3]))
def test_no_weight_has_a_slope_that_a_sign_allows(seed: int, kind: str, l2: float) -> None:
    generator = np.random.default_rng(seed)
    rows, columns = generator.integers(2, 60), generator.integers(1, 25)
    inputs = generator.standard_normal((3 if kind == "few rows" else rows, columns))
    if kind == "doubled":
        inputs = np.hstack([inputs, inputs])
    elif kind == "nearly the same":
        inputs = inputs[:, :1] + 1e-6 * inputs
    elif kind == "zero":
        inputs[:, 0] = 0.0
    elif kind == "thresholds":
        inputs = (inputs[:, :1] >= np.sort(inputs[0])).astype(np.float64)
    inputs = inputs * 10.0 ** generator.uniform(-3, 3, inputs.shape[1])
    bends = inputs.T @ inputs / len(inputs) + l2 * np.eye(inputs.shape[1])
    lengths = np.sqrt(np.where(np.diag(bends) > 0, np.diag(bends), 1.0))
    signs = generator.choice([-1.0, 0.0, 1.0], len(bends))
    weights = generator.standard_normal(len(bends)) / lengths
    gradient = inputs.T @ generator.standard_normal(len(inputs)) / len(inputs)

    found = signed_minimum(bends, gradient, weights, signs)

    assert (signs * found >= 0).all()
    assert not np.signbit(found[found == 0]).any()
    moved = found - weights
    slopes = (gradient + bends @ moved) / lengths + RIDGE * lengths * moved
    largest = max(np.abs(weights * lengths).max(), np.abs(gradient / lengths).max())
    held = (signs != 0) & (found == 0)
    assert np.abs(slopes[~held]).max(initial=0.0) <= ROUNDED * largest
    assert (signs * slopes)[held].min(initial=0.0) >= -ROUNDED * largest


def problem(columns: int = 12) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """A matrix and its square, weights and signs, some of which the weights have not."""
    generator = np.random.default_rng(5)
    inputs = generator.standard_normal((40, columns)) + generator.standard_normal((40, 1))
    weights = generator.standard_normal(columns)
    return inputs, inputs.T @ inputs, weights, generator.choice([-1.0, 0.0, 1.0], columns)


def test_the_nearest_point_is_that_of_another_solver_and_not_a_clipped_one() -> None:
    inputs, bends, weights, signs = problem()
    found = signed_minimum(bends, np.zeros_like(weights), weights, signs)
    low, high = np.where(signs > 0, 0.0, -np.inf), np.where(signs < 0, 0.0, np.inf)
    theirs = lsq_linear(inputs, inputs @ weights, (low, high), method="bvls", tol=1e-14)
    np.testing.assert_allclose(found, theirs.x, atol=1e-6)
    clipped = np.clip(weights, low, high)
    distances = [np.linalg.norm(inputs @ (each - weights)) for each in (found, clipped)]
    assert distances[0] < 0.8 * distances[1]


def test_where_no_sign_is_in_the_way_it_is_the_minimum() -> None:
    _, bends, weights, signs = problem()
    weights = np.where(signs != 0, signs * np.abs(weights), weights)
    gradient = 1e-3 * np.ones_like(weights)
    found = signed_minimum(bends, gradient, weights, signs)
    np.testing.assert_allclose(found, weights - np.linalg.solve(bends, gradient), atol=1e-7)


def test_blocks_that_do_not_help_become_single_pivots(monkeypatch: pytest.MonkeyPatch) -> None:
    _, bends, weights, signs = problem(40)
    wanted = signed_minimum(bends, np.zeros_like(weights), weights, signs)
    monkeypatch.setattr(sign_constraints, "BLOCK_TRIES", -1)
    found = signed_minimum(bends, np.zeros_like(weights), weights, signs)
    np.testing.assert_allclose(found, wanted, atol=1e-9)


def test_pivots_without_an_end_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    _, bends, weights, signs = problem()
    monkeypatch.setattr(sign_constraints, "MOST_PIVOTS", 1)
    with pytest.raises(TrainingDiverged, match="pivots of monotone columns"):
        signed_minimum(bends, np.zeros_like(weights), weights, signs)
