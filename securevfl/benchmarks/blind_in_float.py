"""A blind job without shares and fixed point: how good it is after every round.

The job itself shows nobody anything before its last round. A benchmark may put the parties' columns
side by side; no party does.
"""

import numpy as np

from securevfl.data.tables import VerticalDataset
from securevfl.job import Job
from securevfl.models.scores import auc
from securevfl.protocols.vertical.local_part import LocalPart
from securevfl.training import plan_for


def aucs_in_float(job: Job, dataset: VerticalDataset) -> list[float]:
    """Held-out AUC after each round of the steps that are planned ahead, with σ itself."""
    plan = plan_for(job, dataset)
    parts = [
        LocalPart(
            plan,
            table,
            np.random.default_rng([job.job.seed, number]),
            with_intercept=table.name == dataset.label_party,
        )
        for number, table in enumerate(dataset.parties)
    ]
    columns = sum(part.inputs.shape[1] for part in parts)
    steps = [plan.steps(part.model, part.inputs, columns) for part in parts]
    weights = [part.model.weights for part in parts]
    points = list(weights)
    found = []
    for index in range(plan.rounds):
        rows = plan.schedule.batch(index)
        batches = [part.inputs[rows] for part in parts]
        summed = np.sum([x @ point for x, point in zip(batches, points, strict=True)], axis=0)
        residuals = plan.loss.residuals(summed, dataset.train_labels[rows])
        for number, (part, batch) in enumerate(zip(parts, batches, strict=True)):
            planned = steps[number].planned(index, batch)
            part.model.weights = points[number]
            gradient = batch.T @ residuals / len(rows) + part.model.penalty_gradient(plan.l2)
            after = points[number] - planned.matrix @ gradient
            points[number] = after + planned.beta * (after - weights[number])
            weights[number] = after
        held_out = [part.held_out @ each for part, each in zip(parts, weights, strict=True)]
        found.append(auc(np.sum(held_out, axis=0), dataset.test_labels))
    return found
