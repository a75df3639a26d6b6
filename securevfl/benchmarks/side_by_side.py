"""The columns of several parties as one X, which only a benchmark may make."""

from collections.abc import Sequence

import numpy as np

from securevfl.errors import ConfigError
from securevfl.sparse import Matrix, SparseRows, dense


def side_by_side(tables: Sequence[Matrix]) -> Matrix:
    """The columns of several X one after another: an array of arrays, sparse rows of sparse ones.

    Raises:
        ConfigError: some of each.
        ValueError: sparse rows that are standardized, or have a constant column.
    """
    rows = [table for table in tables if isinstance(table, SparseRows)]
    if not rows:
        return np.hstack([dense(table) for table in tables])
    if len(rows) < len(tables):
        raise ConfigError("sparse rows and arrays do not stand side by side")
    if any(each.shift is not None or each.constant for each in rows):
        raise ValueError("sparse rows stand side by side as they are stored")
    columns = sum(each.columns for each in rows)
    pointers = np.sum([each.pointers for each in rows], axis=0)
    narrow = columns <= np.iinfo(np.uint16).max + 1
    indices = np.empty(pointers[-1], np.uint16 if narrow else np.uint32)
    has_values = any(each.values is not None for each in rows)
    values = np.ones(pointers[-1]) if has_values else None
    before, first = np.zeros(len(pointers) - 1, np.int64), 0
    for each in rows:
        for part, block in each.blocks():
            begins = pointers[part.start : part.stop] + before[part]
            counts = np.diff(block.pointers)
            places = np.arange(block.nnz) + np.repeat(begins - block.pointers[:-1], counts)
            indices[places] = block.indices.astype(np.int64) + first
            if values is not None and block.values is not None:
                values[places] = block.values
            before[part] += counts
        first += each.columns
    return SparseRows(pointers, indices, values, columns)
