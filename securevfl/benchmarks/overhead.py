"""What the simulation itself costs: real time a round beyond the parties' own computation."""

import statistics
import time
from collections.abc import Iterator

import numpy as np

from securevfl.benchmarks.progress import Report, silent
from securevfl.benchmarks.settings.overhead import OverheadSettings
from securevfl.data.tables import PartyTable, VerticalDataset, row_digests
from securevfl.job import Job
from securevfl.reports.benchmarks import OverheadRow
from securevfl.training import train


def overhead(settings: OverheadSettings, report: Report = silent) -> Iterator[OverheadRow]:
    """Median real time a round of `plain` FedBCD-p at K = 2, scoring aside: one row."""
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
        seconds = time.perf_counter() - started
        own = sum(sum(ledger.seconds.values()) for ledger in result.ledgers.values())
        wall.append(seconds / rounds)
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
        "rounds": rounds,
        "repeats": settings.repeats,
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
