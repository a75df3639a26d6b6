import numpy as np
import pytest

from securevfl.auditing.twins import (
    freedom,
    stabilizer_rotation,
)
from securevfl.errors import ConfigError


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("outputs", [0, 1, 3])
def test_a_draw_fixes_every_fixed_column_and_nothing_else(outputs: int) -> None:
    fixed = generator().standard_normal((7, outputs))
    rotation = stabilizer_rotation(fixed, generator(1))
    np.testing.assert_allclose(rotation.T @ rotation, np.eye(7), atol=1e-13)
    np.testing.assert_allclose(rotation @ fixed, fixed, atol=1e-13)
    unmoved = np.sum(np.abs(np.linalg.eigvals(rotation) - 1) < 1e-9)
    assert unmoved in {outputs, outputs + 1}  # an odd rotation has one axis more


def test_the_freedom_is_that_of_the_complement() -> None:
    start = generator().standard_normal((5, 1))
    constant = np.eye(5)[:, -1:]
    assert freedom(np.empty((5, 0))) == (5, 10)
    assert freedom(start) == (4, 6)
    assert freedom(np.hstack([start, constant])) == (3, 3)
    assert freedom(np.hstack([start, 2 * start])) == (4, 6)
    assert freedom(np.zeros((5, 1))) == (5, 10)


def test_two_columns_leave_one_reflection_and_no_continuum() -> None:
    start = generator().standard_normal((2, 1))
    assert freedom(start) == (1, 0)
    assert freedom(np.zeros((2, 1))) == (2, 1)
    assert freedom(np.eye(2)) == (0, 0)
    assert freedom(start[:1]) == (0, 0)


def test_one_feature_has_no_twin() -> None:
    with pytest.raises(ConfigError, match="the data have no twin"):
        stabilizer_rotation(np.array([[2.0]]), generator())


def test_two_features_have_exactly_one_twin() -> None:
    start = np.array([[3.0], [4.0]])
    draws = [stabilizer_rotation(start, generator(seed)) for seed in range(200)]
    reflection = 2 * (start @ start.T) / 25 - np.eye(2)
    np.testing.assert_allclose(draws, np.broadcast_to(reflection, (200, 2, 2)), atol=1e-14)


def test_three_features_have_as_many_twins_as_draws() -> None:
    draws = [stabilizer_rotation(np.ones((3, 1)), generator(seed)) for seed in range(200)]
    distances = [np.linalg.norm(a - b) for i, a in enumerate(draws) for b in draws[:i]]
    # Two draws of O(2) of the same kind are within 1e-6 with probability below 1e-6; 19,900 pairs.
    assert np.sum(np.array(distances) < 1e-6) <= 1


def test_draws_are_spread_evenly_over_the_group() -> None:
    # E[V] = 0 for Haar draws: the mean of 2,000 has entries of deviation 1/√(3·2000) = 0.013;
    # 16 entries below five of them fail wrongly with probability below 1e-5.
    fixed = np.ones((4, 1))
    mean = np.mean([stabilizer_rotation(fixed, generator(seed)) for seed in range(2000)], axis=0)
    np.testing.assert_allclose(mean, np.full((4, 4), 0.25), atol=0.065)


def test_a_known_constant_column_of_the_data_stays() -> None:
    features = np.hstack([generator().standard_normal((20, 4)), np.ones((20, 1))])
    fixed = np.hstack([generator(1).standard_normal((5, 1)), np.eye(5)[:, -1:]])
    turned = features @ stabilizer_rotation(fixed, generator(2))
    np.testing.assert_allclose(turned[:, -1], 1.0, atol=1e-13)
    np.testing.assert_allclose(
        np.linalg.norm(turned, axis=1), np.linalg.norm(features, axis=1), atol=1e-12
    )
    assert np.linalg.norm(turned - features) > 0.1 * np.linalg.norm(features)


def test_a_twin_of_zeros_and_ones_is_not_of_zeros_and_ones() -> None:
    bits = (generator().random((500, 8)) < 0.3).astype(float)
    turned = bits @ stabilizer_rotation(generator(1).standard_normal((8, 1)), generator(2))
    near = np.minimum(np.abs(turned), np.abs(turned - 1)) < 1e-6
    rows_of_zeros = ~bits.any(axis=1)  # zero stays zero
    assert near[~rows_of_zeros].mean() < 1e-3
