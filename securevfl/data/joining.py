"""The parties' files joined by id: what is common to all, and each party's part of it."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import TYPE_CHECKING, Generic

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import Labels
from securevfl.data.aligned import AlignedIds
from securevfl.data.feature_table import make_table
from securevfl.data.id_matching import why_few
from securevfl.data.labels import encode_labels, label_values
from securevfl.data.own_files import FileSource, PartyRows, read_party, require_usable
from securevfl.data.suspicious import suspicious
from securevfl.data.tables import (
    Note,
    OwnRows,
    PartyTable,
    VerticalDataset,
    check,
    check_labels,
    row_digests,
)
from securevfl.errors import ConfigError, DataError
from securevfl.sparse import AnyRows

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, eq=False)
class OwnData(Generic[AnyRows]):
    """What one party brings to a job.

    Attributes:
        table: Its own columns of the aligned rows.
        train_labels: Shape (N,), int64, 0..classes-1, or float64 for real targets, at the label
            party only.
        test_labels: Shape (test rows,), the same.
        label_names: What each class is called in the file.
        own_rows: At the label party, its training rows whose ids another party lacks, as far as
            they are of these classes.
        notes: What was noticed in making it.
    """

    table: PartyTable[AnyRows]
    train_labels: Labels | None = None
    test_labels: Labels | None = None
    label_names: tuple[str, ...] = ()
    own_rows: OwnRows | None = None
    notes: tuple[Note, ...] = ()


def load_files(
    parties: Sequence[FileSource], *, name: str = "files", regression: bool = False
) -> VerticalDataset:
    """Join the parties' files by id into one data set, rows sorted by id.

    Without test files, a row is a test row if the SHA-256 of its id falls into the first fifth,
    so further rows never move one from test to training. Labels become 0..C-1 in sorted order, as
    numbers if all are numbers. `dropped` counts each party's rows whose id some party lacks.

    Each table is made from its party's own file and the aligned ids, as between real parties.

    Args:
        parties: Their files.
        name: Of the data set.
        regression: Take labels that are more than two different numbers as real targets.

    Raises:
        ConfigError: Fewer than two parties, two of one name, not exactly one label party, test
            files at some parties only, or a column used twice.
        DataError: A file or column is missing, empty or malformed, ids are missing or double,
            features not finite numbers, no common ids, one class only, or numbers for labels that
            look like targets of a regression.
    """
    held = _read_all(parties)
    aligned, dropped = _align(parties, held, regression=regression)
    notes = [note for rows in held.values() for note in rows.train.notes]
    notes += _few_in_common(parties, held)
    own = {}
    for source in parties:
        own[source.name] = _own_data(source, held.pop(source.name), aligned)
        notes += own[source.name].notes
    holder = next(name for name, data in own.items() if data.train_labels is not None)
    labels = own[holder]
    assert labels.train_labels is not None  # noqa: S101
    assert labels.test_labels is not None  # noqa: S101
    dataset = VerticalDataset(
        name=name,
        parties=tuple(data.table for data in own.values()),
        label_party=holder,
        train_labels=labels.train_labels,
        test_labels=labels.test_labels,
        classes=aligned.classes,
        standardize=True,
        row_digests=row_digests(aligned.train),
        label_names=labels.label_names,
        dropped=dropped,
        own_rows=labels.own_rows,
        notes=tuple(notes),
    )
    check(dataset)
    return dataset


def align_files(parties: Sequence[FileSource], *, regression: bool = False) -> AlignedIds:
    """The ids that all parties' files share, where one place may read them all.

    Raises:
        ConfigError: See `load_files`.
        DataError: See `load_files`.
    """
    return _align(parties, _read_all(parties), regression=regression)[0]


def load_party(source: FileSource, aligned: AlignedIds) -> OwnData:
    """Read one party's own file, and put its rows into the order that the parties share.

    Raises:
        ConfigError: See `read_party`.
        DataError: See `load_files`; or the file lacks aligned ids, or has another number of
            classes.
    """
    held = _read_own(source)
    require_usable([held.train, held.test])
    own = _own_data(source, held, aligned)
    for split, labels in (("training", own.train_labels), ("test", own.test_labels)):
        if labels is not None:
            check_labels(f"party {source.name!r}", split, labels, aligned.classes)
    return own


def check_sources(parties: Sequence[FileSource]) -> None:
    """Refuse parties that cannot be joined, before a file is read.

    Raises:
        ConfigError: fewer than two, two of one name, or test files at some only.
    """
    names = [source.name for source in parties]
    if len(names) < 2:  # noqa: PLR2004
        raise ConfigError(f"parties: {len(names)}, expected at least 2")
    if len(set(names)) < len(names):
        raise ConfigError(f"parties: names {names} are not all different")
    without = [source.name for source in parties if source.test_path is None]
    if without and len(without) < len(names):
        raise ConfigError(f"test_path: missing at {without}, expected at every party or at none")


@dataclass(frozen=True, eq=False)
class _Held:
    """The rows of a party's file, and of its test file or again of the same."""

    train: PartyRows
    test: PartyRows


