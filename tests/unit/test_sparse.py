from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from typing_extensions import override

from securevfl.data.scaling import Scaling
from securevfl.errors import DataError
from securevfl.sparse import GATHERED_ONES, SparseRows, lengths_of, values_of
from tests.sparse_data import sparse_rows


def made(rows: int = 40, columns: int = 9, *, binary: bool = False, seed: int = 0) -> np.ndarray:
    """Few cells that are not 0; a column of zeros, one of ones and a row without any."""
    generator = np.random.default_rng(seed)
    full = np.ones((rows, columns)) if binary else generator.standard_normal((rows, columns))
    table: np.ndarray = np.where(generator.random((rows, columns)) < 0.2, full, 0.0)
    table[3] = 0.0
    table[:, 2], table[:, 5] = 0.0, 1.0
    return table


@pytest.mark.parametrize("binary", [False, True])
def test_values_are_those_of_the_array(binary: bool) -> None:
    table = made(binary=binary)
    rows, scaling = sparse_rows(table), Scaling.fit(table)
    assert (rows.values is None) == binary
    ones = np.ones((len(table), 1))
    for sparse, array in (
        (rows, table),
        (scaling.apply(rows), scaling.apply(table)),
        (rows.with_constant(), np.hstack([table, ones])),
        (scaling.apply(rows).with_constant(), np.hstack([scaling.apply(table), ones])),
    ):
        numbers = np.unique(np.round(np.concatenate([*values_of(sparse)]), 12))
        np.testing.assert_allclose(numbers, np.unique(np.round(array, 12)), atol=1e-11)


def test_long_tables_go_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    for room in ("BATCH_ONES", "BLOCK_ONES"):
        monkeypatch.setattr(f"securevfl.sparse.{room}", 7)
    assert len([*sparse_rows(made()).blocks()]) > 5


@pytest.mark.parametrize("binary", [False, True])
def test_scaling_is_that_of_the_array(binary: bool) -> None:
    table = made(binary=binary)
    ours, theirs = Scaling.fit(sparse_rows(table)), Scaling.fit(table)
    np.testing.assert_allclose(ours.mean, theirs.mean, atol=1e-15)
    np.testing.assert_allclose(ours.scale, theirs.scale, rtol=1e-12)
    assert (ours.mean[[2, 5]] == [0, 1]).all()
    assert (ours.scale[[2, 5]] == 1).all()


def test_float32_values_and_wide_indices_mean_the_same() -> None:
    table = made().astype(np.float32).astype(np.float64)
    rows = sparse_rows(table)
    assert rows.values is not None
    other = replace(
        rows, indices=rows.indices.astype(np.uint32), values=rows.values.astype(np.float32)
    )
    assert np.array_equal(other @ np.eye(9), table)


def test_rows_of_a_memory_map_are_not_copied(tmp_path: Path) -> None:
    rows = sparse_rows(made())
    stored = []
    for name, part in zip(("pointers", "indices", "values"), rows.parts, strict=True):
        np.save(tmp_path / f"{name}.npy", part)
        stored.append(np.load(tmp_path / f"{name}.npy", mmap_mode="r"))
    mapped = replace(rows, pointers=stored[0], indices=stored[1], values=stored[2])
    assert np.shares_memory(mapped[4:30].indices, stored[1])
    assert np.array_equal(mapped[4:30].toarray(), rows[4:30].toarray())
    assert np.array_equal(mapped[np.array([7, 1])].toarray(), rows[np.array([7, 1])].toarray())


