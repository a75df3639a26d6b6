"""Rounds until a job with nothing set is as good as one place that has all columns.

That place is scikit-learn's LogisticRegression with its defaults, on columns standardized as
parties do it.
"""

import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from bench.experiment import Experiment, Run, Settings, main
from bench.in_one_place import score_in_one_place
from securevfl.benchmarks.progress import Report
from securevfl.benchmarks.tradeoff import rounds_to
from securevfl.cli.options import job_dataset
from securevfl.data.sources import load
from securevfl.data.tables import VerticalDataset, as_arrays
from securevfl.job import Job, read_job
from securevfl.reports.rows import any_offline
from securevfl.reports.tables import Column, Row, seconds, share, size
from securevfl.training import Environment, TrainingResult, train


class JointSettings(Settings):
    """Every K; training itself has nothing set but the most rounds.

    Attributes:
        job: a job file whose parties' data take the place of `dataset` and `parties`.
        within: how near to one place: in AUC of two classes, in accuracy of more.
    """

    dataset: str = "breast_cancer"
    parties: tuple[int, ...] = (2, 5, 17)
    job: Path | None = None
    exchange: str = "plain"
    within: float = 0.001
    max_rounds: int = 100
    repeats: int = 5

    def load(self) -> list[VerticalDataset]:
        """The data among each number of parties."""
        if self.job is not None:
            return [as_arrays(job_dataset(read_job(self.job), self.job, self.data_dir))]
        return [load(self.dataset, parties=k, data_dir=self.data_dir) for k in self.parties]


COSTS = (
    *("round_trips", "bytes_sent", "compute_s", "communication_s", "total_s"),
    *("offline_compute_s", "offline_communication_s", "offline_bytes"),
)


def joint(settings: JointSettings, report: Report) -> Iterator[dict[str, Any]]:
    """A row per number of parties.

    `rounds_to` of a run is null if it never came near enough. Those of a row, the median and the
    most, are null if half the runs, or one, never did. The rest is of whole runs.
    """
    datasets = settings.load()
    report("scikit-learn in one place")
    name, place = score_in_one_place(datasets[0])
    for dataset in datasets:
        results = list(_results(settings, dataset, report))
        runs = [
            {
                "seed": result.job.job.seed,
                "rounds_to": rounds_to(result, place - settings.within, name),
                "rounds": result.rounds,
                "score": getattr(result.scores[-1], name),
                "ended": result.ended,
                "learned": result.learned,
            }
            for result in results
        ]
        reached = [inf if run["rounds_to"] is None else run["rounds_to"] for run in runs]
        costs = [result.costs().row() for result in results]
        yield {
            "dataset": dataset.name,
            "parties": len(dataset.parties),
            "exchange": settings.exchange,
            "rows": len(dataset.train_labels),
            "columns": sum(len(table.columns) for table in dataset.parties),
            "score_name": name,
            "joint_score": place,
            "within": settings.within,
            "rounds_to": _finite(statistics.median(reached)),
            "most_rounds_to": _finite(max(reached)),
            "rounds": statistics.median(run["rounds"] for run in runs),
            "score": statistics.median(run["score"] for run in runs),
            "ended": ", ".join(dict.fromkeys(run["ended"] for run in runs)),
            "label_guard_ratio": results[0].label_guard_ratio,
            **{key: statistics.median(cost[key] for cost in costs) for key in COSTS},
            "wall_s": statistics.median(result.wall_s for result in results),
            "repeats": len(runs),
            "runs": runs,
        }


def _results(
    settings: JointSettings, dataset: VerticalDataset, report: Report
) -> Iterator[TrainingResult]:
    for seed in range(settings.seed, settings.seed + settings.repeats):
        job = Job.of(
            job={"name": "joint", "rounds": settings.max_rounds, "seed": seed, "eval_every": 1},
            exchange={"scheme": settings.exchange},
        )
        what = f"K = {len(dataset.parties)}, seed {seed}"
        shown = partial(report, what, total=settings.max_rounds)
        yield train(job, dataset, Environment(progress=shown))


def _finite(rounds: float) -> float | None:
    return None if rounds == inf else rounds


def _count(value: float | None) -> str:
    return "*" if value is None else f"{value:g}"


COLUMNS: tuple[Column[Row], ...] = (
    ("data", lambda row: str(row["dataset"])),
    ("K", lambda row: str(row["parties"])),
    ("exchange", lambda row: str(row["exchange"])),
    ("joint", lambda row: f"{row['joint_score']:.4f}"),
    ("to within", lambda row: _count(row["rounds_to"])),
    ("most", lambda row: _count(row["most_rounds_to"])),
    ("rounds", lambda row: f"{row['rounds']:g}"),
    ("score", lambda row: f"{row['score']:.4f}"),
    ("guard", lambda row: share(row["label_guard_ratio"])),
    ("sent", lambda row: size(row["bytes_sent"])),
    ("total", lambda row: seconds(row["total_s"])),
)


def notes(rows: Sequence[Row]) -> list[str]:
    """What the columns mean."""
    found = [
        f"joint: {rows[0]['score_name']} of scikit-learn's LogisticRegression in one place",
        f"to within: rounds to within {rows[0]['within']:g} of it, and the most of any run",
        "guard: the label guard's ratio; score, sent and total: where training ended",
    ]
    if any_offline(rows):
        found.append("sent and total include what was made before the rounds")
    if any(row["most_rounds_to"] is None for row in rows):
        found.append("* half the runs, or one, never came near enough")
    endings = {row["parties"]: row["ended"] for row in rows}
    return [*found, *(f"ended at K = {parties}: {ending}" for parties, ending in endings.items())]


DATASETS = ("breast_cancer", "digits", "a9a", "credit", "icu2012", "icu2012-714", "mnist-3v8")

EXPERIMENT = Experiment(
    name="joint",
    about=__doc__ or "",
    runs={
        **{name: Run(100, {"dataset": name}) for name in DATASETS},
        "fate-breast": Run(10, {"job": "bench/joint/breast.toml"}),
        "fate-default_credit": Run(10, {"job": "bench/joint/default_credit.toml"}),
    },
    quick={"parties": (2,), "max_rounds": 3, "repeats": 1},
    settings=JointSettings,
    measure=joint,
    columns=COLUMNS,
    notes=notes,
)

if __name__ == "__main__":
    main(EXPERIMENT)
