"""How good a blind job is after every round, which it shows nobody before its last."""

import numpy as np

from securevfl.data.tables import VerticalDataset
from securevfl.job import Job
from securevfl.models.scores import auc
from securevfl.protocols.blind.dry_run import rounds_in_float
from securevfl.training import plan_for


def aucs_in_float(job: Job, dataset: VerticalDataset) -> list[float]:
    """Held-out AUC after each round of the steps that are planned ahead, with σ itself."""
    return [
        auc(
            np.sum([part.held_out @ part.model.weights for part in parts], axis=0),
            dataset.test_labels,
        )
        for parts in rounds_in_float(plan_for(job, dataset), dataset)
    ]
