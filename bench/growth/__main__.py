"""How do time, bytes and memory grow with rows, columns and parties?

Each job is trained for a few rounds and for more, with one thread a party: the difference is what
rounds cost, the rest is set-up. Seconds are those of compute sections, in CPU time.
"""

import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
from pydantic import PositiveInt
from typing_extensions import override

from bench.experiment import Experiment, Run, Settings, Several, main
from bench.tables import or_dash
from securevfl.arrays import FloatArray
from securevfl.benchmarks.progress import Report
from securevfl.blocks import LONG_CELLS, BlockedRows
from securevfl.data.tables import PartyTable, VerticalDataset, row_digests
from securevfl.job import Job
from securevfl.reports.tables import Column, Row, seconds, size
from securevfl.runtime.costs import SCORING, SETUP, Stopwatch
from securevfl.sparse import Matrix
from securevfl.training import Environment, resolved, train
from securevfl.training.dry_run import dry_run

PLANTED, HELD_OUT = 10, 10
NETWORKS = ("lan", "wan")


class GrowthSettings(Settings):
    """Made tables under one exchange, for a few rounds and for more.

    Attributes:
        rows: of all tables, or of each.
        columns: of each party, likewise.
        parties: likewise.
        rounds: two numbers; above the same power of two, or keys may differ.
        repeats: on each of two networks.
        forecast: do dry runs in place of trainings, which leaves out bytes of greetings and keys.
    """

    exchange: str = "plain"
    rows: Several[PositiveInt] = (10_000,)
    columns: Several[PositiveInt] = (10,)
    parties: Several[PositiveInt] = (2,)
    rounds: tuple[PositiveInt, PositiveInt] = (5, 8)
    repeats: PositiveInt = 3
    forecast: bool = False


class CpuByPhase(Stopwatch):
    """Measures CPU time of the process, and adds it up by phase over all parties."""

    def __init__(self) -> None:
        super().__init__(time.process_time)
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @override
    def charge(self, phase: str, elapsed: float) -> float:
        self.seconds[phase] += elapsed
        return elapsed


def made(rows: int, columns: int, parties: int, seed: int) -> VerticalDataset[Matrix]:
    """Normal columns in float32, and labels by a logistic model of the first of each party's."""
    drawn, tables, scores = np.random.default_rng(seed), [], np.zeros(rows, np.float32)
    for number in range(parties):
        features = drawn.standard_normal((rows, columns), np.float32)
        planted = drawn.standard_normal(min(columns, PLANTED), np.float32)
        scores += features[:, : len(planted)] @ planted
        # As files are read.
        train = BlockedRows.of(features) if features.size > LONG_CELLS else features.astype(float)
        names = tuple(f"x{index}" for index in range(columns))
        held_out = features[:HELD_OUT].astype(float)
        tables.append(PartyTable(f"party-{number}", names, train, held_out))
    labels = (drawn.random(rows, np.float32) < 1 / (1 + np.exp(-scores))).astype(np.int64)
    return VerticalDataset(
        name="made",
        parties=tuple(tables),
        label_party="party-0",
        train_labels=labels,
        test_labels=labels[:HELD_OUT],
        classes=2,
        standardize=True,
        row_digests=row_digests(range(rows)),
    )


def job_of(settings: GrowthSettings, rounds: int, network: str) -> Job:
    """Exact steps on full batches."""
    return Job.of(
        job={
            "rounds": rounds,
            "tolerance": 0.0,
            "batch_size": "full",
            "local_steps": "exact",
            "eval_every": "never",
            "allow_feature_leak": True,
            "allow_label_leak": True,
            "seed": settings.seed,
        },
        exchange={
            "scheme": settings.exchange,
            "workers": 1,
            **({"hide": "residuals", "round_trips": 2} if settings.exchange == "bfv" else {}),
        },
        network={"preset": network},
    )


def of_rounds(
    settings: GrowthSettings, rounds: int, network: str, dataset: VerticalDataset[Matrix]
) -> FloatArray:
    """What one run of a job takes: CPU seconds, those of the busiest party, bytes and seconds.

    The busiest party's are without its set-up, and the last are the simulated job's.
    """
    job, stopwatch = job_of(settings, rounds, network), CpuByPhase()
    environment = Environment(stopwatch=stopwatch)
    if settings.forecast:
        expected = dry_run(*resolved(job, dataset, ()), environment)
        own = [each.compute_s for each in expected.parties]
        sent, wall = expected.bytes_sent, expected.setup_s + expected.total_s
    else:
        result = train(job, dataset, environment)
        ledgers, costs = result.ledgers.values(), result.costs()
        own = [
            sum(s for p, s in each.seconds.items() if p not in (SETUP, SCORING)) for each in ledgers
        ]
        sent = sum(sum(each.bytes_sent.values()) for each in ledgers)
        wall = costs.setup_s + costs.total_s
    spent = sum(stopwatch.seconds.values()) - stopwatch.seconds[SCORING]
    return np.array([spent, max(own), sent, wall])


