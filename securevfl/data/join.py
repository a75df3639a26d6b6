"""Joins the parties' files and shards by id: the common rows, and each party's part of them.

Rows of files are sorted by id. If some data are shards, rows are matched by the digests of their
ids, keep the label party's order and stay on disk. If moreover all parties hold the same rows in
the same order, and test rows are separate shards, nothing is joined and no row is copied.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import IntArray, Labels
from securevfl.data.csv_files import DETECT
from securevfl.data.features import make_table, suspicious
from securevfl.data.ids import explain_mismatch
from securevfl.data.labels import as_compared, encode_labels, label_values, rare_classes
from securevfl.data.read import FileSource, PartyRows, read_party, require_usable
from securevfl.data.shards import Shard, is_shard, open_shard
from securevfl.data.tables import (
    Note,
    OwnRows,
    PartyTable,
    VerticalDataset,
    check,
    check_labels,
    rows_digest,
)
from securevfl.errors import ConfigError, DataError
from securevfl.lazy import Lazy
from securevfl.shown import did_you_mean, listed
from securevfl.sparse import AnyRows, Matrix

if TYPE_CHECKING:
    import polars as pl
else:
    pl = Lazy("polars")

Digests = NDArray[np.uint64]
_Rows = IntArray | slice
"""Row numbers, or a slice of all rows, which are not copied."""
_Places = tuple[_Rows, _Rows]
"""A party's training rows and its held-out rows."""


@dataclass(frozen=True, eq=False)
class OwnData(Generic[AnyRows]):
    """What one party brings to a job: its own columns of the aligned rows.

    Attributes:
        train_labels: shape (N,): int64 classes 0..classes-1, or float64 real targets; at the label
            party only.
        test_labels: likewise for the held-out rows.
        label_names: name of each class in the file.
        own_rows: at the label party, its training rows whose ids another party lacks; files only.
        notes: what was noticed in the data.
    """

    table: PartyTable[AnyRows]
    train_labels: Labels | None = None
    test_labels: Labels | None = None
    label_names: tuple[str, ...] = ()
    own_rows: OwnRows | None = None
    notes: tuple[Note, ...] = ()


def load_files(parties: Sequence[FileSource], *, regression: bool = False) -> VerticalDataset[Any]:
    """Join the parties' files or shards by id into one data set.

    Without test files, a row is held out if the SHA-256 of its id falls into the first fifth, so
    adding rows never moves one from test to training. Labels become 0..C-1 in sorted order, as
    numbers if all are numbers; with `regression`, more than two different numbers are real targets.
    `dropped` counts each party's rows whose id some other party lacks.

    Each table is made from its party's own file and the ids in common, as between real parties.

    Raises:
        ConfigError: fewer than two parties, repeated names, not exactly one label party, test
            files at some parties only, a column used twice, or CSV settings for a shard.
        DataError: a missing, empty or malformed file or column, missing or repeated ids, features
            that are not finite numbers, no common ids, a single class, labels that look like
            regression targets, test rows with other columns than the training rows, or a damaged
            shard.
    """
    joined = _join(parties)
    names, labels = _labels(*joined.of_holder, regression=regression)
    if joined.by_id:
        check_labels(f"party {joined.holder!r}", "training", labels[0], len(names))
        if not len(labels[1]):
            raise DataError("the ids that all parties hold give no test rows, expected at least 1")
    digests = joined.digests
    only_ones = all(
        isinstance(held.train, Shard) and held.train.header.values is None
        for held in joined.held.values()
    )
    own: dict[str, OwnData[Matrix]] = {}
    notes = [*joined.notes]
    for party in list(joined.held):
        known = (names, labels) if party == joined.holder else ()
        notes += joined.held[party].train.notes
        own[party] = _own_part(joined.held.pop(party), joined.places[party], *known)
        notes += own[party].notes
    dataset = VerticalDataset(
        name="files",
        parties=tuple(data.table for data in own.values()),
        label_party=joined.holder,
        train_labels=labels[0],
        test_labels=labels[1],
        classes=len(names),
        standardize=not only_ones,
        row_digests=digests[0],
        label_names=names,
        dropped=joined.dropped,
        own_rows=own[joined.holder].own_rows,
        notes=tuple(notes),
    )
    check(dataset)
    return dataset


