"""Vertical data sets from arrays."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from securevfl.data.tables import PartyTable, VerticalDataset, row_digests

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def dataset_of(
    blocks: Sequence[FloatArray], labels: IntArray, *, standardize: bool = False
) -> VerticalDataset:
    """One party a block, the first with the labels; the test rows are the training rows."""
    parties = tuple(
        PartyTable(f"party{k}", tuple(f"c{i}" for i in range(block.shape[1])), block, block)
        for k, block in enumerate(blocks)
    )
    ids = row_digests(range(len(labels)))
    classes = int(labels.max()) + 1
    return VerticalDataset(
        "made", parties, "party0", labels, labels, classes, standardize=standardize, row_digests=ids
    )


def blocks_of(
    generator: np.random.Generator, parties: int, *, rows: int = 120, columns: int = 4
) -> list[FloatArray]:
    """Columns that have something to do with one another, of mean 0 and deviation 1."""
    common = generator.standard_normal((rows, 1))
    blocks = [generator.standard_normal((rows, columns)) + common for _ in range(parties)]
    return [(block - block.mean(axis=0)) / block.std(axis=0) for block in blocks]


def labels_of(
    generator: np.random.Generator, blocks: Sequence[FloatArray], classes: int = 2
) -> IntArray:
    """Classes that the columns say something about, and not all."""
    inputs = np.hstack(blocks)
    scores = inputs @ generator.standard_normal((inputs.shape[1], classes))
    scores = scores / scores.std() + generator.gumbel(size=scores.shape)
    labels: IntArray = np.argmax(scores, axis=1).astype(np.int64)
    return labels


def made(
    seed: int | Sequence[int],
    parties: int = 2,
    *,
    rows: int = 120,
    columns: int = 4,
    classes: int = 2,
    standardize: bool = False,
) -> VerticalDataset:
    generator = np.random.default_rng(seed)
    blocks = blocks_of(generator, parties, rows=rows, columns=columns)
    return dataset_of(blocks, labels_of(generator, blocks, classes), standardize=standardize)