def growth(settings: GrowthSettings, report: Report) -> Iterator[dict[str, Any]]:
    """A row for each table, by the least of runs that take turns; all but `wan_s` is on `lan`."""
    shapes = np.broadcast_arrays(settings.rows, settings.columns, settings.parties)
    few, many = settings.rounds
    for rows, columns, parties in np.stack(shapes, axis=1).tolist():
        report(f"{settings.exchange}: {rows:,} rows, {parties} x {columns} columns")
        dataset = made(rows, columns, parties, settings.seed)
        found = np.array(
            [
                [[of_rounds(settings, n, each, dataset) for n in (few, many)] for each in NETWORKS]
                for _ in range(settings.repeats)
            ]
        ).min(axis=0)
        (a_round, (*_, wan_s)) = (found[:, 1] - found[:, 0]) / (many - few)
        setup = found[0, 0] - few * a_round
        expected = dry_run(*resolved(job_of(settings, many, "lan"), dataset, ()), Environment())
        memory = [each.memory_bytes or 0 for each in expected.parties]
        yield {
            "exchange": settings.exchange,
            "rows": rows,
            "columns": columns,
            "parties": parties,
            "forecast": settings.forecast,
            "setup_cpu_s": float(setup[0]),
            "round_cpu_s": float(a_round[0]),
            "busiest_round_cpu_s": float(a_round[1]),
            "setup_bytes": int(setup[2]),
            "round_bytes": int(a_round[2]),
            "lan_s": float(a_round[3]),
            "wan_s": float(wan_s),
            "memory_bytes": max(memory) or None,
        }


COLUMNS: tuple[Column[Row], ...] = (
    ("exchange", lambda row: row["exchange"] + ("*" if row["forecast"] else "")),
    ("rows", lambda row: f"{row['rows']:,}"),
    ("parties x columns", lambda row: f"{row['parties']} x {row['columns']:,}"),
    ("set-up, CPU", lambda row: seconds(row["setup_cpu_s"])),
    ("a round, CPU", lambda row: seconds(row["round_cpu_s"])),
    ("busiest party", lambda row: seconds(row["busiest_round_cpu_s"])),
    ("lan", lambda row: seconds(row["lan_s"])),
    ("wan", lambda row: seconds(row["wan_s"])),
    ("set-up sends", lambda row: size(row["setup_bytes"])),
    ("a round sends", lambda row: size(row["round_bytes"])),
    ("memory", lambda row: or_dash(row["memory_bytes"], size)),
)

ROWS, SIDES, PARTIES = (10_000, 100_000, 1_000_000), (5, 50, 500, 1_500), (2, 3, 5, 9, 17)
BFV = {"exchange": "bfv"}
BLIND = {"exchange": "blind", "repeats": 1}

EXPERIMENT = Experiment(
    name="growth",
    about=__doc__ or "",
    runs={
        "rows-plain": Run(60, {"rows": ROWS}),
        "rows-bfv": Run(60, {**BFV, "rows": ROWS[:2]}),
        "rows-bfv-long": Run(60, {**BFV, "rows": ROWS[2], "repeats": 1}),
        "rows-blind": Run(60, {**BLIND, "rows": ROWS[:2]}),
        "rows-blind-forecast": Run(60, {**BLIND, "rows": ROWS[2], "forecast": True}),
        "columns-plain": Run(60, {"rows": ROWS[1], "columns": SIDES, "repeats": 1}),
        "columns-bfv": Run(60, {**BFV, "rows": ROWS[1], "columns": SIDES[:3], "repeats": 1}),
        "columns-bfv-wide": Run(60, {**BFV, "rows": 20_000, "columns": SIDES[3], "repeats": 1}),
        "columns-blind": Run(60, {**BLIND, "columns": SIDES[:2]}),
        "parties-plain": Run(10, {"parties": PARTIES}),
        "parties-bfv": Run(30, {**BFV, "parties": PARTIES}),
        "parties-blind": Run(60, {**BLIND, "parties": PARTIES}),
    },
    quick={"rows": 200, "columns": 3, "parties": 2, "rounds": (1, 2), "repeats": 1},
    settings=GrowthSettings,
    measure=growth,
    columns=COLUMNS,
)

if __name__ == "__main__":
    main(EXPERIMENT)
