"""Rounds to a target of networks with a common head (Table 1, MNIST-CNN, of Liu et al. 2019).

Each party's network gives a representation, the label party's head weighs them all. Held-out rows
are scored after every round, only some of them where scoring would take longer than training.
"""

import statistics
from collections.abc import Iterator

from securevfl.benchmarks.joint import score_in_one_place
from securevfl.benchmarks.progress import Report, silent
from securevfl.benchmarks.settings.networks import NetworksSettings
from securevfl.benchmarks.tradeoff import rounds_to
from securevfl.benchmarks.tuning import Tuned, tune
from securevfl.data.tables import VerticalDataset, some_test_rows
from securevfl.errors import ConfigError
from securevfl.job import Job
from securevfl.protocols import catalogue
from securevfl.reports.benchmarks import NetworksRow, NetworksRun
from securevfl.training import TrainingResult, train

PAPER = {
    ("fedsgd", 1, 0.997): 46,
    ("fedbcd-p", 3, 0.997): 16,
    ("fedbcd-p", 5, 0.997): 8,
    ("fedbcd-s", 1, 0.997): 48,
    ("fedbcd-s", 3, 0.997): 15,
    ("fedbcd-s", 5, 0.997): 9,
}
"""Rounds to an AUC of 99.7 % on a binary task of MNIST halves that the paper does not name."""


def networks(
    settings: NetworksSettings, dataset: VerticalDataset, report: Report = silent
) -> Iterator[NetworksRow]:
    """Train every combination; yields rows as they are done.

    Raises:
        ConfigError: steps that are no algorithm with a number.
    """
    chosen = [_algorithm(text) for text in settings.steps]
    _, linear_auc = score_in_one_place(dataset)
    for algorithm, local_steps in chosen:
        report(f"{algorithm}, Q = {local_steps}")
        job = _job(settings, algorithm, local_steps)
        if len(settings.learning_rate) == 1:
            tuned = Tuned(settings.learning_rate[0], "given", None)
        else:
            grid, rows = settings.learning_rate, settings.scored_rows
            tuned = tune(job, dataset, grid, report, scored_rows=rows)
        yield from _rows(settings, dataset, job, tuned, linear_auc)


def _algorithm(text: str) -> tuple[str, int]:
    name, _, steps = text.partition(":")
    catalogue.require(name, catalogue.ALGORITHMS, "algorithm")
    if not (steps or "1").isdecimal():
        raise ConfigError(f"--steps = {text!r}: expected an algorithm, or one with Q: fedbcd-p:5")
    return name, int(steps or 1)


def _job(settings: NetworksSettings, algorithm: str, local_steps: int) -> Job:
    image = {"channels": settings.channels, "image_width": settings.image_width}
    return Job.of(
        job={
            "name": "networks",
            "head": "logistic",
            "representation": settings.representation,
            "model": settings.model,
            **(image if settings.model == "cnn" else {}),
            "precision": "double" if settings.model == "linear" else settings.precision,
            "algorithm": algorithm,
            "local_steps": local_steps,
            "rounds": settings.max_rounds,
            "batch_size": settings.batch_size,
            "learning_rate": settings.learning_rate[0],
            "schedule": "inverse-sqrt",
            "target_auc": max(settings.target_aucs),
            "eval_every": 1,
            "seed": settings.seed,
        }
    )


def _rows(
    settings: NetworksSettings, dataset: VerticalDataset, job: Job, tuned: Tuned, linear_auc: float
) -> Iterator[NetworksRow]:
    """One a target, from the same runs."""
    scored = some_test_rows(dataset, settings.scored_rows)
    seeds = range(settings.seed, settings.seed + settings.repeats)
    results = [
        train(job.with_settings(learning_rate=tuned.learning_rate, seed=seed), scored)
        for seed in seeds
    ]
    algorithm, local_steps = job.job.algorithm, job.job.local_steps
    assert isinstance(local_steps, int)  # noqa: S101
    papers = settings.model == "cnn" and dataset.name.startswith("mnist")
    for target in settings.target_aucs:
        runs = [_run(result, seed, target) for result, seed in zip(results, seeds, strict=True)]
        yield {
            "dataset": dataset.name,
            "model": settings.model,
            "algorithm": algorithm,
            "local_steps": local_steps,
            "parties": len(dataset.parties),
            "target_auc": target,
            "reached_target": all(run["reached"] for run in runs),
            "rounds": statistics.median(run["rounds"] for run in runs),
            "most_rounds": max(run["rounds"] for run in runs),
            "paper_rounds": PAPER.get((algorithm, local_steps, target)) if papers else None,
            "best_auc": statistics.median(max(run["aucs"]) for run in runs),
            "linear_auc": linear_auc,
            "scored_rows": len(scored.test_labels),
            "learning_rate": tuned.learning_rate,
            "learning_rate_chosen": tuned.how,
            "wall_s_per_round": statistics.median(each.wall_s / each.rounds for each in results),
            "repeats": len(runs),
            "runs": runs,
        }


def _run(result: TrainingResult, seed: int, target: float) -> NetworksRun:
    reached = rounds_to(result, target)
    rounds = reached or result.rounds
    return {
        "seed": seed,
        "reached": reached is not None,
        "rounds": rounds,
        "aucs": [score.auc for score in result.scores[:rounds]],
        "messages": result.costs(rounds).messages,
    }