@dataclass(frozen=True, eq=False)
class Keys:
    """By what a party's rows are matched: sorted ids, or digests in the order of its shard.

    Attributes:
        held_out: of the training rows, where there is no test file, shape (N,).
        test: of the test file; None without one.
    """

    train: Sequence[str] | Digests
    held_out: NDArray[np.bool_]
    test: Sequence[str] | Digests | None


def own_keys(source: FileSource, *, by_id: bool, shared: bool = False) -> Keys:
    """What one party's rows are matched by; refuses what `load_files` refuses of one party.

    Categories of a `preprocess` that is `shared` may be columns of other parties.
    """
    held = _open(source, by_id=by_id)
    if not shared:
        _require_categories([held])
    require_usable(held.files)
    sides = [held.train] if source.test_path is None else [held.train, held.test]
    orders = [np.argsort(np.array(side.ids)) if by_id else slice(None) for side in sides]
    keys = [
        list(side.ids[order]) if by_id else side.digests
        for side, order in zip(sides, orders, strict=True)
    ]
    if len(keys) == 1:
        return Keys(keys[0], np.asarray(held.train.held_out)[orders[0]], None)
    if both := int(np.isin(keys[1], keys[0]).sum()):
        raise DataError(f"test_data: ids also among the training rows: {both}, expected none")
    return Keys(keys[0], np.zeros(len(keys[0]), bool), keys[1])


def load_own(
    source: FileSource,
    train: Sequence[str] | Digests,
    test: Sequence[str] | Digests,
    *,
    regression: bool,
) -> OwnData[Any]:
    """One party's part of the agreed rows, from its own file or shard.

    The agreed rows are given by digest, or by id if all parties' data are files. Refuses what
    `load_files` refuses, and data that lack some of these rows.
    """
    held = _open(source, by_id=not isinstance(train, np.ndarray))
    require_usable(held.files)
    places = _find(held, held.train, train), _find(held, held.test, test)
    if held.train.labels is None:
        return _own_part(held, places)
    return _own_part(held, places, *_labels(held, places, regression=regression))


@dataclass(frozen=True, eq=False)
class _Held:
    """A party's training rows and the rows of its test file, which default to the same rows.

    `by_id`: rows are matched by id, as all parties' data are files, otherwise by digest.
    """

    source: FileSource
    train: PartyRows | Shard
    test: PartyRows | Shard
    by_id: bool

    @property
    def files(self) -> list[PartyRows]:
        return [e for e in dict.fromkeys((self.train, self.test)) if isinstance(e, PartyRows)]


def _open(source: FileSource, *, by_id: bool) -> _Held:
    as_shard = is_shard(source.path) and not by_id
    train = _open_shard(source) if as_shard else read_party(source)
    if source.test_path is None:
        return _Held(source, train, train, by_id)
    if not by_id and is_shard(source.test_path) != isinstance(train, Shard):
        raise ConfigError(
            f"party {source.name!r}: one of data and test_data is a shard, expected both or none"
        )
    if isinstance(train, PartyRows):
        # By the training file's column names, which may have another order.
        alike = replace(source, features=train.columns, drop=(), weight_column=None)
        rows = read_party(alike, test=True, text=train.text_columns)
        return _Held(source, train, rows, by_id)
    test = open_shard(source.test_path)
    columns, others = (each.header.column_names for each in (train, test))
    if columns != others:
        found, expected = (
            f"{len(each)} columns from {each[0]!r} to {each[-1]!r}" for each in (others, columns)
        )
        raise DataError(
            f"party {source.name!r}: test_data has {found}, data {expected}; convert both with the "
            "same --columns and --first-index"
        )
    if (train.labels is None) != (test.labels is None):
        raise DataError(f"party {source.name!r}: labels in one of data and test_data only")
    return _Held(source, train, test, by_id)


