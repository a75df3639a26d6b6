from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from securevfl import blocks, threads
from securevfl.arrays import FloatArray
from securevfl.blocks import BlockedRows, blocked
from securevfl.data.scaling import Scaling
from securevfl.models import losses
from securevfl.sparse import dense, lengths_of, standardized, values_of
from tests.jobs import all_weights, fit, relative_difference
from tests.made_data import made

ROWS, COLUMNS = 57, 5


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "LONG_CELLS", 40)
    monkeypatch.setattr(blocks, "BLOCK_CELLS", 30)
    monkeypatch.setattr(losses, "BLOCK", 7)
    # A test of a party's process may have limited this one.
    monkeypatch.setattr(threads._SETTING, "most", None)


def mixed() -> tuple[BlockedRows, FloatArray]:
    """Columns of three widths, and the same as an array."""
    generator = np.random.default_rng(0)
    parts: tuple[NDArray[Any], ...] = (
        generator.standard_normal((ROWS, 2)).astype(np.float32),
        generator.integers(-9, 9, (ROWS, 1)).astype(np.int8),
        1e9 + generator.standard_normal((ROWS, 2)),
    )
    places = (np.array([1, 3]), np.array([0]), np.array([2, 4]))
    array = np.empty((ROWS, COLUMNS))
    for part, place in zip(parts, places, strict=True):
        array[:, place] = part
    return BlockedRows(parts, places), array


def test_what_an_array_would_refuse_is_refused() -> None:
    rows, array = mixed()
    for mask in (np.ones(ROWS - 1, bool), np.ones(ROWS + 1, bool)):
        for each in (rows, array):
            with pytest.raises(IndexError):
                each[mask]
    with pytest.raises(TypeError, match="by arrays and X itself, not by BlockedRows"):
        rows.T @ BlockedRows.of(array)


BOUNDS = np.array([[-5.0, -1.0, 0.0, -1.0, 0.0], [5.0, 1.0, 2e9, 1.0, 2e9]])


@pytest.mark.parametrize("bounds", [None, BOUNDS])
@pytest.mark.parametrize("constant", [False, True])
def test_products_are_those_of_the_scaled_array(bounds: FloatArray | None, constant: bool) -> None:
    rows, array = mixed()
    scaling = Scaling.fit(array)
    x = rows.standardized(scaling.mean, scaling.scale, bounds)
    whole = standardized(array, scaling.mean, scaling.scale, bounds)
    if constant:
        x, whole = x.with_constant(), np.hstack([whole, np.ones((ROWS, 1))])
    generator = np.random.default_rng(1)
    weights = generator.standard_normal((whole.shape[1], 3))
    residuals = generator.standard_normal((ROWS, 3))
    np.testing.assert_array_equal(x.toarray(), whole)
    np.testing.assert_allclose(x @ weights, whole @ weights, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(x @ weights[:, 0], whole @ weights[:, 0], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(x.T @ residuals, whole.T @ residuals, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(
        x.T @ residuals[:, 0], whole.T @ residuals[:, 0], rtol=1e-12, atol=1e-12
    )
    np.testing.assert_allclose(x.T @ x, whole.T @ whole, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(weights.T @ x.T, weights.T @ whole.T, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(lengths_of(x), np.linalg.norm(whole, axis=1), rtol=1e-12, atol=1e-12)
    assert max(each.max() for each in values_of(x)) == whole.max()


def test_some_rows_are_an_array_if_few_and_keep_their_width_if_many() -> None:
    x, array = mixed()
    few, many, mask = np.array([4, 2]), np.arange(0, ROWS, 2), np.arange(ROWS) % 3 == 0
    np.testing.assert_array_equal(x[few], array[few])
    for places in (many, mask, slice(3, 40), slice(0, ROWS, 2)):
        some = x[places]
        assert isinstance(some, BlockedRows)
        assert [each.dtype for each in some.parts] == [each.dtype for each in x.parts]
        np.testing.assert_array_equal(dense(some), array[places])
    assert np.shares_memory(x[3:40].parts[0], x.parts[0])  # type: ignore[union-attr]
    assert x[:] is x


def test_what_is_long_is_held_by_block_without_a_copy() -> None:
    array = np.ones((ROWS, 2))
    x = blocked(array)
    assert isinstance(x, BlockedRows)
    assert x.parts[0] is array
    assert blocked(array[:20]) is not array
    assert isinstance(blocked(array[:20]), np.ndarray)
    with pytest.raises(TypeError, match="call toarray"):
        np.asarray(x)


def test_scaling_by_block_is_that_of_the_array() -> None:
    rows, array = mixed()
    by_block, whole = Scaling.fit(rows), Scaling.fit(array)
    np.testing.assert_allclose(by_block.mean, whole.mean, rtol=1e-14)
    np.testing.assert_allclose(by_block.scale, whole.scale, rtol=1e-9)
    same = Scaling.fit(BlockedRows.of(np.full((ROWS, 1), 0.1)))
    assert (same.mean.item(), same.scale.item()) == (0.1, 1.0)


def test_rows_are_scaled_once() -> None:
    x = mixed()[0].standardized(np.zeros(COLUMNS), np.ones(COLUMNS))
    with pytest.raises(ValueError, match="standardized once"):
        x.standardized(np.zeros(COLUMNS), np.ones(COLUMNS))


def test_products_refuse_other_sizes() -> None:
    x, _ = mixed()
    with pytest.raises(ValueError, match="5 columns, and weights of shape"):
        x @ np.ones((4, 1))
    with pytest.raises(ValueError, match="57 rows, and residuals of shape"):
        x.T @ np.ones((56, 1))


JOBS: list[tuple[str, dict[str, Any]]] = [
    ("plain", {}),
    ("plain", {"algorithm": "fedbcd-s", "local_steps": 2, "batch_size": 40}),
    ("plain", {"algorithm": "fedsgd", "batch_size": 8, "loss": "squared"}),
    ("plain", {"algorithm": "fdml", "batch_size": 40}),
    ("plain", {"algorithm": "dbcd", "l1": 0.01}),
    ("bfv", {}),
]


@pytest.mark.parametrize(("exchange", "settings"), JOBS, ids=str)
def test_models_are_equal_to_the_byte_at_any_number_of_threads(
    exchange: str, settings: dict[str, Any]
) -> None:
    data = made(0, 2, rows=120, columns=4, standardize=True)
    jobs = ({"scheme": exchange, "workers": workers} for workers in (1, 2, 4))
    found = {all_weights(fit(data, each, rounds=3, **settings)).tobytes() for each in jobs}
    assert len(found) == 1


def test_a_model_is_that_of_the_whole_table(monkeypatch: pytest.MonkeyPatch) -> None:
    data = made(0, 2, rows=120, columns=4, standardize=True)
    by_block = fit(data, {"workers": 2}, rounds=5)
    monkeypatch.undo()
    assert relative_difference(by_block, fit(data, rounds=5)) < 1e-12


def test_a_job_takes_as_many_threads_as_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: set[int] = set()
    pool = threads._pool

    def noted(process: int, count: int) -> ThreadPoolExecutor:
        taken.add(count)
        return pool(process, count)

    monkeypatch.setattr(threads, "_pool", noted)
    fit(made(0, 2, rows=120, columns=4), {"workers": 3}, rounds=1)
    assert taken == {3}
