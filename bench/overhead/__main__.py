"""What does the simulation cost per round, beyond the parties' own computation?"""

import statistics
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from pydantic import PositiveInt

from bench.experiment import Experiment, Run, Settings, main
from securevfl.benchmarks.progress import Report
from securevfl.data.tables import PartyTable, VerticalDataset, row_digests
from securevfl.job import Job
from securevfl.reports.tables import Column, Row, seconds
from securevfl.training import train


class OverheadSettings(Settings):
    """One job of two parties in clear, each with the same number of columns; medians of runs."""

    samples: PositiveInt = 256
    features: PositiveInt = 64
    rounds: PositiveInt = 500
    repeats: PositiveInt = 5


def overhead(settings: OverheadSettings, report: Report) -> Iterator[dict[str, Any]]:
    """Median real time per round of `plain` FedBCD-p at K = 2, without scoring: one row."""
    samples, rounds = settings.samples, settings.rounds
    dataset = _random_dataset(4 * samples, settings.features, settings.seed)
    job = Job.of(
        job={
            "rounds": rounds,
            "batch_size": samples,
            "local_steps": 5,
            "eval_every": 0,
            "seed": settings.seed,
        }
    )
    wall, compute = [], []
    for repeat in range(settings.repeats):
        report("plain", repeat, settings.repeats)
        started = time.perf_counter()
        result = train(job, dataset)
        spent = time.perf_counter() - started
        own = sum(sum(ledger.seconds.values()) for ledger in result.ledgers.values())
        wall.append(spent / rounds)
        compute.append(own / rounds)
    yield {
        "parties": 2,
        "samples": samples,
        "features": settings.features,
        "wall_s_per_round": statistics.median(wall),
        "compute_s_per_round": statistics.median(compute),
        "overhead_s_per_round": statistics.median(
            w - c for w, c in zip(wall, compute, strict=True)
        ),
    }


def _random_dataset(rows: int, features: int, seed: int) -> VerticalDataset:
    generator = np.random.default_rng(seed)
    columns = tuple(f"x{index}" for index in range(features))
    tables = tuple(
        PartyTable(
            name,
            columns,
            generator.standard_normal((rows, features)),
            generator.standard_normal((10, features)),
        )
        for name in ("label", "feature")
    )
    return VerticalDataset(
        name="random",
        parties=tables,
        label_party="label",
        train_labels=generator.integers(0, 2, rows),
        test_labels=np.arange(10) % 2,
        classes=2,
        standardize=False,
        row_digests=row_digests(range(rows)),
    )


COLUMNS: tuple[Column[Row], ...] = (
    ("S x P", lambda row: f"{row['samples']} x {row['features']}"),
    ("a round", lambda row: seconds(row["wall_s_per_round"])),
    ("parties' computation", lambda row: seconds(row["compute_s_per_round"])),
    ("simulation", lambda row: seconds(row["overhead_s_per_round"])),
)

EXPERIMENT = Experiment(
    name="overhead",
    about=__doc__ or "",
    runs={"overhead": Run(20)},
    quick={"samples": 16, "features": 4, "rounds": 5, "repeats": 1},
    settings=OverheadSettings,
    measure=overhead,
    columns=COLUMNS,
)

if __name__ == "__main__":
    main(EXPERIMENT)
