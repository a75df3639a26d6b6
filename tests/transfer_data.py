"""A small task of transfer learning, as tests ask for it."""

from typing import Any

import numpy as np

from securevfl.data.tables import OwnRows, PartyTable, VerticalDataset, row_digests

GAMMA, UNITS = 0.05, 5
FTL: dict[str, Any] = {
    **{"algorithm": "ftl", "rounds": 4, "learning_rate": 0.7, "batch_size": 20},
    "ftl": {"units": UNITS, "alignment": GAMMA},
}


def made(rows: int = 40, own: int = 17, test: int = 12) -> VerticalDataset:
    """Two parties with few rows in common, and rows of the label party beside."""
    generator = np.random.default_rng(41)
    labels = generator.integers(0, 2, rows + own + test)
    signs = 2.0 * labels - 1
    first, second = (
        generator.standard_normal((len(labels), columns)) + 0.6 * signs[:, None]
        for columns in (4, 3)
    )
    end = rows + own
    return VerticalDataset(
        name="made",
        parties=(
            PartyTable("shop", ("a", "b", "c"), second[:rows], second[end:]),
            PartyTable("bank", ("d", "e", "f", "g"), first[:rows], first[end:]),
        ),
        label_party="bank",
        train_labels=labels[:rows],
        test_labels=labels[end:],
        classes=2,
        standardize=True,
        row_digests=row_digests(range(rows)),
        own_rows=OwnRows(first[rows:end], labels[rows:end]),
    )
