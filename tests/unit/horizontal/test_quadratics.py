"""Methods on clients that disagree, against loops written from the papers and their misprints."""

from dataclasses import replace
from math import inf
from typing import Literal

import numpy as np
import pytest
from typing_extensions import override

from securevfl.arrays import FloatArray, IntArray, RealArray
from securevfl.errors import ConfigError, TrainingDiverged
from securevfl.horizontal.client import ClientState, clipped, local_training
from securevfl.horizontal.federation import METHODS, Blocks, Federation
from securevfl.horizontal.server import ServerState, Totals, aggregate
from tests.quadratics import (
    PARAMETERS,
    Quadratic,
    broadcast,
    federation,
    first,
    optimum,
    quadratics,
    run,
)

SIZES = {"first": 4, "second": 5, "last": 3}
BLOCKS = Blocks.equal(SIZES, 2, ["last"])
PLUS = replace(METHODS["fedbcgd+:printed"], momentum=0.0)
Plus = tuple[Federation, ServerState, dict[int, ClientState]]
Form = Literal["right", "sign", "all blocks"]


def error(problems: list[Quadratic], weights: RealArray) -> float:
    best = optimum(problems)
    return float(np.linalg.norm(weights - best) / np.linalg.norm(best))


def shortened(step: FloatArray, most: float) -> FloatArray:
    return step * min(1.0, most / float(np.linalg.norm(step)))


def as_printed(problems: list[Quadratic], by: Federation, form: Form) -> FloatArray:
    """FedBCGD+ over full gradients, loop by loop; `form` is what the paper prints otherwise."""
    weights, mean = np.zeros(PARAMETERS), np.zeros(PARAMETERS)
    controls = np.zeros((len(problems), PARAMETERS))
    for index in range(by.settings.rounds):
        moves, shifts = [np.zeros(PARAMETERS) for _ in range(2)]
        for client, uploaded in by.assignments(index).items():
            problem, own = problems[client], controls[client].copy()
            full = problem.curvature @ (weights - problem.minima.mean(0))
            sign = -1 if form == "sign" else 1
            at = weights.copy()
            for _ in range(by.settings.epochs):
                step = problem.curvature @ (at - problem.minima.mean(0))
                at -= by.settings.learning_rate * (step + sign * (mean - own))
            for block, clients in ((by.blocks.own[uploaded], 2), (by.blocks.shared, 4)):
                moves[block] += (at - weights)[block] / clients
                shifts[block] += (full - own)[block] / len(problems)
                if form != "all blocks":
                    controls[client, block] = full[block]
            if form == "all blocks":
                controls[client] = full
        weights, mean = weights + moves, mean + shifts
    return weights


@pytest.fixture(scope="module")
def problems() -> list[Quadratic]:
    return quadratics(8, 1)


@pytest.fixture(scope="module")
def plus(problems: list[Quadratic]) -> Plus:
    by = federation(PLUS, BLOCKS, rounds=250)
    return (by, *run(problems, by))


@pytest.mark.parametrize("name", ["scaffold", "feddc", "fedbcgd+", "plus"])
def test_control_variates_reach_the_optimum_of_all_clients(
    problems: list[Quadratic], plus: Plus, name: str
) -> None:
    state = plus[1]
    if name != "plus":
        state, _ = run(problems, federation(METHODS[name], BLOCKS, rounds=250))
    assert error(problems, state.weights) < 1e-13


def test_fedbcgd_plus_is_the_paper_s_but_for_what_it_misprints(
    problems: list[Quadratic], plus: Plus
) -> None:
    by, state, _ = plus
    np.testing.assert_allclose(state.weights, as_printed(problems, by, "right"), atol=1e-12)
    for form in ("sign", "all blocks"):
        assert error(problems, as_printed(problems, by, form)) > 0.1


