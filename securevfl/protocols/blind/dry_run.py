"""A dry run of a blind job in floating point, where all columns lie in one place.

A real job shows no party anything before its end. In a simulation, benchmarks use the dry run to
find the number of rounds.
"""

from collections.abc import Iterator

import numpy as np

from securevfl.data.tables import VerticalDataset
from securevfl.protocols.plan import Plan
from securevfl.protocols.vertical.local_part import LocalPart
from securevfl.sparse import Matrix


def rounds_in_float(plan: Plan, dataset: VerticalDataset[Matrix]) -> Iterator[list[LocalPart]]:
    """Take the steps of a blind job; yields all parties' parts after every round."""
    parts = [
        LocalPart(
            plan,
            table,
            np.random.default_rng([plan.job.job.seed, number]),
            with_intercept=table.name == dataset.label_party,
        )
        for number, table in enumerate(dataset.parties)
    ]
    columns = sum(part.inputs.shape[1] for part in parts)
    steps = [plan.steps(part.model, part.inputs, columns) for part in parts]
    weights = [part.model.weights for part in parts]
    points = list(weights)
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
            part.model.weights = weights[number] = after
        yield parts
