"""Under `gradient_clip` no party's θ⁰ tells of its rows; the promise end to end rests on it."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from securevfl.data.tables import VerticalDataset, some_rows
from securevfl.job import Job
from securevfl.models.local_model import LocalModel
from securevfl.training import Environment, train
from tests.jobs import breast_cancer

CLIPPED = {"gradient_clip": 1.0, "gradient_noise_multiplier": 1.0}
EXACT: dict[str, float] = {}


def starts(
    dataset: VerticalDataset, privacy: dict[str, float], **settings: object
) -> dict[str, NDArray[np.float64]]:
    """Every party's θ⁰ in a job under `dp`."""
    found: dict[str, NDArray[np.float64]] = {}

    def remembered(name: str, start: LocalModel) -> LocalModel:
        found[name] = start.weights.copy()
        return start

    job = Job.of(
        job={"rounds": 1, "batch_size": "full", "learning_rate": 0.1, "eval_every": 0, **settings},
        exchange={"scheme": "dp"},
        privacy={"noise_multiplier": 1.0, **privacy},
    )
    train(job, dataset, Environment(wrap_model=remembered))
    return found


def with_another_row(dataset: VerticalDataset, party: str) -> VerticalDataset:
    """The same data but for the first row of one party, 50 times as large."""
    tables = {table.name: table for table in dataset.parties}
    train_rows = tables[party].train.copy()
    train_rows[0] *= 50
    tables[party] = replace(tables[party], train=train_rows)
    return replace(dataset, parties=tuple(tables.values()))


@pytest.mark.parametrize("model", ["linear", "mlp"])
@pytest.mark.parametrize("standardize", [True, False])
def test_a_start_under_gradient_clip_depends_on_no_row_and_else_it_does(
    model: str, standardize: bool
) -> None:
    """An audit found it: a θ⁰ scaled by the rows' spread told a large record from a small one."""
    dataset = some_rows(breast_cancer(), 40)
    settings = {"model": model, "standardize": standardize}
    for party in (table.name for table in dataset.parties):
        other = with_another_row(dataset, party)
        one, same = starts(dataset, CLIPPED, **settings), starts(other, CLIPPED, **settings)
        for name, weights in one.items():
            np.testing.assert_allclose(same[name], weights, rtol=1e-12)
        # Known to be told: with exact gradients a start is scaled over the party's own rows.
        one, changed = starts(dataset, EXACT, **settings), starts(other, EXACT, **settings)
        assert not np.allclose(changed[party], one[party], rtol=1e-3)
