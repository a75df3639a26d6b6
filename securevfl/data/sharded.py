"""Parties' data of which some or all are shards: joined by digests of ids, rows left on disk.

Rows stand in the order of the label party's. Where all parties hold the same rows in the same order
and test rows are shards of their own, nothing is joined and no row is copied.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import IntArray, Labels
from securevfl.data.feature_table import make_table
from securevfl.data.id_matching import why_few
from securevfl.data.joining import OwnData, check_sources, falls_into_test, load_files
from securevfl.data.labels import encode_labels, label_values
from securevfl.data.own_files import FOUND_OUT, FileSource, PartyRows, read_party, require_usable
from securevfl.data.shards import Shard, is_shard, open_shard
from securevfl.data.suspicious import suspicious
from securevfl.data.tables import Note, PartyTable, VerticalDataset, check, row_digests
from securevfl.errors import ConfigError, DataError
from securevfl.sparse import Matrix

if TYPE_CHECKING:
    import polars as pl


def load_parties(
    parties: Sequence[FileSource], *, name: str = "files", regression: bool = False
) -> VerticalDataset[Matrix]:
    """Join the parties' files and shards into one data set.

    As `joining.load_files`, which does it where there are no shards. Digests of ids stand for the
    ids, and rows have the label party's order. Without `test_path`, the same fifth is held out as
    of files, and rows are copied from a shard for it.

    Args:
        parties: their files, or folders that are shards.
        name: of the data set.
        regression: take labels that are more than two different numbers as real targets.

    Raises:
        ConfigError: see `joining.load_files`; or settings of a file beside a shard.
        DataError: see `joining.load_files` and `shards.open_shard`; a shard with labels at a
            feature party, or test rows of other columns than the training rows.
    """
    if not any(is_shard(source.path) for source in parties):
        return load_files(parties, name=name, regression=regression)
    check_sources(parties)
    held = {source.name: _open(source) for source in parties}
    holder = _label_party(held)
    files = [each for sides in held.values() for each in dict.fromkeys((sides.train, sides.test))]
    require_usable([each.rows for each in files if isinstance(each, _FileSide)])
    joined = _join(held, holder)
    places = joined.places
    names, labels = _labels(held[holder], places[holder], regression=regression)
    tables, notes = [], list(joined.notes)
    for party, sides in held.items():
        table, found = _table(sides, places[party], labels[0] if party == holder else None)
        tables.append(table)
        notes += found
    dataset = VerticalDataset(
        name=name,
        parties=tuple(tables),
        label_party=holder,
        train_labels=labels[0],
        test_labels=labels[1],
        classes=len(names),
        standardize=any(sides.has_values for sides in held.values()),
        row_digests=_taken(held[holder].train.digests, places[holder][0]),
        label_names=names,
        dropped=joined.dropped,
        notes=tuple(notes),
    )
    check(dataset)
    return dataset


def align_digests(parties: Sequence[FileSource]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Who the training and held-out rows are that all parties hold, of `load_parties`.

    Raises:
        ConfigError: see `load_parties`.
        DataError: see `load_parties`.
    """
    check_sources(parties)
    held = {source.name: _open(source) for source in parties}
    holder = _label_party(held)
    train, test = _join(held, holder).places[holder]
    return _taken(held[holder].train.digests, train), _taken(held[holder].test.digests, test)


def load_own(
    source: FileSource, train: NDArray[np.uint64], test: NDArray[np.uint64], *, regression: bool
) -> OwnData[Matrix]:
    """One party's part of rows that the parties have agreed on, from its own file or shard.

    Args:
        source: the file, or the folder that is a shard.
        train: digests of the training rows, in their order, as `align_digests` has them.
        test: those of the held-out rows.
        regression: see `load_parties`.

    Raises:
        ConfigError: see `load_parties`.
        DataError: see `load_parties`; or it lacks some of these rows.
    """
    sides = _open(source)
    require_usable([side.rows for side in (sides.train,) if isinstance(side, _FileSide)])
    places = (
        _places_of(source.name, sides.train.digests, train),
        _places_of(source.name, sides.test.digests, test),
    )
    if not sides.train.has_labels:
        table, notes = _table(sides, places, None)
        return OwnData(table, notes=tuple(notes))
    names, labels = _labels(sides, places, regression=regression)
    table, notes = _table(sides, places, labels[0])
    return OwnData(table, labels[0], labels[1], names, notes=tuple(notes))


