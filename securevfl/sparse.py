"""Rows of few ones among many columns: CSR, in memory or memory-mapped, and what models ask of X.

`SparseRows` stands wherever X does: `x @ weights`, `x.T @ residuals`, `x[rows]`, `len(x)` and
`x.shape` mean what they mean for an array. Standardizing would fill every cell, so that it is never
stored: (X − 1·sᵀ)D⁻¹θ = X(D⁻¹θ) − 1·(sᵀD⁻¹θ), a product of what is stored and one number an output.
Nothing is ever densified but by `toarray`. Products accumulate in float64, by scipy's CSR kernels
(docs/decisions/0038-sparse-rows.md), and go through long tables block by block, so that no copy of
one is made.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar, override

from securevfl.arrays import FloatArray, IntArray
from securevfl.errors import ConfigError, DataError
from securevfl.shown import Shown

if TYPE_CHECKING:
    from scipy.sparse import csr_array

BATCH_ONES = 1 << 20
"""The most stored cells of a batch, which keeps its scipy array: 4 bytes each, or 12."""
BLOCK_ONES = 1 << 18
"""Stored cells that are worked on at a time in a longer table."""
GATHERED_ROWS = 512
"""Rows that are gathered at a time, so that the places of their cells stay in the cache."""

Indices = NDArray[np.uint16 | np.uint32]
Values = NDArray[np.float32 | np.float64]
Cell = TypeVar("Cell", bound=np.generic)


@dataclass(frozen=True, eq=False, repr=False)
class SparseRows(Shown):
    """X of shape (rows, P), or (rows, P + 1) with a constant column of ones at its end.

    Attributes:
        pointers: shape (rows + 1,), int64: row i has the stored cells pointers[i]:pointers[i + 1].
        indices: columns of the stored cells, ascending within a row, each once.
        values: of the stored cells; None where all are 1.
        columns: P.
        scaling: what is subtracted from every column and what divides it after that, both of
            shape (P,); None for nothing.
        constant: whether a column of ones follows the P stored ones.

    Cells are checked where they come from (`data.shards.open_shard`), and what a kernel would read
    is before each product; making rows reads none.

    Raises:
        DataError: arrays of other types, or of sizes that do not fit each other.
    """

    pointers: NDArray[np.int64]
    indices: Indices
    values: Values | None
    columns: int
    scaling: tuple[FloatArray, FloatArray] | None = None
    constant: bool = False

    def __post_init__(self) -> None:
        if self.pointers.dtype != np.int64 or self.pointers.ndim != 1 or not len(self.pointers):
            raise DataError("sparse rows: pointers are int64 numbers, one more than rows")
        if self.indices.dtype not in (np.uint16, np.uint32):
            raise DataError(f"sparse rows: indices are uint16 or uint32, not {self.indices.dtype}")
        if self.values is not None and self.values.dtype not in (np.float32, np.float64):
            raise DataError(f"sparse rows: values are float32 or 64, not {self.values.dtype}")
        cells = len(self.indices) if self.values is None else len(self.values)
        if not self.pointers[0] == 0 or not self.pointers[-1] == len(self.indices) == cells:
            raise DataError(
                f"sparse rows: pointers from {self.pointers[0]} to {self.pointers[-1]}, with "
                f"{len(self.indices)} indices and {cells} values"
            )

    @override
    def shown(self) -> dict[str, object]:
        return {"rows": len(self), "columns": self.columns, "stored cells": self.nnz}

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, P), or (rows, P + 1)."""
        return len(self), self.columns + self.constant

    @property
    def ndim(self) -> int:
        """2."""
        return 2

    @property
    def nnz(self) -> int:
        """How many cells are stored."""
        return len(self.indices)

    @property
    def nbytes(self) -> int:
        """Of what is stored."""
        return sum(part.nbytes for part in self.parts)

    @property
    def parts(self) -> tuple[NDArray[Any], ...]:
        """What is stored."""
        values = () if self.values is None else (self.values,)
        return self.pointers, self.indices, *values

    def __len__(self) -> int:
        return len(self.pointers) - 1

    def __getitem__(self, rows: IntArray | NDArray[np.bool_] | slice) -> Self:
        """Some rows: of a slice in steps of 1 views, of numbers or a mask copies."""
        if isinstance(rows, slice):
            first, end, step = rows.indices(len(self))
            if (first, end, step) == (0, len(self), 1):
                return self
            if step == 1:
                return self._between(first, max(first, end))
            rows = np.arange(first, end, step)
        elif rows.dtype == np.bool_:
            if rows.shape != (len(self),):
                raise IndexError(f"a mask of shape {rows.shape} for {len(self)} rows")
            rows = np.flatnonzero(rows)
        rows = np.where(rows < 0, rows + len(self), rows)
        if rows.size and not 0 <= rows.min() <= rows.max() < len(self):
            raise IndexError(f"row {rows.max()} of {len(self)}")
        return self._copied(rows.astype(np.int64, copy=False))

    def _copied(self, rows: IntArray) -> Self:
        # A map's own indexing is slower than that of the array it is.
        ends = np.asarray(self.pointers)
        starts, counts = ends[rows], ends[rows + 1] - ends[rows]
        stops = starts + counts
        if rows.size and (counts.min() < 0 or starts.min() < 0 or stops.max() > self.nnz):
            raise DataError("sparse rows: pointers descend")
        pointers = np.concatenate([[0], np.cumsum(counts)])
        jumps = starts - pointers[:-1]

        def gathered(part: NDArray[Cell]) -> NDArray[Cell]:
            whole, out = np.asarray(part), np.empty(pointers[-1], part.dtype)
            for first in range(0, len(rows), GATHERED_ROWS):
                some = slice(first, first + GATHERED_ROWS)
                here = slice(pointers[first], pointers[min(some.stop, len(rows))])
                cells = np.repeat(jumps[some], counts[some])
                cells += np.arange(here.start, here.stop)
                # Checked above; every other mode goes through a copy of what it writes.
                whole.take(cells, out=out[here], mode="clip")
            return out

        values = None if self.values is None else gathered(self.values)
        return replace(self, pointers=pointers, indices=gathered(self.indices), values=values)

    def _between(self, first: int, end: int) -> Self:
        pointers = np.asarray(self.pointers)[first : end + 1]
        start, stop = int(pointers[0]), int(pointers[-1])
        return replace(
            self,
            pointers=pointers - start if start else pointers,
            indices=np.asarray(self.indices)[start:stop],
            values=None if self.values is None else np.asarray(self.values)[start:stop],
        )

    def blocks(self) -> Iterator[tuple[slice, Self]]:
        """All rows in order, as views: all of them, or `BLOCK_ONES` stored cells or a row each."""
        if self.nnz <= BATCH_ONES:
            yield slice(0, len(self)), self
            return
        pointers = np.asarray(self.pointers)
        bounds = [0]
        while bounds[-1] < len(self):
            end = int(np.searchsorted(pointers, pointers[bounds[-1]] + BLOCK_ONES, "right")) - 1
            bounds.append(max(end, bounds[-1] + 1))
        for first, end in pairwise(bounds):
            yield slice(first, end), self._between(first, end)

    def standardized(self, shift: FloatArray, scale: FloatArray) -> Self:
        """These rows with `shift` subtracted from every column, which `scale` divides, once."""
        fits = shift.shape == scale.shape == (self.columns,)
        if self.scaling is not None or self.constant or not fits:
            raise ValueError("sparse rows are standardized once, before a constant column is added")
        return replace(self, scaling=(shift, scale))

    def with_constant(self) -> Self:
        """These rows with a column of ones at the end."""
        if self.constant:
            raise ValueError("sparse rows have their constant column")
        return replace(self, constant=True)

    def __matmul__(self, weights: FloatArray) -> FloatArray:
        """Xθ, of shape (rows, C) for θ of shape (P', C), or (rows,) for (P',)."""
        if len(weights) != self.shape[1]:
            raise ValueError(f"{self.shape[1]} columns, and weights of shape {weights.shape}")
        own = weights[: self.columns]
        if self.scaling is not None:
            own = (own.T / self.scaling[1]).T
        products: FloatArray = np.empty((len(self), *weights.shape[1:]))
        for rows, block in self.blocks():
            products[rows] = block.stored @ own
        if self.scaling is not None:
            products -= self.scaling[0] @ own
        if self.constant:
            products += weights[-1]
        return products

    @property
    def T(self) -> "Transposed":  # noqa: N802  # as of an array
        """Xᵀ, to be multiplied."""
        return Transposed(self)

    @cached_property
    def stored(self) -> "csr_array[Any]":
        """What is stored, not shifted, as scipy's kernels take it; of a batch or a block.

        Raises:
            DataError: pointers that descend or indices beyond P, with which a kernel would read
                memory that is not these rows'.
        """
        from scipy.sparse import csr_array  # noqa: PLC0415  # slow to import

        fits = max(self.nnz, self.columns) <= np.iinfo(np.int32).max
        kind = np.dtype(np.int32 if fits else np.int64)
        # Checked is what the kernel gets: a map may have changed before it was copied.
        pointers, indices = self.pointers.astype(kind), self.indices.astype(kind)
        ends = int(pointers[0]), int(pointers[-1])
        if ends != (0, len(indices)) or (pointers[1:] < pointers[:-1]).any():
            raise DataError("sparse rows: pointers descend")
        if (
            len(indices)
            and (largest := int(indices.view(f"u{kind.itemsize}").max())) >= self.columns
        ):
            raise DataError(f"sparse rows: index {largest}, expected 0 to {self.columns - 1}")
        values = _ones(self.nnz) if self.values is None else self.values.astype(np.float64)
        return csr_array((values, indices, pointers), shape=(len(self), self.columns))

    @property
    def cells(self) -> FloatArray:
        """Numbers of the stored cells of a batch or a block, standardized where these rows are."""
        stored = self.stored
        values: FloatArray = stored.data
        if self.scaling is not None:
            shift, scale = (each[stored.indices] for each in self.scaling)
            values = (values - shift) / scale
        return values

    def gram(self) -> FloatArray:
        """XᵀX, shape (P', P'): for few columns."""
        total: FloatArray = np.zeros((self.shape[1], self.shape[1]))
        own, sums = total[: self.columns, : self.columns], self.T @ np.ones(len(self))
        for _, block in self.blocks():
            own += (block.stored.T @ block.stored).toarray()
        if self.scaling is not None:
            shift, scale = self.scaling
            # What is stored sums to sums·D + N·s; (S − 1sᵀ)ᵀ(S − 1sᵀ), then the same over D twice.
            outer = np.multiply.outer(scale * sums[: self.columns], shift)
            own -= outer + outer.T + len(self) * np.multiply.outer(shift, shift)
            own /= np.multiply.outer(scale, scale)
        if self.constant:
            total[-1], total[:, -1] = sums, sums
        return total

    def toarray(self) -> FloatArray:
        """All of X as an array: for few rows, or few columns."""
        dense: FloatArray = np.empty(self.shape)
        for rows, block in self.blocks():
            dense[rows, : self.columns] = block.stored.toarray()
        if self.scaling is not None:
            shift, scale = self.scaling
            dense[:, : self.columns] -= shift
            dense[:, : self.columns] /= scale
        if self.constant:
            dense[:, -1] = 1.0
        return dense

    def __array__(self, *args: object, **options: object) -> NoReturn:
        raise TypeError("sparse rows do not become an array by themselves")


