"""Dense rows of a long table, at their columns' own width, with products by block.

`BlockedRows` can stand for X: `x @ weights`, `x.T @ residuals`, `x[rows]`, `len(x)` and `x.shape`
work as for an array. Columns are held as they came (float32, int16, …) and never as a scaled copy:
(X − 1·sᵀ)D⁻¹θ = X(D⁻¹θ) − 1·(sᵀD⁻¹θ). A block of rows becomes float64 when it is needed. Blocks
have fixed sizes, one BLAS thread each, and are added in their order (`threads`), so results are
equal to the byte for any number of threads. What fits one block is an array, as everywhere else.
Source: docs/decisions/0058-tables-by-block.md.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NoReturn, Self

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from securevfl.arrays import FloatArray, IntArray
from securevfl.shown import Shown
from securevfl.threads import by_block, sum_by_block

LONG_CELLS = 1 << 20
"""Cells of the longest table that is one array."""
BLOCK_CELLS = 1 << 18
"""Cells a block of longer ones: 2 MiB as float64."""
FAR = 1024.0
"""A column whose mean is more deviations away from 0 is centred before it is multiplied."""
TINY, STRETCH = 1e-6, 1024


def block_rows(columns: int) -> int:
    """Rows a block of so many columns."""
    return max(1, BLOCK_CELLS // columns)


@dataclass(frozen=True, eq=False)
class Transposed:
    """Xᵀ of rows by block or sparse rows, for products."""

    rows: Any

    __array_ufunc__ = None

    def __matmul__(self, right: object) -> FloatArray:
        """Xᵀd, of shape (P, C) for d of shape (rows, C), or (P,) for (rows,); or XᵀX."""
        by_array = isinstance(right, np.ndarray)
        if not by_array and right is not self.rows:
            raise TypeError(
                f"Xᵀ is multiplied by arrays and X itself, not by {type(right).__name__}"
            )
        product: FloatArray = self.rows.pulled_back(right) if by_array else self.rows.gram()
        return product

    def __rmatmul__(self, left: FloatArray) -> FloatArray:
        return np.asarray(self.rows @ left.T).T


@dataclass(frozen=True, eq=False, repr=False)
class BlockedRows(Shown):
    """X of shape (rows, P), or (rows, P + 1) with a constant column of ones at its end.

    Attributes:
        parts: columns of one dtype each, shape (rows, P_i).
        places: which columns of X a part's are, shape (P_i,).
        scaling: what is subtracted from each column, and what the result is divided by, both of
            shape (P,); None for neither.
        bounds: to which cells are clipped before, shape (2, P).
        constant: whether a column of ones follows the P columns.
    """

    parts: tuple[NDArray[Any], ...]
    places: tuple[IntArray, ...]
    scaling: tuple[FloatArray, FloatArray] | None = None
    bounds: FloatArray | None = None
    constant: bool = False

    @classmethod
    def of(cls, array: NDArray[Any]) -> Self:
        """The rows of an array, not copied."""
        return cls((array,), (np.arange(array.shape[1]),))

    @override
    def shown(self) -> dict[str, object]:
        widths = ", ".join(f"{each.shape[1]} of {each.dtype}" for each in self.parts)
        return {"rows": len(self), "columns": widths}

    @cached_property
    def columns(self) -> int:
        """P."""
        return sum(each.shape[1] for each in self.parts)

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, P), or (rows, P + 1)."""
        return len(self), self.columns + self.constant

    @property
    def ndim(self) -> int:
        """2."""
        return 2

    @property
    def nbytes(self) -> int:
        """Bytes of the columns as they are held."""
        return sum(each.nbytes for each in self.parts)

    @property
    def block(self) -> int:
        """Rows a block."""
        return block_rows(self.columns)

    def __len__(self) -> int:
        return len(self.parts[0])

    def __getitem__(self, rows: IntArray | NDArray[np.bool_] | slice) -> "FloatArray | Self":
        """Some rows: an array if they fit one block; else views for a slice, copies for numbers."""
        places: slice | IntArray
        if isinstance(rows, slice):
            first, end, step = rows.indices(len(self))
            if (first, end, step) == (0, len(self), 1):
                return self
            places, count = rows, len(range(first, end, step))
        else:
            is_mask = rows.dtype == np.bool_
            if is_mask and rows.shape != (len(self),):
                raise IndexError(f"a mask of shape {rows.shape} for {len(self)} rows")
            places = np.flatnonzero(rows) if is_mask else rows.astype(np.int64, copy=False)
            count = len(places)
        if count * self.columns <= LONG_CELLS:
            return self._scaled(places)
        return replace(self, parts=tuple(each[places] for each in self.parts))

    def column(self, place: int) -> FloatArray:
        """A column, clipped but not scaled, shape (rows,)."""
        part, places = next(
            each for each in zip(self.parts, self.places, strict=True) if place in each[1]
        )
        values = part[:, np.flatnonzero(places == place)[0]].astype(np.float64)
        return values if self.bounds is None else np.clip(values, *self.bounds[:, place])

    def standardized(
        self, shift: FloatArray, scale: FloatArray, bounds: FloatArray | None = None
    ) -> Self:
        """These rows clipped, with `shift` subtracted and divided by `scale`; at most once."""
        if self.scaling is not None or self.constant:
            raise ValueError("rows are standardized once, before a constant column is added")
        return replace(self, scaling=(shift, scale), bounds=bounds)

    def with_constant(self) -> Self:
        """These rows with a column of ones at the end."""
        return replace(self, constant=True)

    def blocks(self) -> Iterator[tuple[slice, FloatArray]]:
        """Consecutive blocks of all rows as arrays."""
        for first in range(0, len(self), self.block):
            rows = slice(first, min(first + self.block, len(self)))
            yield rows, self._scaled(rows)

    def toarray(self) -> FloatArray:
        """X as an array: eight bytes a cell."""
        dense: FloatArray = np.empty(self.shape)

        def fill(rows: slice) -> None:
            dense[rows] = self._scaled(rows)

        by_block(fill, len(self), self.block)
        return dense

    def __array__(self, *args: object, **options: object) -> NoReturn:
        raise TypeError("rows by block are not converted to an array implicitly: call toarray")

    def __matmul__(self, weights: FloatArray) -> FloatArray:
        """Xθ, of shape (rows, C) for θ of shape (P', C), or (rows,) for (P',)."""
        if len(weights) != self.shape[1]:
            raise ValueError(f"{self.shape[1]} columns, and weights of shape {weights.shape}")
        _, rest, scale = self._shifts
        own = (weights[: self.columns].T / scale).T
        constant = -(rest @ own)
        if self.constant:
            constant = constant + weights[-1]
        own = np.ascontiguousarray(own[self._order])
        products: FloatArray = np.empty((len(self), *weights.shape[1:]))

        def multiply(rows: slice) -> None:
            here = products[rows]
            np.matmul(self._centred(rows), own, out=here)
            here += constant

        by_block(multiply, len(self), self.block)
        return products

    @property
    def T(self) -> Transposed:  # noqa: N802  # as of an array
        """Xᵀ, for products."""
        return Transposed(self)

    def pulled_back(self, residuals: FloatArray) -> FloatArray:
        """Xᵀd, see `Transposed`."""
        if len(residuals) != len(self):
            raise ValueError(f"{len(self)} rows, and residuals of shape {residuals.shape}")

        def pull(rows: slice) -> tuple[FloatArray, FloatArray]:
            given = residuals[rows]
            return self._centred(rows).T @ given, np.asarray(given.sum(axis=0))

        products, sums = zip(*by_block(pull, len(self), self.block), strict=True)
        summed, (_, rest, scale) = np.add.reduce(sums), self._shifts
        total: FloatArray = np.empty((self.shape[1], *residuals.shape[1:]))
        own = total[: self.columns]
        own[self._order] = np.add.reduce(products)
        own -= np.multiply.outer(rest, summed)
        own /= scale if own.ndim == 1 else scale[:, None]
        if self.constant:
            total[-1] = summed
        return total

    def gram(self) -> FloatArray:
        """XᵀX, shape (P', P')."""

        def square(rows: slice) -> FloatArray:
            block = self._scaled(rows)
            return np.asarray(block.T @ block)

        # No result should be larger than its block.
        return sum_by_block(square, len(self), max(self.block, self.columns))

    def moments(self) -> tuple[FloatArray, FloatArray, NDArray[np.bool_]]:
        """Mean and deviation of every column, and whether it is constant; shapes (P,)."""

        def add(rows: slice) -> FloatArray:
            block = self._scaled(rows)
            return np.ones(len(block)) @ block

        mean = np.add.reduce(by_block(add, len(self), self.block)) / len(self)

        def square(rows: slice) -> FloatArray:
            block = self._scaled(rows)
            _along_rows(np.subtract, block, mean)
            block *= block
            return np.ones(len(block)) @ block

        squares = np.add.reduce(by_block(square, len(self), self.block))
        deviation = np.sqrt(squares / len(self))
        # Rounding in the mean leaves a tiny deviation, so equality is tested by value.
        constant = deviation <= TINY * np.abs(mean)
        for place in np.flatnonzero(constant).tolist():
            values = self.column(place)
            constant[place] = (values == values[0]).all()
        return mean, deviation, constant

    @cached_property
    def _order(self) -> IntArray:
        """Columns of X in the order of the parts."""
        return np.concatenate(self.places)

    @cached_property
    def _shifts(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """What is subtracted from cells, what from products in its place, and the scale."""
        shift, scale = self.scaling or (np.zeros(self.columns), np.ones(self.columns))
        # A product of cells that are all far from 0 would cancel.
        centre = np.where(np.abs(shift) > FAR * scale, shift, 0.0)
        return centre, shift - centre, scale

    def _centred(self, rows: slice) -> FloatArray:
        """A block in the order of the parts, clipped and centred as far as products need it."""
        centre, order = self._shifts[0], self._order
        centred = bool(centre.any())
        first = self.parts[0][rows]
        if len(self.parts) == 1 and first.dtype == np.float64 and self.bounds is None:
            return np.asarray(first - centre[order] if centred else first)
        block = self._as_floats([each[rows] for each in self.parts], self._runs)
        if self.bounds is not None:
            np.clip(block, *self.bounds[:, order], out=block)
        if centred:
            _along_rows(np.subtract, block, centre[order])
        return block

    @cached_property
    def _runs(self) -> list[slice]:
        """Where the parts stand side by side."""
        ends = np.cumsum([each.shape[1] for each in self.parts]).tolist()
        return [slice(end - each.shape[1], end) for end, each in zip(ends, self.parts, strict=True)]

    def _as_floats(
        self, parts: Sequence[NDArray[Any]], places: Sequence[slice | IntArray], extra: int = 0
    ) -> FloatArray:
        block: FloatArray = np.empty((len(parts[0]), self.columns + extra))
        for part, place in zip(parts, places, strict=True):
            block[:, place] = part
        return block

    @cached_property
    def scales(self) -> tuple[FloatArray, FloatArray]:
        """What is subtracted from each of `cells`' columns, and the scale, of shape (P',)."""
        shift, scale = self.scaling or (np.zeros(self.columns), np.ones(self.columns))
        return np.append(shift, [0.0] * self.constant), np.append(scale, [1.0] * self.constant)

    def cells(self, rows: slice) -> FloatArray:
        """Some rows as an array, clipped but not scaled, to be read only."""
        first = self.parts[0]
        as_is = len(self.parts) == 1 and self.bounds is None and not self.constant
        return first[rows] if as_is and first.dtype == np.float64 else self._clipped(rows)

    def _clipped(self, rows: slice | IntArray) -> FloatArray:
        parts = [each[rows] for each in self.parts]
        places = [slice(0, self.columns)] if len(parts) == 1 else self.places
        block = self._as_floats(parts, places, int(self.constant))
        if self.constant:
            block[:, -1] = 1.0
        if self.bounds is not None:
            own = block[:, : self.columns]
            np.clip(own, *self.bounds, out=own)
        return block

    def _scaled(self, rows: slice | IntArray) -> FloatArray:
        """Some rows as an array."""
        block = self._clipped(rows)
        if self.scaling is not None:
            shift, scale = self.scales
            _along_rows(np.subtract, block, shift)
            _along_rows(np.divide, block, scale)
        return block


def _along_rows(operate: np.ufunc, block: FloatArray, row: FloatArray) -> None:
    """Operate with a row on each row in place, several at once: NumPy is slow on short ones."""
    several = max(1, STRETCH // len(row))
    whole = len(block) // several * several
    long, rest = block[:whole].reshape(-1, several * len(row)), block[whole:]
    operate(long, np.tile(row, several), out=long)
    operate(rest, row, out=rest)


def blocked(x: FloatArray) -> FloatArray | BlockedRows:
    """The rows of an array, by block if they are too many for one."""
    return BlockedRows.of(x) if x.size > LONG_CELLS else x