def _open_shard(source: FileSource) -> Shard:
    settings = {
        "id_column": source.id_column != "id",
        "label_column": source.label_column is not None,
        "weight_column": source.weight_column is not None,
        "features": source.features is not None,
        "drop": bool(source.drop),
        "preprocess": source.preprocess is not None,
        "separator, decimal, thousands or encoding": source.csv != DETECT,
    }
    if given := [setting for setting, is_set in settings.items() if is_set]:
        raise ConfigError(
            f"party {source.name!r}: {given[0]} applies to files, and {source.path} is a shard, "
            "whose ids, columns and labels were chosen in its conversion"
        )
    shard = open_shard(source.path)
    if shard.header.id_format != source.id_format:
        raise ConfigError(
            f"party {source.name!r}: id_format = {source.id_format!r}; the ids of {source.path} "
            f"were converted as {shard.header.id_format!r}"
        )
    return shard


@dataclass(frozen=True, eq=False)
class _Joined:
    """The rows that each party brings, how many it drops, and what was noticed."""

    held: dict[str, _Held]
    holder: str
    by_id: bool
    places: Mapping[str, _Places]
    dropped: Mapping[str, int]
    notes: tuple[Note, ...]

    @property
    def of_holder(self) -> tuple[_Held, _Places]:
        return self.held[self.holder], self.places[self.holder]

    @cached_property
    def digests(self) -> tuple[Digests, Digests]:
        """Digests of the label party's training and held-out rows."""
        held, (train, test) = self.of_holder
        return held.train.digests[train], held.test.digests[test]


def _join(parties: Sequence[FileSource]) -> _Joined:
    _check_sources(parties)
    by_id = not any(is_shard(source.path) for source in parties)
    holders = [source.name for source in parties if source.label_column is not None]
    if by_id and len(holders) != 1:
        raise ConfigError(f"label_column: given at {holders or 'no party'}, expected exactly one")
    held = {source.name: _open(source, by_id=by_id) for source in parties}
    _require_categories(held.values())
    holders = [name for name, each in held.items() if each.train.labels is not None]
    if len(holders) != 1:
        raise ConfigError(f"labels: in the data of {holders or 'no party'}, expected exactly one")
    require_usable([rows for each in held.values() for rows in each.files])
    holder, dropped = holders[0], dict.fromkeys(held, 0)
    sides = {name: each.train for name, each in held.items()}
    train = _joined_places(sides, holder, dropped, by_id=by_id)
    notes = _few_in_common(held, train, by_id=by_id)
    if held[holder].source.test_path is None:
        out = sides[holder].held_out[train[holder]]
        numbers = {name: np.arange(len(sides[name]))[rows] for name, rows in train.items()}
        split: dict[str, _Places] = {name: (n[~out], n[out]) for name, n in numbers.items()}
        return _Joined(held, holder, by_id, split, dropped, notes)
    others = {name: each.test for name, each in held.items()}
    test = _joined_places(others, holder, dropped, by_id=by_id)
    both_splits = {name: (train[name], test[name]) for name in held}
    joined = _Joined(held, holder, by_id, both_splits, dropped, notes)
    if both := int(np.isin(joined.digests[1], joined.digests[0]).sum()):
        raise DataError(f"test_data: ids also among the training rows: {both}, expected none")
    return joined


def _check_sources(parties: Sequence[FileSource]) -> None:
    """Refuse parties that cannot be joined, before any file is read."""
    names = [source.name for source in parties]
    if len(names) < 2:  # noqa: PLR2004
        raise ConfigError(f"parties: {len(names)}, expected at least 2")
    if len(set(names)) < len(names):
        raise ConfigError(f"parties: names {names} are not all different")
    without = [source.name for source in parties if source.test_path is None]
    if without and len(without) < len(names):
        raise ConfigError(
            f"test_data is missing at {', '.join(map(repr, without))}: give it at every party, or "
            "at none to hold out a fifth of the rows"
        )


def _require_categories(held: Collection[_Held]) -> None:
    """Refuse `categories`, `monotone` and `bins` of no party to which these settings apply."""
    for settings in [each.source.preprocess for each in held if each.source.preprocess]:
        columns = {
            rows.source.name: rows.train.columns
            for rows in held
            if rows.source.preprocess == settings and isinstance(rows.train, PartyRows)
        }
        named = [("categories", name) for name in settings.categories]
        named += [("monotone", name) for name in settings.monotone]
        for key, name in named + [("bins", name) for name in settings.binned]:
            if not any(name in each for each in columns.values()):
                there = (f"{party!r} has {listed(each)}" for party, each in columns.items())
                hint = did_you_mean(name, chain(*columns.values())) or f"; {'; '.join(there)}"
                raise ConfigError(f"preprocess.{key}: no column {name!r} to train on{hint}")


