"""Sparse rows in CSR form, in memory or memory-mapped, with the operations that models need of X.

`SparseRows` can stand for X: `x @ weights`, `x.T @ residuals`, `x[rows]`, `len(x)` and `x.shape`
work as for an array. Standardized values would fill every cell and are never stored:
(X − 1·sᵀ)D⁻¹θ = X(D⁻¹θ) − 1·(sᵀD⁻¹θ), a product of the stored cells and one number per output.
Only `toarray` makes a dense array. Products accumulate in float64 with SciPy's CSR kernels
(docs/decisions/0038-sparse-rows.md) and process long tables in blocks, so that no table is copied.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeVar, override

from securevfl.arrays import FloatArray, IntArray
from securevfl.blocks import BlockedRows, Transposed, blocked
from securevfl.errors import ConfigError, DataError
from securevfl.shown import Shown

if TYPE_CHECKING:
    from scipy.sparse import csr_array

BATCH_ONES = 1 << 20
"""The most stored cells of a batch, whose SciPy array is cached: 4 or 12 bytes per cell."""
BLOCK_ONES = 1 << 18
"""Stored cells per block of a longer table."""
LARGEST = 1e150
"""Squares and products of larger scaled cells may overflow."""
GATHERED_ONES = 1 << 16
"""Stored cells gathered at a time, about, so that their positions stay in the CPU cache."""

Indices = NDArray[np.uint16 | np.uint32]
Values = NDArray[np.float32 | np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class SparseRows(Shown):
    """X of shape (rows, P), or (rows, P + 1) with a constant column of ones at its end.

    Attributes:
        pointers: shape (rows + 1,), int64: row i has the stored cells pointers[i]:pointers[i + 1].
        indices: columns of the stored cells, ascending and distinct within a row.
        values: of the stored cells; None if all are 1.
        columns: P.
        scaling: what is subtracted from each column, and what the result is divided by, both of
            shape (P,); None for neither.
        constant: whether a column of ones follows the P stored columns.

    Cells are checked at their source (`data.shards.open_shard`), and the arrays that a kernel reads
    are checked before each product; the constructor reads no cells.

    Raises:
        DataError: arrays of other dtypes, or of sizes that do not match.
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
                "sparse rows do not fit together: pointers run from "
                f"{self.pointers[0]} to {self.pointers[-1]} for {len(self.indices)} indices and "
                f"{cells} values"
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
        """Number of stored cells."""
        return len(self.indices)

    @property
    def nbytes(self) -> int:
        """Bytes of the stored arrays."""
        return sum(part.nbytes for part in self.parts)

    @property
    def parts(self) -> tuple[NDArray[Any], ...]:
        """The stored arrays."""
        values = () if self.values is None else (self.values,)
        return self.pointers, self.indices, *values

    def __len__(self) -> int:
        return len(self.pointers) - 1

    def __getitem__(self, rows: IntArray | NDArray[np.bool_] | slice) -> Self:
        """Some rows: views for a slice in steps of 1, copies for numbers or a mask."""
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
        # Indexing a memmap is slower than indexing the array that it is.
        ends = np.asarray(self.pointers)
        starts, counts = ends[rows], ends[rows + 1] - ends[rows]
        stops = starts + counts
        if rows.size and (counts.min() < 0 or starts.min() < 0 or stops.max() > self.nnz):
            raise DataError("sparse rows: pointers descend")
        pointers = np.concatenate([[0], np.cumsum(counts)])
        into = self._empty(pointers)
        for part, out, here, there in self._cells(into, pointers, starts):
            # Bounds are checked above; any other mode writes through a buffer.
            part.take(there, out=out[here], mode="clip")
        return into

    def reordered(self, order: IntArray, into: Self | None = None) -> Self:
        """All rows, each once, in another order; faster than to gather them batch by batch.

        `into`, what this returned before, is overwritten: fresh memory costs as much again.
        """
        ends = np.asarray(self.pointers)
        counts = np.diff(ends)
        if len(self) and counts.min() < 0:
            raise DataError("sparse rows: pointers descend")
        # Read at random: narrow, they stay in the CPU cache.
        narrow = counts.astype(np.min_scalar_type(counts.max(initial=0)))
        pointers = np.concatenate([[0], np.cumsum(narrow.take(order), dtype=np.int64)])
        starts = np.empty(len(self), np.int64)
        starts[order] = pointers[:-1]
        into = self._empty(pointers) if into is None else replace(into, pointers=pointers)
        for part, out, here, there in self._cells(into, ends, starts):
            out[there] = part[here]
        return into

    def _empty(self, pointers: IntArray) -> Self:
        indices, *values = (np.empty(pointers[-1], part.dtype) for part in self.parts[1:])
        return replace(
            self, pointers=pointers, indices=indices, values=values[0] if values else None
        )

    def _cells(
        self, into: Self, ends: IntArray, starts: IntArray
    ) -> Iterator[tuple[NDArray[Any], NDArray[Any], slice, IntArray]]:
        """Each array and that of `into`, with rows' cells: between `ends`, and from `starts` on."""
        parts = [*zip(map(np.asarray, self.parts[1:]), into.parts[1:], strict=True)]
        counts, jumps = np.diff(ends), starts - ends[:-1]
        together = max(GATHERED_ONES * len(self) // max(self.nnz, 1), 1)
        for first in range(0, len(starts), together):
            some = slice(first, first + together)
            here = slice(ends[first], ends[min(some.stop, len(starts))])
            cells = np.repeat(jumps[some], counts[some])
            cells += np.arange(here.start, here.stop)
            for part, out in parts:
                yield part, out, here, cells

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
        """Consecutive views of all rows, of about `BLOCK_ONES` stored cells each."""
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
        """These rows with `shift` subtracted and then divided by `scale`; at most once."""
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
    def T(self) -> Transposed:  # noqa: N802  # as of an array
        """Xᵀ, for products."""
        return Transposed(self)

    def pulled_back(self, residuals: FloatArray) -> FloatArray:
        """Xᵀd, see `Transposed`."""
        if len(residuals) != len(self):
            raise ValueError(f"{len(self)} rows, and residuals of shape {residuals.shape}")
        total: FloatArray = np.zeros((self.shape[1], *residuals.shape[1:]))
        own, summed = total[: self.columns], residuals.sum(axis=0)
        for rows, block in self.blocks():
            own += block.stored.T @ residuals[rows]
        if self.scaling is not None:
            shift, scale = self.scaling
            own -= np.multiply.outer(shift, summed)
            own /= scale if own.ndim == 1 else scale[:, None]
        if self.constant:
            total[-1] = summed
        return total

    @cached_property
    def stored(self) -> "csr_array[Any]":
        """The stored cells of a batch or a block as a SciPy array, not standardized.

        Raises:
            DataError: pointers or indices with which a kernel would read other memory.
        """
        from scipy.sparse import csr_array  # noqa: PLC0415  # slow to import

        fits = max(self.nnz, self.columns) <= np.iinfo(np.int32).max
        kind = np.dtype(np.int32 if fits else np.int64)
        # Checked after copying, as a memory-mapped file may change before.
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
        """Values of the stored cells of a batch or a block, standardized if these rows are."""
        stored = self.stored
        values: FloatArray = stored.data
        if self.scaling is not None:
            shift, scale = (each[stored.indices] for each in self.scaling)
            values = (values - shift) / scale
        return values

    def gram(self) -> FloatArray:
        """XᵀX, shape (P', P'); for few columns."""
        total: FloatArray = np.zeros((self.shape[1], self.shape[1]))
        own, sums = total[: self.columns, : self.columns], self.T @ np.ones(len(self))
        for _, block in self.blocks():
            own += (block.stored.T @ block.stored).toarray()
        if self.scaling is not None:
            shift, scale = self.scaling
            # Stored cells sum to sums·D + N·s, so this is D⁻¹(S − 1sᵀ)ᵀ(S − 1sᵀ)D⁻¹.
            outer = np.multiply.outer(scale * sums[: self.columns], shift)
            own -= outer + outer.T + len(self) * np.multiply.outer(shift, shift)
            own /= np.multiply.outer(scale, scale)
        if self.constant:
            total[-1], total[:, -1] = sums, sums
        return total

    def toarray(self) -> FloatArray:
        """X as a dense array; for few rows or few columns."""
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
        raise TypeError("sparse rows are not converted to an array implicitly: call toarray")


Matrix = FloatArray | BlockedRows | SparseRows
"""X, dense, in memory or by block, or sparse."""
AnyRows = TypeVar("AnyRows", bound=Matrix, default=FloatArray, covariant=True)  # noqa: PLC0105
"""The kind of rows in a table; arrays by default."""
Scale = Callable[[Matrix], Matrix]
"""Scales rows."""
SameRows = TypeVar("SameRows", FloatArray, SparseRows, Matrix)
"""The kind of rows that a function takes and returns."""


def index_type(columns: int) -> Literal["uint16", "uint32"]:
    """The narrowest dtype for column numbers."""
    return "uint16" if columns <= 1 << 16 else "uint32"


def standardized(
    x: SameRows, shift: FloatArray, scale: FloatArray, bounds: FloatArray | None = None
) -> SameRows:
    """(x − shift)/scale, both of shape (P,), of x clipped to bounds of shape (2, P), if any."""
    if isinstance(x, SparseRows):
        if bounds is not None:
            raise DataError("sparse rows take no bounds")
        return x.standardized(shift, scale)
    if isinstance(x, BlockedRows):
        return x.standardized(shift, scale, bounds)
    scaled: FloatArray = (x if bounds is None else np.clip(x, *bounds)) - shift
    scaled /= scale
    return scaled


def dense(x: Matrix) -> FloatArray:
    """X as a dense array; for few rows or few columns."""
    return x if isinstance(x, np.ndarray) else x.toarray()


def blocks_of(x: BlockedRows | FloatArray) -> Iterator[tuple[slice, FloatArray]]:
    """Consecutive blocks of dense rows as arrays; few rows are one."""
    rows = blocked(x) if isinstance(x, np.ndarray) else x
    yield from [(slice(0, len(x)), rows)] if isinstance(rows, np.ndarray) else rows.blocks()


def column_of(x: Matrix, place: int) -> FloatArray:
    """A column of dense rows, shape (rows,)."""
    return x.column(place) if isinstance(x, BlockedRows) else require_dense(x, "a column")[:, place]


def require_dense(x: Matrix, what: str) -> FloatArray:
    """X, if it is dense; `what` does not support sparse rows."""
    if isinstance(x, SparseRows):
        raise ConfigError(f"{what} needs dense columns, and these are sparse")
    return dense(x)


def moments_of(x: SparseRows) -> tuple[FloatArray, FloatArray, NDArray[np.bool_]]:
    """Mean, deviation, and whether a column is constant, of the stored columns; shapes (P,)."""
    first = x[:1].stored.toarray()[0]
    rows, counts, sums, others = len(x), *np.zeros((3, x.columns))
    for _, block in x.blocks():
        cells = block.stored
        counts += np.bincount(cells.indices, minlength=x.columns)
        sums += np.bincount(cells.indices, cells.data, x.columns)
        others += np.bincount(cells.indices, cells.data != first[cells.indices], x.columns)
    mean = sums / rows
    # Cells that are not stored first.
    squares = (rows - counts) * mean**2
    for _, block in x.blocks():
        cells = block.stored
        deviations = cells.data - mean[cells.indices]
        squares += np.bincount(cells.indices, deviations**2, x.columns)
    return mean, np.sqrt(squares / rows), (others == 0) & ((counts == rows) | (first == 0))


def values_of(x: Matrix) -> Iterator[FloatArray]:
    """Arrays that together contain every distinct value of X's cells; at least one array."""
    if not isinstance(x, SparseRows):
        for _, rows in blocks_of(x):
            yield rows
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


def scaled_for(party: str, columns: Sequence[str], x: Matrix, scale: Scale) -> Matrix:
    """A party's rows, scaled as others were; a DataError names a column with too large a cell."""
    with np.errstate(over="ignore"):
        scaled = scale(x)
        place = _too_large(scaled)
    if place is not None:
        raise DataError(
            f"party {party!r}: column {columns[place]!r} has numbers that are too large for its "
            f"scale in the training rows: {cures(scaled)}"
        )
    return scaled


def cures(x: Matrix) -> str:
    """What helps where a column of these rows has too large numbers."""
    clipped = "" if isinstance(x, SparseRows) else "with job.bounds or "
    return f"correct them, or train {clipped}without the column"


def _too_large(x: Matrix) -> int | None:
    """A column with a cell beyond `LARGEST`; None if there is none."""
    if isinstance(x, SparseRows):
        if x.scaling is not None and (empty := _beyond(x.scaling[0] / x.scaling[1])).any():
            return int(np.flatnonzero(empty)[0])
        found = (block.stored.indices[_beyond(block.cells)] for _, block in x.blocks())
    else:
        found = (np.flatnonzero(_beyond(rows).any(axis=0)) for _, rows in blocks_of(x))
    return next((int(each[0]) for each in found if len(each)), None)


def _beyond(cells: FloatArray) -> NDArray[np.bool_]:
    return ~(np.abs(cells) <= LARGEST)


def lengths_of(x: Matrix) -> FloatArray:
    """Euclidean norms of rows, shape (rows,), rounded up if sparse: noise is scaled by them."""
    if not isinstance(x, SparseRows):
        return np.concatenate([np.linalg.norm(rows, axis=1) for _, rows in blocks_of(x)])
    squares: FloatArray = np.empty(len(x))
    empty = np.zeros(x.columns)
    if x.scaling is not None:
        empty = (x.scaling[0] / x.scaling[1]) ** 2
    # Bounds the rounding of the difference below.
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
    # SciPy copies arrays that are less than half of their base.
    return _kept_ones(1 << max(cells - 1, 0).bit_length())[:cells]
