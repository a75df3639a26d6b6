"""Data sets of sparse rows beside the same ones as arrays."""

from dataclasses import replace

import numpy as np
from scipy.sparse import csr_array

from securevfl.data.tables import PartyTable, VerticalDataset
from securevfl.sparse import Matrix, SparseRows, index_type
from tests.made_data import dataset_of, labels_of


def sparse_rows(table: np.ndarray) -> SparseRows:
    """The cells that are not 0 of an array, without values where all of them are 1."""
    stored = csr_array(table)
    values = None if (stored.data == 1).all() else stored.data
    indices = stored.indices.astype(index_type(table.shape[1]))
    return SparseRows(stored.indptr.astype(np.int64), indices, values, table.shape[1])


def sparse(dataset: VerticalDataset) -> VerticalDataset[Matrix]:
    tables: list[PartyTable[Matrix]] = [
        PartyTable(t.name, t.columns, sparse_rows(t.train), sparse_rows(t.test))
        for t in dataset.parties
    ]
    whole: VerticalDataset[Matrix] = dataset
    return replace(whole, parties=tuple(tables))


def few_ones(
    *, rows: int = 60, columns: int = 12, parties: int = 3, classes: int = 2, binary: bool = True
) -> VerticalDataset:
    """Tables of few cells that are not 0, standardized; some columns have none."""
    generator = np.random.default_rng(3)
    blocks = []
    for _ in range(parties):
        full = np.ones((rows, columns)) if binary else generator.gamma(2.0, size=(rows, columns))
        blocks.append(np.where(generator.random((rows, columns)) < 0.2, full, 0.0))
    blocks[0][:, 4] = 0.0
    labels = labels_of(generator, blocks, classes)
    return dataset_of(blocks, labels, standardize=True)