Matrix = FloatArray | SparseRows
"""X, dense or sparse."""
AnyRows = TypeVar("AnyRows", bound=Matrix, default=FloatArray, covariant=True)  # noqa: PLC0105
"""The kind of rows that a table holds; arrays where nothing is said."""
SameRows = TypeVar("SameRows", FloatArray, SparseRows, Matrix)
"""The kind of rows that a function takes and gives back."""


def index_type(columns: int) -> Literal["uint16", "uint32"]:
    """The narrowest type of indices for so many columns."""
    return "uint16" if columns <= 1 << 16 else "uint32"


def standardized(x: SameRows, shift: FloatArray, scale: FloatArray) -> SameRows:
    """(x − shift)/scale, both of shape (P,)."""
    if isinstance(x, SparseRows):
        return x.standardized(shift, scale)
    scaled = x - shift
    scaled /= scale
    return scaled


def dense(x: Matrix) -> FloatArray:
    """X as an array, whatever it was: of few rows, or few columns."""
    return x.toarray() if isinstance(x, SparseRows) else x


def require_dense(x: Matrix, what: str) -> FloatArray:
    """X, which is an array already; `what` does not take sparse rows."""
    if isinstance(x, SparseRows):
        raise ConfigError(f"{what} takes dense columns, and these are sparse")
    return x


