"""Which columns each party holds, of one table or of a list of tables, one a party."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from sklearn.utils.validation import check_array

from securevfl.arrays import IntArray
from securevfl.data.splits import block_sizes
from securevfl.errors import ConfigError, DataError

Columns = dict[str, IntArray]
"""By party, the numbers of its columns."""
TWO_DIMENSIONS = 2


def is_by_party(data: object) -> bool:
    """Whether this is a list of tables rather than one table."""
    tables = data if isinstance(data, list | tuple) else ()
    return bool(tables) and all(
        len(getattr(table, "shape", ())) == TWO_DIMENSIONS for table in tables
    )


def side_by_side(tables: Sequence[Any]) -> Any:  # noqa: ANN401  # whatever scikit-learn takes
    """The parties' tables as one: a data frame if all of them have column names.

    Raises:
        DataError: other numbers of rows, or a name that columns of two parties have.
    """
    rows = [len(table) for table in tables]
    if len(set(rows)) > 1:
        raise DataError(f"X: the parties' tables have {rows} rows, expected the same rows in all")
    names = [list(getattr(table, "columns", ())) for table in tables]
    joint = np.hstack([check_array(table, dtype=np.float64) for table in tables])
    flat = [name for own in names for name in own]
    if not all(names) or not all(isinstance(name, str) for name in flat):
        return joint
    if len(set(flat)) < len(flat):
        double = next(name for name in flat if flat.count(name) > 1)
        raise DataError(f"X: column {double!r} is in two parties' tables: rename one of them")
    import polars as pl  # noqa: PLC0415  # slow to import, and needed only for data frames

    return pl.DataFrame(joint, schema=flat)


def columns_of(parties: object, names: Sequence[str] | None, width: int) -> Columns:
    """The columns of each party, of one table.

    Args:
        parties: column lists, by name of party or without; None for two nearly equal halves.
        names: of all columns; None where they have only numbers.
        width: how many columns there are.

    Raises:
        ConfigError: fewer than two parties, or a column that is unknown, held by two or by none.
    """
    if parties is None:
        return blocks(block_sizes(width, 2))
    if not isinstance(parties, Mapping | list | tuple):
        raise ConfigError(f"parties: {parties!r}, expected a list of column lists, one a party")
    lists = parties if isinstance(parties, Mapping) else _numbered(parties)
    if len(lists) < 2:  # noqa: PLR2004
        raise ConfigError(f"parties: {len(lists)}, expected at least 2")
    columns = {str(party): _numbers(party, own, names, width) for party, own in lists.items()}
    holders = np.bincount(np.concatenate(list(columns.values())), minlength=width)
    for number in np.flatnonzero(holders != 1).tolist():
        column = repr(names[number]) if names is not None else number
        held = f"is held by {holders[number]} parties" if holders[number] else "is nobody's"
        raise ConfigError(f"parties: column {column} {held}, expected one party")
    return columns


def blocks(widths: Sequence[int]) -> Columns:
    """Parties that hold so many columns each, one after another."""
    return _numbered([np.arange(start, end) for start, end in pairwise(np.cumsum([0, *widths]))])


def _numbered(parts: Sequence[Any]) -> dict[str, Any]:
    return {f"party{number}": part for number, part in enumerate(parts, 1)}


def _numbers(party: object, own: object, names: Sequence[str] | None, width: int) -> IntArray:
    """The numbers of a party's columns, given by name or by number."""
    listed = [own] if isinstance(own, str) else list(own) if isinstance(own, Sequence) else None
    if listed is None:
        listed = np.asarray(own).tolist()
    known = {name: number for number, name in enumerate(names or ())}
    numbers = []
    for column in listed:
        number = known.get(column, -1) if isinstance(column, str) else column
        if not isinstance(number, int | np.integer) or not 0 <= number < width:
            among = ", ".join(map(str, names)) if names is not None else f"0 to {width - 1}"
            raise ConfigError(
                f"parties: party {party!r} has no column {column!r}; there are {among}"
            )
        numbers.append(int(number))
    if not numbers:
        raise ConfigError(f"parties: party {party!r} has no columns, expected at least 1")
    return np.array(numbers, np.int64)