def test_the_server_s_control_variate_is_the_mean_of_the_clients(
    problems: list[Quadratic], plus: Plus
) -> None:
    """One more factor of 1/N in the shared block, as equation (6) has it, breaks this."""
    _, state, kept = plus
    own = [each.control for each in kept.values() if each.control is not None]
    np.testing.assert_allclose(state.control, np.sum(own, 0) / len(problems), atol=1e-12)
    assert np.abs(own[0][BLOCKS.shared]).max() > 1e-2


@pytest.mark.parametrize(("name", "one_block"), [("fedavg", 0.0), ("fedavgm", 0.8)])
def test_one_block_without_a_shared_one_is_fedavg(
    problems: list[Quadratic], name: str, one_block: float
) -> None:
    method = replace(METHODS["fedbcgd"], momentum=one_block)
    blocks = Blocks.equal(SIZES, 1)
    ours, _ = run(problems, federation(method, blocks, rounds=20))
    theirs, _ = run(problems, federation(METHODS[name], BLOCKS, rounds=20))
    np.testing.assert_array_equal(ours.weights, theirs.weights)


def test_fedavgm_is_a_mean_with_momentum_and_fedadam_an_adam_of_means(
    problems: list[Quadratic],
) -> None:
    for name in ("fedavgm", "fedadam"):
        by = federation(METHODS[name], BLOCKS, rounds=30, weight_decay=0.01, decay=0.98)
        weights, velocity, second = (np.zeros(PARAMETERS) for _ in range(3))
        second += 1e-6
        for index in range(30):
            changes = []
            for client in by.assignments(index):
                at, problem = weights.copy(), problems[client]
                for _ in range(3):
                    gradient = problem.curvature @ (at - problem.minima.mean(0)) + 0.01 * at
                    at -= 0.1 * 0.98**index * gradient
                changes.append(at - weights)
            change = np.mean(changes, 0)
            if name == "fedavgm":
                velocity = 0.8 * velocity + change
                weights = weights + velocity
            else:
                velocity = 0.9 * velocity + 0.1 * change
                second = 0.99 * second + 0.01 * change**2
                weights = weights + 0.01 * velocity / (np.sqrt(second) + 1e-3)
        ours, _ = run(problems, by)
        np.testing.assert_allclose(ours.weights, weights, atol=1e-12)


def test_scaffold_is_the_paper_s_over_batches_of_unequal_size() -> None:
    """Option II, by loops, with weight decay, a step size that falls and steps that are clipped."""
    many = quadratics(8, 5, rows=7)
    settings = {"batch_size": 3, "epochs": 2, "weight_decay": 0.01, "decay": 0.9, "clip": 2.0}
    by = federation(METHODS["scaffold"], BLOCKS, rounds=15, **settings)
    weights, mean = np.zeros(PARAMETERS), np.zeros(PARAMETERS)
    own = np.zeros((8, PARAMETERS))
    for index in range(15):
        rate, moves, shifts = 0.1 * 0.9**index, np.zeros(PARAMETERS), np.zeros(PARAMETERS)
        for j in by.assignments(index):
            at = weights.copy()
            batches = by.settings.batches(j, 7, index)
            assert [len(rows) for rows in batches] == [3, 3, 1] * 2
            for rows in batches:
                gradient = many[j].curvature @ (at - many[j].minima[rows].mean(0))
                at -= rate * (shortened(gradient - own[j] + mean, 2.0) + 0.01 * at)
            after = own[j] - mean + (weights - at) / (6 * rate)
            moves, shifts = moves + (at - weights) / 4, shifts + (after - own[j]) / 4
            own[j] = after
        weights, mean = weights + moves, mean + 4 / 8 * shifts
    ours, _ = run(many, by)
    np.testing.assert_allclose(ours.weights, weights, atol=1e-12)
    np.testing.assert_allclose(ours.control, mean, atol=1e-12)


