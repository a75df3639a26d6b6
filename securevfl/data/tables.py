"""A vertical data set: each party's own columns over the same rows, and one holder of labels."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, Literal, cast

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from securevfl.arrays import FloatArray, IntArray, Labels, is_real
from securevfl.errors import ConfigError, DataError
from securevfl.recipe import Recipe
from securevfl.shown import Shown
from securevfl.sparse import (
    AnyRows,
    Matrix,
    SameRows,
    SparseRows,
    require_dense,
)

MOST_CELLS = 1 << 27
"""The most cells of a sparse table that is made an array; these take 1 GiB."""
Kind = Literal["file", "ids", "preprocess", "unused", "constant", "duplicate", "id", "label"]


@dataclass(frozen=True)
class Note:
    """One thing that was noticed in a party's own data before training.

    A `warning` is printed even under --quiet, since it may make the result worthless. `text` does
    not repeat party and column.
    """

    kind: Kind
    party: str
    column: str | None
    text: str
    warning: bool = False

    @property
    def line(self) -> str:
        """One line."""
        where = "" if self.column is None else f"column {self.column!r} "
        return f"party {self.party!r}: {where}{self.text}"


@dataclass(frozen=True, eq=False, repr=False)
class PartyTable(Shown, Generic[AnyRows]):
    """One party's columns, the party's own rows only.

    Attributes:
        name: The party.
        columns: P column names.
        train: Shape (N, P), float64 or sparse, unscaled.
        test: Shape (test rows, P), likewise.
        recipe: How they were made of the party's raw columns, where that took more than reading.
        raw_test: Held-out rows before that, shape (test rows, raw columns), NaN where missing.
    """

    name: str
    columns: tuple[str, ...]
    train: AnyRows
    test: AnyRows
    recipe: Recipe | None = None
    raw_test: NDArray[np.float64] | None = None

    @property
    def held_out_rows(self) -> AnyRows | FloatArray:
        """Held-out rows as guards count them: the raw ones where there is a recipe."""
        return self.test if self.raw_test is None else self.raw_test

    @override
    def shown(self) -> dict[str, object]:
        return {
            "party": self.name,
            "columns": len(self.columns),
            "rows": len(self.train),
            "held out": len(self.test),
        }


@dataclass(frozen=True, eq=False)
class OwnRows:
    """Labelled rows of the label party that no other party holds.

    Features are unscaled, shape (own rows, P); labels have shape (own rows,), 0..classes-1.
    """

    features: NDArray[np.float64]
    labels: IntArray

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False, repr=False)
class VerticalDataset(Shown, Generic[AnyRows]):
    """The same rows at every party, in the same order.

    Attributes:
        name: The data set.
        parties: At least two.
        label_party: Name of the party that holds the labels.
        train_labels: Shape (N,), int64, 0..classes-1, or float64 for real targets.
        test_labels: Shape (test rows,), the same; there may be none, and then nothing is scored.
        classes: How many classes there are, at least two; 0 for real targets.
        standardize: Whether the default is to standardize (not for 0/1 columns and pixels).
        row_digests: Shape (N,), uint64: who the training rows are, see `row_digests`; they
            alone fix the partition of the rows into batches.
        label_names: What each class was called at the source.
        dropped: By party, how many of its rows had an id that not every party holds.
        own_rows: The label party's rows beside the N, for transfer learning.
        notes: What was noticed in the parties' files.
    """

    name: str
    parties: tuple[PartyTable[AnyRows], ...]
    label_party: str
    train_labels: Labels
    test_labels: Labels
    classes: int
    standardize: bool
    row_digests: NDArray[np.uint64]
    label_names: tuple[str, ...] = ()
    dropped: Mapping[str, int] = field(default_factory=dict)
    own_rows: OwnRows | None = None
    notes: tuple[Note, ...] = ()

    @override
    def shown(self) -> dict[str, object]:
        labels = {self.label_party: " and the labels"}
        return {
            "name": self.name,
            "rows": f"{len(self.train_labels)} to train on, {len(self.test_labels)} held out",
            "target": f"{self.classes} classes" if self.classes else "real",
            **{p.name: f"{len(p.columns)} columns{labels.get(p.name, '')}" for p in self.parties},
        }

    @property
    def class_names(self) -> tuple[str, ...]:
        """What each class is called, by its number where the source has no names."""
        return self.label_names or tuple(map(str, range(self.classes)))

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over the training rows in their order: one name for all of them."""
        return rows_fingerprint(self.row_digests)


def as_classes(labels: Labels) -> IntArray:
    """Labels as class numbers, shape (rows,); real targets are refused."""
    if is_real(labels):
        raise ConfigError("this is about classes, and the labels are real targets")
    return labels.astype(np.int64, copy=False)


