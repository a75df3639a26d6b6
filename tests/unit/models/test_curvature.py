import numpy as np
import pytest
from threadpoolctl import ThreadpoolController, threadpool_limits

from securevfl.errors import DataError
from securevfl.models import curvature
from securevfl.models.curvature import Curvature, largest_curvature
from securevfl.models.linear import LinearModel
from securevfl.models.local_model import Network
from securevfl.models.neural import maker_of, neural_start
from securevfl.sparse import SparseRows
from tests.sparse_data import sparse_rows


def model_of(columns: int, *, intercept: bool = False) -> LinearModel:
    return LinearModel(np.zeros((columns, 1)), intercept)


@pytest.mark.parametrize("intercept", [False, True])
def test_it_is_the_quadratic_and_leaves_the_intercept_alone(
    generator: np.random.Generator, intercept: bool
) -> None:
    x = generator.standard_normal((30, 4))
    l2 = np.diag([0.3, 0.3, 0.3, 0.0 if intercept else 0.3])
    matrix = 0.25 * x.T @ x / 30 + l2
    bend = Curvature(model_of(4, intercept=intercept), x, 0.25, 0.3)
    expected = np.linalg.inv(2.0 * matrix + 0.7 * np.eye(4))
    np.testing.assert_allclose(bend.inverse(2.0, 0.7), expected, rtol=0, atol=1e-12)
    assert bend.largest == pytest.approx(np.linalg.eigvalsh(matrix)[-1])


def test_columns_whose_squares_leave_float64_are_refused() -> None:
    with pytest.raises(DataError, match="standardize them"):
        Curvature(model_of(2), np.array([[1e200, 1.0], [1.0, 1.0]]), 1.0, 0.0)


def test_directions_without_data_stay_where_they_are(generator: np.random.Generator) -> None:
    x = generator.standard_normal((30, 3))
    collinear = np.hstack([x, x @ generator.standard_normal((3, 2)), np.zeros((30, 1))])
    matrix = collinear.T @ collinear / 30
    inverse = Curvature(model_of(6), collinear, 1.0, 0.0).inverse(1.0, 0.0)
    assert np.linalg.matrix_rank(inverse, tol=1e-6) == 3
    np.testing.assert_allclose(matrix @ inverse @ matrix, matrix, rtol=0, atol=1e-9)
    with_l2 = Curvature(model_of(6), collinear, 1.0, 1e-3).inverse(1.0, 0.0)
    assert np.linalg.matrix_rank(with_l2, tol=1e-6) == 6


def test_columns_may_be_of_any_size(generator: np.random.Generator) -> None:
    x = generator.standard_normal((30, 3))
    sizes = np.array([1e-6, 1.0, 1e6])
    plain = Curvature(model_of(3), x, 1.0, 0.0).inverse(1.0, 0.0)
    scaled = Curvature(model_of(3), x * sizes, 1.0, 0.0).inverse(1.0, 0.0)
    np.testing.assert_allclose(scaled * sizes * sizes[:, None], plain, rtol=0, atol=1e-9)


def test_columns_that_say_nothing_have_no_curvature() -> None:
    bend = Curvature(model_of(3), np.zeros((5, 3)), 1.0, 0.0)
    assert bend.largest == 0.0
    np.testing.assert_array_equal(bend.inverse(1.0, 0.0), np.zeros((3, 3)))


def test_of_a_batch_it_is_the_largest_eigenvalue(generator: np.random.Generator) -> None:
    for shape in ((30, 4), (4, 30)):
        x = generator.standard_normal(shape)
        expected = 0.25 * np.linalg.norm(x, 2) ** 2 / len(x)
        found = largest_curvature(model_of(shape[1]), x, 0.25)
        assert 0.9 * expected < found < expected * (1 + 1e-9)


