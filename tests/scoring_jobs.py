"""Small trained models, and the rows that they scored in training."""

from pathlib import Path
from typing import Any

from securevfl.arrays import FloatArray
from securevfl.data.tables import VerticalDataset
from securevfl.job import Job
from securevfl.models.storage import SavedModel
from securevfl.scoring.running import Scored, score, scoring_plan
from securevfl.training import Environment, TrainingResult, train
from tests.jobs import SmallKeys
from tests.made_data import made


def trained(
    parties: int = 2,
    *,
    classes: int = 2,
    guard: Path | None = None,
    **sections: Any,  # noqa: ANN401
) -> tuple[TrainingResult, VerticalDataset]:
    dataset = made(
        [parties, classes], parties, rows=80, columns=3, classes=classes, standardize=True
    )
    job = Job.of(**{**sections, "job": {"rounds": 3, **sections.get("job", {})}})
    return train(job, dataset, Environment(keys=SmallKeys(), guard_directory=guard)), dataset


def parts_of(result: TrainingResult) -> dict[str, SavedModel]:
    return {name: outcome.model for name, outcome in result.outcomes.items()}


def features_of(dataset: VerticalDataset) -> dict[str, FloatArray]:
    return {table.name: table.test for table in dataset.parties}


def scored(
    result: TrainingResult,
    dataset: VerticalDataset,
    **changes: Any,  # noqa: ANN401
) -> Scored:
    parts = changes.pop("parts", None) or parts_of(result)
    features = changes.pop("features", None) or features_of(dataset)
    job = changes.pop("job", result.job)
    ids = tuple(map(str, range(len(next(iter(features.values()))))))
    return score(scoring_plan(job, parts), parts, features, ids, **changes)
