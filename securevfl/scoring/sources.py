"""Which rows a job is to score, and where they come from."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from securevfl.arrays import is_real
from securevfl.data.ids import falls_into_test
from securevfl.data.new_rows import NewRows, read_new_rows
from securevfl.data.read import SHARD_LABELS, FileSource
from securevfl.data.shards import is_shard, read_header
from securevfl.data.tables import VerticalDataset, as_classes
from securevfl.errors import ConfigError, DataError
from securevfl.job import Job, PartySettings
from securevfl.models.storage import SavedModel
from securevfl.protocols.resolving import file_source
from securevfl.scoring.joint_model import raw_columns

Origin = Literal["rows", "new_data", "test_data", "data", "dataset"]


@dataclass(frozen=True, eq=False)
class RowsToScore:
    """Rows, and what is known of where they come from.

    Attributes:
        origin: which key of the job, or what else, they come from.
        id_column: what the label party calls their ids.
        trained_on: how many of them the model was trained on, as far as is known.
    """

    rows: NewRows
    origin: Origin
    id_column: str
    trained_on: int = 0


def rows_to_score(
    job: Job,
    parts: Mapping[str, SavedModel],
    beside: Path,
    *,
    given: Mapping[str, Path],
    dataset: VerticalDataset | None = None,
) -> RowsToScore:
    """The rows of a job that are to be scored.

    Those that are `given` by party, else every party's `new_data`, else its `test_data`, else its
    `data`; of a data set by name its test rows, whose ids are their numbers. The job's paths are
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
    if origin == "data":
        trained_on = sum(not falls_into_test(row_id) for row_id in rows.ids)
        if any(each.test_data for each in job.party):
            trained_on = len(rows.ids)
    label = next(source for source in sources if source.name == holder)
    return RowsToScore(rows, origin, label.id_column, trained_on)


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
        raise ConfigError(f"{key}: missing for {', '.join(missing)}, expected for every party")


def _source(name: str, path: Path, party: PartySettings | None, part: SavedModel) -> FileSource:
    columns = raw_columns(part.header)
    if is_shard(path):
        ids = "id" if party is None else party.id_column
        holds = part.header.holds_labels and read_header(path).labels is not None
        return FileSource(name, path, ids, SHARD_LABELS if holds else None, columns)
    if party is None:  # of a data set by name
        return FileSource(name, path, "id", features=columns)
    return replace(file_source(party, path), features=columns)


def _of_dataset(dataset: VerticalDataset, parts: Mapping[str, SavedModel]) -> RowsToScore:
    tables = {table.name: table for table in dataset.parties}
    if set(tables) != set(parts):
        raise DataError(
            f"data set {dataset.name!r} is of {', '.join(tables)}, the model of {', '.join(parts)}"
        )
    for name, part in parts.items():
        if tables[name].columns != part.header.columns:
            raise DataError(f"party {name!r}: the model was not trained on these columns")
    numbers = tuple(map(str, range(len(dataset.test_labels))))
    rows = NewRows(
        ids=numbers,
        written=numbers,
        features={name: tables[name].test for name in parts},
        labels=_labels(dataset),
        dropped={},
        unused={},
        order=np.arange(len(dataset.test_labels)),
    )
    return RowsToScore(rows, "dataset", "row")


def _labels(dataset: VerticalDataset) -> tuple[str, ...]:
    """Of the test rows, as a file would have them."""
    if is_real(dataset.test_labels):
        return tuple(map(repr, dataset.test_labels.tolist()))
    return tuple(dataset.class_names[code] for code in as_classes(dataset.test_labels))
