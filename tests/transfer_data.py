"""A small task of transfer learning, as tests ask for it."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from securevfl.data.tables import OwnRows, PartyTable, VerticalDataset, row_digests
from securevfl.job import Job
from securevfl.models.local_model import LocalModel

GAMMA, UNITS = 0.05, 5
Point = dict[str, torch.Tensor]


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


def job_of(
    ftl: dict[str, Any] | None = None,
    *,
    exchange: dict[str, Any] | None = None,
    privacy: dict[str, Any] | None = None,
    **settings: Any,  # noqa: ANN401
) -> Job:
    job = {"algorithm": "ftl", "rounds": 4, "learning_rate": 0.7, "batch_size": 20, **settings}
    own = {"units": UNITS, "alignment": GAMMA, **(ftl or {})}
    return Job.of(job=job, ftl=own, exchange=exchange or {}, privacy=privacy or {})


@dataclass
class Starts:
    """Remembers θ⁰ of every party."""

    weights: Point = field(default_factory=dict)

    def __call__(self, name: str, model: LocalModel) -> LocalModel:
        self.weights[name] = torch.tensor(model.weights)
        return model