def test_feddc_is_its_public_code_over_full_gradients(problems: list[Quadratic]) -> None:
    by = federation(METHODS["feddc"], BLOCKS, rounds=20)
    rate, pull, count = 0.1, 0.1, len(problems)
    weights, mean = np.zeros(PARAMETERS), np.zeros(PARAMETERS)
    drifts, controls = np.zeros((count, PARAMETERS)), np.zeros((count, PARAMETERS))
    for index in range(20):
        reached, moved = [], np.zeros(PARAMETERS)
        for j in by.assignments(index):
            at, problem = weights.copy(), problems[j]
            for _ in range(3):
                gradient = problem.curvature @ (at - problem.minima.mean(0))
                gradient += pull * (at - (weights - drifts[j])) + mean - controls[j]
                at -= rate * shortened(gradient, 10.0)
            drifts[j] += at - weights
            control = controls[j] - mean - (at - weights) / (3 * rate)
            moved += (control - controls[j]) / count
            controls[j] = control
            reached.append(at)
        weights, mean = np.mean(reached, 0) + drifts.mean(0), mean + moved
    ours, _ = run(problems, by)
    np.testing.assert_allclose(ours.weights, weights, atol=1e-12)


def test_whoever_freezes_moves_nothing_but_what_it_uploads(problems: list[Quadratic]) -> None:
    by = federation(replace(METHODS["fedbcgd"], freezes=True), BLOCKS)
    whole = federation(METHODS["fedbcgd"], BLOCKS)
    state = ServerState.start(np.zeros(PARAMETERS), by.method)
    given = broadcast(by, state, first(by))
    frozen, free = (
        local_training(problems[given.client], each, given, ClientState()).upload
        for each in (by, whole)
    )
    # With other blocks at rest, a block goes to another place.
    assert np.abs(frozen.changes - free.changes)[:-3].max() > 1e-3
    problem, moved = problems[given.client], by.blocks.uploaded(given.block)
    at = np.zeros(PARAMETERS)
    for _ in range(3):
        at[moved] -= 0.1 * (problem.curvature @ (at - problem.minima.mean(0)))[moved]
    np.testing.assert_allclose(frozen.changes, at[moved], atol=1e-14)


@pytest.mark.parametrize("name", METHODS)
def test_the_dtype_of_the_model_is_kept(problems: list[Quadratic], name: str) -> None:
    by = federation(METHODS[name], BLOCKS, rounds=3)
    single, kept = run(problems, by, np.zeros(PARAMETERS, np.float32))
    double, _ = run(problems, by)
    assert {each.dtype for each in vars(single).values() if isinstance(each, np.ndarray)} == {
        np.dtype(np.float32)
    }
    for each in kept.values():
        assert each.control is None or each.control.dtype == np.float32
    np.testing.assert_allclose(single.weights, double.weights, rtol=1e-3, atol=1e-4)


def test_variance_is_reduced_over_batches_at_two_gradients_a_step() -> None:
    many = quadratics(8, 5, rows=7)
    by = federation(PLUS, BLOCKS, rounds=150, batch_size=3, epochs=2)
    state, _ = run(many, by)
    assert error(many, state.weights) < 1e-6
    plain = federation(replace(METHODS["fedbcgd"], momentum=0.0), BLOCKS, batch_size=3, epochs=2)
    for each, gradients in ((by, 4 * 7), (plain, 2 * 7)):
        start = ServerState.start(np.zeros(PARAMETERS), each.method)
        given = broadcast(each, start, first(each))
        result = local_training(many[given.client], each, given, ClientState())
        assert result.gradients == gradients