@dataclass(frozen=True, eq=False)
class Transposed:
    """Xᵀ of sparse rows."""

    rows: SparseRows

    __array_ufunc__ = None

    def __matmul__(self, residuals: Matrix) -> FloatArray:
        """Xᵀd, of shape (P', C) for d of shape (rows, C), or (P',) for (rows,); or XᵀX."""
        x = self.rows
        if isinstance(residuals, SparseRows):
            return x.gram()
        if len(residuals) != len(x):
            raise ValueError(f"{len(x)} rows, and residuals of shape {residuals.shape}")
        total: FloatArray = np.zeros((x.shape[1], *residuals.shape[1:]))
        own, summed = total[: x.columns], residuals.sum(axis=0)
        for rows, block in x.blocks():
            own += block.stored.T @ residuals[rows]
        if x.scaling is not None:
            shift, scale = x.scaling
            own -= np.multiply.outer(shift, summed)
            own /= scale if own.ndim == 1 else scale[:, None]
        if x.constant:
            total[-1] = summed
        return total

    def __rmatmul__(self, left: FloatArray) -> FloatArray:
        return (self.rows @ left.T).T


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
    if not isinstance(x, SparseRows):
        yield x
        return
    filled = np.zeros(x.columns)
    for _, block in x.blocks():
        filled += np.bincount(block.stored.indices, minlength=x.columns)
        yield block.cells
    empty = np.zeros(x.columns)
    if x.scaling is not None:
        empty = -x.scaling[0] / x.scaling[1]
    yield empty[filled < len(x)]
    yield np.ones(int(x.constant))


