import numpy as np

from securevfl.models.linear import LinearModel, random_start, soft_threshold, zero_start


def inputs(model: LinearModel | None = None) -> np.ndarray:
    values = np.random.default_rng(1).standard_normal((200, 4)) * 7
    return values if model is None else model.inputs(values)


def test_a_random_start_spreads_every_output_by_one() -> None:
    model = random_start(inputs(), 3, False, np.random.default_rng(0))
    assert np.allclose(np.std(inputs() @ model.weights, axis=0), 1)


def test_a_random_start_leaves_the_intercept_at_zero() -> None:
    constant = zero_start(5, 1, True)
    with_ones = inputs(constant)
    model = random_start(inputs(), 2, True, np.random.default_rng(0))
    assert np.array_equal(model.weights[-1], [0, 0])
    assert np.allclose(np.std(model.predict(with_ones), axis=0), 1)


def test_a_random_start_is_the_generators() -> None:
    starts = [random_start(inputs(), 1, False, np.random.default_rng(s)) for s in (0, 0, 1)]
    assert np.array_equal(starts[0].weights, starts[1].weights)
    assert not np.array_equal(starts[0].weights, starts[2].weights)


def test_constant_columns_do_not_break_a_random_start() -> None:
    model = random_start(np.zeros((10, 3)), 1, False, np.random.default_rng(0))
    assert np.isfinite(model.weights).all()


def test_the_intercept_is_one_more_column_and_not_penalized() -> None:
    model = LinearModel(np.array([[2.0], [3.0], [5.0]]), intercept=True)
    row = np.array([[10.0, 100.0]])
    assert model.predict(model.inputs(row)) == 20 + 300 + 5
    assert np.array_equal(model.penalty_gradient(0.5), [[1.0], [1.5], [0.0]])


def test_without_an_intercept_inputs_are_the_features() -> None:
    model = zero_start(2, 1, False)
    row = np.array([[10.0, 100.0]])
    assert model.inputs(row) is row
    assert np.array_equal(model.penalty_gradient(0.5), [[0.0], [0.0]])


def test_a_soft_threshold_leaves_the_intercept() -> None:
    weights = np.array([[2.0], [-0.5], [0.3], [0.4]])
    without, with_one = (LinearModel(weights, each) for each in (False, True))
    assert np.allclose(soft_threshold(without, weights, 0.5), np.array([[1.5, 0, 0, 0]]).T)
    assert np.allclose(soft_threshold(with_one, weights, 0.5), np.array([[1.5, 0, 0, 0.4]]).T)
    assert np.allclose(weights[:, 0], [2, -0.5, 0.3, 0.4])
