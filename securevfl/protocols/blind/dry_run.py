"""A dry run of a blind job in floating point, where all columns lie in one place.

A real job shows no party anything before its end. In a simulation, benchmarks use the dry run to
find the number of rounds, and `train` checks in advance whether predictions would leave the range
of logistic residuals.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

import numpy as np

from securevfl.data.tables import VerticalDataset
from securevfl.models.sigmoid_series import LARGEST_PERIOD
from securevfl.protocols.blind.fixed_point import sigmoid_series
from securevfl.protocols.plan import Plan
from securevfl.protocols.vertical.local_part import LocalPart
from securevfl.sparse import Matrix

SPARE = 1.2


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


@dataclass(frozen=True)
class Beyond:
    """Predictions that would leave the range of logistic residuals.

    Attributes:
        party: the one whose part is largest.
        end: its largest part at the end.
        reach: the largest sum of all parts in any round.
        period: Λ of the job.
    """

    party: str
    end: float
    reach: float
    period: float

    @property
    def warning(self) -> str:
        """A sentence for people, with a remedy."""
        longer = 8 * ceil(2 * SPARE * self.reach / 8)
        cure = "clip columns that reach many deviations, or take their logarithms"
        if longer <= LARGEST_PERIOD:
            cure = f"set [exchange] period = {longer}, or {cure}"
        return (
            f"the job is likely to end without a model, after all its work: in clear predictions "
            f"of party {self.party!r} reach {self.end:.0f}, beyond half the period of "
            f"{self.period:.0f}; {cure}"
        )


def beyond_range(plan: Plan, dataset: VerticalDataset[Matrix]) -> Beyond | None:
    """What a dry run finds beyond half the period, if anything; None for affine losses."""
    series = sigmoid_series(plan) if plan.exchange.shares_parameters else None
    if series is None:
        return None
    ends, reach = [0.0], 0.0
    for parts in rounds_in_float(plan, dataset):
        predictions = [part.inputs @ part.model.weights for part in parts]
        ends = [float(np.max(np.abs(each))) for each in predictions]
        reach = max(reach, float(np.max(np.abs(np.sum(predictions, axis=0)))), *ends)
    end, period = max(ends), series.period
    if end <= period / 2:
        return None
    return Beyond(dataset.parties[ends.index(end)].name, end, reach, period)
