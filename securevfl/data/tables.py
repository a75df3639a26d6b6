"""Vertical data sets: every party holds its own columns of the same rows, one holds the labels."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import ceil, log2
from typing import Generic, Literal, cast

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from securevfl.arrays import FloatArray, IntArray, Labels, is_real
from securevfl.errors import ConfigError, DataError
from securevfl.recipe import Recipe
from securevfl.shown import Shown, controls, counted
from securevfl.sparse import AnyRows, Matrix, SameRows, SparseRows, blocks_of, dense, require_dense

LEAST_WEIGHT, MOST_WEIGHT = 1e-12, 1e12
MOST_CELLS = 1 << 27
"""The largest sparse table that is converted to an array; 1 GiB."""
Kind = Literal[
    "file", "ids", "preprocess", "unused", "constant", "duplicate", "id", "label", "bounds"
]


@dataclass(frozen=True)
class Note:
    """Something noticed in a party's data before training; `text` repeats neither party nor column.

    A `warning` is printed even under --quiet, because it may make the result worthless.
    """

    kind: Kind
    party: str
    column: str | None
    text: str
    warning: bool = False

    @property
    def line(self) -> str:
        """The note as one line of text."""
        where = "" if self.column is None else f"column {self.column!r} "
        return f"party {self.party!r}: {where}{self.text}"


@dataclass(frozen=True, eq=False, repr=False)
class PartyTable(Shown, Generic[AnyRows]):
    """One party's columns.

    Attributes:
        name: the party.
        columns: P column names.
        train: shape (N, P), float64 or sparse, not yet scaled.
        test: the held-out rows, shape (test rows, P), likewise.
        recipe: how the columns were derived from raw columns, if they are not plain numbers.
        raw_test: the held-out rows' raw columns, if there is a recipe; NaN where missing.
        source: the file or data set that the rows are of; empty for arrays.
        people: digests of the ids of training and held-out rows, spelled alike, by which guards
            know people again; None where only `row_digests` of the data set do.
        rows_digest: by which parties recognize that they hold the same rows in the same order, see
            `rows_digest`; empty for arrays, whose rows nobody can tell.
        weights: of the training rows, at the label party, shape (N,); None where all are 1.
    """

    name: str
    columns: tuple[str, ...]
    train: AnyRows
    test: AnyRows
    recipe: Recipe | None = None
    raw_test: NDArray[np.float64] | None = None
    source: str = ""
    people: tuple[NDArray[np.uint64], NDArray[np.uint64]] | None = None
    rows_digest: bytes = b""
    weights: FloatArray | None = None

    @property
    def weight_bits(self) -> int:
        """64 + log2 of the mean weight, rounded up; 0 without weights."""
        return 0 if self.weights is None else 64 + ceil(log2(self.weights.mean()))

    @property
    def signs(self) -> tuple[int, ...]:
        """Of the features' weights, see `Recipe.signs`; empty without a recipe."""
        return () if self.recipe is None else self.recipe.signs

    @property
    def held_out_rows(self) -> AnyRows | FloatArray:
        """The held-out rows that guards count: the raw ones if there is a recipe."""
        return self.test if self.raw_test is None else self.raw_test

    @property
    def held_out_columns(self) -> tuple[str, ...]:
        """Their columns."""
        return self.columns if self.recipe is None else self.recipe.raw_columns

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
    """Labelled rows that only the label party holds.

    Features are not yet scaled, shape (own rows, P); labels have shape (own rows,).
    """

    features: NDArray[np.float64]
    labels: IntArray

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False, repr=False)
class VerticalDataset(Shown, Generic[AnyRows]):
    """The same rows in the same order at every party.

    Attributes:
        name: the data set.
        parties: at least two.
        label_party: name of the party that holds the labels.
        train_labels: shape (N,): int64 classes 0..classes-1, or float64 real targets.
        test_labels: likewise for the held-out rows; may be empty.
        classes: number of classes, at least two; 0 for real targets.
        standardize: whether features are standardized by default.
        row_digests: shape (N,), uint64, see `row_digests`; they alone determine the partition of
            the rows into batches.
        label_names: name of each class in the source.
        dropped: by party, the number of its rows that some other party lacks.
        own_rows: the label party's rows that others lack, for transfer learning.
        notes: what was noticed in the parties' files.
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
        """The name of each class, or its number if the source has no names."""
        return self.label_names or tuple(map(str, range(self.classes)))

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over the digests of the training rows, in order."""
        return rows_fingerprint(self.row_digests)


def as_classes(labels: Labels) -> IntArray:
    """Labels as class numbers, shape (rows,); a ConfigError for real targets."""
    if is_real(labels):
        raise ConfigError("labels are real targets, expected classes")
    return labels.astype(np.int64, copy=False)


def row_digests(ids: Iterable[object], source: str = "") -> NDArray[np.uint64]:
    """64 bits of SHA-256 per row id, shape (N,).

    `source` is hashed too, for ids that mean nothing elsewhere, such as row numbers.
    """
    texts = (f"{source}|{row_id}".encode() for row_id in ids)
    heads = (hashlib.sha256(b"row|" + text).digest()[:8] for text in texts)
    return np.frombuffer(b"".join(heads), "<u8").astype(np.uint64)