def row_digests(ids: Iterable[object], source: str = "") -> NDArray[np.uint64]:
    """64 bits of SHA-256 that stand for each row's person, shape (N,).

    `source` goes into the digests of ids that mean nothing elsewhere, such as row numbers.
    """
    texts = (f"{source}|{row_id}".encode() for row_id in ids)
    heads = (hashlib.sha256(b"row|" + text).digest()[:8] for text in texts)
    return np.frombuffer(b"".join(heads), "<u8").astype(np.uint64)


def rows_fingerprint(digests: NDArray[np.uint64]) -> str:
    """SHA-256 (hex) over the digests of rows, in their order."""
    return hashlib.sha256(digests.astype("<u8").tobytes()).hexdigest()


def fingerprint(ids: Iterable[object]) -> str:
    """SHA-256 (hex) over ids, or row numbers, in their order; no name plays a part."""
    digest = hashlib.sha256()
    for row_id in ids:
        text = str(row_id).encode()
        # The length keeps ("1", "23") and ("12", "3") apart.
        digest.update(b"%d:%b" % (len(text), text))
    return digest.hexdigest()


def some_rows(dataset: VerticalDataset[SameRows], rows: int) -> VerticalDataset[SameRows]:
    """Some training rows, at least two, spread evenly over classes or targets, in their order."""
    name = f"{dataset.name}, {rows} rows"
    return replace(_keep(dataset, _spread(dataset.train_labels, rows)), name=name)


def some_test_rows(dataset: VerticalDataset[SameRows], rows: int) -> VerticalDataset[SameRows]:
    """The same training rows, and so many held-out rows, or all where there are fewer.

    At least two are spread evenly over classes or targets.
    """
    labels = dataset.test_labels
    kept = _spread(labels, min(rows, len(labels)))
    parties = tuple(
        replace(
            party,
            test=party.test[kept],
            raw_test=None if party.raw_test is None else party.raw_test[kept],
        )
        for party in dataset.parties
    )
    return replace(dataset, parties=parties, test_labels=labels[kept])


def without_rows(
    dataset: VerticalDataset[SameRows], rows: NDArray[np.int64]
) -> VerticalDataset[SameRows]:
    """All training rows but those with the given numbers, shape (n,); the others keep their order.

    Raises:
        ConfigError: rows that are not there or are given twice, or fewer than two left.
    """
    kept = np.setdiff1d(np.arange(len(dataset.train_labels)), rows)
    if len(kept) != len(dataset.train_labels) - len(rows) or len(kept) < 2:  # noqa: PLR2004
        raise ConfigError(f"without {len(rows)} rows of {len(dataset.train_labels)}")
    return replace(_keep(dataset, kept), name=f"{dataset.name} without {len(rows)} rows")


def overlapping(
    dataset: VerticalDataset[SameRows], overlap: float, seed: int
) -> VerticalDataset[SameRows]:
    """Leave some training rows to all parties, and the others to the label party alone.

    Rows are drawn by who they are and by the seed, so that every party finds the same by itself.
    `overlap` is how many stay with all: a number of at least 2, or a part of them up to 1.0.

    Raises:
        ConfigError: more rows than there are, or fewer than two, or sparse ones.
    """
    rows = len(dataset.train_labels)
    kept = overlap if isinstance(overlap, int) else round(overlap * rows)
    if not 2 <= kept <= rows:  # noqa: PLR2004
        raise ConfigError(f"overlap = {overlap}: {kept} rows, expected 2 to {rows}")
    if kept == rows:
        return dataset
    draws = (
        hashlib.sha256(f"overlap|{seed}|{digest}".encode()).digest()
        for digest in dataset.row_digests.tolist()
    )
    order = sorted(range(rows), key=list(draws).__getitem__)
    both, alone = np.sort(order[:kept]), np.sort(order[kept:])
    table = next(each for each in dataset.parties if each.name == dataset.label_party)
    features = require_dense(table.train, f"party {table.name!r}: algorithm 'ftl'")
    own = OwnRows(features[alone], dataset.train_labels[alone])
    if dataset.own_rows is not None:
        own = OwnRows(
            np.concatenate([own.features, dataset.own_rows.features]),
            np.concatenate([own.labels, dataset.own_rows.labels]),
        )
    return replace(_keep(dataset, both), own_rows=own)


def _spread(labels: Labels, rows: int) -> NDArray[np.int64]:
    if not 2 <= rows <= len(labels):  # noqa: PLR2004
        raise ConfigError(f"rows = {rows}: expected 2 to {len(labels)}")
    by_label = np.argsort(labels, kind="stable")
    return np.sort(by_label[np.linspace(0, len(labels) - 1, rows).astype(np.int64)])


def _keep(dataset: VerticalDataset[SameRows], rows: NDArray[np.int64]) -> VerticalDataset[SameRows]:
    return replace(
        dataset,
        parties=tuple(replace(party, train=party.train[rows]) for party in dataset.parties),
        train_labels=dataset.train_labels[rows],
        row_digests=dataset.row_digests[rows],
    )


