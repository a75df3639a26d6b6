"""What the simulation itself costs: real time a round beyond the parties' own computation."""

import statistics
import time
from typing import Any

import numpy as np

from securevfl.data.tables import PartyTable, VerticalDataset
from securevfl.job import Job, JobSettings
from securevfl.training import train

Row = dict[str, Any]


def overhead(*, samples: int = 256, features: int = 64, rounds: int = 500, repeats: int = 5) -> Row:
    """Median real time a round of `plain` FedBCD-p at K = 2, scoring aside.

    Args:
        samples: S.
        features: P at each party.
        rounds: rounds a run.
        repeats: runs.
    """
    dataset = _random_dataset(4 * samples, features)
    job = Job(
        job=JobSettings(rounds=rounds, batch_size=samples, local_steps=5, eval_every=0),
    )
    wall, compute = [], []
    for _ in range(repeats):
        started = time.perf_counter()
        result = train(job, dataset)
        seconds = time.perf_counter() - started
        own = sum(sum(ledger.seconds.values()) for ledger in result.ledgers.values())
        wall.append(seconds / rounds)
        compute.append(own / rounds)
    return {
        "parties": 2,
        "samples": samples,
        "features": features,
        "wall_s_per_round": statistics.median(wall),
        "compute_s_per_round": statistics.median(compute),
        "overhead_s_per_round": statistics.median(
            w - c for w, c in zip(wall, compute, strict=True)
        ),
        "rounds": rounds,
        "repeats": repeats,
    }


def _random_dataset(rows: int, features: int) -> VerticalDataset:
    generator = np.random.default_rng(0)
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
        fingerprint="random",
    )