def rows_digest(train: NDArray[np.uint64], test: NDArray[np.uint64]) -> bytes:
    """SHA-256 over digests of training and held-out rows, in order, and how many there are."""
    digest = hashlib.sha256(f"{len(train)}|{len(test)}|".encode())
    for digests in (train, test):
        digest.update(digests.astype("<u8").tobytes())
    return digest.digest()


def rows_fingerprint(digests: NDArray[np.uint64]) -> str:
    """SHA-256 (hex) over row digests, in order."""
    return hashlib.sha256(digests.astype("<u8").tobytes()).hexdigest()


def fingerprint(ids: Iterable[object]) -> str:
    """SHA-256 (hex) over ids or row numbers, in order."""
    digest = hashlib.sha256()
    for row_id in ids:
        text = str(row_id).encode()
        # The length keeps ("1", "23") and ("12", "3") apart.
        digest.update(b"%d:%b" % (len(text), text))
    return digest.hexdigest()


def some_rows(dataset: VerticalDataset[SameRows], rows: int) -> VerticalDataset[SameRows]:
    """A subset of the training rows, at least two, spread evenly over the labels."""
    name = f"{dataset.name}, {rows} rows"
    return replace(_keep(dataset, _spread(dataset.train_labels, rows)), name=name)


def some_test_rows(dataset: VerticalDataset[SameRows], rows: int) -> VerticalDataset[SameRows]:
    """The same training rows with at most `rows` held-out rows, spread evenly over the labels."""
    labels = dataset.test_labels
    kept = _spread(labels, min(rows, len(labels)))
    parties = (
        replace(
            p,
            test=p.test[kept],
            raw_test=None if p.raw_test is None else p.raw_test[kept],
            people=p.people and (p.people[0], p.people[1][kept]),
            rows_digest=_digest_of_some(p.rows_digest, kept),
        )
        for p in dataset.parties
    )
    return replace(dataset, parties=tuple(parties), test_labels=labels[kept])


def without_rows(
    dataset: VerticalDataset[SameRows], rows: NDArray[np.int64]
) -> VerticalDataset[SameRows]:
    """The data set without these training rows, shape (n,); a ConfigError if they are invalid."""
    kept = np.setdiff1d(np.arange(len(dataset.train_labels)), rows)
    if len(kept) != len(dataset.train_labels) - len(rows) or len(kept) < 2:  # noqa: PLR2004
        raise ConfigError(f"without {len(rows)} rows of {len(dataset.train_labels)}")
    return replace(_keep(dataset, kept), name=f"{dataset.name} without {len(rows)} rows")


def overlapping(
    dataset: VerticalDataset[SameRows], overlap: float, seed: int
) -> VerticalDataset[SameRows]:
    """Keep some training rows at all parties, and move the others to the label party's own rows.

    The draw depends only on row digests and the seed, so every party computes the same one.
    `overlap` is the number of rows to keep, at least 2, or a fraction up to 1.0.

    Raises:
        ConfigError: fewer than two rows or more than there are, or sparse rows.
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


def _digest_of_some(digest: bytes, rows: NDArray[np.int64]) -> bytes:
    """The digest of some of the rows of which this is the digest; empty of rows without."""
    return digest and hashlib.sha256(digest + rows.tobytes()).digest()


def _spread(labels: Labels, rows: int) -> NDArray[np.int64]:
    if not 2 <= rows <= len(labels):  # noqa: PLR2004
        raise ConfigError(f"rows = {rows}: expected 2 to {len(labels)}")
    by_label = np.argsort(labels, kind="stable")
    return np.sort(by_label[np.linspace(0, len(labels) - 1, rows).astype(np.int64)])


def _keep(dataset: VerticalDataset[SameRows], rows: NDArray[np.int64]) -> VerticalDataset[SameRows]:
    def kept(party: PartyTable[SameRows]) -> PartyTable[SameRows]:
        people = None if party.people is None else (party.people[0][rows], party.people[1])
        digest = _digest_of_some(party.rows_digest, rows)
        weights = None if party.weights is None else party.weights[rows]
        table = replace(party, people=people, rows_digest=digest, weights=weights)
        return replace(table, train=party.train[rows])

    return replace(
        dataset,
        parties=tuple(map(kept, dataset.parties)),
        train_labels=dataset.train_labels[rows],
        row_digests=dataset.row_digests[rows],
    )


def as_array(rows: Matrix, name: str) -> FloatArray:
    """Rows as a dense array of at most 1 GiB, shape (rows, P); `name` is for the error."""
    if not isinstance(rows, SparseRows):
        return dense(rows)
    if (cells := len(rows) * rows.columns) > MOST_CELLS:
        raise ConfigError(
            f"{name}: {len(rows)} rows of {rows.columns} sparse columns need "
            f"{cells * 8 / 1e9:.3g} GB as a dense array; convert fewer rows"
        )
    return rows.toarray()


def as_arrays(dataset: VerticalDataset[Matrix]) -> VerticalDataset:
    """The data set with dense arrays of at most 1 GiB each."""
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
        ConfigError: fewer than two parties, repeated names, or an unknown label party.
        DataError: row counts that differ, no training rows, NaN or infinite values, labels out of
            range, only one class or target value, or names with control characters.
    """
    names = [party.name for party in dataset.parties]
    if len(names) < 2:  # noqa: PLR2004
        raise ConfigError(f"parties: {len(names)} in {dataset.name!r}, expected at least 2")
    if len(set(names)) < len(names):
        raise ConfigError(f"parties: names {names} are not all different")
    if dataset.label_party not in names:
        raise ConfigError(f"label_party: {dataset.label_party!r} is not one of {names}")
    for party in dataset.parties:
        _check_names(f"party {party.name!r}: column", party.columns)
        check_rows(party, "training", party.train, dataset.train_labels)
        check_rows(party, "test", party.test, dataset.test_labels)
        rows = len(party.train) * (party.name == dataset.label_party)
        check_weights(f"party {party.name!r}: weights", party.weights, rows)
        if dataset.own_rows is not None and party.name == dataset.label_party:
            check_rows(party, "own", dataset.own_rows.features, dataset.own_rows.labels)
    scored = (("test", dataset.test_labels),) if dataset.test_labels.size else ()
    where = f"data set {dataset.name!r}"
    _check_names(f"{where}: class", dataset.label_names)
    for split, labels in (("training", dataset.train_labels), *scored):
        check_labels(where, split, labels, dataset.classes)
    if dataset.own_rows is not None:
        _check_range(where, "own", np.unique(dataset.own_rows.labels), dataset.classes)