def _joined_places(
    sides: Mapping[str, PartyRows | Shard], holder: str, dropped: dict[str, int], *, by_id: bool
) -> dict[str, _Rows]:
    first = sides[holder]
    if not by_id and all(np.array_equal(first.digests, s.digests) for s in sides.values()):
        return dict.fromkeys(sides, slice(None))
    joined = rows_in_common(sides, holder, dropped, by_id=by_id)
    whole = {name for name in joined if np.array_equal(joined[name], np.arange(len(sides[name])))}
    return {name: slice(None) if name in whole else rows for name, rows in joined.items()}


def rows_in_common(
    sides: Mapping[str, PartyRows | Shard],
    holder: str,
    dropped: dict[str, int],
    *,
    by_id: bool = True,
    among: str = "the parties",
) -> dict[str, IntArray]:
    """By party, the numbers of its rows that all parties hold; `dropped` counts the others.

    Rows matched by id are sorted by it; rows matched by digest have the holder's order. `among` is
    for the error message.
    """
    keys = {name: side.ids if by_id else side.digests for name, side in sides.items()}
    found = places_in_common(keys, holder, by_id=by_id)
    for name, side in sides.items():
        dropped[name] += len(side) - len(found[name])
    if not len(found[holder]):
        counts = ", ".join(f"{name!r} {len(side)}" for name, side in sides.items())
        ids = {name: pl.Series(side.ids, dtype=pl.String) for name, side in sides.items()}
        raise DataError(
            f"no common ids among {among} ({counts} ids), expected at least 1: "
            f"{explain_mismatch(ids, 0)}"
        )
    return found


def places_in_common(
    keys: "Mapping[str, pl.Series | Sequence[str] | Digests]", holder: str, *, by_id: bool
) -> dict[str, IntArray]:
    """By party, the places of the keys that all have: sorted if they are ids, else as at `holder`.

    No key may be there twice.
    """
    frames = {name: _numbered(each) for name, each in keys.items()}
    common = frames[holder]
    for name, other in frames.items():
        if name != holder:
            common = common.join(other, on="key", how="semi")
    wanted = common.sort("key" if by_id else "row").select("key")
    return {name: _looked_up(each, wanted) for name, each in frames.items()}


def _numbered(keys: "pl.Series | Sequence[str] | Digests") -> "pl.DataFrame":
    return pl.DataFrame({"key": keys}).with_row_index("row")


def _looked_up(frame: "pl.DataFrame", wanted: "pl.DataFrame") -> NDArray[Any]:
    """The rows of some keys, shape (len(wanted),), -1 for missing keys."""
    rows = wanted.join(frame, on="key", how="left", maintain_order="left")["row"]
    places: NDArray[Any] = rows.cast(pl.Int64).fill_null(-1).to_numpy()
    return places


def _find(held: _Held, side: PartyRows | Shard, wanted: Sequence[str] | Digests) -> _Rows:
    """The rows with these ids or digests, in this order."""
    if not held.by_id and np.array_equal(side.digests, wanted):
        return slice(None)
    keys = _numbered(side.ids if held.by_id else side.digests)
    rows = _looked_up(keys, _numbered(wanted).select("key"))
    missing = np.flatnonzero(rows == -1)
    if len(missing):
        problem = "rows in common are missing"
        if held.by_id:
            first = f"the first is {wanted[missing[0]]!r}"
            problem = f"ids in common are missing in {held.source.id_column!r}, {first}"
        raise DataError(f"party {held.source.name!r}: {len(missing)} of {len(wanted)} {problem}")
    return rows


