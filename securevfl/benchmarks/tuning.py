"""Choosing η0 on a validation fifth of the training rows, under `plain`.

Encrypted runs equal their plain twin, so what is best in clear is best under encryption.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from securevfl.benchmarks.progress import Report, silent
from securevfl.data.tables import PartyTable, VerticalDataset
from securevfl.errors import TrainingDiverged
from securevfl.job import Job
from securevfl.protocols.catalogue import algorithm_of
from securevfl.training import train

GRID = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


@dataclass(frozen=True)
class Tuned:
    """A learning rate with how it was chosen.

    Attributes:
        learning_rate: η0.
        how: for reports.
        validation_rounds: rounds to the target on the validation rows; None if never reached.
    """

    learning_rate: float
    how: str
    validation_rounds: int | None


def validation_split(dataset: VerticalDataset) -> VerticalDataset:
    """The training rows alone: four fifths to train on, one fifth to score on.

    Which rows are held out depends on the data set only. The test rows are not touched.
    """
    rows = len(dataset.train_labels)
    seed = int.from_bytes(hashlib.sha256(dataset.fingerprint.encode()).digest()[:8], "big")
    order = np.random.default_rng(seed).permutation(rows)
    held_out, kept = np.sort(order[: rows // 5]), np.sort(order[rows // 5 :])
    parties = tuple(
        PartyTable(party.name, party.columns, party.train[kept], party.train[held_out])
        for party in dataset.parties
    )
    return replace(
        dataset,
        parties=parties,
        train_labels=dataset.train_labels[kept],
        test_labels=dataset.train_labels[held_out],
        fingerprint=hashlib.sha256(f"{dataset.fingerprint} tuning".encode()).hexdigest(),
    )


def tune(
    job: Job, dataset: VerticalDataset, grid: Sequence[float] = GRID, report: Report = silent
) -> Tuned:
    """The η0 of the grid that reaches the job's target in the fewest rounds on validation rows.

    Where none reaches it, the one with the best AUC on the way.

    Raises:
        TrainingDiverged: at every learning rate.
    """
    held_out = validation_split(dataset)
    local_steps = 1 if algorithm_of(job).one_step else job.job.local_steps
    plain = job.without_protection
    outcomes = []
    for done, learning_rate in enumerate(grid):
        report(f"tuning the learning rate at Q = {local_steps}", done, len(grid))
        try:
            result = train(plain.with_settings(learning_rate=learning_rate), held_out)
        except TrainingDiverged:
            continue
        best = max(score.auc for score in result.scores)
        reached = job.job.target_auc is not None and best >= job.job.target_auc
        rounds = result.rounds if reached else None
        outcomes.append((rounds is None, rounds or 0, -best, learning_rate, rounds))
    if not outcomes:
        raise TrainingDiverged(f"training diverged at every learning rate of {tuple(grid)}")
    *_, learning_rate, rounds = min(outcomes)
    how = f"tuned at Q = {local_steps} on a validation fifth ({min(grid):g} to {max(grid):g})"
    return Tuned(learning_rate, how, rounds)