def _read_own(source: FileSource) -> _Held:
    train = read_party(source)
    if source.test_path is None:
        return _Held(train, train)
    # By the training file's names, so that another order of columns swaps nothing.
    alike = replace(source, features=train.columns, drop=())
    return _Held(train, read_party(alike, test=True, text=train.text_columns))


def _read_all(parties: Sequence[FileSource]) -> dict[str, _Held]:
    check_sources(parties)
    holders = [source.name for source in parties if source.label_column is not None]
    if len(holders) != 1:
        raise ConfigError(f"label_column: given at {holders or 'no party'}, expected exactly one")
    held = {source.name: _read_own(source) for source in parties}
    files = ((rows.train, rows.test) for rows in held.values())
    require_usable([each for pair in files for each in dict.fromkeys(pair)])
    return held


def _align(
    parties: Sequence[FileSource], held: Mapping[str, _Held], *, regression: bool
) -> tuple[AlignedIds, dict[str, int]]:
    """The rows that all hold, and by party how many it holds beside."""
    holder = next(source for source in parties if source.label_column is not None)
    dropped = dict.fromkeys(held, 0)
    train_ids = common_ids({name: rows.train.ids for name, rows in held.items()}, dropped)
    if holder.test_path is None:
        falls = [falls_into_test(row_id) for row_id in train_ids]
        test_ids = list(compress(train_ids, falls))
        train_ids = [row_id for row_id, test in zip(train_ids, falls, strict=True) if not test]
    else:
        test_ids = common_ids({name: rows.test.ids for name, rows in held.items()}, dropped)
        if both := len(set(train_ids) & set(test_ids)):
            raise DataError(f"test_path: {both} ids are among the training rows too, expected 0")
    rows = held[holder.name]
    train, test = (
        positions(holder, rows.train, train_ids),
        positions(holder, rows.test, test_ids),
    )
    labels = _labels(rows, train, test)
    names, (train_labels, _) = _encode_labels(holder, labels, regression=regression)
    check_labels(f"party {holder.name!r}", "training", train_labels, len(names))
    return AlignedIds(tuple(train_ids), tuple(test_ids), len(names)), dropped


def _own_data(source: FileSource, held: _Held, aligned: AlignedIds) -> OwnData:
    """A party's part; the frames of `held` are taken apart for it."""
    train = positions(source, held.train, aligned.train)
    test = positions(source, held.test, aligned.test)
    labels = None if source.label_column is None else _labels(held, train, test)
    nobodys = np.array([], np.int64)
    if labels is None:
        table, _, notes = make_table(source, held.train, held.test, (train, test, nobodys))
        return OwnData(table, notes=(*notes, *suspicious(table, None)))
    real = aligned.classes == 0
    names, (train_labels, test_labels) = _encode_labels(source, labels, regression=real)
    if len(names) != aligned.classes:
        raise DataError(
            f"party {source.name!r}: {len(names)} classes in {source.label_column!r}, the "
            f"aligned ids say {aligned.classes}"
        )
    if real:
        table, _, notes = make_table(source, held.train, held.test, (train, test, nobodys))
        notes = (*notes, *suspicious(table, train_labels))
        return OwnData(table, train_labels, test_labels, notes=notes)
    codes = np.concatenate([train_labels, test_labels]).tolist()
    known = dict(zip(map(_as_class, (*labels[0], *labels[1])), codes, strict=True))
    taken = {*aligned.train, *aligned.test} if len(held.train.ids) > len(train) else set()
    own, own_labels = _own_rows(held.train, taken, known) if taken else ([], [])
    table, features, notes = make_table(
        source, held.train, held.test, (train, test, np.array(own, np.int64))
    )
    notes = (*notes, *suspicious(table, train_labels))
    own_rows = OwnRows(features, np.array(own_labels, np.int64)) if own else None
    return OwnData(table, train_labels, test_labels, names, own_rows, notes)


