import numpy as np
import pytest
from scipy.optimize import check_grad

from bench.objective import Objective
from bench.theorem2.__main__ import (
    Theorem2Settings,
    bound,
    bounded_gradients,
    rates,
    slope,
    with_drift,
)
from securevfl.arrays import FloatArray
from securevfl.data.sources import load
from securevfl.data.tables import some_rows
from securevfl.errors import ConfigError
from securevfl.job import Job


@pytest.fixture(scope="module")
def objective() -> Objective:
    return Objective.of(load("breast_cancer"))


def draws(objective: Objective, count: int, scale: float) -> list[FloatArray]:
    generator = np.random.default_rng(0)
    return list(scale * generator.standard_normal((count, objective.joint.shape[1])))


def gradient(objective: Objective, weights: FloatArray) -> FloatArray:
    residuals = next(objective._residuals(weights[None]))
    found: FloatArray = (objective.joint.T @ residuals / objective.rows)[:, 0]
    return found


def test_the_gradient_is_that_of_the_loss(objective: Objective) -> None:
    for weights in draws(objective, 3, 0.3):
        error = check_grad(objective.loss, lambda at: gradient(objective, at), weights)
        assert error <= 1e-5
        squared = objective.squared_gradients(weights[None])[0]
        assert squared == pytest.approx(np.sum(gradient(objective, weights) ** 2))


def test_lipschitz_constants_bound_every_pair_and_the_whole_is_attained_at_zero(
    objective: Objective,
) -> None:
    smooth = objective.smoothness
    ends = np.cumsum([block.shape[1] for block in objective.blocks])[:-1]
    for one, other in zip(draws(objective, 5, 0.5), draws(objective, 5, 1.0)[::-1], strict=True):
        change = gradient(objective, one) - gradient(objective, other)
        distance = np.linalg.norm(one - other)
        assert np.linalg.norm(change) <= smooth.whole * distance
        for part, constant in zip(np.split(change, ends), smooth.blocks, strict=True):
            assert np.linalg.norm(part) <= constant * distance
    steepest = np.linalg.svd(objective.joint)[2][0]
    tiny = 1e-5 * steepest
    change = gradient(objective, tiny) - gradient(objective, 0 * tiny)
    assert np.linalg.norm(change) == pytest.approx(1e-5 * smooth.whole, rel=1e-6)


def test_the_noise_bound_is_over_what_batches_have(objective: Objective) -> None:
    path = np.stack(draws(objective, 4, 0.3))
    # On average over partitions: two halves would be one draw.
    for size in (28, 57, 114):
        assert (objective.noise_at(path, size) <= objective.noise(size)).all()
    assert objective.noise(objective.rows) == 0


def test_the_lowest_loss_is_below_everything_else(objective: Objective) -> None:
    assert all(objective.lowest_loss < objective.loss(each) for each in draws(objective, 5, 0.3))


def test_the_path_has_every_local_step(objective: Objective) -> None:
    # A rate that is given, as derived ones of one step and of several differ.
    settings = {"learning_rate": 0.5, "start": "zero", "eval_every": 0}
    job = Job.of(job={"rounds": 4, "local_steps": 3, "batch_size": 228, **settings})
    path = objective.follow(job)
    assert path.shape == (1 + 4 * 3, 31)
    assert not path[0].any()
    assert objective.loss(path[-1]) < objective.loss(path[0])
    again = objective.follow(job.with_settings(local_steps=1))
    np.testing.assert_allclose(again[1], path[1])


def test_the_bound_holds_within_the_condition_and_can_fail_beyond_it() -> None:
    rows = list(
        bounded_gradients(
            Theorem2Settings(
                local_rules=("exact",),
                local_steps=(1, 5),
                batch_sizes=(57, 456),
                over_limit=(0.5, 1.0, 16.0),
                repeats=1,
            ),
            load("breast_cancer"),
        )
    )
    assert len(rows) == 12
    assert all(row["holds"] for row in rows if row["over_limit"] in (0.5, 1))
    by_limit = {0.5: "proof", 1.0: "statement", 16.0: "neither"}
    assert all(row["within"] == by_limit[row["over_limit"] or 0] for row in rows)
    beyond = [row for row in rows if row["over_limit"] == 16 and row["batch_size"] == 456]
    assert not all(row["holds"] for row in beyond)


def test_the_bound_is_the_papers(objective: Objective) -> None:
    smooth, noise = objective.smoothness, objective.noise(57) / 57
    squares = sum(each**2 for each in smooth.blocks)
    expected = 2 / (0.01 * 100) * 0.5 + 2 * 0.01**2 * 5 * 25 * squares * noise + 4 * noise
    found = bound(objective, eta=0.01, local_steps=5, batch_size=57, steps=100, gap=0.5)
    assert found == pytest.approx(expected)
    largest = min(np.sqrt(2) / (2 * 5 * np.sqrt(squares + 3 * each**2)) for each in smooth.blocks)
    assert smooth.largest_step(5) == pytest.approx(min(largest, 1 / smooth.whole))


def test_the_proof_s_term_is_negative_at_the_largest_step_of_the_theorem(
    objective: Objective,
) -> None:
    smooth = objective.smoothness
    squares = sum(each**2 for each in smooth.blocks)
    least = min(
        1 - smooth.whole * 0.01 - 2 * 0.01**2 * 5**2 * (squares + 3 * each**2)
        for each in smooth.blocks
    )
    assert smooth.proof_term(0.01, 5) == pytest.approx(least)
    for count in (1, 5, 20):
        largest = smooth.largest_step(count)
        assert smooth.proof_term(largest, count) == pytest.approx(-smooth.whole * largest)
        assert smooth.proof_term(largest / 2, count) > 0
    assert smooth.proof_term(smooth.largest_step(1), 1) == pytest.approx(-0.43, abs=0.005)


def test_rules_are_rows_of_their_own_that_differ_beyond_one_step() -> None:
    rows = list(
        bounded_gradients(
            Theorem2Settings(
                local_rules=("exact", "curvature", "frozen"),
                local_steps=(1, 5),
                batch_sizes=(57,),
                over_limit=(1.0,),
                repeats=1,
                steps=50,
            ),
            load("breast_cancer"),
        )
    )
    found = {(row["local_rule"], row["local_steps"]): row["measured"] for row in rows}
    ones = [found[rule, 1] for rule in ("exact", "curvature", "frozen")]
    assert ones == pytest.approx([ones[0]] * 3, rel=1e-9)
    fives = [found[rule, 5] for rule in ("exact", "curvature", "frozen")]
    assert abs(fives[0] - fives[1]) > 1e-6 * fives[0]
    assert abs(fives[0] - fives[2]) > 1e-6 * fives[0]


def test_error_falls_with_rounds_as_the_theorem_says() -> None:
    dataset = with_drift(some_rows(load("breast_cancer"), 256))
    assert Objective.of(dataset).smoothness.drift == pytest.approx(0.55, abs=1e-3)
    settings = Theorem2Settings(local_rules=("exact",), roots=(4, 8, 16), repeats=2)
    rows = list(rates(settings, dataset))
    assert [row["rounds"] for row in rows] == [4, 8, 16]
    assert all(row["holds"] for row in rows)
    assert {row["within"] for row in rows} == {"proof"}
    assert -1.5 < slope(rows) < -0.5


def test_a_rate_without_the_condition_is_refused() -> None:
    with pytest.raises(ConfigError, match="over the theorem's limit"):
        list(rates(Theorem2Settings(roots=(4,)), load("breast_cancer")))
