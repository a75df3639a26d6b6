"""Standardization of a party's columns by its own training rows."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import FloatArray
from securevfl.errors import DataError
from securevfl.sparse import Matrix, SameRows, SparseRows, moments_of, standardized

BLOCK = 1 << 14


@dataclass(frozen=True, eq=False)
class Scaling:
    """Means and population standard deviations, shape (P,); constant columns have scale 1."""

    mean: NDArray[np.float64]
    scale: NDArray[np.float64]

    @classmethod
    def fit(cls, train: Matrix) -> Self:
        """Fit to training rows, shape (N, P), whose deviations must be finite."""
        if train.shape[0] == 0:
            raise DataError("no training rows to scale by")
        with np.errstate(over="ignore", invalid="ignore"):
            mean, scale, constant = _moments(train)
        if not (np.isfinite(mean).all() and np.isfinite(scale).all()):
            column = int(np.flatnonzero(~(np.isfinite(mean) & np.isfinite(scale)))[0])
            raise DataError(f"train: column {column} has no finite mean and standard deviation")
        first = train[:1].toarray()[0] if isinstance(train, SparseRows) else train[0]
        constant |= scale == 0
        return cls(np.where(constant, first, mean), np.where(constant, 1.0, scale))

    def apply(self, x: SameRows) -> SameRows:
        """Standardize rows of shape (rows, P)."""
        if x.shape[-1] != self.mean.size:
            raise DataError(f"x: {x.shape[-1]} columns, expected {self.mean.size} as fitted")
        return standardized(x, self.mean, self.scale)


def _moments(train: Matrix) -> tuple[FloatArray, FloatArray, NDArray[np.bool_]]:
    """Mean and deviation of every column, and whether it is constant.

    Constancy is tested by value: rounding in the mean can leave a tiny deviation.
    """
    if isinstance(train, SparseRows):
        return moments_of(train)
    mean = train.mean(axis=0)
    # One array of all deviations would take as much memory as the rows.
    blocks = (train[start : start + BLOCK] for start in range(0, len(train), BLOCK))
    squares = sum(((block - mean) ** 2).sum(axis=0) for block in blocks)
    return mean, np.sqrt(squares / len(train)), (train == train[0]).all(axis=0)