def test_a_bound_is_on_the_step_with_all_of_its_correction() -> None:
    many, rng = quadratics(8, 5, rows=7), np.random.default_rng(1)
    settings = {"batch_size": 3, "epochs": 2, "weight_decay": 0.01, "clip": 0.5}
    by = federation(PLUS, BLOCKS, **settings)
    control, own, start = rng.standard_normal((3, PARAMETERS))
    state = replace(ServerState.start(start, by.method), control=control)
    given = broadcast(by, state, first(by))
    problem, at = many[given.client], start.copy()
    full = problem.curvature @ (start - problem.minima.mean(0))
    for _ in range(6):  # a batch's gradients at θ and θ⁰ differ by as much whichever its rows are
        step = problem.curvature @ (at - start) + full + control - own
        at -= 0.1 * (shortened(step, 0.5) + 0.01 * at)
    found = local_training(problem, by, given, ClientState(control=own)).upload
    uploaded = by.blocks.uploaded(given.block)
    np.testing.assert_allclose(found.changes, (at - start)[uploaded], atol=1e-13)
    np.testing.assert_allclose(found.controls, (full - own)[uploaded], atol=1e-13)


def test_a_step_too_large_is_an_error_and_no_model(problems: list[Quadratic]) -> None:
    by = federation(METHODS["fedavg"], BLOCKS, learning_rate=1e200)
    with pytest.raises(TrainingDiverged, match=r"client \d diverged in round 0"):
        run(problems, by)
    state = ServerState.start(np.full(PARAMETERS, 1e308), by.method)
    totals = Totals(np.full(PARAMETERS, 1e308), np.zeros(0), (1,))
    with pytest.raises(TrainingDiverged, match="fedavg diverged in round 0"):
        aggregate(state, by, totals)


class Steep(Quadratic):
    """Whose slope is the same everywhere, and hardly fits a float."""

    @override
    def gradient(self, weights: RealArray, rows: IntArray) -> RealArray:
        return np.full(PARAMETERS, 0.89e308)


def test_control_variates_that_are_not_finite_are_an_error_too() -> None:
    by = federation(METHODS["fedbcgd+:printed"], BLOCKS, learning_rate=1e-300, epochs=1)
    far = np.full(PARAMETERS, -1e308)
    start = replace(ServerState.start(np.zeros(PARAMETERS), by.method), control=far)
    steep, given = Steep(np.zeros(0), np.zeros((1, 1))), broadcast(by, start, first(by))
    with pytest.raises(TrainingDiverged, match=r"client \d diverged in round 0"):
        local_training(steep, by, given, ClientState(control=far))
    nearly, totals = (
        replace(start, control=1.7 * far),
        Totals(np.zeros(PARAMETERS), 1.6 * far, (2, 2)),
    )
    with pytest.raises(TrainingDiverged, match="diverged in round 0 at"):
        aggregate(nearly, by, totals)
    assert np.isfinite(aggregate(start, by, totals).control).all()


@pytest.mark.parametrize(
    ("dtype", "size"), [(np.float32, 3e38), (np.float64, 1e308), (np.float32, 11.0)]
)
def test_a_clipped_step_has_the_bound_s_norm_however_large_it_was(
    dtype: type[np.float32 | np.float64], size: float
) -> None:
    step: RealArray = np.array([0.6 * size, -0.8 * size], dtype)
    short = clipped(step, 10.0)
    np.testing.assert_allclose(short, [6.0, -8.0], rtol=1e-6)
    assert short.dtype == dtype
    many = np.full(400, 0.5 * size, dtype)  # their norm is ten times `size`
    np.testing.assert_allclose(clipped(many, 10.0), np.full(400, 0.5), rtol=1e-4)
    for kept, bound in ((step, inf), (short, 10.1), (step * 0, 10.0)):
        np.testing.assert_array_equal(clipped(kept, bound), kept)


def test_a_step_that_is_not_finite_is_not_clipped_to_one_that_is() -> None:
    with np.errstate(invalid="ignore"):
        for each in (np.inf, np.nan):
            assert not np.isfinite(clipped(np.array([1.0, each]), 10.0)).all()


@pytest.mark.parametrize("start", [np.zeros((3, 1)), np.zeros(3, np.float16), np.array([np.nan])])
def test_a_start_that_is_no_finite_vector_of_floats_is_refused(start: FloatArray) -> None:
    with pytest.raises(ConfigError, match="finite vector of float32 or float64"):
        ServerState.start(start, METHODS["fedavg"])