def as_array(rows: Matrix, whose: str) -> FloatArray:
    """Rows as an array of at most 1 GiB, shape (rows, P); `whose` they are, for the error."""
    if not isinstance(rows, SparseRows):
        return rows
    if (cells := len(rows) * rows.columns) > MOST_CELLS:
        raise ConfigError(
            f"{whose}: {len(rows)} rows of {rows.columns} sparse columns would take "
            f"{cells * 8 / 1e9:.3g} GB as an array, which this needs; convert fewer rows"
        )
    return rows.toarray()


def as_arrays(dataset: VerticalDataset[Matrix]) -> VerticalDataset:
    """The same rows as arrays, of at most 1 GiB each."""
    parties = tuple(
        replace(
            party,
            train=as_array(party.train, f"party {party.name!r}"),
            test=as_array(party.test, f"party {party.name!r}, held-out rows"),
        )
        for party in dataset.parties
    )
    return cast("VerticalDataset", replace(dataset, parties=parties))


def check(dataset: VerticalDataset[Matrix]) -> None:
    """Refuse a data set that no job could train on.

    Raises:
        ConfigError: Fewer than two parties, two of the same name, or no such label party.
        DataError: Different row counts, no training rows, NaN or infinite features or targets,
            labels out of range, or one class or target only; party, column and count are named.
    """
    names = [party.name for party in dataset.parties]
    if len(names) < 2:  # noqa: PLR2004
        raise ConfigError(f"parties: {len(names)} in {dataset.name!r}, expected at least 2")
    if len(set(names)) < len(names):
        raise ConfigError(f"parties: names {names} are not all different")
    if dataset.label_party not in names:
        raise ConfigError(f"label_party: {dataset.label_party!r} is not one of {names}")
    for party in dataset.parties:
        check_rows(party, "training", party.train, dataset.train_labels)
        check_rows(party, "test", party.test, dataset.test_labels)
        if dataset.own_rows is not None and party.name == dataset.label_party:
            check_rows(party, "own", dataset.own_rows.features, dataset.own_rows.labels)
    scored = (("test", dataset.test_labels),) if dataset.test_labels.size else ()
    for split, labels in (("training", dataset.train_labels), *scored):
        check_labels(f"data set {dataset.name!r}", split, labels, dataset.classes)
    if dataset.own_rows is not None:
        own = np.unique(dataset.own_rows.labels)
        _check_range(f"data set {dataset.name!r}", "own", own, dataset.classes)


def check_labels(where: str, split: str, labels: Labels, classes: int) -> None:
    """Refuse labels of one class or value only, out of range, or of another kind."""
    if is_real(labels) != (classes == 0):
        raise DataError(f"{where}: {split} labels are {labels.dtype}, with {classes} classes")
    if unusable := int((~np.isfinite(labels)).sum()):
        raise DataError(f"{where}: {unusable} NaN or infinite {split} targets")
    present = np.unique(labels)
    if present.size < 2:  # noqa: PLR2004
        told = f"all {labels.size} {split} targets are the same, expected at least 2 values"
        if classes:
            told = f"one class only among {labels.size} {split} rows, expected at least 2"
        raise DataError(f"{where}: {told}")
    if classes:
        _check_range(where, split, present, classes)


def _check_range(where: str, split: str, present: Labels, classes: int) -> None:
    """Refuse labels that are no class; `present` are the different ones, ascending."""
    if present[0] < 0 or present[-1] >= classes:
        raise DataError(
            f"{where}: {split} labels span {present[0]}..{present[-1]}, expected 0..{classes - 1}"
        )


def check_rows(party: PartyTable[Matrix], split: str, values: Matrix, labels: Labels) -> None:
    """Refuse one party's rows that do not fit the labels or are not finite."""
    if values.ndim != 2 or values.shape[1] != len(party.columns) or not party.columns:  # noqa: PLR2004
        raise DataError(
            f"party {party.name!r}: {split} table of shape {values.shape}, expected rows x "
            f"{len(party.columns)} columns, at least 1"
        )
    if values.shape[0] != labels.size:
        raise DataError(
            f"party {party.name!r}: {values.shape[0]} {split} rows, expected {labels.size} as "
            f"there are labels"
        )
    if not labels.size and split == "training":
        raise DataError(f"party {party.name!r}: no training rows")
    if isinstance(values, SparseRows):
        return  # checked when their shard was opened
    unusable = (~np.isfinite(values)).sum(axis=0)
    if unusable.any():
        column = int(np.flatnonzero(unusable)[0])
        raise DataError(
            f"party {party.name!r}: column {party.columns[column]!r} has {unusable[column]} NaN "
            f"or infinite {split} values, expected finite numbers"
        )