def _places_of(
    party: str, digests: NDArray[np.uint64], wanted: NDArray[np.uint64]
) -> IntArray | None:
    """Numbers of some rows; None for all of them as they stand."""
    if np.array_equal(digests, wanted):
        return None
    order = np.argsort(digests)
    found = np.minimum(np.searchsorted(digests, wanted, sorter=order), len(digests) - 1)
    places = order[found]
    if missing := int((digests[places] != wanted).sum()):
        raise DataError(f"party {party!r}: {missing} of {len(wanted)} rows in common are missing")
    return places


@dataclass(frozen=True, eq=False)
class _FileSide:
    """A file's rows."""

    source: FileSource
    rows: PartyRows

    @cached_property
    def digests(self) -> NDArray[np.uint64]:
        return row_digests(self.rows.ids)

    @property
    def held_out(self) -> NDArray[np.bool_]:
        return np.fromiter(map(falls_into_test, self.rows.ids), bool, len(self.rows.ids))

    @property
    def ids(self) -> "pl.Series":
        return self.rows.ids

    @property
    def has_labels(self) -> bool:
        return self.rows.labels is not None

    def labels(self, places: IntArray | None) -> NDArray[Any]:
        assert self.rows.labels is not None  # noqa: S101
        labels = self.rows.labels if places is None else self.rows.labels.gather(places)
        return label_values(labels.to_list())


@dataclass(frozen=True, eq=False)
class _ShardSide:
    """A shard's rows."""

    shard: Shard

    @property
    def digests(self) -> NDArray[np.uint64]:
        return self.shard.digests

    @property
    def held_out(self) -> NDArray[np.bool_]:
        return self.shard.held_out

    @property
    def ids(self) -> "pl.Series":
        import polars as pl  # noqa: PLC0415  # slow to import

        return pl.Series(self.shard.ids, dtype=pl.String)

    @property
    def has_labels(self) -> bool:
        return self.shard.labels is not None

    def labels(self, places: IntArray | None) -> NDArray[Any]:
        assert self.shard.labels is not None  # noqa: S101
        labels, names = _taken(self.shard.labels, places), self.shard.header.classes
        return np.array(names)[labels] if names else np.asarray(labels)


_Side = _FileSide | _ShardSide


@dataclass(frozen=True, eq=False)
class _Sides:
    """A party's rows, and those of its test file or again the same."""

    source: FileSource
    train: _Side
    test: _Side

    @property
    def has_values(self) -> bool:
        return isinstance(self.train, _FileSide) or self.train.shard.header.values is not None


def _open(source: FileSource) -> _Sides:
    train = _side(source)
    if source.test_path is None:
        return _Sides(source, train, train)
    if is_shard(source.test_path) != isinstance(train, _ShardSide):
        raise ConfigError(
            f"party {source.name!r}: data and test_data are a shard and a file, expected two of a "
            "kind"
        )
    if isinstance(train, _FileSide):
        alike = replace(source, features=train.rows.columns, drop=())
        rows = read_party(alike, test=True, text=train.rows.text_columns)
        return _Sides(source, train, _FileSide(alike, rows))
    test = _ShardSide(open_shard(source.test_path))
    columns, others = (each.shard.header.column_names for each in (train, test))
    if columns != others:
        raise DataError(
            f"party {source.name!r}: test_data has {_told(others)}, data {_told(columns)}; "
            "`securevfl data convert` takes --columns and --first-index"
        )
    if (train.shard.labels is None) != (test.shard.labels is None):
        raise DataError(f"party {source.name!r}: labels in one of data and test_data only")
    return _Sides(source, train, test)


def _told(columns: Sequence[str]) -> str:
    return f"{len(columns)} columns from {columns[0]!r} to {columns[-1]!r}"


def _side(source: FileSource) -> _Side:
    if not is_shard(source.path):
        return _FileSide(source, read_party(source))
    said = {
        "id_column": source.id_column != "id",
        "label_column": source.label_column is not None,
        "features": source.features is not None,
        "drop": bool(source.drop),
        "preprocess": source.preprocess is not None,
        "separator, decimal, thousands or encoding": source.csv != FOUND_OUT,
    }
    if given := [setting for setting, there in said.items() if there]:
        raise ConfigError(
            f"party {source.name!r}: {given[0]} is said of a file; {source.path} is a shard, whose "
            "ids, columns and labels are what it was converted to"
        )
    shard = open_shard(source.path)
    if shard.header.id_format != source.id_format:
        raise ConfigError(
            f"party {source.name!r}: id_format = {source.id_format!r}; the ids of {source.path} "
            f"were converted as {shard.header.id_format!r}"
        )
    return _ShardSide(shard)


def _label_party(held: Mapping[str, _Sides]) -> str:
    holders = [name for name, sides in held.items() if sides.train.has_labels]
    if len(holders) != 1:
        raise ConfigError(f"labels: in the data of {holders or 'no party'}, expected exactly one")
    return holders[0]


