"""Rounds to a target AUC by algorithm, Q, K and proximal μ (Table 1 and Fig. 2-5 of the paper).

Under `plain`: how many rounds a job takes does not depend on how its exchanges are protected.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

from securevfl.benchmarks.progress import Report, rounds_done, silent
from securevfl.benchmarks.settings.rounds import RoundsSettings
from securevfl.benchmarks.tradeoff import below_clear, rounds_to
from securevfl.benchmarks.tuning import (
    LocalSteps,
    Tuned,
    at_steps,
    chosen,
    different_steps,
    step_settings,
)
from securevfl.data.tables import VerticalDataset
from securevfl.job import Job
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.scoring import Score
from securevfl.reports.benchmarks import CurvePoint, RoundsRow, RoundsRun
from securevfl.training import Environment, plan_for, train

MOST_POINTS = 100


def rounds(
    settings: RoundsSettings,
    datasets: Mapping[int, VerticalDataset],
    report: Report = silent,
) -> Iterator[RoundsRow]:
    """Train every combination; yields rows as they are done.

    Args:
        settings: what to run.
        datasets: the same data by number of parties.
        report: told what runs now.

    Raises:
        ConfigError: a job that does not fit, or that learns nothing and gives no target.
    """
    settings, how = _settled(settings, next(iter(datasets.values())), report)
    steps = [
        (algorithm, local_steps)
        for algorithm in settings.algorithms
        for local_steps in different_steps(algorithm, settings.local_steps)
    ]
    for (parties, dataset), (algorithm, local_steps), proximal in product(
        datasets.items(), steps, settings.proximal
    ):
        changed = {
            "algorithm": algorithm,
            "proximal": proximal,
            "target_auc": settings.target_auc,
            "seed": settings.seed,
        }
        plan = plan_for(_job(settings, dataset, local_steps, changed), dataset)
        what = f"{algorithm}, Q = {plan.local_steps}, K = {parties}, proximal {proximal:g}"
        report(what)
        tuned = chosen(plan.job, dataset, settings.learning_rate, report)
        progress = partial(rounds_done, report, what, plan.rounds)
        row = _row(settings, dataset, plan, tuned, Environment(progress=progress))
        yield {**row, "target_chosen": how}


def _settled(
    settings: RoundsSettings, dataset: VerticalDataset, report: Report
) -> tuple[RoundsSettings, str]:
    """The settings with what a job file leaves open, its own Q and a target, and why that one."""
    base, how = settings.base, "given"
    if base is None:
        return settings, how
    local_steps = settings.local_steps or (plan_for(base, dataset).local_steps,)
    target = settings.target_auc
    if target is None:
        report("the job, for a target")
        target, how = below_clear(base.with_settings(seed=settings.seed), dataset)
    return replace(settings, local_steps=local_steps, target_auc=target), how


def _job(
    settings: RoundsSettings,
    dataset: VerticalDataset,
    local_steps: LocalSteps,
    changed: Mapping[str, object],
) -> Job:
    if settings.base is not None:
        job = settings.base.without_protection.with_settings(**changed)
        return at_steps(job, dataset, local_steps)
    step_sizes = {
        "schedule": settings.schedule,
        "divide_by_sqrt_parties": settings.divide_by_sqrt_parties,
    }
    return Job.of(
        job={
            "name": "rounds",
            "rounds": settings.max_rounds,
            **step_settings(local_steps, settings.batch_size, settings.learning_rate),
            **({} if local_steps == "exact" else step_sizes),
            "l2": settings.l2,
            "local_rule": settings.local_rule,
            "start": settings.start,
            "eval_every": settings.eval_every,
            **changed,
        }
    )


def curve_of(scores: Sequence[Score]) -> list[CurvePoint]:
    """Loss and AUC of a run by rounds, thinned to `MOST_POINTS` or fewer."""
    apart = max(1, -(-len(scores) // MOST_POINTS))
    last = range(len(scores) - 1, -1, -apart)
    groups = [scores[max(0, end - apart + 1) : end + 1] for end in reversed(last)]
    points: list[CurvePoint] = []
    for group in groups:
        seen = [score.training_loss for score in group if score.training_loss is not None]
        points.append(
            {
                "rounds": group[-1].rounds,
                "training_loss": statistics.fmean(seen) if seen else None,
                "auc": group[-1].auc,
            }
        )
    return points


def _row(
    settings: RoundsSettings,
    dataset: VerticalDataset,
    plan: Plan,
    tuned: Tuned,
    environment: Environment,
) -> RoundsRow:
    job, target = plan.job, settings.target_auc
    assert target is not None  # noqa: S101
    runs: list[RoundsRun] = []
    for repeat in range(settings.repeats):
        seed = settings.seed + repeat
        seeded = job.with_settings(learning_rate=tuned.learning_rate or "auto", seed=seed)
        result = train(seeded, dataset, environment)
        reached = rounds_to(result, target)
        runs.append(
            {
                "seed": seed,
                "reached": reached is not None,
                "rounds": reached or result.rounds,
                "auc": result.scores[-1].auc,
                "best_auc": max(score.auc for score in result.scores),
                "messages": result.costs().messages,
                "curve": curve_of(result.scores),
            }
        )
    return {
        "dataset": dataset.name,
        "algorithm": job.job.algorithm,
        "local_steps": plan.local_steps,
        "parties": len(dataset.parties),
        "proximal": job.job.proximal,
        "batch_size": plan.batch_size,
        "local_rule": job.job.local_rule,
        "target_auc": target,
        "target_chosen": "given",
        "reached_target": all(run["reached"] for run in runs),
        "rounds": statistics.median(run["rounds"] for run in runs),
        "auc": statistics.median(run["auc"] for run in runs),
        "best_auc": statistics.median(run["best_auc"] for run in runs),
        "learning_rate": tuned.learning_rate,
        "learning_rate_chosen": tuned.how,
        "repeats": len(runs),
        "runs": runs,
    }
