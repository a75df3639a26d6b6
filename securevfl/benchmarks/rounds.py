"""Rounds to a target AUC by algorithm, Q, K and proximal μ (Table 1 and Fig. 2-5 of the paper).

Under `plain`: how many rounds a job takes does not depend on how its exchanges are protected.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from securevfl.benchmarks.progress import Report, silent
from securevfl.benchmarks.settings.rounds import RoundsSettings
from securevfl.benchmarks.tradeoff import rounds_to
from securevfl.benchmarks.tuning import Tuned, chosen, different_steps, step_settings
from securevfl.data.tables import VerticalDataset
from securevfl.job import Job
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.scoring import Score
from securevfl.reports.rounds_rows import CurvePoint, RoundsRow, RoundsRun
from securevfl.training import plan_for, train

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
    """
    steps = [
        (algorithm, local_steps)
        for algorithm in settings.algorithms
        for local_steps in different_steps(algorithm, settings.local_steps)
    ]
    step_sizes = {
        "schedule": settings.schedule,
        "divide_by_sqrt_parties": settings.divide_by_sqrt_parties,
    }
    for (parties, dataset), (algorithm, local_steps), proximal in product(
        datasets.items(), steps, settings.proximal
    ):
        job = Job.of(
            job={
                "name": "rounds",
                "algorithm": algorithm,
                "rounds": settings.max_rounds,
                **step_settings(local_steps, settings.batch_size, settings.learning_rate),
                **({} if local_steps == "exact" else step_sizes),
                "l2": settings.l2,
                "proximal": proximal,
                "local_rule": settings.local_rule,
                "start": settings.start,
                "target_auc": settings.target_auc,
                "eval_every": settings.eval_every,
                "seed": settings.seed,
            }
        )
        plan = plan_for(job, dataset)
        what = f"{algorithm}, Q = {plan.local_steps}, K = {parties}, proximal {proximal:g}"
        report(what)
        tuned = chosen(job, dataset, settings.learning_rate, report)
        yield _row(settings, dataset, plan, tuned)


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


def _row(settings: RoundsSettings, dataset: VerticalDataset, plan: Plan, tuned: Tuned) -> RoundsRow:
    job = plan.job
    runs: list[RoundsRun] = []
    for repeat in range(settings.repeats):
        seed = settings.seed + repeat
        seeded = job.with_settings(learning_rate=tuned.learning_rate or "auto", seed=seed)
        result = train(seeded, dataset)
        reached = rounds_to(result, settings.target_auc)
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
        "target_auc": settings.target_auc,
        "reached_target": all(run["reached"] for run in runs),
        "rounds": statistics.median(run["rounds"] for run in runs),
        "auc": statistics.median(run["auc"] for run in runs),
        "best_auc": statistics.median(run["best_auc"] for run in runs),
        "learning_rate": tuned.learning_rate,
        "learning_rate_chosen": tuned.how,
        "repeats": len(runs),
        "runs": runs,
    }
