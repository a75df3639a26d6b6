"""Parting one table's columns among parties, and rows into training and test."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import Labels
from securevfl.data.tables import PartyTable, VerticalDataset, check, row_digests
from securevfl.errors import ConfigError


@dataclass(frozen=True, eq=False)
class JointTable:
    """A data set before it is parted.

    Attributes:
        columns: P names, the first party's columns first.
        train: shape (N, P); `test` alike.
        train_labels: shape (N,), 0..classes-1, or real targets; `test_labels` alike.
        train_ids: N ids, or row numbers at the source.
        label_names: one for each class; none for real targets.
        party_columns: how many columns each default party holds.
        label_last: whether the last party holds the labels, rather than the first.
        standardize: see `VerticalDataset`.
        unit_columns: how many neighbouring columns must stay together.
    """

    columns: tuple[str, ...]
    train: NDArray[np.float64]
    test: NDArray[np.float64]
    train_labels: Labels
    test_labels: Labels
    train_ids: NDArray[np.int64]
    label_names: tuple[str, ...]
    party_columns: tuple[int, ...]
    label_last: bool = False
    standardize: bool = True
    unit_columns: int = 1


def part(
    name: str, table: JointTable, default_parties: Sequence[str], parties: int | None
) -> VerticalDataset:
    """Part a table the default way, or into as many nearly equal blocks as asked for.

    Asking for the default number of parties gives the default parties.

    Raises:
        ConfigError: fewer than two parties, or more than there are columns (or units) to part.
        DataError: see `check`.
    """
    if parties is None or parties == len(default_parties):
        names, sizes = tuple(default_parties), table.party_columns
    else:
        units = block_sizes(len(table.columns) // table.unit_columns, parties)
        names = tuple(f"party{number}" for number in range(1, parties + 1))
        sizes = tuple(size * table.unit_columns for size in units)
    ends = np.cumsum([0, *sizes])
    dataset = VerticalDataset(
        name=name,
        parties=tuple(
            PartyTable(
                party,
                table.columns[start:end],
                np.ascontiguousarray(table.train[:, start:end]),
                np.ascontiguousarray(table.test[:, start:end]),
            )
            for party, start, end in zip(names, ends[:-1], ends[1:], strict=True)
        ),
        label_party=names[-1 if table.label_last else 0],
        train_labels=table.train_labels,
        test_labels=table.test_labels,
        classes=len(table.label_names),
        standardize=table.standardize,
        row_digests=row_digests(table.train_ids.tolist(), name),
        label_names=table.label_names,
    )
    check(dataset)
    return dataset


def block_sizes(units: int, parties: int) -> tuple[int, ...]:
    """Sizes of nearly equal blocks, at least two, the smaller first: 17 by 5 is 3, 3, 3, 4, 4."""
    if not 2 <= parties <= units:  # noqa: PLR2004
        raise ConfigError(f"parties: {parties}, expected 2 to {units} for this data set")
    size, larger = divmod(units, parties)
    return (size,) * (parties - larger) + (size + 1,) * larger


def rows_by(
    test: NDArray[np.bool_],
    values: NDArray[np.float64],
    labels: Labels,
    ids: NDArray[np.int64] | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64], Labels, Labels, NDArray[np.int64]]:
    """Rows, labels and training rows' ids of a `JointTable`; ids are row numbers if not given."""
    train_ids = np.flatnonzero(~test) if ids is None else ids[~test]
    return values[~test], values[test], labels[~test], labels[test], train_ids


def first_fifth(rows: int) -> NDArray[np.bool_]:
    """A mask of the test rows: the first fifth of `default_rng(0).permutation(rows)`."""
    test = np.zeros(rows, dtype=bool)
    test[np.random.default_rng(0).permutation(rows)[: rows // 5]] = True
    return test


def stratified_fifth(labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """A mask of the test rows: by class, the first fifth of a `default_rng(0)` permutation."""
    generator = np.random.default_rng(0)
    test = np.zeros(labels.size, dtype=bool)
    for label in np.unique(labels):
        rows = generator.permutation(np.flatnonzero(labels == label))
        test[rows[: round(rows.size / 5)]] = True
    return test
