"""Rounds after which a target AUC is held, by seed: for experiments whose curves rise and dip."""

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

from securevfl.benchmarks.progress import Report
from securevfl.data.tables import VerticalDataset
from securevfl.job import Job
from securevfl.protocols.session.scoring import Score
from securevfl.reports.tables import Column, Row
from securevfl.runtime.costs import Stopwatch
from securevfl.training import Environment, TrainingResult, train

Timed = tuple[TrainingResult, float]
"""A run and its CPU seconds."""


def runs_of(
    job: Job, dataset: VerticalDataset, repeats: int, report: Report, what: str = ""
) -> list[Timed]:
    """Train a job with consecutive seeds; costs are in CPU seconds."""
    done: list[Timed] = []
    for repeat in range(repeats):
        seed = job.job.seed + repeat

        def progress(rounds: int, named: str = f"{what}seed {seed}, round ") -> None:
            report(f"{named}{rounds}")

        begun = time.process_time()
        environment = Environment(progress=progress, stopwatch=Stopwatch(time.process_time))
        result = train(job.with_settings(seed=seed), dataset, environment)
        done.append((result, time.process_time() - begun))
    return done


def held_from(scores: Sequence[Score], target: float, times: int) -> int | None:
    """Rounds of the first of so many scorings in a row at an AUC or above; None if never."""
    for first in range(len(scores) - times + 1):
        if all(score.auc >= target for score in scores[first : first + times]):
            return scores[first].rounds
    return None


def rows_of(
    runs: Sequence[Timed], targets: Sequence[float], times: int
) -> Iterator[dict[str, Any]]:
    """What a cell's runs are at each target; the first has all AUCs, too."""
    for target in targets:
        found = [_run(run, target, times, cpu) for run, cpu in runs]
        if target == targets[0]:
            for each, (run, _) in zip(found, runs, strict=True):
                each["aucs"] = " ".join(f"{score.auc:.4f}" for score in run.scores)
        yield {
            "target_auc": target,
            "best_auc": statistics.median(max(s.auc for s in run.scores) for run, _ in runs),
            "last_auc": statistics.median(run.scores[-1].auc for run, _ in runs),
            "cpu_s_per_round": statistics.median(cpu / run.rounds for run, cpu in runs),
            "runs": found,
        }


def _run(result: TrainingResult, target: float, times: int, cpu_s: float) -> dict[str, Any]:
    rounds = held_from(result.scores, target, times)
    return {
        "seed": result.job.job.seed,
        "reached": rounds is not None,
        "rounds": rounds or result.rounds,
        "first_at_target": held_from(result.scores, target, 1),
        "cpu_s": cpu_s,
    }


def rounds_of(row: Row) -> list[float]:
    """Rounds to the target by seed, ∞ where it was not reached."""
    return [run["rounds"] if run["reached"] else math.inf for run in row["runs"]]


def or_never(rounds: float) -> str:
    """Rounds; a dash for never."""
    return "-" if math.isinf(rounds) else f"{rounds:g}"


def _first(row: Row) -> str:
    return ", ".join(str(run["first_at_target"] or "-") for run in row["runs"])


TYPICAL: Column[Any] = ("rounds", lambda row: or_never(statistics.median(rounds_of(row))))
BY_SEED: Column[Any] = ("by seed", lambda row: ", ".join(map(or_never, rounds_of(row))))
FIRST: Column[Any] = ("first at it", _first)
"""The median over seeds, a dash where most of them never hold the target; each; the first scoring
at the target."""
BEST: Column[Any] = ("best AUC", lambda row: f"{row['best_auc']:.4f}")
LAST: Column[Any] = ("last AUC", lambda row: f"{row['last_auc']:.4f}")