def _own_rows(
    rows: PartyRows, aligned: Collection[str], known: Mapping[str | float, int]
) -> tuple[list[int], list[int]]:
    """Rows that others lack, of known classes, by id; and their classes."""
    assert rows.labels is not None  # noqa: S101
    found = sorted(
        (row_id, row, code)
        for row, (row_id, label) in enumerate(zip(rows.ids, rows.labels, strict=True))
        if row_id not in aligned and (code := known.get(_as_class(label))) is not None
    )
    return [row for _, row, _ in found], [code for *_, code in found]


def _as_class(label: str) -> str | float:
    """A label as classes are compared: numbers by value."""
    try:
        return float(label)
    except ValueError:
        return label


def common_ids(
    parties: "Mapping[str, pl.Series]", dropped: dict[str, int], among: str = "the parties"
) -> list[str]:
    """The ids that all parties hold, sorted; how many others each has is added to `dropped`.

    Raises:
        DataError: there are none.
    """
    first, *others = (ids.alias("id").to_frame() for ids in parties.values())
    for other in others:
        first = first.join(other, on="id", how="semi")
    if first.is_empty():
        counts = ", ".join(f"{name!r} {len(ids)}" for name, ids in parties.items())
        raise DataError(
            f"no common ids among {among} ({counts} ids), expected at least 1: "
            f"{why_few(parties, 0)}"
        )
    for name, ids in parties.items():
        dropped[name] += len(ids) - first.height
    common: list[str] = first["id"].sort().to_list()
    return common


def _few_in_common(parties: Sequence[FileSource], held: Mapping[str, _Held]) -> list[Note]:
    """A warning where less than half of the smallest file's ids are in all files."""
    ids = {name: rows.train.ids for name, rows in held.items()}
    common = len(common_ids(ids, dict.fromkeys(held, 0)))
    why = why_few(ids, common)
    if why is None:
        return []
    smallest = min(ids, key=lambda name: len(ids[name]))
    text = f"only {common} of {len(ids[smallest])} ids are in every file: {why}"
    column = next(source.id_column for source in parties if source.name == smallest)
    return [Note("ids", smallest, column, text, warning=True)]


def falls_into_test(row_id: str) -> bool:
    """Whether a row is held out of training where there are no test files."""
    digest = hashlib.sha256(row_id.encode()).digest()
    return int.from_bytes(digest[:8], "big") * 5 < 1 << 64


def positions(source: FileSource, rows: PartyRows, ids: Sequence[str]) -> NDArray[np.int64]:
    """The rows of some ids, in their order, shape (len(ids),).

    Raises:
        DataError: some are missing.
    """
    import polars as pl  # noqa: PLC0415  # slow to import, and needed only for files

    wanted = pl.DataFrame({"id": pl.Series(ids, dtype=pl.String)})
    held = rows.ids.alias("id").to_frame().with_row_index("row")
    place = wanted.join(held, on="id", how="left", maintain_order="left")["row"]
    if place.null_count():
        missing = wanted["id"].filter(place.is_null())
        raise DataError(
            f"party {source.name!r}: {len(missing)} of {len(ids)} aligned ids missing in "
            f"{source.id_column!r}, the first is {missing[0]!r}"
        )
    return place.cast(pl.Int64).to_numpy()


def _labels(held: _Held, train: NDArray[np.int64], test: NDArray[np.int64]) -> list[list[str]]:
    assert held.train.labels is not None  # noqa: S101
    assert held.test.labels is not None  # noqa: S101
    return [held.train.labels.gather(train).to_list(), held.test.labels.gather(test).to_list()]


def _encode_labels(
    holder: FileSource, splits: list[list[str]], *, regression: bool
) -> tuple[tuple[str, ...], list[Labels]]:
    """Names of classes and the labels of both splits; no names where they are real targets."""
    values = label_values([label for labels in splits for label in labels])
    return encode_labels(
        values, len(splits[0]), holder.name, holder.label_column, regression=regression
    )
