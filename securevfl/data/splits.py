"""Splitting one table's columns among parties, and its rows into training and test rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import Labels
from securevfl.data.tables import PartyTable, VerticalDataset, check, row_digests, rows_digest
from securevfl.errors import ConfigError


@dataclass(frozen=True, eq=False)
class JointTable:
    """A data set before its columns are split among parties.

    Attributes:
        columns: P names, the first party's columns first.
        values: training and test rows, shape (rows, P).
        labels: shape (rows,): classes 0..C-1, or real targets.
        test: shape (rows,): which rows are held out.
        label_names: one per class; empty for real targets.
        party_columns: number of columns of each default party.
        ids: shape (rows,), row numbers at the source; by default the rows' positions.
        label_last: the last party holds the labels, not the first.
        standardize: see `VerticalDataset`.
        unit_columns: number of neighbouring columns that must stay together.
    """

    columns: tuple[str, ...]
    values: NDArray[np.float64]
    labels: Labels
    test: NDArray[np.bool_]
    label_names: tuple[str, ...]
    party_columns: tuple[int, ...]
    ids: NDArray[np.int64] | None = None
    label_last: bool = False
    standardize: bool = True
    unit_columns: int = 1


def part(
    name: str, table: JointTable, default_parties: Sequence[str], parties: int | None
) -> VerticalDataset:
    """Split a table among its default parties, or into nearly equal blocks of columns.

    Raises:
        ConfigError: fewer than two parties, or more than there are columns (or units) to split.
        DataError: see `check`.
    """
    if parties is None or parties == len(default_parties):
        names, sizes = tuple(default_parties), table.party_columns
    else:
        units = block_sizes(len(table.columns) // table.unit_columns, parties)
        names = tuple(f"party{number}" for number in range(1, parties + 1))
        sizes = tuple(size * table.unit_columns for size in units)
    ends = np.cumsum([0, *sizes])
    train, test = np.flatnonzero(~table.test), np.flatnonzero(table.test)
    numbers = np.arange(len(table.test)) if table.ids is None else np.asarray(table.ids)
    digests = row_digests(numbers.tolist(), name)
    people = digests[train], digests[test]
    dataset = VerticalDataset(
        name=name,
        parties=tuple(
            PartyTable(
                party,
                table.columns[start:end],
                np.ascontiguousarray(table.values[train, start:end]),
                np.ascontiguousarray(table.values[test, start:end]),
                source=name,
                people=people,
                rows_digest=rows_digest(*people),
            )
            for party, (start, end) in zip(names, pairwise(ends), strict=True)
        ),
        label_party=names[-1 if table.label_last else 0],
        train_labels=table.labels[train],
        test_labels=table.labels[test],
        classes=len(table.label_names),
        standardize=table.standardize,
        row_digests=people[0],
        label_names=table.label_names,
    )
    check(dataset)
    return dataset


def block_sizes(units: int, parties: int) -> tuple[int, ...]:
    """Sizes of nearly equal blocks, the smaller first: 17 by 5 is 3, 3, 3, 4, 4."""
    if not 2 <= parties <= units:  # noqa: PLR2004
        raise ConfigError(f"parties: {parties}, expected 2 to {units} for this data set")
    size, larger = divmod(units, parties)
    return (size,) * (parties - larger) + (size + 1,) * larger


def last_rows(count: int, rows: int) -> NDArray[np.bool_]:
    """A mask of the last `count` of `rows` rows, which come from a test file of their own."""
    return np.arange(rows) >= rows - count


def first_fifth(rows: int) -> NDArray[np.bool_]:
    """A mask of the test rows: the first fifth of `default_rng(0).permutation(rows)`."""
    test = np.zeros(rows, dtype=bool)
    test[np.random.default_rng(0).permutation(rows)[: rows // 5]] = True
    return test


def stratified_fifth(labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """A mask of the test rows: per class, the first fifth of a `default_rng(0)` permutation."""
    generator = np.random.default_rng(0)
    test = np.zeros(labels.size, dtype=bool)
    for label in np.unique(labels):
        rows = generator.permutation(np.flatnonzero(labels == label))
        test[rows[: round(rows.size / 5)]] = True
    return test
