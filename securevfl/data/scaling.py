"""Scaling of a party's columns: by public bounds, or standardized by its own training rows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import sqrt
from typing import Self

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import FloatArray
from securevfl.blocks import BlockedRows
from securevfl.data.tables import Note, PartyTable, VerticalDataset
from securevfl.errors import ConfigError, DataError
from securevfl.shown import did_you_mean
from securevfl.sparse import (
    Matrix,
    SameRows,
    SparseRows,
    blocks_of,
    cures,
    dense,
    moments_of,
    standardized,
)

BLOCK = 1 << 14
Bounds = Mapping[str, tuple[float, ...]]  # by column, its lowest and highest value


@dataclass(frozen=True, eq=False)
class Scaling:
    """Means and population standard deviations, shape (P,); constant columns have scale 1.

    A column with bounds has the mean and the deviation of the uniform distribution between them
    instead (docs/decisions/0051-public-bounds.md). `bounds`, shape (2, P), clip values before; of
    other columns they are the largest numbers, which clip nothing.
    """

    mean: NDArray[np.float64]
    scale: NDArray[np.float64]
    bounds: FloatArray | None = None

    @classmethod
    def of(
        cls, table: PartyTable[Matrix], train: Matrix, bounds: Bounds, *, standardize: bool
    ) -> Self:
        """The scaling of a table's columns, fitted to `train` where bounds do not fix it.

        Raises:
            DataError: a column whose squares overflow, also where nothing is standardized: guards
                and steps take squares.
        """
        clips = _clips(table, bounds)
        inside = np.array([column in bounds for column in table.columns])
        fitted = cls(np.zeros(len(inside)), np.ones(len(inside)))
        is_binary = isinstance(train, SparseRows) and train.values is None
        if (standardize or not is_binary) and not inside.all():
            if clips is not None:
                train = standardized(train, fitted.mean, fitted.scale, clips)
            found = cls.fit(train, table.name, table.columns)
            fitted = found if standardize else fitted
        if clips is None:
            return fitted
        low, high = clips
        mean = np.where(inside, low / 2 + high / 2, fitted.mean)
        return cls(mean, np.where(inside, (high / 2 - low / 2) / sqrt(3), fitted.scale), clips)

    @classmethod
    def fit(cls, train: Matrix, party: str = "", columns: Sequence[str] = ()) -> Self:
        """Fit to a party's training rows, shape (N, P), of columns with these names, if any.

        Raises:
            DataError: a column whose squares overflow; it is named.
        """
        fitted = cls.estimate(train)
        unusable = ~(np.isfinite(fitted.mean) & np.isfinite(fitted.scale))
        if unusable.any():
            place = int(np.flatnonzero(unusable)[0])
            raise DataError(
                f"party {party!r}: column {columns[place] if columns else place!r} has no finite "
                f"mean and standard deviation, as its numbers are too large: {cures(train)}"
            )
        return fitted

    @classmethod
    def estimate(cls, train: Matrix) -> Self:
        """As `fit`, but a column whose squares overflow has numbers that are not finite."""
        if train.shape[0] == 0:
            raise DataError("no training rows to scale by")
        with np.errstate(over="ignore", invalid="ignore"):
            mean, scale, constant = _moments(train)
        first = dense(train[:1])[0]
        constant |= scale == 0
        return cls(np.where(constant, first, mean), np.where(constant, 1.0, scale))

    def apply(self, x: SameRows) -> SameRows:
        """Clip and scale rows of shape (rows, P)."""
        if x.shape[-1] != self.mean.size:
            raise DataError(f"x: {x.shape[-1]} columns, expected {self.mean.size} as fitted")
        return standardized(x, self.mean, self.scale, self.bounds)


def _clips(table: PartyTable[Matrix], bounds: Bounds) -> FloatArray | None:
    """The bounds of a table's columns, shape (2, P); None if none has any."""
    if bounds.keys().isdisjoint(table.columns):
        return None
    most = float(np.finfo(np.float64).max)
    return np.array([bounds.get(column, (-most, most)) for column in table.columns]).T


def require_columns(bounds: Bounds, dataset: VerticalDataset[Matrix]) -> None:
    """Refuse bounds of columns that no party has, and of sparse ones; a ConfigError names them."""
    for column in bounds:
        holder = next((each for each in dataset.parties if column in each.columns), None)
        if holder is None:
            hint = did_you_mean(column, chain(*(table.columns for table in dataset.parties)))
            raise ConfigError(f"job.bounds.{column}: no party has column {column!r}{hint}")
        if isinstance(holder.train, SparseRows):
            raise ConfigError(
                f"job.bounds.{column}: party {holder.name!r} holds sparse rows, which are not "
                "clipped; drop the bounds and set standardize = false"
            )


def clipped(bounds: Bounds, dataset: VerticalDataset[Matrix]) -> Iterator[Note]:
    """How many training values of each party its bounds clip, for this party alone."""
    for table in dataset.parties:
        clips = _clips(table, bounds)
        train = table.train
        if clips is None or isinstance(train, SparseRows):
            continue
        outside = (((rows < clips[0]) | (rows > clips[1])).sum() for _, rows in blocks_of(train))
        beyond, cells = int(sum(outside)), train.shape[0] * train.shape[1]
        text = (
            f"bounds clip {beyond} of {cells} training values; the count itself has no "
            "noise, so do not publish it"
        )
        yield Note("bounds", table.name, None, text)


def _moments(train: Matrix) -> tuple[FloatArray, FloatArray, NDArray[np.bool_]]:
    """Mean and deviation of every column, and whether it is constant.

    Constancy is tested by value: rounding in the mean can leave a tiny deviation.
    """
    if isinstance(train, SparseRows):
        return moments_of(train)
    if isinstance(train, BlockedRows):
        return train.moments()
    mean = train.mean(axis=0)
    # One array of all deviations would take as much memory as the rows.
    blocks = (train[start : start + BLOCK] for start in range(0, len(train), BLOCK))
    squares = sum(((block - mean) ** 2).sum(axis=0) for block in blocks)
    return mean, np.sqrt(squares / len(train)), (train == train[0]).all(axis=0)
