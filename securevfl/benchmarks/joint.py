"""Rounds until a job with nothing set is as good as one place that has all columns.

The place is scikit-learn's LogisticRegression with its defaults, on columns standardized as
parties do it. A benchmark may put the parties' columns side by side; no party does.
"""

import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from math import inf

from securevfl.benchmarks.in_one_place import score_in_one_place
from securevfl.benchmarks.progress import Report, rounds_done, silent
from securevfl.benchmarks.settings.joint import JointSettings
from securevfl.benchmarks.tradeoff import ScoreName, rounds_to
from securevfl.data.tables import VerticalDataset
from securevfl.job import Job
from securevfl.reports.benchmarks import JointRow, JointRun
from securevfl.training import Environment, TrainingResult, plan_for, train


def joint(
    settings: JointSettings, datasets: Sequence[VerticalDataset], report: Report = silent
) -> Iterator[JointRow]:
    """Train every exchange among every number of parties; yields rows as they are done.

    Args:
        settings: what to run.
        datasets: the same data by number of parties.
        report: told what runs now.
    """
    for exchange, dataset in product(settings.exchanges, datasets):
        plan_for(_job(settings, exchange), dataset)
    report("scikit-learn in one place")
    score_name, joint_score = score_in_one_place(datasets[0])
    for dataset, exchange in product(datasets, settings.exchanges):
        job, results = _job(settings, exchange), []
        for repeat in range(settings.repeats):
            what = f"K = {len(dataset.parties)}, {exchange}, run {repeat + 1} of {settings.repeats}"
            seeded = job.with_settings(seed=settings.seed + repeat)
            progress = partial(rounds_done, report, what, settings.max_rounds)
            results.append(train(seeded, dataset, Environment(progress=progress)))
        yield _row(settings, dataset, results, score_name, joint_score)


def _job(settings: JointSettings, exchange: str) -> Job:
    return Job.of(
        job={
            "name": "joint",
            "rounds": settings.max_rounds,
            "seed": settings.seed,
            # Rounds to a score are what is measured.
            "eval_every": 1,
        },
        exchange={"scheme": exchange},
        network=settings.network,
    )


def _row(
    settings: JointSettings,
    dataset: VerticalDataset,
    results: Sequence[TrainingResult],
    score_name: ScoreName,
    joint_score: float,
) -> JointRow:
    runs: list[JointRun] = [
        {
            "seed": result.job.job.seed,
            "rounds_to": rounds_to(result, joint_score - settings.within, score_name),
            "rounds": result.rounds,
            "score": getattr(result.scores[-1], score_name),
            "ended": result.ended,
            "learned": result.learned,
        }
        for result in results
    ]
    reached = [inf if run["rounds_to"] is None else run["rounds_to"] for run in runs]
    costs = [result.costs().row() for result in results]
    return {
        "dataset": dataset.name,
        "parties": len(dataset.parties),
        "exchange": results[0].job.exchange.scheme,
        "rows": len(dataset.train_labels),
        "columns": sum(len(table.columns) for table in dataset.parties),
        "score_name": score_name,
        "joint_score": joint_score,
        "within": settings.within,
        "rounds_to": _finite(statistics.median(reached)),
        "most_rounds_to": _finite(max(reached)),
        "rounds": statistics.median(run["rounds"] for run in runs),
        "score": statistics.median(run["score"] for run in runs),
        "ended": ", ".join(dict.fromkeys(run["ended"] for run in runs)),
        "label_guard_ratio": results[0].label_guard_ratio,
        "round_trips": statistics.median(cost["round_trips"] for cost in costs),
        "bytes_sent": statistics.median(cost["bytes_sent"] for cost in costs),
        "compute_s": statistics.median(cost["compute_s"] for cost in costs),
        "communication_s": statistics.median(cost["communication_s"] for cost in costs),
        "total_s": statistics.median(cost["total_s"] for cost in costs),
        "offline_compute_s": statistics.median(cost["offline_compute_s"] for cost in costs),
        "offline_communication_s": statistics.median(
            cost["offline_communication_s"] for cost in costs
        ),
        "offline_bytes": statistics.median(cost["offline_bytes"] for cost in costs),
        "wall_s": statistics.median(result.wall_s for result in results),
        "repeats": len(runs),
        "runs": runs,
    }


def _finite(rounds: float) -> float | None:
    return None if rounds == inf else rounds
