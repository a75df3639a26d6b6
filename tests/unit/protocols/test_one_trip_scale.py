"""The scale that travels beside encrypted predictions tells of |A| and |constant|, of no sign."""

import numpy as np
import pytest
from numpy.typing import NDArray

from securevfl.errors import TrainingDiverged
from securevfl.models.linear import LinearModel
from securevfl.models.losses import Logistic
from securevfl.protocols.exchange import Batch
from securevfl.protocols.exchanges.encrypted import AffinePredictions, next_predictions
from securevfl.protocols.local_steps import LocalRule, LocalSteps, Pace
from securevfl.sparse import dense

FloatArray = NDArray[np.float64]
BOUND, PRODUCT_BOUND = 8.0, 100.0


def scale(matrix: FloatArray, constant: FloatArray) -> int:
    return AffinePredictions(matrix, constant).scale_bits(BOUND, PRODUCT_BOUND)


@pytest.mark.parametrize("largest", ["matrix", "constant"])
def test_no_sign_of_any_entry_changes_the_scale(largest: str) -> None:
    for seed in range(50):
        generator = np.random.default_rng(seed)
        matrix, constant = generator.standard_normal((6, 4)), generator.standard_normal((6, 2))
        (matrix if largest == "matrix" else constant)[...] *= 1000
        of_matrix, of_constant = (
            generator.choice([-1.0, 1.0], each.shape) for each in (matrix, constant)
        )
        expected = scale(matrix, constant)
        assert scale(-matrix, -constant) == expected
        assert scale(of_matrix * matrix, of_constant * constant) == expected
        assert scale(np.abs(matrix), np.abs(constant)) == expected


def test_the_scale_is_the_largest_that_keeps_both_bounds() -> None:
    for seed in range(50):
        generator = np.random.default_rng(seed)
        matrix = generator.standard_normal((5, 3)) * 10.0 ** generator.integers(-4, 4)
        constant = generator.standard_normal((5, 1)) * 10.0 ** generator.integers(-4, 4)
        factor = 2.0 ** scale(matrix, constant)
        within = [np.max(np.abs(matrix)) * factor <= BOUND]
        within.append(np.max(np.abs(constant)) * factor <= PRODUCT_BOUND)
        assert all(within)
        assert (
            np.max(np.abs(matrix)) * 2 * factor > BOUND
            or np.max(np.abs(constant)) * 2 * factor > PRODUCT_BOUND
        )


def steps(weights: FloatArray, inputs: FloatArray) -> LocalSteps:
    rule = LocalRule(Logistic(), local_steps=3, l2=0.1, proximal=0.2)
    pace = Pace(1.0, 1.0, 0, len(inputs), lambda _: 0.1, derived=False)
    return LocalSteps(LinearModel(weights), inputs, rule, pace)


def batch(inputs: FloatArray) -> Batch:
    return Batch(0, True, np.arange(len(inputs)), inputs, None)


@pytest.mark.parametrize("turned", ["rows", "columns", "everything"])
def test_no_sign_of_the_features_changes_the_scale(turned: str) -> None:
    for seed in range(20):
        generator = np.random.default_rng(seed)
        inputs = [generator.standard_normal((7, 4)) for _ in range(2)]
        weights = generator.standard_normal((4, 1))
        signs = generator.choice([-1.0, 1.0], 4)
        other, other_weights = inputs, weights
        if turned == "rows":  # XᵀX, and so every step, stays as it is
            other = [generator.choice([-1.0, 1.0], (7, 1)) * each for each in inputs]
        elif turned == "columns":
            other, other_weights = [each * signs for each in inputs], weights * signs[:, None]
        else:
            other = [-each for each in inputs]
        scales = set()
        for each, theta in ((inputs, weights), (other, other_weights)):
            now, then = map(batch, each)
            following = next_predictions(steps(theta, dense(now.inputs)), now, then)
            scales.add(following.scale_bits(BOUND, PRODUCT_BOUND))
        assert len(scales) == 1


@pytest.mark.parametrize(("weights", "rows"), [(1e200, 1e200), (1.0, 1e308)])
def test_predictions_offline_that_leave_float64_end_training(weights: float, rows: float) -> None:
    inputs = np.ones((7, 4))
    following = steps(np.full((4, 1), weights), inputs)
    with pytest.raises(TrainingDiverged, match="use a smaller learning rate"):
        next_predictions(following, batch(inputs), batch(rows * inputs))
