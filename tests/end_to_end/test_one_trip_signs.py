"""What travels in clear beside one-trip replies: a power of two that no sign of X changes."""

from dataclasses import replace

import numpy as np
import pytest

from securevfl.data.sources import load
from securevfl.data.tables import VerticalDataset, some_rows
from securevfl.protocols.exchanges.encrypted import EncryptedStep
from tests.end_to_end.conftest import RunJob

ROUNDS = 5


def scales(run_job: RunJob, dataset: VerticalDataset) -> list[int]:
    result = run_job(
        dataset,
        {"scheme": "bfv", "round_trips": 1},
        rounds=ROUNDS,
        batch_size=16,
        learning_rate=0.3,
        start="zero",
        allow_label_leak=True,
        eval_every=0,
    )
    received = result.views[dataset.label_party].received(EncryptedStep)
    return [entry.message.scale for entry in received if isinstance(entry.message, EncryptedStep)]


@pytest.mark.parametrize("turned", ["all columns", "some columns"])
def test_turning_the_signs_of_columns_changes_no_scale(run_job: RunJob, turned: str) -> None:
    """From θ⁰ = 0 the runs mirror each other: A, and so all that may show, is the same."""
    dataset = some_rows(load("breast_cancer"), 48)
    (at,) = (i for i, t in enumerate(dataset.parties) if t.name != dataset.label_party)
    table = dataset.parties[at]
    signs = -np.ones(len(table.columns))
    if turned == "some columns":
        signs = np.random.default_rng(7).choice([-1.0, 1.0], len(table.columns))
    tables = list(dataset.parties)
    tables[at] = replace(table, train=table.train * signs, test=table.test * signs)
    seen = scales(run_job, dataset)
    assert len(seen) == ROUNDS - 1
    assert scales(run_job, replace(dataset, parties=tuple(tables))) == seen