def test_of_a_network_it_is_that_of_its_tangent(generator: np.random.Generator) -> None:
    x = generator.standard_normal((12, 3))
    make = maker_of(Network("mlp", (5,), "tanh"), None)
    model = neural_start(make, x, 2, generator)
    shift, weights = 1e-6, model.weights
    slopes = []
    for unit in np.eye(len(weights)):
        model.weights = weights + shift * unit[:, None]
        above = model.predict(x)
        model.weights = weights - shift * unit[:, None]
        slopes.append(((above - model.predict(x)) / (2 * shift)).ravel())
    model.weights = weights
    expected = 0.5 * np.linalg.norm(np.array(slopes), 2) ** 2 / 12
    assert largest_curvature(model, x, 0.5) == pytest.approx(expected, rel=1e-6)


def test_a_wide_model_is_measured_on_as_many_rows_as_memory_is_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(curvature, "JACOBIAN_VALUES", 12)
    x = np.array([[2.0, 0, 0]] * 4 + [[100.0, 0, 0]] * 5)
    assert largest_curvature(model_of(3), x, 1.0) == pytest.approx(4.0)


def test_of_many_sparse_columns_it_does_not_depend_on_threads(
    monkeypatch: pytest.MonkeyPatch, generator: np.random.Generator
) -> None:
    """SciPy's own BLAS has one thread as well, though it is loaded once training runs."""
    x = sparse_rows(np.where(generator.random((50, 9)) < 0.3, 1.0, 0.0))
    seen, multiply = set[int](), SparseRows.__matmul__

    def noted(rows: SparseRows, weights: np.ndarray) -> np.ndarray:
        found = ThreadpoolController().info()
        seen.update(each["num_threads"] for each in found if each["user_api"] == "blas")
        return multiply(rows, weights)

    monkeypatch.setattr(curvature, "MOST_GRAM_COLUMNS", 8)
    monkeypatch.setattr(SparseRows, "__matmul__", noted)
    with threadpool_limits(2, "blas"):
        assert Curvature(model_of(9), x, 0.25, 0.1).largest > 0
    assert seen == {1}


@pytest.mark.parametrize("intercept", [False, True])
def test_of_many_sparse_columns_the_largest_bend_comes_from_products(
    monkeypatch: pytest.MonkeyPatch, generator: np.random.Generator, intercept: bool
) -> None:
    table = np.where(generator.random((50, 9)) < 0.3, 1.0, 0.0)
    rows = sparse_rows(table)
    model = model_of(9 + intercept, intercept=intercept)
    x = model.inputs(rows)
    whole = Curvature(model, x.toarray(), 0.25, 0.1).largest
    assert Curvature(model, x, 0.25, 0.1).largest == pytest.approx(whole)
    monkeypatch.setattr(curvature, "MOST_GRAM_COLUMNS", 8)
    by_products = Curvature(model, x, 0.25, 0.1)
    assert not by_products.matrix.size
    assert whole * (1 - 1e-9) <= by_products.largest <= whole * (1 + 2e-3)
    counted = Curvature(model, x.toarray(), 0.25, 0.1).intrinsic_dimension
    assert by_products.intrinsic_dimension == pytest.approx(counted, rel=3e-3)


def test_of_many_dense_columns_too_and_an_intercept_is_none_of_them(
    monkeypatch: pytest.MonkeyPatch, generator: np.random.Generator
) -> None:
    model = model_of(10, intercept=True)
    x = model.inputs(generator.standard_normal((50, 9)))
    monkeypatch.setattr(curvature, "MOST_DENSE_COLUMNS", 9)
    whole = Curvature(model, x, 0.25, 0.1)
    assert whole.matrix.size
    monkeypatch.setattr(curvature, "MOST_DENSE_COLUMNS", 8)
    by_products = Curvature(model, x, 0.25, 0.1)
    assert not by_products.matrix.size
    assert by_products.largest == pytest.approx(whole.largest, rel=2e-3)


def test_the_intrinsic_dimension_counts_columns_as_steep_as_the_steepest() -> None:
    x = np.diag([2.0, 2.0, 1.0, 0.0])
    assert Curvature(model_of(4), x, 0.25, 0.0).intrinsic_dimension == pytest.approx(9 / 4)
    assert Curvature(model_of(4), 0 * x, 0.25, 0.0).intrinsic_dimension == 0.0