_Places = tuple[IntArray | None, IntArray | None]
"""Numbers of a party's training and of its held-out rows; None for all of them as they stand."""


@dataclass(frozen=True)
class _Joined:
    """Which rows each party brings, by party how many others lack, and what was noticed."""

    places: Mapping[str, _Places]
    dropped: Mapping[str, int]
    notes: tuple[Note, ...]


def _join(held: Mapping[str, _Sides], holder: str) -> _Joined:
    dropped = dict.fromkeys(held, 0)
    sides = {name: each.train for name, each in held.items()}
    train = _common(sides, holder, dropped)
    notes = _few_in_common(sides, train[holder])
    if held[holder].source.test_path is None:
        split: dict[str, _Places] = {}
        out = _taken(sides[holder].held_out, train[holder])
        for name, places in train.items():
            rows = np.arange(len(out)) if places is None else places
            split[name] = rows[~out], rows[out]
        return _Joined(split, dropped, notes)
    others = {name: each.test for name, each in held.items()}
    test = _common(others, holder, dropped)
    digests = _taken(others[holder].digests, test[holder])
    if both := int(np.isin(digests, _taken(sides[holder].digests, train[holder])).sum()):
        raise DataError(f"test_path: {both} ids are among the training rows too, expected 0")
    return _Joined({name: (train[name], test[name]) for name in held}, dropped, notes)


def _common(
    sides: Mapping[str, _Side], holder: str, dropped: dict[str, int]
) -> dict[str, IntArray | None]:
    """The rows that all hold, in the order of the label party's."""
    digests = {name: side.digests for name, side in sides.items()}
    first = digests[holder]
    if all(np.array_equal(first, other) for other in digests.values()):
        return dict.fromkeys(sides)
    kept = np.ones(len(first), bool)
    for name, other in digests.items():
        if name != holder:
            kept &= np.isin(first, other, assume_unique=True)
    wanted = first[kept]
    for name, other in digests.items():
        dropped[name] += len(other) - len(wanted)
    if not len(wanted):
        ids = {name: side.ids for name, side in sides.items()}
        counts = ", ".join(f"{name!r} {len(each)}" for name, each in ids.items())
        raise DataError(
            f"no common ids among the parties ({counts} ids), expected at least 1: "
            f"{why_few(ids, 0)}"
        )
    return {name: _places_of(name, other, wanted) for name, other in digests.items()}


def _few_in_common(sides: Mapping[str, _Side], places: IntArray | None) -> tuple[Note, ...]:
    """A warning where less than half of the smallest party's ids are at all parties."""
    smallest = min(sides, key=lambda name: len(sides[name].digests))
    rows = len(sides[smallest].digests)
    if places is None or 2 * len(places) >= rows:
        return ()
    why = why_few({name: side.ids for name, side in sides.items()}, len(places))
    text = f"only {len(places)} of {rows} ids are at every party: {why}"
    return (Note("ids", smallest, None, text, warning=True),)


def _taken(values: NDArray[Any], places: IntArray | None) -> NDArray[Any]:
    return values if places is None else np.asarray(values)[places]


def _labels(
    sides: _Sides, places: _Places, *, regression: bool
) -> tuple[tuple[str, ...], list[Labels]]:
    source = sides.source
    train, test = sides.train.labels(places[0]), sides.test.labels(places[1])
    if train.dtype.kind != test.dtype.kind:
        raise DataError(f"party {source.name!r}: labels are text in one of data and test_data only")
    together = np.concatenate([train, test])
    return encode_labels(
        together, len(train), source.name, source.label_column, regression=regression
    )


def _table(
    sides: _Sides, places: _Places, labels: Labels | None
) -> tuple[PartyTable[Matrix], Sequence[Note]]:
    train, test = sides.train, sides.test
    if isinstance(train, _ShardSide) and isinstance(test, _ShardSide):
        rows = [
            side.shard.rows if place is None else side.shard.rows[place]
            for side, place in zip((train, test), places, strict=True)
        ]
        columns = train.shard.header.column_names
        return PartyTable[Matrix](sides.source.name, columns, rows[0], rows[1]), ()
    assert isinstance(train, _FileSide)  # noqa: S101
    assert isinstance(test, _FileSide)  # noqa: S101
    all_rows = [
        np.arange(len(side.rows.ids)) if place is None else place
        for side, place in zip((train, test), places, strict=True)
    ]
    rows_of = all_rows[0], all_rows[1], np.array([], np.int64)
    table, _, notes = make_table(sides.source, train.rows, test.rows, rows_of)
    return table, (*train.rows.notes, *notes, *suspicious(table, labels))
