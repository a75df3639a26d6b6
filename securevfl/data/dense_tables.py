"""Sparse tables as arrays, for what knows no others: audits, measurements, scoring."""

from dataclasses import replace
from typing import cast

from securevfl.arrays import FloatArray
from securevfl.data.tables import VerticalDataset
from securevfl.errors import ConfigError
from securevfl.sparse import Matrix, SparseRows

MOST_CELLS = 1 << 27
"""Of a table as an array, which takes 1 GiB."""


def as_array(rows: Matrix, whose: str) -> FloatArray:
    """Rows as an array of shape (rows, P).

    Args:
        rows: sparse or not.
        whose: for messages.

    Raises:
        ConfigError: it would take more than 1 GiB.
    """
    if not isinstance(rows, SparseRows):
        return rows
    if (cells := len(rows) * rows.columns) > MOST_CELLS:
        raise ConfigError(
            f"{whose}: {len(rows)} rows of {rows.columns} sparse columns would take "
            f"{cells * 8 / 1e9:.3g} GB as an array, which this needs; convert fewer rows"
        )
    return rows.toarray()


def as_arrays(dataset: VerticalDataset[Matrix]) -> VerticalDataset:
    """The same rows as arrays.

    Raises:
        ConfigError: a party's would take more than 1 GiB.
    """
    parties = tuple(
        replace(
            party,
            train=as_array(party.train, f"party {party.name!r}"),
            test=as_array(party.test, f"party {party.name!r}, held-out rows"),
        )
        for party in dataset.parties
    )
    return cast("VerticalDataset", replace(dataset, parties=parties))
