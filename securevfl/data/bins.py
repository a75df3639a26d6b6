"""Bins of a party's columns of numbers: 0/1 columns for thresholds, fitted to its training rows.

A linear model of a number and of 0/1 columns `number >= edge` is a curve with a step at each edge,
which is most of what boosted trees see of a column (docs/decisions/0070-bins.md). It takes no label
and no message.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import FloatArray, IntArray
from securevfl.data.tables import Note
from securevfl.recipe import Bins, ColumnRecipe, Preprocessing, Recipe
from securevfl.shown import counted, listed

# docs/decisions/0070-bins.md
LEAST_AUTO, MOST_AUTO, ROWS_A_COLUMN, ROWS_A_BIN = 3, 8, 300, 1000

if TYPE_CHECKING:
    import polars as pl


class Binning:
    """Adds bins to the columns of one party, one after the other.

    Args:
        settings: of the party.
        rows: number of training rows.
        columns: number of raw columns.
    """

    def __init__(self, settings: Preprocessing, rows: int, columns: int) -> None:
        self._settings = settings
        most = min(MOST_AUTO, rows // (ROWS_A_COLUMN * columns), rows // ROWS_A_BIN)
        self._auto = most if most >= LEAST_AUTO else None
        self._bins = self._auto if settings.bins == "auto" else settings.bins
        self._seen: set[bytes] = set()
        self._joined: dict[str, int] = {}
        self._doubled: dict[str, int] = {}

    def bins_of(self, column: str) -> Bins | None:
        """The bins that a column of numbers should have; None for none."""
        return self._bins.get(column) if isinstance(self._bins, Mapping) else self._bins

    def added(self, part: ColumnRecipe, read: "pl.Series") -> ColumnRecipe:
        """A column's recipe, with bins if it has any.

        A 0/1 column is left out if an earlier one is the same, up to 0 and 1 exchanged.

        Args:
            part: the recipe without edges.
            read: the numbers of the training rows, null where missing; not all of them are.
        """
        settings = self._settings
        if (bins := self.bins_of(part.name)) is None:
            return part
        few = max(settings.rare_count, settings.rare_share * len(read))
        values, counts = np.unique(read.drop_nulls().to_numpy(), return_counts=True)
        edges = kept = np.zeros(0)
        # With the number, an edge of two values would be the column itself.
        if len(values) > 2 or not settings.bin_raw:  # noqa: PLR2004
            edges = _edges(values, counts, bins, by_width=settings.bin_by == "width")
            edges = np.unique(np.ceil(edges)) if part.kind == "date" else edges
            kept = _without_rare(edges, values, counts, few)
        elif not read.null_count():
            self._is_new(read.to_numpy() == values[-1])
        self._joined[part.name] = len(edges) - len(kept)
        part = replace(part, edges=tuple(kept.tolist()))
        new = np.array([self._is_new(column) for column in part.zero_ones(read).T], np.bool_)
        self._doubled[part.name] = int((~new).sum())
        indicator, others = new[: int(part.indicator)].any(), new[int(part.indicator) :]
        part = replace(part, indicator=bool(indicator), edges=tuple(kept[others].tolist()))
        return replace(part, raw=settings.bin_raw or not len(kept))

    def notes(self, party: str, recipe: Recipe) -> list[Note]:
        """What became of all columns of the party; nothing without bins."""
        auto = self._settings.bins == "auto"
        if not self._joined:
            none = "bins: none by auto, as rows are few for so many columns"
            return [Note("preprocess", party, None, none)] * auto
        binned = [part for part in recipe.parts if part.edges]
        edges = counted(sum(len(part.edges) for part in binned), "threshold")
        text = (
            f"bins{f' = {self._bins} by auto' * auto}: {edges} of {counted(len(binned), 'column')} "
            f"as 0/1 columns; {counted(len(recipe.raw_columns), 'column')} of the file become "
            f"{len(recipe.columns)}, and guards count each of them"
        )
        for what, counts in (
            ("bins with few rows are joined to a neighbour", self._joined),
            ("0/1 columns that double another are left out", self._doubled),
        ):
            if names := [repr(name) for name, count in counts.items() if count]:
                text += f"; {sum(counts.values())} {what} (of {listed(names, 5)})"
        if self._auto is None:
            text += (
                "; rows are few for so many columns, and bins may overfit: 'auto' would take none"
            )
        return [Note("preprocess", party, None, text)]

    def _is_new(self, column: NDArray[np.bool_]) -> bool:
        digest = hashlib.blake2b(np.packbits(column ^ column[0]).tobytes(), digest_size=16)
        is_new = digest.digest() not in self._seen
        self._seen.add(digest.digest())
        return is_new


def _edges(values: FloatArray, counts: IntArray, bins: Bins, *, by_width: bool) -> FloatArray:
    """Edges of some distinct values, ascending, that so many rows have each."""
    if isinstance(bins, Sequence):
        return np.array(bins, np.float64)
    if len(values) <= bins:
        edges = values[1:]
    elif by_width:
        edges = np.unique(np.linspace(values[0], values[-1], bins + 1)[1:-1])
    else:
        # The value below which the number of rows is closest to a quantile, so that a value that
        # many rows have does not hide the edge above it.
        below = np.cumsum(counts)
        wanted = below[-1] * np.arange(1, bins) / bins
        after = np.clip(np.searchsorted(below[:-1], wanted), 1, len(values) - 2)
        nearer = wanted - below[after - 1] <= below[after] - wanted
        edges = np.unique(values[np.where(nearer, after, after + 1)])
    places = np.searchsorted(values, edges)
    return np.array([*map(_short, edges, values[places - 1], values[places])], np.float64)


def _short(edge: float, below: float, above: float) -> float:
    """The number of fewest digits that parts the same rows: it has some below, and is at most some.

    So an edge is readable, and seldom somebody's very value.
    """
    shorter = (float(f"{edge:.{digits}g}") for digits in range(1, 17))
    return next((each for each in shorter if below < each <= above), float(edge))


def _without_rare(
    edges: FloatArray, values: FloatArray, counts: IntArray, few: float
) -> FloatArray:
    """Edges between bins of at least `few` rows: a rarer bin is joined to its smaller neighbour."""
    below = np.concatenate([[0], np.cumsum(counts)])[np.searchsorted(values, edges)]
    rows = np.diff(below, prepend=0, append=counts.sum()).tolist()
    kept = edges.tolist()
    while kept and min(rows) < few:
        place = rows.index(min(rows))
        to_left = place > 0 and (place == len(kept) or rows[place - 1] <= rows[place + 1])
        left = place - to_left
        rows[left : left + 2] = [rows[left] + rows[left + 1]]
        del kept[left]
    return np.array(kept, np.float64)
