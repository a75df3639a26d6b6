"""Fitting a recipe: what a party's raw columns become, learned from its own training rows alone."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from securevfl.data.bad_columns import kind_of
from securevfl.data.tables import Kind, Note
from securevfl.errors import DataError
from securevfl.recipe import (
    MISSING_LEVEL,
    OTHER_LEVEL,
    ColumnRecipe,
    Preprocessing,
    Recipe,
    days_of,
    numbers_of,
    text_of,
)

if TYPE_CHECKING:
    import polars as pl

__all__ = ["Preprocessing", "Recipe", "fit_recipe"]


def fit_recipe(
    party: str,
    frame: "pl.DataFrame",
    columns: Sequence[str],
    rows: NDArray[np.int64],
    settings: Preprocessing,
) -> tuple[Recipe, list[Note]]:
    """A party's recipe; columns that say nothing over its training rows are left out, and told.

    A category of fewer than `rare_count` rows, or a smaller share than `rare_share`, is pooled with
    others until the pool is not rare either: a 0/1 column of few ones shows these few rows to
    whoever learns something about the column's weight.

    Args:
        party: whose, for messages.
        frame: raw columns.
        columns: of them, the ones to use.
        rows: numbers of the training rows, shape (N,); no other row has a say.
        settings: of `[preprocess]`.

    Raises:
        DataError: nothing is left, two features of one name, or columns that cannot be used.
    """
    parts: list[ColumnRecipe] = []
    notes: list[Note] = []

    def note(kind: Kind, column: str, text: str) -> None:
        notes.append(Note(kind, party, column, text))

    for name in columns:
        values = frame[name].gather(rows)
        kind = kind_of(values, settings)
        if kind == "category":
            part, told = _categories(name, text_of(values, settings.markers), settings)
            notes += [Note("preprocess", party, name, text) for text in told]
        else:
            part = _numbers(name, kind == "date", values, settings)
            if kind == "date":
                note("preprocess", name, "is read as dates, in days since 1970-01-01")
        if part is None or not part.columns:
            note("unused", name, f"is left out: {_why(values.n_unique(), len(rows))}")
        else:
            parts.append(part)
    recipe = Recipe(tuple(parts), settings.markers)
    names = recipe.columns
    if not names:
        raise DataError(f"party {party!r}: no column says anything over the training rows")
    if len(set(names)) < len(names):
        double = next(name for name in names if names.count(name) > 1)
        raise DataError(f"party {party!r}: two features would have the name {double!r}")
    return recipe, notes


def _why(values: int, rows: int) -> str:
    if values > rows / 2:
        return f"{values} different values in {rows} training rows, as an id or free text has"
    return "the same in all training rows, or all but a few"


def _numbers(
    name: str, is_date: bool, values: "pl.Series", settings: Preprocessing
) -> ColumnRecipe | None:
    read = (days_of if is_date else numbers_of)(values, settings.markers)
    there = read.drop_nulls().to_numpy()
    if not len(there):
        return None
    missing = len(read) - len(there)
    few = max(settings.rare_count, settings.rare_share * len(read))
    indicator = settings.missing_indicator and missing >= few and len(there) >= few
    fill = float(np.median(there))
    if not indicator and (there == fill).all():
        return None
    return ColumnRecipe(name, "date" if is_date else "number", fill, indicator)


def _categories(
    name: str, text: "pl.Series", settings: Preprocessing
) -> tuple[ColumnRecipe | None, list[str]]:
    import polars as pl  # noqa: PLC0415  # slow to import, and needed only for files

    few = max(settings.rare_count, settings.rare_share * len(text))
    counted = text.drop_nulls().alias("level").value_counts(name="rows")
    # Of the same count in the order of names, so that the order of rows decides nothing.
    counted = counted.sort(["rows", "level"], descending=[True, False])
    reserved = pl.col("level").is_in([MISSING_LEVEL, OTHER_LEVEL])
    common = counted.filter((pl.col("rows") >= few) & ~reserved)
    sizes: list[tuple[int, str | None]] = [
        (rows, level) for level, rows in common.iter_rows()
    ]  # of None: missing
    pooled = len(text) - text.null_count() - sum(rows for rows, _ in sizes)
    rare = counted.height - common.height
    if missing := text.null_count():
        if missing >= few:
            sizes.append((missing, None))
        else:
            pooled += missing
    sizes.sort(key=lambda each: -each[0])
    while 0 < pooled < few and sizes:
        pooled += sizes.pop()[0]
    if len(sizes) + (pooled > 0) < 2:  # noqa: PLR2004
        return None, []
    levels = tuple(sorted(level for _, level in sizes if level is not None))
    has_missing = any(level is None for _, level in sizes)
    part = ColumnRecipe(
        name, "category", levels=levels, missing_level=has_missing, other_level=pooled > 0
    )
    several = f"{len(part.columns)} columns, one a category"
    told = f"becomes {several if len(part.columns) > 1 else '1 column'}"
    if rare:
        pooled_ones = "1 rare category is" if rare == 1 else f"{rare} rare categories are"
        told += f"; {pooled_ones} pooled in {OTHER_LEVEL!r}"
    return part, [told]