@pytest.mark.parametrize("together", [40, GATHERED_ONES])
def test_rows_are_the_same_however_many_are_gathered_at_a_time(
    together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("securevfl.sparse.GATHERED_ONES", together)
    generator = np.random.default_rng(8)
    table = np.where(generator.random((700, 6)) < 0.3, generator.random((700, 6)), 0.0)
    table[:3] = 0.0
    rows = sparse_rows(table)
    chosen = generator.integers(0, 700, 1027)
    assert np.array_equal(rows[chosen].toarray(), table[chosen])
    assert rows[chosen[:0]].shape == (0, 6)
    orders = [generator.permutation(700) for _ in range(2)]
    first = rows.reordered(orders[0])
    assert np.array_equal(first.toarray(), table[orders[0]])
    second = rows.reordered(orders[1], first)
    assert np.array_equal(second.toarray(), table[orders[1]])
    assert np.shares_memory(first.indices, second.indices)
    assert rows[:0].reordered(orders[0][:0]).shape == (0, 6)


@pytest.mark.parametrize("pointers", [[0, 2, 1, 3], [0, 5, 1, 3], [0, -1, 1, 3]])
def test_no_cells_are_gathered_by_pointers_that_descend(pointers: list[int]) -> None:
    rows = SparseRows(np.array(pointers), np.array([0, 1, 3], np.uint16), None, 4)
    for row in (0, 1):
        chosen = np.array([row])
        if pointers[row] <= pointers[row + 1] <= 3 and pointers[row] >= 0:
            assert len(rows[chosen]) == 1
            continue
        with pytest.raises(DataError, match="pointers descend"):
            rows[chosen]
    with pytest.raises(DataError, match="pointers descend"):
        rows.reordered(np.arange(3))


def test_sparse_rows_become_no_array_by_themselves() -> None:
    rows = sparse_rows(made())
    with pytest.raises(TypeError, match="not converted to an array"):
        np.hstack([rows, rows])
    with pytest.raises(TypeError):
        np.ones((40, 9)) - rows


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("pointers", np.array([0, 2, 1, 3]), "pointers descend"),
        ("pointers", np.array([0, 1, 2, 4]), "pointers run from 0 to 4 for 3 indices"),
        ("pointers", np.array([0, 1, 2, 3], np.int32), "int64"),
        ("indices", np.array([0, 1, 4], np.uint16), "index 4, expected 0 to 3"),
        ("indices", np.array([0, 1, 2], np.int32), "uint16 or uint32"),
        ("values", np.array([1, 2, 3], np.float16), "float32 or 64"),
        ("values", np.array([1.0, 2.0]), "3 indices and 2 values"),
    ],
)
def test_what_is_no_sparse_matrix_is_refused(
    part: str,
    value: Any,  # noqa: ANN401
    message: str,
) -> None:
    pointers, indices = np.array([0, 1, 1, 3]), np.array([0, 1, 3], np.uint16)
    rows = SparseRows(pointers, indices, np.array([1.0, 2.0, 3.0]), 4)
    rows.toarray()
    with pytest.raises(DataError, match=message):
        replace(rows, **{part: value}).toarray()


def test_a_kernel_never_reads_beyond_the_columns() -> None:
    rows = SparseRows(np.array([0, 1]), np.array([4], np.uint16), None, 4)
    with pytest.raises(DataError, match="index 4"):
        rows @ np.ones(4)
    with pytest.raises(DataError, match="index 4"):
        rows.T @ np.ones(1)
    with pytest.raises(DataError, match="index 4"):
        rows.toarray()


class Changing(np.ndarray[Any, Any]):
    """A map of a file whose last number becomes 9 just when it is copied."""

    @override
    def astype(self, *args: Any, **options: Any) -> NDArray[Any]:
        copy: NDArray[Any] = np.asarray(self).astype(*args, **options)
        copy[-1:] = 9
        return copy


@pytest.mark.parametrize("part", ["indices", "pointers"])
def test_a_kernel_gets_what_was_checked_though_a_map_changes(part: str) -> None:
    rows = SparseRows(np.array([0, 1, 2]), np.array([0, 1], np.uint16), None, 4)
    changing = getattr(rows, part).view(Changing)
    with pytest.raises(DataError, match=r"index 9|pointers descend"):
        replace(rows, **{part: changing}).toarray()


def test_rows_that_are_not_there_are_refused() -> None:
    rows = sparse_rows(made())
    for numbers in (np.array([40]), np.array([-41]), np.ones(3, bool)):
        with pytest.raises(IndexError):
            rows[numbers]


def test_shapes_that_do_not_fit_are_refused() -> None:
    rows = sparse_rows(made())
    with pytest.raises(ValueError, match="9 columns, and weights"):
        rows @ np.ones((10, 1))
    with pytest.raises(ValueError, match="40 rows, and residuals"):
        rows.T @ np.ones((41, 1))
    one = np.ones(9)
    scaled = rows.standardized(one, one)
    for odd in (scaled, rows.with_constant(), sparse_rows(made(columns=8))):
        with pytest.raises(ValueError, match="standardized once"):
            odd.standardized(one, one)
    with pytest.raises(ValueError, match="have their constant"):
        rows.with_constant().with_constant()


def test_lengths_are_never_less_than_those_of_the_array() -> None:
    """Noise covers a sample whose gradient is clipped by its length."""
    table = made()
    table[:, 5] = 1e7
    scaling = Scaling.fit(table)
    whole = lengths_of(scaling.apply(table))
    ours = lengths_of(scaling.apply(sparse_rows(table)))
    assert (ours >= whole * (1 - 1e-12)).all()
