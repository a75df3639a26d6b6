"""What L1 jobs of tests have in common: a job, its objective, and the conditions of optimality."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.data.tables import VerticalDataset
from securevfl.job import Job
from securevfl.models.losses import loss_for
from securevfl.training import Environment, TrainingResult, train

FloatArray = NDArray[np.float64]


def run(
    dataset: VerticalDataset,
    exchange: dict[str, Any] | None = None,
    dbcd: dict[str, Any] | None = None,
    privacy: dict[str, Any] | None = None,
    environment: Environment | None = None,
    **settings: Any,  # noqa: ANN401
) -> TrainingResult:
    """A job of dbcd to 1e-7 of the least objective, unless it says other."""
    job = {"algorithm": "dbcd", "rounds": 300, "tolerance": 1e-7, "eval_every": 0, **settings}
    sections = {"job": job, "exchange": exchange or {}, "privacy": privacy or {}}
    own = {"dbcd": dbcd} if dbcd else {}
    return train(Job.of(**sections, **own), dataset, environment)


def columns_of(dataset: VerticalDataset) -> FloatArray:
    """All parties' columns, scaled as the parties scale them."""
    blocks = []
    for table in dataset.parties:
        block = table.train
        if dataset.standardize:
            scale = block.std(axis=0)
            block = (block - block.mean(axis=0)) / np.where(scale > 0, scale, 1)
        blocks.append(block)
    return np.hstack(blocks)


def coefficients(result: TrainingResult) -> FloatArray:
    """All parties' weights but the intercept's, in the order of the columns."""
    parts = [outcome.model for outcome in result.outcomes.values()]
    return np.concatenate([part.weights[: len(part.header.columns), 0] for part in parts])


def intercept(result: TrainingResult) -> float:
    """The label party's, 0 where there is none."""
    part = result.outcomes[result.plan.facts.label_party].model
    return float(part.weights[-1, 0]) if part.header.intercept else 0.0


def objective(
    dataset: VerticalDataset, weights: FloatArray, constant: float, *, loss: str, l1: float
) -> float:
    """F at some weights."""
    predictions = columns_of(dataset) @ weights[:, None] + constant
    value = loss_for(loss, 2).value(predictions, dataset.train_labels)
    return value + l1 * float(np.abs(weights).sum())


def objective_of(result: TrainingResult, dataset: VerticalDataset) -> float:
    """F of a job at its end."""
    settings = result.job.job
    weights, constant = coefficients(result), intercept(result)
    return objective(dataset, weights, constant, loss=settings.loss, l1=settings.l1)


def slopes(result: TrainingResult, dataset: VerticalDataset) -> FloatArray:
    """The gradient of the mean loss at a job's end, the intercept's last."""
    inputs = np.hstack([columns_of(dataset), np.ones((len(dataset.train_labels), 1))])
    predictions = inputs @ np.append(coefficients(result), intercept(result))[:, None]
    loss = loss_for(result.job.job.loss, 2)
    gradient: FloatArray = (inputs.T @ loss.residuals(predictions, dataset.train_labels))[:, 0]
    return gradient / len(inputs)