def _few_in_common(
    held: Mapping[str, _Held], places: Mapping[str, _Rows], *, by_id: bool
) -> tuple[Note, ...]:
    """A warning if another spelling would match more ids, or few are common to all."""
    smallest = min(held, key=lambda name: len(held[name].train))
    rows = len(held[smallest].train)
    left = {name: np.delete(np.arange(len(e.train)), places[name]) for name, e in held.items()}
    common = rows - len(left[smallest])
    if not by_id and 2 * common >= rows:  # ids of shards are on disk
        return ()
    ids = {name: pl.Series(e.train.ids, dtype=pl.String)[left[name]] for name, e in held.items()}
    if (why := explain_mismatch(ids, common)) is None:
        return ()
    where = "in every file" if by_id else "at every party"
    column = held[smallest].source.id_column if by_id else None
    text = f"only {common} of {rows} ids are {where}: {why}"
    return (Note("ids", smallest, column, text, warning=True),)


def _labels(
    held: _Held, places: _Places, *, regression: bool
) -> tuple[tuple[str, ...], list[Labels]]:
    """Class names, empty for real targets, and the labels of both splits."""
    source, sides = held.source, list(zip((held.train, held.test), places, strict=True))
    values = [_label_values(*each) for each in sides]
    if values[0].dtype.kind != values[1].dtype.kind:
        if not held.by_id:
            raise DataError(
                f"party {source.name!r}: labels are text in one of data and test_data only"
            )
        texts = [side.labels[rows] for side, rows in sides if side.labels is not None]
        values = [np.array(each, np.str_) for each in texts]
    first, column = len(values[0]), source.label_column
    return encode_labels(np.concatenate(values), first, source.name, column, regression=regression)


def _label_values(side: PartyRows | Shard, rows: _Rows) -> NDArray[Any]:
    assert side.labels is not None  # noqa: S101
    if isinstance(side, PartyRows):
        return label_values(side.labels[rows].to_list())
    values: NDArray[Any] = np.asarray(side.labels)[rows]
    names = side.header.classes
    return np.array(names)[values] if names else values


def _own_part(
    held: _Held,
    places: _Places,
    names: tuple[str, ...] = (),
    labels: Sequence[Labels | None] = (None, None),
) -> OwnData[Matrix]:
    """A party's part; consumes the frames of `held`."""
    train, test = held.train, held.test
    if isinstance(train, Shard) and isinstance(test, Shard):
        rows = train.rows[places[0]], test.rows[places[1]]
        people = train.digests[places[0]], test.digests[places[1]]
        path = str(held.source.path.resolve())
        table = PartyTable[Matrix](
            held.source.name,
            train.header.column_names,
            *rows,
            source=path,
            people=people,
            rows_digest=rows_digest(*people),
        )
        return OwnData(table, labels[0], labels[1], names)
    assert isinstance(train, PartyRows)  # noqa: S101
    assert isinstance(test, PartyRows)  # noqa: S101
    numbers = np.arange(len(train))[places[0]], np.arange(len(test))[places[1]]
    own, own_labels = _own_rows(train, test, numbers, names if held.by_id else ())
    chosen = (*numbers, np.array(own, np.int64))
    table, features, notes = make_table(held.source, train, test, chosen)
    own_rows = OwnRows(features, np.array(own_labels, np.int64)) if own else None
    notes = (*notes, *suspicious(table, labels[0]))
    if labels[0] is not None and (rare := rare_classes(names, labels[0])):
        label = Note("label", held.source.name, held.source.label_column, rare, warning=True)
        notes = (*notes, label)
    return OwnData(table, labels[0], labels[1], names, own_rows, notes)


def _own_rows(
    train: PartyRows, test: PartyRows, places: Sequence[IntArray], names: tuple[str, ...]
) -> tuple[list[int], list[int]]:
    """Training rows of known classes that other parties lack, sorted by id, and their classes."""
    if train.labels is None or not names or len(train) == len(places[0]):
        return [], []
    known = {as_compared(name): code for code, name in enumerate(names)}
    shared = {*train.ids[places[0]], *test.ids[places[1]]}
    found = sorted(
        (row_id, row, code)
        for row, (row_id, label) in enumerate(zip(train.ids, train.labels, strict=True))
        if row_id not in shared and (code := known.get(as_compared(label))) is not None
    )
    return [row for _, row, _ in found], [code for *_, code in found]
