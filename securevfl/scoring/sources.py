"""The rows that a job scores: where they come from, and the ones that all parties hold."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from securevfl.arrays import FloatArray, IntArray, is_real
from securevfl.data.ids import is_held_out
from securevfl.data.join import rows_in_common
from securevfl.data.read import (
    SHARD_LABELS,
    FileSource,
    PartyFile,
    PartyRows,
    read_party,
    require_usable,
)
from securevfl.data.shards import is_shard, read_header
from securevfl.data.tables import VerticalDataset, as_classes
from securevfl.errors import ConfigError, DataError
from securevfl.job import Job, PartySettings
from securevfl.models.storage import SavedModel
from securevfl.protocols.resolving import file_source
from securevfl.recipe import Preprocessing, Recipe, frame_of, read_as_numbers
from securevfl.scoring.joint_model import raw_columns
from securevfl.shown import counted, listed

Origin = Literal["rows", "new_data", "test_data", "data", "dataset"]


@dataclass(frozen=True, eq=False)
class RowsToScore:
    """The same rows at every party, in the same order, and their origin.

    Attributes:
        ids: normalized ids of the rows that all parties hold, sorted.
        written: these ids as the label party's file has them.
        id_column: name of the label party's id column.
        features: by party, its features, shape (rows, P).
        labels: as text, None where missing.
        order: the rows' numbers in the order of the label party's file.
        dropped: by party, the number of rows that another party lacks.
        unused: by party, columns of its file that the model does not use.
        unknown: by party and column, the number of values without a category of their own.
        raw: by party with a recipe, its raw columns as numbers, shape (rows, raw columns).
        origin: the job's key, or other source, of the rows.
        trained_on: how many of them the model was trained on, as far as is known.
        sources: by party, the file that they are of.
    """

    ids: tuple[str, ...]
    written: tuple[str, ...]
    id_column: str
    features: Mapping[str, FloatArray]
    labels: tuple[str | None, ...]
    order: IntArray
    dropped: Mapping[str, int] = field(default_factory=dict)
    unused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unknown: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    raw: Mapping[str, FloatArray] = field(default_factory=dict)
    origin: Origin = "rows"
    trained_on: int = 0
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def new_labels(self) -> tuple[str | None, ...]:
        """Labels; None of rows that the model was trained on, as far as is known."""
        if not self.trained_on:
            return self.labels
        every = self.trained_on == len(self.ids)
        pairs = zip(self.ids, self.labels, strict=True)
        return tuple(None if every or not is_held_out(row_id) else label for row_id, label in pairs)

    def at(self, places: IntArray) -> "RowsToScore":
        """The rows at some places, in this order."""
        in_file = np.argsort(self.order)[places]
        return replace(
            self,
            ids=tuple(self.ids[place] for place in places),
            written=tuple(self.written[place] for place in places),
            features={name: each[places] for name, each in self.features.items()},
            labels=tuple(self.labels[place] for place in places),
            order=np.argsort(in_file),
            raw={name: each[places] for name, each in self.raw.items()},
        )


def own_rows(party: PartySettings, part: SavedModel, path: Path) -> RowsToScore:
    """All rows of one party's own file, for its part of a model; errors as `read_new_rows`."""
    recipe = part.header.recipe
    source = _source(party.name, path, party, part)
    found = read_new_rows([source], party.name, {party.name: recipe} if recipe else {})
    return replace(found, sources={party.name: str(path.resolve())})


def rows_to_score(
    job: Job,
    parts: Mapping[str, SavedModel],
    beside: Path,
    *,
    given: Mapping[str, Path],
    dataset: VerticalDataset | None = None,
) -> RowsToScore:
    """The rows that a job scores.

    The `given` files by party, else every party's `new_data`, else its `test_data`, else its
    `data`; for a built-in data set its test rows, whose ids are their numbers. The job's paths are
    relative to the folder `beside`.

    Raises:
        ConfigError: files for some parties only, or for none.
    """
    if unknown := set(given) - set(parts):
        raise ConfigError(f"rows of {', '.join(sorted(unknown))}: parties are {', '.join(parts)}")
    if dataset is not None and not given:
        return _of_dataset(dataset, parts)
    parties = {each.name: each for each in job.party}
    origin, paths = _paths(parties, given, beside, tuple(parts))
    sources = [_source(name, path, parties.get(name), parts[name]) for name, path in paths.items()]
    recipes = {name: each.header.recipe for name, each in parts.items() if each.header.recipe}
    holder = next(name for name, part in parts.items() if part.header.holds_labels)
    rows = read_new_rows(sources, holder, recipes)
    trained_on = 0
    own = parties.get(holder)
    if own and own.data and paths[holder].resolve() == (beside / own.data).resolve():
        trained_on = sum(not is_held_out(row_id) for row_id in rows.ids)
        if own.test_data:
            trained_on = len(rows.ids)
    files = {source.name: str(source.path.resolve()) for source in sources}
    return replace(rows, origin=origin, trained_on=trained_on, sources=files)


def _paths(
    parties: Mapping[str, PartySettings],
    given: Mapping[str, Path],
    beside: Path,
    names: tuple[str, ...],
) -> tuple[Origin, dict[str, Path]]:
    if given:
        new = {name: each.new_data for name, each in parties.items() if each.new_data}
        paths = {name: beside / path for name, path in new.items()} | dict(given)
        _require_all("--rows or new_data", paths, names)
        return "rows", {name: paths[name] for name in names}
    keys: tuple[Literal["new_data", "test_data", "data"], ...] = ("new_data", "test_data", "data")
    for key in keys:
        found = {name: getattr(each, key) for name, each in parties.items()}
        paths = {name: beside / path for name, path in found.items() if path is not None}
        if paths:
            _require_all(key, paths, names)
            return key, {name: paths[name] for name in names}
    raise ConfigError("no rows to score: give new_data at every party, or --rows NAME=FILE")


