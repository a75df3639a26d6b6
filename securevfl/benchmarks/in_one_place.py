"""The same model trained in one place, on all columns or on one party's: what to compare with.

The steps are those of fdml with τ = 0, from the same θ⁰ over the same batches, without channel,
codec, server or ledger. A benchmark may put the parties' columns side by side; no party does.
"""

import time
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from securevfl.data.tables import VerticalDataset
from securevfl.job import Job
from securevfl.models.scores import auc
from securevfl.protocols.vertical.local_part import LocalPart
from securevfl.training import plan_for


@dataclass(frozen=True)
class InOnePlace:
    """A model trained without any protocol.

    Attributes:
        auc: of the held-out rows.
        training_s: seconds of all steps on this machine's clock.
    """

    auc: float
    training_s: float


def train_in_one_place(
    job: Job, dataset: VerticalDataset, parties: Collection[str] | None = None
) -> InOnePlace:
    """Train the sum of local models by minibatch SGD.

    Args:
        job: rounds, batches, step sizes, local models and seed.
        dataset: the data.
        parties: whose columns; all by default. The constant column is the label party's, and of
            whoever trains alone.
    """
    settings, plan = job.job, plan_for(job, dataset)
    loss, schedule = plan.loss, plan.schedule
    parts = [
        LocalPart(
            plan,
            table,
            np.random.default_rng([settings.seed, number]),
            with_intercept=table.name == dataset.label_party or parties == [table.name],
        )
        for number, table in enumerate(dataset.parties)
        if parties is None or table.name in parties
    ]
    started = time.perf_counter()
    for index in range(settings.rounds):
        batch = schedule.batch(index)
        linearized = [part.model.linearize(part.inputs[batch]) for part in parts]
        total = sum(predictions for predictions, _ in linearized)
        residuals = loss.residuals(np.asarray(total), dataset.train_labels[batch])
        for part, (_, pull_back) in zip(parts, linearized, strict=True):
            gradient = pull_back(residuals) / len(batch) + part.model.penalty_gradient(plan.l2)
            part.model.weights = part.model.weights - plan.step_size.at(index) * gradient
    seconds = time.perf_counter() - started
    held_out = np.sum([part.model.predict(part.held_out) for part in parts], axis=0)
    return InOnePlace(auc(held_out, dataset.test_labels), seconds)