def _check_names(where: str, names: tuple[str, ...]) -> None:
    """Refuse names that no model file may have."""
    if (odd := controls(names)) is not None:
        raise DataError(f"{where} {odd!r} has control characters in its name: rename it")


def check_labels(where: str, split: str, labels: Labels, classes: int) -> None:
    """Refuse labels of the wrong kind, out of range, or with a single class or value."""
    if is_real(labels) != (classes == 0):
        raise DataError(f"{where}: {split} labels are {labels.dtype}, with {classes} classes")
    if unusable := int((~np.isfinite(labels)).sum()):
        raise DataError(f"{where}: {unusable} NaN or infinite {split} targets")
    present = np.unique(labels)
    if present.size < 2:  # noqa: PLR2004
        found = "one class only among" if classes else "one target value only among"
        raise DataError(f"{where}: {found} {labels.size} {split} rows, expected at least 2")
    if classes:
        _check_range(where, split, present, classes)


def _check_range(where: str, split: str, present: Labels, classes: int) -> None:
    """Refuse labels outside 0..classes-1; `present` are the distinct ones, ascending."""
    if present[0] < 0 or present[-1] >= classes:
        raise DataError(
            f"{where}: {split} labels span {present[0]}..{present[-1]}, expected 0..{classes - 1}"
        )


def check_weights(where: str, weights: FloatArray | None, rows: int) -> None:
    """Refuse weights of rows, if any, unless there is one a row, in range."""
    if weights is None:
        return
    if weights.shape != (rows,):
        raise DataError(f"{where}: shape {weights.shape}, expected ({rows},), one a label")
    wrong = np.flatnonzero(~((weights >= LEAST_WEIGHT) & (weights <= MOST_WEIGHT)))
    if len(wrong):
        raise DataError(
            f"{where}: {counted(len(wrong), 'value')} outside {LEAST_WEIGHT:g} to {MOST_WEIGHT:g}, "
            f"zero, missing or no number, the first in row {wrong[0] + 1}"
        )


def check_rows(party: PartyTable[Matrix], split: str, values: Matrix, labels: Labels) -> None:
    """Refuse one party's rows if they do not match the labels or are not finite."""
    if values.ndim != 2 or values.shape[1] != len(party.columns) or not party.columns:  # noqa: PLR2004
        raise DataError(
            f"party {party.name!r}: {split} table of shape {values.shape}, expected rows x "
            f"{len(party.columns)} columns, at least 1"
        )
    if values.shape[0] != labels.size:
        raise DataError(
            f"party {party.name!r}: {values.shape[0]} {split} rows and {labels.size} labels"
        )
    known = party.people and party.people[split == "test"]
    if known is not None and split != "own" and len(known) != len(values):
        raise DataError(
            f"party {party.name!r}: {len(known)} people in {len(values)} {split} rows, expected "
            "one a row, or people = None"
        )
    if not labels.size and split == "training":
        raise DataError(f"party {party.name!r}: no training rows")
    if isinstance(values, SparseRows):
        return  # checked by open_shard
    unusable = np.sum([(~np.isfinite(rows)).sum(axis=0) for _, rows in blocks_of(values)], axis=0)
    if unusable.any():
        column = int(np.flatnonzero(unusable)[0])
        raise DataError(
            f"party {party.name!r}: column {party.columns[column]!r} has {unusable[column]} NaN "
            f"or infinite {split} values, expected finite numbers"
        )
