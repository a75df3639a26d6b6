"""Rows on their way into a shard: what the readers of formats give, some thousands at a time."""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import FloatArray, IntArray
from securevfl.errors import DataError

if TYPE_CHECKING:
    import polars as pl

LARGE = 2.0**53
"""From here on not every whole number is a float64."""
_WHOLE = re.compile(r"[+-]?0*([0-9]+)")


@dataclass(frozen=True, eq=False)
class SparseBatch:
    """Some rows.

    Attributes:
        ids: as they stand, N of them; None where rows are known by their numbers.
        lengths: entries of each row, shape (N,).
        indices: columns of the entries, row by row, as they are numbered in the file.
        values: of the entries; None where all are 1.
        labels: numbers, or text; None where none are asked for.
        names: of the columns, where they have names.
        smallest: of the indices, those of entries of 0 among them; None without entries.
    """

    ids: list[str] | None
    lengths: IntArray
    indices: IntArray
    values: FloatArray | None
    labels: FloatArray | list[str] | None
    names: tuple[str, ...] | None = None
    smallest: int | None = None


def in_order(
    where: str, lines: IntArray, lengths: IntArray, indices: IntArray, values: FloatArray | None
) -> tuple[IntArray, IntArray, FloatArray | None]:
    """Rows' lengths, indices and values with indices ascending, and entries of 0 left out.

    Args:
        where: for messages, the file and what its rows are called.
        lines: each row's number there.
        lengths: shape (N,).
        indices: shape (entries,).
        values: the same, or None.

    Raises:
        DataError: an index below 0 or twice in a row, or values that are not finite.
    """
    row = np.repeat(np.arange(len(lengths)), lengths)

    def refuse(wrong: NDArray[np.bool_], what: str) -> None:
        if wrong.any():
            first = int(wrong.argmax())
            at = f"{indices[first]}" + ("" if values is None else f":{values[first]:g}")
            raise DataError(f"{where} {lines[row[first]]}: {what.format(at=at)}")

    refuse(indices < 0, "index {at} is below 0")
    if values is not None:
        refuse(~np.isfinite(values), "{at} is not finite")
    same_row = row[1:] == row[:-1]
    if (same_row & (indices[1:] <= indices[:-1])).any():
        order = np.lexsort((indices, row))
        indices = indices[order]
        values = None if values is None else values[order]
    refuse(
        np.concatenate([[False], same_row & (indices[1:] == indices[:-1])]),
        "index {at} is there twice",
    )
    if values is not None and not values.all():
        kept = values != 0
        lengths = np.bincount(row[kept], minlength=len(lengths))
        indices, values = indices[kept], values[kept]
    return lengths, indices, values


def first_rounded(written: "pl.Series", numbers: "pl.Series") -> int | None:
    """The place of the first whole number that no float64 is; None where there is none.

    Args:
        written: as text, with its numbers written with a point.
        numbers: what was read of it, float64.
    """
    for place in (numbers.is_finite() & (numbers.abs() >= LARGE)).arg_true():
        whole = _WHOLE.fullmatch(written[place].strip())
        if whole is not None and int(whole[1]) != abs(int(numbers[place])):
            return int(place)
    return None
