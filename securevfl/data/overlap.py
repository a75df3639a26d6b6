"""Which training rows two parties both hold, where the label party has more of its own."""

import hashlib
from dataclasses import replace

import numpy as np

from securevfl.data.tables import OwnRows, VerticalDataset
from securevfl.errors import ConfigError
from securevfl.sparse import SameRows, require_dense


def overlapping(
    dataset: VerticalDataset[SameRows], overlap: float, seed: int
) -> VerticalDataset[SameRows]:
    """Leave some training rows to all parties, and the others to the label party alone.

    Rows are drawn by who they are and by the seed, so that every party finds the same by itself.

    Args:
        dataset: Of rows that all hold.
        overlap: How many stay with all: a number of at least 2, or a part of them up to 1.0.
        seed: Of the draw.

    Raises:
        ConfigError: More rows than there are, or fewer than two, or sparse ones.
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
    return replace(
        dataset,
        parties=tuple(replace(each, train=each.train[both]) for each in dataset.parties),
        train_labels=dataset.train_labels[both],
        row_digests=dataset.row_digests[both],
        own_rows=own,
    )
