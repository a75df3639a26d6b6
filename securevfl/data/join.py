"""The parties' files and shards joined by id: what is common to all, and each party's part of it.

Rows of files are sorted by id. Where some data are shards, digests stand for the ids, rows have the
order of the label party's and stay on disk; and where all parties hold the same rows in the same
order and test rows are shards of their own, nothing is joined and no row is copied.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, cast

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import IntArray, Labels
from securevfl.data.csv_files import FOUND_OUT
from securevfl.data.features import make_table, suspicious
from securevfl.data.ids import AlignedIds, explain_mismatch
from securevfl.data.labels import as_compared, encode_labels, label_values
from securevfl.data.read import FileSource, PartyRows, read_party, require_usable
from securevfl.data.shards import Shard, is_shard, open_shard
from securevfl.data.tables import Note, OwnRows, PartyTable, VerticalDataset, check, check_labels
from securevfl.errors import ConfigError, DataError
from securevfl.lazy import Lazy
from securevfl.sparse import AnyRows, Matrix

if TYPE_CHECKING:
    import polars as pl
else:
    pl = Lazy("polars")

Digests = NDArray[np.uint64]
_Rows = IntArray | slice
"""Numbers of rows, or all of them as they stand, which are not copied."""
_Places = tuple[_Rows, _Rows]
"""A party's training rows and its held-out rows."""


@dataclass(frozen=True, eq=False)
class OwnData(Generic[AnyRows]):
    """What one party brings to a job: its own columns of the aligned rows.

    Attributes:
        train_labels: shape (N,), int64, 0..classes-1, or float64 for real targets, at the label
            party only; `test_labels` alike.
        label_names: what each class is called in the file.
        own_rows: at the label party and of files only: its training rows of these classes whose
            ids another party lacks.
        notes: what was noticed in making it.
    """

    table: PartyTable[AnyRows]
    train_labels: Labels | None = None
    test_labels: Labels | None = None
    label_names: tuple[str, ...] = ()
    own_rows: OwnRows | None = None
    notes: tuple[Note, ...] = ()


def load_parties(
    parties: Sequence[FileSource], *, name: str = "files", regression: bool = False
) -> VerticalDataset[Matrix]:
    """Join the parties' files, or folders that are shards, by id into one data set.

    Without test files, a row is a test row if the SHA-256 of its id falls into the first fifth,
    so further rows never move one from test to training. Labels become 0..C-1 in sorted order, as
    numbers if all are numbers; with `regression`, more than two different numbers are real targets.
    `dropped` counts each party's rows whose id some party lacks.

    Each table is made from its party's own file and the aligned ids, as between real parties.

    Raises:
        ConfigError: fewer than two parties, two of one name, not exactly one label party, test
            files at some parties only, a column used twice, or settings of a file beside a shard.
        DataError: a file or column is missing, empty or malformed, ids are missing or double,
            features not finite numbers, no common ids, one class only, or numbers for labels that
            look like targets of a regression; see also `shards.open_shard`; or test rows of other
            columns than the training rows.
    """
    of_files = not any(is_shard(source.path) for source in parties)
    return _load(_join(parties, of_files=of_files), name, regression=regression)


def load_files(
    parties: Sequence[FileSource], *, name: str = "files", regression: bool = False
) -> VerticalDataset:
    """Join the parties' files by id into one data set, rows sorted by id; see `load_parties`."""
    dataset = _load(_join(parties, of_files=True), name, regression=regression)
    return cast("VerticalDataset", dataset)