def _require_all(key: str, paths: Mapping[str, Path], names: tuple[str, ...]) -> None:
    if missing := [name for name in names if name not in paths]:
        raise ConfigError(
            f"{key}: missing for {', '.join(missing)}, expected for every party; "
            f"`--rows {missing[0]}=FILE` may name a training file that has these people"
        )


def _source(name: str, path: Path, party: PartySettings | None, part: SavedModel) -> FileSource:
    columns = raw_columns(part.header)
    if is_shard(path):
        ids = "id" if party is None else party.id_column
        holds = part.header.holds_labels and read_header(path).labels is not None
        return FileSource(name, path, ids, SHARD_LABELS if holds else None, columns)
    if party is None:  # of a data set by name
        return FileSource(name, path, "id", features=columns)
    return replace(file_source(party, path), features=columns)


def read_new_rows(
    sources: Sequence[FileSource], holder: str, recipes: Mapping[str, Recipe] | None = None
) -> RowsToScore:
    """Join the parties' files of new rows by id.

    A source's `features` are the columns that the party's model needs, in any order in the file;
    the label column of the `holder` may be missing or incomplete. Recipes derive features from raw
    columns.

    Raises:
        DataError: missing files or columns, unusable columns (all are listed), missing or repeated
            ids, or no common ids.
        ConfigError: an unknown suffix.
    """
    recipes = recipes or {}
    held: dict[str, PartyRows] = {}
    unused: dict[str, tuple[str, ...]] = {}
    for source in sources:
        held[source.name], unused[source.name] = _read(source, recipes.get(source.name))
    require_usable(list(held.values()))
    dropped = dict.fromkeys(held, 0)
    places = rows_in_common(held, holder, dropped, among="the new rows")
    features, unknown, raw = {}, {}, {}
    for source in sources:
        name, rows = source.name, held[source.name]
        recipe = recipes.get(name) or read_as_numbers(rows.columns)
        frame = rows.whole_frame[places[name]]
        try:
            features[name] = recipe.apply(frame)
        except DataError as error:
            raise DataError(f"party {name!r}: {error}") from error
        unknown[name] = recipe.unknown(frame)
        if name in recipes:
            raw[name] = recipe.raw_numbers(frame)
    own, here = held[holder], places[holder]
    labels = [""] * len(own) if own.labels is None else own.labels.to_list()
    return RowsToScore(
        ids=tuple(own.ids[here]),
        written=tuple(own.written[here]),
        id_column=next(source.id_column for source in sources if source.name == holder),
        features=features,
        labels=tuple(labels[row] or None for row in here),
        order=np.argsort(here),
        dropped=dropped,
        unused=unused,
        unknown=unknown,
        raw=raw,
    )


def _read(source: FileSource, recipe: Recipe | None) -> tuple[PartyRows, tuple[str, ...]]:
    file = PartyFile(source, source.path)
    existing = file.columns
    needed = (source.id_column, *(source.features or ()))
    missing = [column for column in needed if column not in existing]
    if missing:
        raise DataError(
            f"party {source.name!r}: {source.path} lacks {counted(len(missing), 'column')} of the "
            f"model: {listed([*map(repr, missing)])}; it has {listed(existing)}"
        )
    label = source.label_column if source.label_column in existing else None
    source = replace(source, label_column=label)
    if recipe is not None:
        source = replace(source, preprocess=Preprocessing(missing=recipe.missing))
    text = () if recipe is None else recipe.text_columns
    rows = read_party(source, text=text, file=file)
    return rows, tuple(each for each in existing if each not in {*needed, source.label_column})


def _of_dataset(dataset: VerticalDataset, parts: Mapping[str, SavedModel]) -> RowsToScore:
    tables = {table.name: table for table in dataset.parties}
    if set(tables) != set(parts):
        raise DataError(
            f"data set {dataset.name!r} is of {', '.join(tables)}, the model of {', '.join(parts)}"
        )
    features: dict[str, FloatArray] = {}
    raw: dict[str, FloatArray] = {}
    for name, part in parts.items():
        table, recipe = tables[name], part.header.recipe
        used = raw_columns(part.header)  # a recipe may leave out some
        if table.columns != used and (recipe is None or not {*used} <= {*table.columns}):
            raise DataError(f"party {name!r}: the model was not trained on these columns")
        features[name] = table.test
        if recipe is not None:
            frame = frame_of(table.test, table.columns)
            features[name], raw[name] = recipe.apply(frame), recipe.raw_numbers(frame)
    numbers = tuple(map(str, range(len(dataset.test_labels))))
    return RowsToScore(
        ids=numbers,
        written=numbers,
        id_column="row",
        features=features,
        raw=raw,
        labels=_labels(dataset),
        order=np.arange(len(numbers)),
        origin="dataset",
    )


def _labels(dataset: VerticalDataset) -> tuple[str, ...]:
    """Labels of the test rows as a file would have them."""
    if is_real(dataset.test_labels):
        return tuple(map(repr, dataset.test_labels.tolist()))
    return tuple(dataset.class_names[code] for code in as_classes(dataset.test_labels))
