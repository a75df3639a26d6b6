"""The values of Q that a benchmark compares, and the η0 of each.

η0 is chosen on a validation fifth of the training rows, under `plain`: encrypted runs equal their
plain twin, so what is best in clear is best under encryption. Exact steps have none.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from securevfl.arrays import IntArray
from securevfl.benchmarks.progress import Report, silent
from securevfl.data.tables import PartyTable, VerticalDataset
from securevfl.errors import TrainingDiverged
from securevfl.job import Job
from securevfl.reports.rows import DERIVED
from securevfl.training import plan_for, train

LocalSteps = int | Literal["exact"]

GRID = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


@dataclass(frozen=True)
class Tuned:
    """A learning rate with how it was chosen.

    Attributes:
        learning_rate: η0; None where steps follow from curvature.
        how: for reports.
    """

    learning_rate: float | None
    how: str


def step_settings(
    local_steps: LocalSteps, batch_size: int | Literal["full"], learning_rate: float | None
) -> dict[str, object]:
    """What `[job]` says of steps at one Q: exact ones take all rows and the job's own defaults."""
    if local_steps == "exact":
        return {"local_steps": "exact", "batch_size": "full", "learning_rate": "auto"}
    return {
        "local_steps": local_steps,
        "batch_size": batch_size,
        "learning_rate": GRID[0] if learning_rate is None else learning_rate,
    }


def at_steps(job: Job, dataset: VerticalDataset, local_steps: LocalSteps) -> Job:
    """A job file's job at some Q, its batches those that it takes under its own exchange.

    Exact steps in place of steps of a given size take all rows.

    Raises:
        ConfigError: a job that does not fit the data.
    """
    if local_steps == "exact" and job.job.learning_rate != "auto":
        job = job.with_settings(
            **step_settings("exact", "full", None), schedule=None, divide_by_sqrt_parties=False
        )
    job = job.with_settings(local_steps=local_steps)
    return job.with_settings(batch_size=plan_for(job, dataset).batch_size)


def chosen(
    job: Job, dataset: VerticalDataset, given: float | None, report: Report = silent
) -> Tuned:
    """The learning rate for a job: none where it is derived, else the one given, else a tuned one.

    Raises:
        TrainingDiverged: at every learning rate.
    """
    if job.job.learning_rate == "auto":
        return Tuned(None, DERIVED)
    if given is not None:
        return Tuned(given, "given")
    return tune(job, dataset, report=report)


def validation_split(dataset: VerticalDataset) -> VerticalDataset:
    """The training rows alone: four fifths to train on, one fifth to score on.

    Which rows are held out depends on the data set only. The test rows are not touched.
    """
    rows = len(dataset.train_labels)
    seed = int.from_bytes(hashlib.sha256(dataset.fingerprint.encode()).digest()[:8], "big")
    order = np.random.default_rng(seed).permutation(rows)
    held_out, kept = np.sort(order[: rows // 5]), np.sort(order[rows // 5 :])
    return scored_on(dataset, kept, held_out)


def scored_on(dataset: VerticalDataset, kept: IntArray, held_out: IntArray) -> VerticalDataset:
    """Some of the training rows to train on and others to score on, each by number."""
    parties = tuple(
        PartyTable(party.name, party.columns, party.train[kept], party.train[held_out])
        for party in dataset.parties
    )
    return replace(
        dataset,
        parties=parties,
        train_labels=dataset.train_labels[kept],
        test_labels=dataset.train_labels[held_out],
        row_digests=dataset.row_digests[kept],
    )


def tune(
    job: Job,
    dataset: VerticalDataset,
    grid: Sequence[float] = GRID,
    report: Report = silent,
) -> Tuned:
    """The η0 of the grid that reaches the job's target in the fewest rounds on validation rows.

    Where none reaches it, the one with the best AUC on the way.

    Args:
        job: with the target.
        dataset: the data.
        grid: values of η0.
        report: told what runs now.

    Raises:
        TrainingDiverged: at every learning rate.
    """
    held_out = validation_split(dataset)
    plain = job.without_protection
    local_steps = plan_for(plain.with_settings(learning_rate=grid[0]), held_out).local_steps
    outcomes = []
    for done, learning_rate in enumerate(grid):
        report(f"tuning the learning rate at Q = {local_steps}", done, len(grid))
        try:
            result = train(plain.with_settings(learning_rate=learning_rate), held_out)
        except TrainingDiverged:
            continue
        if any(each.selected.lost is not None for each in result.outcomes.values()):
            continue
        best = max(score.auc for score in result.scores)
        reached = job.job.target_auc is not None and best >= job.job.target_auc
        outcomes.append((not reached, result.rounds if reached else 0, -best, learning_rate))
    if not outcomes:
        raise TrainingDiverged(f"training diverged at every learning rate of {tuple(grid)}")
    learning_rate = min(outcomes)[-1]
    how = f"tuned at Q = {local_steps} on a validation fifth ({min(grid):g} to {max(grid):g})"
    return Tuned(learning_rate, how)
