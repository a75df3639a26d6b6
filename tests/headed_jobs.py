"""Small jobs with a head over representations."""

from typing import Any

import numpy as np

from securevfl.data.tables import VerticalDataset
from securevfl.job import Job
from securevfl.training import Environment, TrainingResult, train
from tests.made_data import blocks_of, dataset_of, labels_of

WIDTH, LINE = 3, 5
STEPS: dict[str, Any] = {
    "head": "logistic",
    "representation": WIDTH,
    "rounds": 6,
    "batch_size": 32,
    "learning_rate": 0.5,
    "schedule": "inverse-sqrt",
    "l2": 0.01,
    "proximal": 0.1,
    "seed": 4,
}
LOCAL: dict[str, dict[str, Any]] = {
    "mlp": {"model": "mlp", "hidden": [4]},
    "cnn": {"model": "cnn", "channels": [2, 3], "image_line": LINE},
    "linear": {"model": "linear"},
}


def made(parties: int, *, classes: int = 2, columns: int = 6 * LINE) -> VerticalDataset:
    generator = np.random.default_rng([parties, classes])
    blocks = blocks_of(generator, parties, rows=96, columns=columns)
    return dataset_of(blocks, labels_of(generator, blocks, classes))


def run(
    dataset: VerticalDataset,
    environment: Environment | None = None,
    **sections: Any,  # noqa: ANN401
) -> TrainingResult:
    job = Job.of(**{**sections, "job": {**STEPS, **sections.get("job", {})}})
    return train(job, dataset, environment or Environment(record_views=True))
