"""Where a party's raw rows become what its part of a model takes."""

from typing import Any

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.errors import DataError
from securevfl.models.storage import ModelHeader, SavedModel
from securevfl.recipe import Recipe


def raw_columns(header: ModelHeader) -> tuple[str, ...]:
    """The columns that a party's own file must have."""
    return header.columns if header.recipe is None else header.recipe.raw_columns


def features_of(model: SavedModel, rows: Any) -> FloatArray:  # noqa: ANN401  # frames of two kinds
    """A party's rows as its part takes them, unscaled, shape (rows, P).

    Args:
        model: its part.
        rows: an array of its columns in the model's order, or a polars or pandas frame with them
            by name, in any order and beside others; a frame where the party has a recipe.

    Raises:
        DataError: columns missing, all of which are listed, or values that are no finite numbers.
    """
    party, columns = model.header.party, raw_columns(model.header)
    if hasattr(rows, "columns"):
        there = list(rows.columns)
        if missing := [column for column in columns if column not in there]:
            raise DataError(
                f"party {party!r}: {len(missing)} columns of the model missing: "
                f"{', '.join(map(repr, missing))}"
            )
        if model.header.recipe is not None:
            return _by_recipe(party, model.header.recipe, rows)
        rows = np.column_stack([np.asarray(rows[column]) for column in columns])
    elif model.header.recipe is not None:
        raise DataError(f"party {party!r}: rows without names, expected a frame of raw columns")
    try:
        features = np.asarray(rows, np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"party {party!r}: values that are no numbers ({error})") from error
    if features.ndim != 2 or features.shape[1] != len(columns):  # noqa: PLR2004
        raise DataError(
            f"party {party!r}: rows of shape {features.shape}, expected {len(columns)} columns"
        )
    unusable = (~np.isfinite(features)).sum(axis=0)
    bad = [f"{columns[i]!r} {unusable[i]}" for i in np.flatnonzero(unusable)]
    if bad:
        raise DataError(f"party {party!r}: NaN or infinite values in columns {', '.join(bad)}")
    return features


def _by_recipe(party: str, recipe: Recipe, rows: Any) -> FloatArray:  # noqa: ANN401
    import polars as pl  # noqa: PLC0415  # slow to import, and needed only for frames

    def column(name: str) -> pl.Series:
        values = rows[name]
        if isinstance(values, pl.Series):
            return values
        values = np.asarray(values)
        given = values.tolist() if values.dtype == object else values
        return pl.Series(name, given, strict=False)

    try:
        return recipe.apply(pl.DataFrame([column(name) for name in recipe.raw_columns]))
    except DataError as error:
        raise DataError(f"party {party!r}: {error}") from error
