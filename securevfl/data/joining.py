"""The parties' files joined by id: what is common to all, and each party's part of it."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import Labels
from securevfl.data.aligned import AlignedIds
from securevfl.data.own_files import FileSource, PartyRows, read_party
from securevfl.data.tables import (
    OwnRows,
    PartyTable,
    VerticalDataset,
    check,
    check_labels,
    row_digests,
)
from securevfl.errors import ConfigError, DataError

MOST_CLASSES, FEWEST_A_CLASS = 20, 5


@dataclass(frozen=True, eq=False)
class OwnData:
    """What one party brings to a job.

    Attributes:
        table: Its own columns of the aligned rows.
        train_labels: Shape (N,), int64, 0..classes-1, or float64 for real targets, at the label
            party only.
        test_labels: Shape (test rows,), the same.
        label_names: What each class is called in the file.
        own_rows: At the label party, its training rows whose ids another party lacks, as far as
            they are of these classes.
    """

    table: PartyTable
    train_labels: Labels | None = None
    test_labels: Labels | None = None
    label_names: tuple[str, ...] = ()
    own_rows: OwnRows | None = None


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
    own = {source.name: _own_data(source, held[source.name], aligned) for source in parties}
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
    own = _own_data(source, _read_own(source), aligned)
    for split, labels in (("training", own.train_labels), ("test", own.test_labels)):
        if labels is not None:
            check_labels(f"party {source.name!r}", split, labels, aligned.classes)
    return own


def _check_sources(parties: Sequence[FileSource]) -> None:
    names = [source.name for source in parties]
    if len(names) < 2:  # noqa: PLR2004
        raise ConfigError(f"parties: {len(names)}, expected at least 2")
    if len(set(names)) < len(names):
        raise ConfigError(f"parties: names {names} are not all different")
    holders = [source.name for source in parties if source.label_column is not None]
    if len(holders) != 1:
        raise ConfigError(f"label_column: given at {holders or 'no party'}, expected exactly one")
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
    return _Held(train, read_party(replace(source, features=train.columns), test=True))


def _read_all(parties: Sequence[FileSource]) -> dict[str, _Held]:
    _check_sources(parties)
    return {source.name: _read_own(source) for source in parties}


def _align(
    parties: Sequence[FileSource], held: Mapping[str, _Held], *, regression: bool
) -> tuple[AlignedIds, dict[str, int]]:
    """The rows that all hold, and by party how many it holds beside."""
    holder = next(source for source in parties if source.label_column is not None)
    dropped = dict.fromkeys(held, 0)
    train_ids = _common_ids({name: rows.train for name, rows in held.items()}, dropped)
    if holder.test_path is None:
        test_ids = [row_id for row_id in train_ids if falls_into_test(row_id)]
        train_ids = [row_id for row_id in train_ids if not falls_into_test(row_id)]
    else:
        test_ids = _common_ids({name: rows.test for name, rows in held.items()}, dropped)
        if both := len(set(train_ids) & set(test_ids)):
            raise DataError(f"test_path: {both} ids are among the training rows too, expected 0")
    labels = _labels(holder, held[holder.name], train_ids, test_ids)
    names, (train_labels, _) = _encode_labels(holder, labels, regression=regression)
    check_labels(f"party {holder.name!r}", "training", train_labels, len(names))
    return AlignedIds(tuple(train_ids), tuple(test_ids), len(names)), dropped


def _own_data(source: FileSource, held: _Held, aligned: AlignedIds) -> OwnData:
    train = _positions(source, held.train, aligned.train)
    test = _positions(source, held.test, aligned.test)
    table = PartyTable(
        source.name, held.train.columns, held.train.features[train], held.test.features[test]
    )
    if source.label_column is None:
        return OwnData(table)
    labels = _labels(source, held, aligned.train, aligned.test)
    real = aligned.classes == 0
    names, (train_labels, test_labels) = _encode_labels(source, labels, regression=real)
    if len(names) != aligned.classes:
        raise DataError(
            f"party {source.name!r}: {len(names)} classes in {source.label_column!r}, the "
            f"aligned ids say {aligned.classes}"
        )
    if real:
        return OwnData(table, train_labels, test_labels)
    codes = np.concatenate([train_labels, test_labels]).tolist()
    known = dict(zip(map(_as_class, (*labels[0], *labels[1])), codes, strict=True))
    own_rows = _own_rows(held.train, {*aligned.train, *aligned.test}, known)
    return OwnData(table, train_labels, test_labels, names, own_rows)


def _own_rows(
    rows: PartyRows, aligned: Collection[str], known: Mapping[str | float, int]
) -> OwnRows | None:
    """Rows that others lack, of known classes."""
    labels = [known.get(_as_class(label)) for label in rows.labels or ()]
    found = [
        (row, code)
        for row, (row_id, code) in enumerate(zip(rows.ids, labels, strict=True))
        if code is not None and row_id not in aligned
    ]
    if not found:
        return None
    places, codes = zip(*found, strict=True)
    return OwnRows(rows.features[list(places)], np.array(codes, np.int64))


def _as_class(label: str) -> str | float:
    """A label as classes are compared: numbers by value."""
    try:
        return float(label)
    except ValueError:
        return label


def _common_ids(parties: Mapping[str, PartyRows], dropped: dict[str, int]) -> list[str]:
    common = set.intersection(*(set(rows.ids) for rows in parties.values()))
    if not common:
        counts = ", ".join(f"{name!r} {len(rows.ids)}" for name, rows in parties.items())
        raise DataError(f"no common ids among the parties ({counts} ids), expected at least 1")
    for name, rows in parties.items():
        dropped[name] += len(rows.ids) - len(common)
    return sorted(common)


def falls_into_test(row_id: str) -> bool:
    """Whether a row is held out of training where there are no test files."""
    digest = hashlib.sha256(row_id.encode()).digest()
    return int.from_bytes(digest[:8], "big") * 5 < 1 << 64


def _positions(source: FileSource, rows: PartyRows, ids: Sequence[str]) -> list[int]:
    place = {row_id: row for row, row_id in enumerate(rows.ids)}
    if missing := [row_id for row_id in ids if row_id not in place]:
        raise DataError(
            f"party {source.name!r}: {len(missing)} of {len(ids)} aligned ids missing in "
            f"{source.id_column!r}, the first is {missing[0]!r}"
        )
    return [place[row_id] for row_id in ids]


def _labels(
    source: FileSource, held: _Held, train_ids: Sequence[str], test_ids: Sequence[str]
) -> list[list[str]]:
    return [
        [(rows.labels or ())[row] for row in _positions(source, rows, ids)]
        for rows, ids in ((held.train, train_ids), (held.test, test_ids))
    ]


def _encode_labels(
    holder: FileSource, splits: list[list[str]], *, regression: bool
) -> tuple[tuple[str, ...], list[Labels]]:
    """Names of classes and the labels of both splits; no names where they are real targets."""
    import polars as pl  # noqa: PLC0415  # slow to import, and needed only for files

    text = pl.Series([label for labels in splits for label in labels], dtype=pl.String)
    numbers = text.cast(pl.Float64, strict=False)
    numeric = not numbers.null_count()
    if numeric and (unusable := int((~numbers.is_finite()).sum())):
        raise DataError(
            f"party {holder.name!r}: column {holder.label_column!r} has {unusable} NaN or "
            f"infinite labels"
        )
    values = numbers.to_numpy() if numeric else np.array(text.to_list(), dtype=np.str_)
    classes, codes = np.unique(values, return_inverse=True)
    if numeric and len(classes) > 2:  # noqa: PLR2004
        if regression:
            targets = numbers.to_numpy()
            return (), [targets[: len(splits[0])], targets[len(splits[0]) :]]
        _require_classes(holder, classes, len(values))
    codes = codes.astype(np.int64)
    train, test = codes[: len(splits[0])], codes[len(splits[0]) :]
    if unseen := np.setdiff1d(test, train).size:
        raise DataError(
            f"party {holder.name!r}: {unseen} classes of {holder.label_column!r} occur among the "
            f"test rows only"
        )
    names = [f"{label:.0f}" if numeric and label == int(label) else str(label) for label in classes]
    return tuple(names), [train, test]


def _require_classes(holder: FileSource, values: NDArray[np.float64], rows: int) -> None:
    """Refuse numbers that nobody would call classes.

    Raises:
        DataError: more than two, and fractions among them or too many for so few rows.
    """
    fractions = bool((values != np.rint(values)).any())
    if fractions or len(values) > MOST_CLASSES or rows < FEWEST_A_CLASS * len(values):
        raise DataError(
            f"party {holder.name!r}: column {holder.label_column!r} has {len(values)} different "
            f"numbers among {rows} rows{', fractions among them' if fractions else ''}: for "
            "regression say loss = 'squared' under [job]; classes need names that are no numbers"
        )
