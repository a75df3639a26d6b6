"""Short jobs under the `dp` exchange."""

from collections.abc import Mapping
from typing import Any

from securevfl.data.tables import VerticalDataset
from securevfl.job import Job
from securevfl.training import Environment, TrainingResult, train

FEW: dict[str, Any] = {
    "rounds": 6,
    "batch_size": 114,
    "learning_rate": 0.1,
    "local_steps": 3,
    "eval_every": 0,
}


def noisy(
    dataset: VerticalDataset,
    privacy: Mapping[str, object],
    environment: Environment | None = None,
    /,
    **settings: object,
) -> TrainingResult:
    job = Job.of(job={**FEW, **settings}, exchange={"scheme": "dp"}, privacy=privacy)
    return train(job, dataset, environment or Environment(record_views=True))