def lengths_of(x: Matrix) -> FloatArray:
    """Euclidean lengths of rows, shape (rows,), sparse ones rounded up: noise is sized by them."""
    if not isinstance(x, SparseRows):
        lengths: FloatArray = np.linalg.norm(x, axis=1)
        return lengths
    squares: FloatArray = np.empty(len(x))
    empty = np.zeros(x.columns)
    if x.scaling is not None:
        empty = (x.scaling[0] / x.scaling[1]) ** 2
    # A difference of this and what stored cells take from it is off by no more.
    whole = empty.sum() * (1 + len(empty) * np.finfo(np.float64).eps)
    for rows, block in x.blocks():
        row = np.repeat(np.arange(len(block)), np.diff(block.pointers))
        filled = np.bincount(row, block.cells**2, len(block))
        instead = np.bincount(row, empty[block.stored.indices], len(block))
        squares[rows] = filled + np.maximum(whole - instead, 0.0)
    return np.sqrt(squares + x.constant)


@cache
def _kept_ones(cells: int) -> FloatArray:
    ones: FloatArray = np.ones(cells)
    ones.flags.writeable = False
    return ones


def _ones(cells: int) -> FloatArray:
    if cells > BATCH_ONES:
        return np.ones(cells)
    # scipy copies what is less than half of a longer array.
    return _kept_ones(1 << max(cells - 1, 0).bit_length())[:cells]
