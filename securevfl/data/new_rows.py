"""Rows to score, from the parties' own files: those that all hold, as one model knows them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from securevfl.data.join import rows_in_common
from securevfl.data.read import FileSource, PartyRows, columns_of, read_party, require_usable
from securevfl.errors import DataError
from securevfl.recipe import Preprocessing, Recipe, read_as_numbers


@dataclass(frozen=True, eq=False)
class NewRows:
    """The same rows at every party, in the same order.

    Attributes:
        ids: of the rows that all parties hold, as they are compared, sorted.
        written: these ids as the label party's file has them.
        features: by party, raw columns in the order that was asked for, shape (rows, P).
        labels: as text, None where the label party's file has none yet.
        dropped: by party, rows whose id another party lacks.
        unused: by party, columns of its file that nobody asked for.
        order: the rows' numbers in the order of the label party's file.
        unknown: by party and column, values that training rows did not have, or few of them.
        raw: by party with a recipe, its rows before that, shape (rows, raw columns).
    """

    ids: tuple[str, ...]
    written: tuple[str, ...]
    features: Mapping[str, NDArray[np.float64]]
    labels: tuple[str | None, ...]
    dropped: Mapping[str, int]
    unused: Mapping[str, tuple[str, ...]]
    order: NDArray[np.int64]
    unknown: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    raw: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)


def read_new_rows(
    sources: Sequence[FileSource], holder: str, recipes: Mapping[str, Recipe] | None = None
) -> NewRows:
    """Join the parties' files of new rows by id.

    Columns that a party's model takes are its source's `features`, found by name whatever their
    order; the label column of the `holder` may be missing, or labels in it. Recipes make features
    of these columns where that is more than reading.

    Raises:
        DataError: a file or columns missing, or columns that cannot be used, all of which are
            listed; ids missing or double, or no common ids.
        ConfigError: a suffix that is not known.
    """
    recipes = recipes or {}
    held: dict[str, PartyRows] = {}
    unused: dict[str, tuple[str, ...]] = {}
    for source in sources:
        held[source.name], unused[source.name] = _read(source, recipes.get(source.name))
    require_usable(list(held.values()))
    dropped = dict.fromkeys(held, 0)
    places = rows_in_common(held, holder, dropped, among="the new rows")
    ids = held[holder].ids[places[holder]].to_list()
    labels: tuple[str | None, ...] = (None,) * len(ids)
    order, written = np.arange(len(ids)), tuple(ids)
    features, unknown, raw = {}, {}, {}
    for source in sources:
        name, rows = source.name, held[source.name]
        recipe = recipes.get(name) or read_as_numbers(rows.columns)
        frame = rows.frame[places[name]]
        try:
            features[name] = recipe.apply(frame)
        except DataError as error:
            raise DataError(f"party {name!r}: {error}") from error
        unknown[name] = recipe.unknown(frame)
        if name in recipes:
            raw[name] = recipe.as_they_were(frame)
        if name == holder:
            order, written = np.argsort(places[name]), tuple(rows.written[places[name]])
        if rows.labels is not None:
            labels = tuple(label or None for label in rows.labels[places[name]])
    return NewRows(tuple(ids), written, features, labels, dropped, unused, order, unknown, raw)


def _read(source: FileSource, recipe: Recipe | None) -> tuple[PartyRows, tuple[str, ...]]:
    there = columns_of(replace(source, label_column=None))
    due = (source.id_column, *(source.features or ()))
    missing = [column for column in due if column not in there]
    if missing:
        raise DataError(
            f"party {source.name!r}: {source.path} lacks {len(missing)} columns of the model: "
            f"{', '.join(map(repr, missing))}; it has {', '.join(there)}"
        )
    label = source.label_column if source.label_column in there else None
    source = replace(source, label_column=label)
    if recipe is not None:
        source = replace(source, preprocess=Preprocessing(missing=recipe.missing))
    text = () if recipe is None else recipe.text_columns
    rows = read_party(source, text=text, open_labels=True)
    return rows, tuple(each for each in there if each not in {*due, source.label_column})
