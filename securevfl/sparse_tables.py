"""What is asked of a whole table of sparse rows, block by block: is it sound, and what is in it."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import FloatArray, IntArray
from securevfl.errors import ConfigError, DataError
from securevfl.sparse import Matrix, SparseRows, dense


def check_cells(x: SparseRows) -> None:
    """Read all that is stored, and refuse it where a product could not be what it says.

    Raises:
        DataError: pointers that descend, indices beyond P, or not ascending within a row.
    """
    for rows, block in x.blocks():
        row = first_not_ascending(block.stored.indices, block.pointers)
        if row is not None:
            raise DataError(f"sparse rows: indices of row {rows.start + row} do not ascend")


def first_not_ascending(indices: NDArray[Any], pointers: NDArray[np.int64]) -> int | None:
    """The first row whose column numbers do not ascend, each once; None where all do.

    Args:
        indices: shape (entries,).
        pointers: shape (rows + 1,), from 0 to their number.
    """
    falls = indices[1:] <= indices[:-1]
    # Between the last of a row and the first of the next nothing is expected.
    starts = pointers[1:-1]
    falls[starts[(starts > 0) & (starts < len(indices))] - 1] = False
    if not falls.any():
        return None
    return int(np.searchsorted(pointers, int(falls.argmax()), side="right") - 1)


def unusable_cells(x: SparseRows) -> IntArray:
    """Stored NaN and infinite values by column, shape (P,)."""
    counts = np.zeros(x.columns, np.int64)
    for _, block in x.blocks():
        if block.values is not None:
            at = block.indices[~np.isfinite(block.values)]
            counts += np.bincount(at, minlength=x.columns)
    return counts


def moments_of(x: SparseRows) -> tuple[FloatArray, FloatArray, NDArray[np.bool_]]:
    """Mean, deviation, and whether all values are the same, of what is stored; shapes (P,)."""
    first = x[:1].stored.toarray()[0]
    rows, counts, sums, others = len(x), *np.zeros((3, x.columns))
    for _, block in x.blocks():
        cells = block.stored
        counts += np.bincount(cells.indices, minlength=x.columns)
        sums += np.bincount(cells.indices, cells.data, x.columns)
        others += np.bincount(cells.indices, cells.data != first[cells.indices], x.columns)
    mean = sums / rows
    # Of cells that are not stored; then of those that are.
    squares = (rows - counts) * mean**2
    for _, block in x.blocks():
        cells = block.stored
        deviations = cells.data - mean[cells.indices]
        squares += np.bincount(cells.indices, deviations**2, x.columns)
    return mean, np.sqrt(squares / rows), (others == 0) & ((counts == rows) | (first == 0))


def values_of(x: Matrix) -> Iterator[FloatArray]:
    """Arrays whose numbers are those of X's cells, at least one array."""
    return _cells(x) if isinstance(x, SparseRows) else iter((x,))


def _cells(x: SparseRows) -> Iterator[FloatArray]:
    """The numbers in stored cells, block by block, and those in all others."""
    filled = np.zeros(x.columns)
    for _, block in x.blocks():
        cells = block.stored
        filled += np.bincount(cells.indices, minlength=x.columns)
        if x.shift is None or x.scale is None:
            yield cells.data
        else:
            yield (cells.data - x.shift[cells.indices]) / x.scale[cells.indices]
    empty = np.zeros(x.columns) if x.shift is None else -x.shift
    if x.scale is not None:
        empty /= x.scale
    yield empty[filled < len(x)]
    yield np.ones(int(x.constant))


def lengths_of(x: Matrix) -> FloatArray:
    """Euclidean lengths of rows, shape (rows,)."""
    return _lengths(x) if isinstance(x, SparseRows) else np.linalg.norm(x, axis=1)


def _lengths(x: SparseRows) -> FloatArray:
    """Euclidean lengths of rows, shape (rows,), rounded up: noise is sized by them."""
    squares: FloatArray = np.empty(len(x))
    empty = np.zeros(x.columns)
    if x.shift is not None and x.scale is not None:
        empty = (x.shift / x.scale) ** 2
    # A difference of this and what stored cells take from it is off by no more.
    whole = empty.sum() * (1 + len(empty) * np.finfo(np.float64).eps)
    for rows, block in x.blocks():
        cells = block.stored
        values = cells.data
        if x.shift is not None and x.scale is not None:
            values = (values - x.shift[cells.indices]) / x.scale[cells.indices]
        row = np.repeat(np.arange(len(block)), np.diff(block.pointers))
        filled = np.bincount(row, values**2, len(block))
        instead = np.bincount(row, empty[cells.indices], len(block))
        squares[rows] = filled + np.maximum(whole - instead, 0.0)
    return np.sqrt(squares + x.constant)


def side_by_side(tables: Sequence[Matrix]) -> Matrix:
    """The columns of several X one after another: an array of arrays, sparse rows of sparse ones.

    Raises:
        ConfigError: some of each.
        ValueError: sparse rows that are standardized, or have a constant column.
    """
    rows = [table for table in tables if isinstance(table, SparseRows)]
    if not rows:
        return np.hstack([dense(table) for table in tables])
    if len(rows) < len(tables):
        raise ConfigError("sparse rows and arrays do not stand side by side")
    if any(each.shift is not None or each.constant for each in rows):
        raise ValueError("sparse rows stand side by side as they are stored")
    columns = sum(each.columns for each in rows)
    pointers = np.sum([each.pointers for each in rows], axis=0)
    narrow = columns <= np.iinfo(np.uint16).max + 1
    indices = np.empty(pointers[-1], np.uint16 if narrow else np.uint32)
    has_values = any(each.values is not None for each in rows)
    values = np.ones(pointers[-1]) if has_values else None
    before, first = np.zeros(len(pointers) - 1, np.int64), 0
    for each in rows:
        for part, block in each.blocks():
            begins = pointers[part.start : part.stop] + before[part]
            counts = np.diff(block.pointers)
            places = np.arange(block.nnz) + np.repeat(begins - block.pointers[:-1], counts)
            indices[places] = block.indices.astype(np.int64) + first
            if values is not None and block.values is not None:
                values[places] = block.values
            before[part] += counts
        first += each.columns
    return SparseRows(pointers, indices, values, columns)
