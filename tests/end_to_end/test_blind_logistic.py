"""Logistic loss in shares: beside the same steps in clear, and where predictions leave range."""

from typing import Any

import numpy as np
import pytest

from securevfl.data.tables import VerticalDataset
from securevfl.errors import RangeExceeded
from securevfl.job import Job
from securevfl.training import TrainingResult, train
from tests.end_to_end.conftest import all_weights
from tests.made_data import blocks_of, dataset_of, labels_of


def made(seed: int, *, parties: int = 2, rows: int = 200) -> VerticalDataset:
    generator = np.random.default_rng(seed)
    blocks = blocks_of(generator, parties, rows=rows)
    return dataset_of(blocks, labels_of(generator, blocks))


def run(
    dataset: VerticalDataset,
    scheme: str,
    *,
    period: int | None = None,
    **job: Any,  # noqa: ANN401
) -> TrainingResult:
    settings = {"start": "zero", "eval_every": 0, "loss": "logistic", **job}
    return train(Job.of(job=settings, exchange={"scheme": scheme, "period": period}), dataset)


@pytest.mark.parametrize(
    ("parties", "more"),
    [
        (3, {"local_steps": 5, "batch_size": 40}),
        (2, {"local_steps": 1, "acceleration": "nesterov"}),
        (2, {"local_steps": 1, "acceleration": "nesterov", "period": 90}),
    ],
)
def test_steps_are_nearly_those_in_clear(parties: int, more: dict[str, Any]) -> None:
    dataset, job = made(1, parties=parties), {"learning_rate": 0.2, "rounds": 8, **more}
    clear = all_weights(run(dataset, "plain", **{**job, "period": None}))
    found = all_weights(run(dataset, "blind", **job))
    # The series is within 0.0045 of σ where predictions are.
    assert np.abs(found - clear).max() < 0.012
    assert np.abs(clear).max() > 0.3


def test_predictions_beyond_half_a_period_fail_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(2)
    features = [generator.standard_t(2, (120, 3)) for _ in range(2)]
    labels = (np.hstack(features).sum(axis=1) > 0).astype(np.int64)
    dataset = dataset_of(features, labels)
    with pytest.raises(RangeExceeded, match=r"set \[exchange\] period = 48"):
        run(dataset, "blind", period=24, rounds=25, l2=1e-4)
    run(dataset, "blind", period=100, rounds=25, l2=1e-4)
    # Where there is no longer one, none is named.
    monkeypatch.setattr("securevfl.protocols.blind.rounds.LARGEST_PERIOD", 24)
    with pytest.raises(RangeExceeded, match="asked for: take fewer rounds"):
        run(dataset, "blind", period=24, rounds=25, l2=1e-4)