def _load(joined: "_Joined", name: str, *, regression: bool) -> VerticalDataset[Matrix]:
    names, labels = _labels(*joined.of_holder, regression=regression)
    if joined.of_files:
        _aligned(joined, names, labels)
    digests = joined.digests
    read = {party: held.train.notes for party, held in joined.held.items()}
    only_ones = all(
        isinstance(held.train, Shard) and held.train.header.values is None
        for held in joined.held.values()
    )
    own: dict[str, OwnData[Matrix]] = {}
    for party in read:
        known = (names, labels) if party == joined.holder else ()
        own[party] = _own_part(joined.held.pop(party), joined.places[party], *known)
    if joined.of_files:
        notes = [*chain(*read.values()), *joined.notes, *chain(*(e.notes for e in own.values()))]
    else:
        notes = [*joined.notes, *chain(*((*read[party], *own[party].notes) for party in own))]
    dataset = VerticalDataset(
        name=name,
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


def align_files(parties: Sequence[FileSource], *, regression: bool = False) -> AlignedIds:
    """The ids that all parties' files share, where one place may read them all."""
    joined = _join(parties, of_files=True)
    return _aligned(joined, *_labels(*joined.of_holder, regression=regression))


def align_digests(parties: Sequence[FileSource]) -> tuple[Digests, Digests]:
    """Who the training and held-out rows are that all parties hold, where some have shards."""
    return _join(parties, of_files=False).digests


def load_party(source: FileSource, aligned: AlignedIds) -> OwnData:
    """Read one party's own file, and put its rows into the order that the parties share.

    What is refused is what `load_parties` refuses, a file that lacks aligned ids, and another
    number of classes.
    """
    regression = aligned.classes == 0
    own = load_own(source, aligned.train, aligned.test, regression=regression, of_files=True)
    if own.train_labels is None or own.test_labels is None:
        return cast("OwnData", own)
    if len(own.label_names) != aligned.classes:
        raise DataError(
            f"party {source.name!r}: {len(own.label_names)} classes in {source.label_column!r}, "
            f"the aligned ids say {aligned.classes}"
        )
    for split, labels in (("training", own.train_labels), ("test", own.test_labels)):
        check_labels(f"party {source.name!r}", split, labels, aligned.classes)
    return cast("OwnData", own)


def load_own(
    source: FileSource,
    train: Sequence[str] | Digests,
    test: Sequence[str] | Digests,
    *,
    regression: bool,
    of_files: bool = False,
) -> OwnData[Matrix]:
    """One party's part of rows that the parties have agreed on, from its own file or shard.

    The rows are known by their digests, in their order, as `align_digests` has them, or by ids
    where all parties' data are files. What is refused is what `load_parties` refuses, and data that
    lack some of these rows.
    """
    held = _open(source, of_files=of_files)
    require_usable(held.files)
    places = _places_in(held, train, test)
    if held.train.labels is None:
        return _own_part(held, places)
    return _own_part(held, places, *_labels(held, places, regression=regression))


@dataclass(frozen=True, eq=False)
class _Held:
    """A party's rows, and those of its test file or again the same."""

    source: FileSource
    train: PartyRows | Shard
    test: PartyRows | Shard
    of_files: bool
    """Whether all parties' data are files."""

    @property
    def files(self) -> list[PartyRows]:
        return [e for e in dict.fromkeys((self.train, self.test)) if isinstance(e, PartyRows)]


def _open(source: FileSource, *, of_files: bool) -> _Held:
    as_shard = is_shard(source.path) and not of_files
    train = _open_shard(source) if as_shard else read_party(source)
    if source.test_path is None:
        return _Held(source, train, train, of_files)
    if not of_files and is_shard(source.test_path) != isinstance(train, Shard):
        raise ConfigError(
            f"party {source.name!r}: data and test_data are a shard and a file, expected two of a "
            "kind"
        )
    if isinstance(train, PartyRows):
        # By the training file's names, so that another order of columns swaps nothing.
        alike = replace(source, features=train.columns, drop=())
        rows = read_party(alike, test=True, text=train.text_columns)
        return _Held(source, train, rows, of_files)
    test = open_shard(source.test_path)
    columns, others = (each.header.column_names for each in (train, test))
    if columns != others:
        told, expected = (
            f"{len(each)} columns from {each[0]!r} to {each[-1]!r}" for each in (others, columns)
        )
        raise DataError(
            f"party {source.name!r}: test_data has {told}, data {expected}; "
            "`securevfl data convert` takes --columns and --first-index"
        )
    if (train.labels is None) != (test.labels is None):
        raise DataError(f"party {source.name!r}: labels in one of data and test_data only")
    return _Held(source, train, test, of_files)


def _open_shard(source: FileSource) -> Shard:
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
    return shard


@dataclass(frozen=True, eq=False)
class _Joined:
    """Which rows each party brings, by party how many others lack, and what was noticed."""

    held: dict[str, _Held]
    holder: str
    of_files: bool
    places: Mapping[str, _Places]
    dropped: Mapping[str, int]
    notes: tuple[Note, ...]

    @property
    def of_holder(self) -> tuple[_Held, _Places]:
        return self.held[self.holder], self.places[self.holder]

    @cached_property
    def digests(self) -> tuple[Digests, Digests]:
        """Of the label party's training and held-out rows."""
        held, (train, test) = self.of_holder
        return held.train.digests[train], held.test.digests[test]


def _join(parties: Sequence[FileSource], *, of_files: bool) -> _Joined:
    _check_sources(parties)
    holders = [source.name for source in parties if source.label_column is not None]
    if of_files and len(holders) != 1:
        raise ConfigError(f"label_column: given at {holders or 'no party'}, expected exactly one")
    held = {source.name: _open(source, of_files=of_files) for source in parties}
    holders = [name for name, each in held.items() if each.train.labels is not None]
    if len(holders) != 1:
        raise ConfigError(f"labels: in the data of {holders or 'no party'}, expected exactly one")
    require_usable([rows for each in held.values() for rows in each.files])
    holder, dropped = holders[0], dict.fromkeys(held, 0)
    sides = {name: each.train for name, each in held.items()}
    train = _joined_places(sides, holder, dropped, of_files=of_files)
    common = len(sides[holder]) - dropped[holder]
    notes = _few_in_common(held, common, of_files=of_files)
    if held[holder].source.test_path is None:
        out = sides[holder].held_out[train[holder]]
        numbers = {name: np.arange(len(sides[name]))[rows] for name, rows in train.items()}
        split: dict[str, _Places] = {name: (n[~out], n[out]) for name, n in numbers.items()}
        return _Joined(held, holder, of_files, split, dropped, notes)
    others = {name: each.test for name, each in held.items()}
    test = _joined_places(others, holder, dropped, of_files=of_files)
    both_splits = {name: (train[name], test[name]) for name in held}
    joined = _Joined(held, holder, of_files, both_splits, dropped, notes)
    if both := int(np.isin(joined.digests[1], joined.digests[0]).sum()):
        raise DataError(f"test_path: {both} ids are among the training rows too, expected 0")
    return joined


def _check_sources(parties: Sequence[FileSource]) -> None:
    """Refuse parties that cannot be joined, before a file is read."""
    names = [source.name for source in parties]
    if len(names) < 2:  # noqa: PLR2004
        raise ConfigError(f"parties: {len(names)}, expected at least 2")
    if len(set(names)) < len(names):
        raise ConfigError(f"parties: names {names} are not all different")
    without = [source.name for source in parties if source.test_path is None]
    if without and len(without) < len(names):
        raise ConfigError(f"test_path: missing at {without}, expected at every party or at none")


def _joined_places(
    sides: Mapping[str, PartyRows | Shard], holder: str, dropped: dict[str, int], *, of_files: bool
) -> dict[str, _Rows]:
    first = sides[holder]
    if not of_files and all(np.array_equal(first.digests, s.digests) for s in sides.values()):
        return dict.fromkeys(sides, slice(None))
    joined = rows_in_common(sides, holder, dropped, of_files=of_files)
    whole = {name for name in joined if np.array_equal(joined[name], np.arange(len(sides[name])))}
    return {name: slice(None) if name in whole else rows for name, rows in joined.items()}


def rows_in_common(
    sides: Mapping[str, PartyRows | Shard],
    holder: str,
    dropped: dict[str, int],
    *,
    of_files: bool = True,
    among: str = "the parties",
) -> dict[str, IntArray]:
    """The numbers of the rows that all parties hold; how many others each has goes to `dropped`.

    Ids are compared, and rows sorted by them, where they are `of_files`; else digests are, and the
    rows have the holder's order. `among` says whose they are, in the message where there are none.
    """
    frames = {
        name: _numbered(side.ids if of_files else side.digests) for name, side in sides.items()
    }
    common = frames[holder]
    for name, other in frames.items():
        if name != holder:
            common = common.join(other, on="key", how="semi")
    for name, side in sides.items():
        dropped[name] += len(side) - common.height
    if common.is_empty():
        counts = ", ".join(f"{name!r} {len(side)}" for name, side in sides.items())
        raise DataError(
            f"no common ids among {among} ({counts} ids), expected at least 1: "
            f"{explain_mismatch(_ids(sides), 0)}"
        )
    wanted = common.sort("key" if of_files else "row").select("key")
    return {name: _looked_up(each, wanted) for name, each in frames.items()}


def _numbered(keys: "pl.Series | Sequence[str] | Digests") -> "pl.DataFrame":
    return pl.DataFrame({"key": keys}).with_row_index("row")


def _looked_up(frame: "pl.DataFrame", wanted: "pl.DataFrame") -> NDArray[Any]:
    """The places of some keys, shape (len(wanted),), -1 for those that are not there."""
    rows = wanted.join(frame, on="key", how="left", maintain_order="left")["row"]
    places: NDArray[Any] = rows.cast(pl.Int64).fill_null(-1).to_numpy()
    return places


def _places_in(
    held: _Held, train: Sequence[str] | Digests, test: Sequence[str] | Digests
) -> _Places:
    """Where rows are that were agreed on, by their ids or digests, in this order."""
    places: list[_Rows] = []
    for side, wanted in ((held.train, train), (held.test, test)):
        if not held.of_files and np.array_equal(side.digests, wanted):
            places.append(slice(None))
            continue
        keys = _numbered(side.ids if held.of_files else side.digests)
        rows = _looked_up(keys, _numbered(wanted).select("key"))
        missing = np.flatnonzero(rows == -1)
        if len(missing):
            told = "rows in common are missing"
            if held.of_files:
                first = f"the first is {wanted[missing[0]]!r}"
                told = f"aligned ids missing in {held.source.id_column!r}, {first}"
            raise DataError(f"party {held.source.name!r}: {len(missing)} of {len(wanted)} {told}")
        places.append(rows)
    return places[0], places[1]


def _ids(sides: Mapping[str, PartyRows | Shard]) -> "dict[str, pl.Series]":
    return {name: pl.Series(side.ids, dtype=pl.String) for name, side in sides.items()}


def _few_in_common(held: Mapping[str, _Held], common: int, *, of_files: bool) -> tuple[Note, ...]:
    """A warning where less than half of the smallest party's ids are at all parties."""
    smallest = min(held, key=lambda name: len(held[name].train))
    rows = len(held[smallest].train)
    if 2 * common >= rows:
        return ()
    why = explain_mismatch(_ids({name: each.train for name, each in held.items()}), common)
    where = "in every file" if of_files else "at every party"
    column = held[smallest].source.id_column if of_files else None
    text = f"only {common} of {rows} ids are {where}: {why}"
    return (Note("ids", smallest, column, text, warning=True),)


def _aligned(joined: _Joined, names: tuple[str, ...], labels: Sequence[Labels]) -> AlignedIds:
    """The ids of the rows in common, whose labels are fit to train on."""
    check_labels(f"party {joined.holder!r}", "training", labels[0], len(names))
    held, (train, test) = joined.of_holder
    return AlignedIds(tuple(held.train.ids[train]), tuple(held.test.ids[test]), len(names))


def _labels(
    held: _Held, places: _Places, *, regression: bool
) -> tuple[tuple[str, ...], list[Labels]]:
    """Names of classes and the labels of both splits; no names where they are real targets."""
    source, sides = held.source, list(zip((held.train, held.test), places, strict=True))
    values = [_label_values(*each) for each in sides]
    if values[0].dtype.kind != values[1].dtype.kind:
        if not held.of_files:
            raise DataError(
                f"party {source.name!r}: labels are text in one of data and test_data only"
            )
        texts = [side.labels[rows] for side, rows in sides if side.labels is not None]
        values = [np.array(each, np.str_) for each in texts]
    return encode_labels(
        np.concatenate(values),
        len(values[0]),
        source.name,
        source.label_column,
        regression=regression,
    )


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
    """A party's part; the frames of `held` are taken apart for it."""
    train, test = held.train, held.test
    if isinstance(train, Shard) and isinstance(test, Shard):
        rows = train.rows[places[0]], test.rows[places[1]]
        table = PartyTable[Matrix](held.source.name, train.header.column_names, *rows)
        return OwnData(table, labels[0], labels[1], names)
    assert isinstance(train, PartyRows)  # noqa: S101
    assert isinstance(test, PartyRows)  # noqa: S101
    numbers = np.arange(len(train))[places[0]], np.arange(len(test))[places[1]]
    own, own_labels = _own_rows(train, test, numbers, names if held.of_files else ())
    chosen = (*numbers, np.array(own, np.int64))
    table, features, notes = make_table(held.source, train, test, chosen)
    own_rows = OwnRows(features, np.array(own_labels, np.int64)) if own else None
    notes = (*notes, *suspicious(table, labels[0]))
    return OwnData(table, labels[0], labels[1], names, own_rows, notes)


def _own_rows(
    train: PartyRows, test: PartyRows, places: Sequence[IntArray], names: tuple[str, ...]
) -> tuple[list[int], list[int]]:
    """Training rows that others lack, of known classes, by id; and their classes."""
    if train.labels is None or not names or len(train) == len(places[0]):
        return [], []
    known = {as_compared(name): code for code, name in enumerate(names)}
    taken = {*train.ids[places[0]], *test.ids[places[1]]}
    found = sorted(
        (row_id, row, code)
        for row, (row_id, label) in enumerate(zip(train.ids, train.labels, strict=True))
        if row_id not in taken and (code := known.get(as_compared(label))) is not None
    )
    return [row for _, row, _ in found], [code for *_, code in found]
