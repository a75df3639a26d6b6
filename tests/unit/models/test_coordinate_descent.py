import numpy as np
import pytest

from securevfl.models.coordinate_descent import FORCING, minimized, violations

Problem = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def problem(generator: np.random.Generator, columns: int = 12, rank: int = 12) -> Problem:
    factor = generator.standard_normal((rank, columns))
    weights = generator.standard_normal(columns) * (generator.random(columns) < 0.5)
    penalties = np.full(columns, 3.0)
    penalties[-1] = 0.0
    bends = factor.T @ factor + (rank == columns) * np.eye(columns)
    return bends, 5 * generator.standard_normal(columns), weights, penalties


def broken(of: Problem, found: np.ndarray) -> np.ndarray:
    bends, gradient, weights, penalties = of
    return violations(gradient + bends @ (found - weights), found, penalties)


@pytest.mark.parametrize("rank", [12, 5])
def test_the_minimum_meets_the_conditions_of_optimality(
    generator: np.random.Generator, rank: int
) -> None:
    of = problem(generator, rank=rank)
    bends, gradient, weights, penalties = of
    if rank < len(weights):
        # So that there is a minimum.
        gradient = bends @ generator.standard_normal(len(weights))
        of = (bends, gradient, weights, penalties)
    start = violations(gradient, weights, penalties).max()
    # A pass changes the gradient in a coordinate after its turn, once for every later one.
    assert broken(of, minimized(*of)).max() <= len(weights) * FORCING * start
    found = minimized(*of, passes=5000)
    assert broken(of, found).max() < 1e-9
    assert (found[:-1] == 0).any()
    assert found[-1] != 0


def test_passes_are_as_many_as_asked(generator: np.random.Generator) -> None:
    of = problem(generator)
    worst = [broken(of, minimized(*of, passes=n)).max() for n in (1, 10, 100)]
    assert worst[0] > worst[1] > worst[2]
    bends, gradient, weights, penalties = of
    one = weights.copy()
    for j in range(len(one)):
        slope = gradient[j] + bends[j] @ (one - weights)
        pull = bends[j, j] * one[j] - slope
        one[j] = np.sign(pull) * max(abs(pull) - penalties[j], 0) / bends[j, j]
    np.testing.assert_allclose(minimized(*of, passes=1), one, atol=1e-12)


def test_what_does_not_bend_stays(generator: np.random.Generator) -> None:
    bends, gradient, weights, penalties = problem(generator)
    bends[3] = bends[:, 3] = 0.0
    weights[3] = 0.25
    assert minimized(bends, gradient, weights, penalties)[3] == 0.25


def test_nothing_to_minimize_over() -> None:
    nothing = np.zeros(0)
    assert minimized(np.zeros((0, 0)), nothing, nothing, nothing).shape == (0,)


def test_violations_are_distances_to_the_subdifferential() -> None:
    gradient = np.array([2.0, -2.0, 0.5, -4.0, 1.0])
    weights = np.array([0.0, 0.0, 0.0, 3.0, -1.0])
    penalties = np.array([1.5, 3.0, 1.0, 1.0, 0.0])
    expected = [0.5, 0.0, 0.0, 3.0, 1.0]
    np.testing.assert_allclose(violations(gradient, weights, penalties), expected)
