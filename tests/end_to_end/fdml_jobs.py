"""A small job of FDML."""

from typing import Any

from securevfl.data.tables import VerticalDataset
from securevfl.job import Job
from securevfl.training import Environment, TrainingResult, train

FEW: dict[str, Any] = {
    "algorithm": "fdml",
    "rounds": 40,
    "batch_size": 64,
    "learning_rate": 0.5,
    "sampling": "shuffle",
    "start": "zero",
}


def run(
    dataset: VerticalDataset,
    settings: dict[str, Any] | None = None,
    privacy: dict[str, Any] | None = None,
    fdml: dict[str, Any] | None = None,
    **environment: Any,  # noqa: ANN401
) -> TrainingResult:
    sections: dict[str, Any] = {"job": {**FEW, **(settings or {})}, "fdml": fdml or {}}
    if privacy is not None:
        sections |= {"exchange": {"scheme": "dp"}, "privacy": privacy}
    environment = {"record_views": True, **environment}
    return train(Job.of(**sections), dataset, Environment(**environment))
