"""The parties' files joined by id: what is common to all, and each party's part of it."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import Labels
from securevfl.data.aligned import AlignedIds
from securevfl.data.notes import Note
from securevfl.data.own_files import FileSource, PartyRows, read_party, require_usable
from securevfl.data.preprocess import fit_recipe
from securevfl.data.tables import (
    OwnRows,
    PartyTable,
    VerticalDataset,
    check,
    check_labels,
    row_digests,
)
from securevfl.errors import ConfigError, DataError
from securevfl.recipe import read_as_numbers

if TYPE_CHECKING:
    import polars as pl

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
        notes: What was noticed in making it.
    """

    table: PartyTable
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
    alike = replace(source, features=train.columns, drop=())
    return _Held(train, read_party(alike, test=True, text=train.text_columns))


def _read_all(parties: Sequence[FileSource]) -> dict[str, _Held]:
    _check_sources(parties)
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
        table, _, notes = _table(source, held, (train, test), nobodys)
        return OwnData(table, notes=notes)
    real = aligned.classes == 0
    names, (train_labels, test_labels) = _encode_labels(source, labels, regression=real)
    if len(names) != aligned.classes:
        raise DataError(
            f"party {source.name!r}: {len(names)} classes in {source.label_column!r}, the "
            f"aligned ids say {aligned.classes}"
        )
    if real:
        table, _, notes = _table(source, held, (train, test), nobodys)
        return OwnData(table, train_labels, test_labels, notes=notes)
    codes = np.concatenate([train_labels, test_labels]).tolist()
    known = dict(zip(map(_as_class, (*labels[0], *labels[1])), codes, strict=True))
    taken = {*aligned.train, *aligned.test} if len(held.train.ids) > len(train) else set()
    own, own_labels = _own_rows(held.train, taken, known) if taken else ([], [])
    table, features, notes = _table(source, held, (train, test), np.array(own, np.int64))
    own_rows = OwnRows(features, np.array(own_labels, np.int64)) if own else None
    return OwnData(table, train_labels, test_labels, names, own_rows, notes)


def _table(
    source: FileSource,
    held: _Held,
    rows: tuple[NDArray[np.int64], NDArray[np.int64]],
    own: NDArray[np.int64],
) -> tuple[PartyTable, NDArray[np.float64], tuple[Note, ...]]:
    """A party's features of training and test rows, and of its own ones.

    Raw columns go as features come, so that a file is never held twice.
    """
    train, test = rows
    frame = held.train.frame
    notes: list[Note] = []
    if source.preprocess is None:
        recipe = read_as_numbers(held.train.columns)
    else:
        recipe, notes = fit_recipe(source.name, frame, held.train.columns, train, source.preprocess)
    parts = [(frame, train), (held.test.frame, test), (frame, own)]
    arrays = [np.empty((len(places), len(recipe.columns))) for _, places in parts]
    wrong: list[str] = []
    for part, place in recipe.places():
        for (raw, places), out in zip(parts, arrays, strict=True):
            try:
                part.write(raw[part.name].gather(places), recipe.missing, out[:, place])
            except ValueError as error:
                wrong.append(f"party {source.name!r}: column {part.name!r} {error}")
        frame.drop_in_place(part.name)
    if wrong:
        raise DataError("; ".join(dict.fromkeys(wrong)))
    kept = None if source.preprocess is None else recipe
    table = PartyTable(source.name, recipe.columns, arrays[0], arrays[1], kept)
    return table, arrays[2], tuple(notes)


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
        raise DataError(f"no common ids among {among} ({counts} ids), expected at least 1")
    for name, ids in parties.items():
        dropped[name] += len(ids) - first.height
    common: list[str] = first["id"].sort().to_list()
    return common


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
