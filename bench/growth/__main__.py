"""How do time, bytes and memory grow with rows, columns and parties?

Set-up is greetings, keys, and what follows from the columns; a round is all the rest by the number
of rounds, made ahead or not. Each party has one thread.
"""

import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
from pydantic import PositiveInt
from typing_extensions import override

from bench.experiment import Experiment, Run, Settings, Several, main
from bench.growth.laws import laws, on_paper
from bench.tables import or_dash
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


class GrowthSettings(Settings):
    """Made tables under one exchange; medians of runs on `lan`, between which one is on `wan`.

    Attributes:
        rows: of all tables, or of each.
        columns: of each party, likewise.
        parties: likewise.
        rounds: likewise.
        forecast: dry runs in place of trainings, which do not tell the bytes of a set-up.
    """

    exchange: str = "plain"
    rows: Several[PositiveInt] = (10_000,)
    columns: Several[PositiveInt] = (10,)
    parties: Several[PositiveInt] = (2,)
    rounds: Several[PositiveInt] = (5,)
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


def costs_of(job: Job, dataset: VerticalDataset[Matrix], *, forecast: bool) -> dict[str, float]:
    """What one run takes, of all parties, of the busiest one, and on the simulated network."""
    stopwatch = CpuByPhase()
    environment = Environment(stopwatch=stopwatch)
    if forecast:
        expected = dry_run(*resolved(job, dataset, ()), environment)
        own = [each.compute_s for each in expected.parties]
        sent, total_s, all_sent = expected.bytes_sent, expected.total_s, 0
    else:
        result = train(job, dataset, environment)
        ledgers, costs = result.ledgers.values(), result.costs()
        own = [
            sum(s for phase, s in each.seconds.items() if phase not in (SETUP, SCORING))
            for each in ledgers
        ]
        sent, total_s = costs.bytes_sent, costs.total_s
        all_sent = sum(sum(each.bytes_sent.values()) for each in ledgers)
    spent, rounds = stopwatch.seconds, job.job.rounds
    return {
        "setup_cpu_s": spent[SETUP],
        "round_cpu_s": (sum(spent.values()) - spent[SETUP] - spent[SCORING]) / rounds,
        "busiest_round_cpu_s": max(own) / rounds,
        "setup_bytes": max(all_sent - sent, 0),
        "round_bytes": sent / rounds,
        "round_s": total_s / rounds,
    }


def growth(settings: GrowthSettings, report: Report) -> Iterator[dict[str, Any]]:
    """A row for each table."""
    # What is loaded once would count in the first one.
    costs_of(job_of(settings, 1, "lan"), made(100, 2, 2, settings.seed), forecast=False)
    varied = (settings.rows, settings.columns, settings.parties, settings.rounds)
    for rows, columns, parties, rounds in np.stack(np.broadcast_arrays(*varied), 1).tolist():
        dataset = made(rows, columns, parties, settings.seed)
        lan, wan = (job_of(settings, rounds, network) for network in ("lan", "wan"))
        runs, wan_s = [], []
        for repeat in range(settings.repeats):
            what = f"{settings.exchange}: {rows:,} rows, {parties} x {columns:,} columns"
            report(what, repeat, settings.repeats)
            runs.append(costs_of(lan, dataset, forecast=settings.forecast))
            wan_s.append(costs_of(wan, dataset, forecast=settings.forecast)["round_s"])
        memory = dry_run(*resolved(lan, dataset, ()), Environment()).parties
        yield {
            "exchange": settings.exchange,
            "rows": rows,
            "columns": columns,
            "parties": parties,
            "rounds": rounds,
            "forecast": settings.forecast,
            **{name: statistics.median(run[name] for run in runs) for name in runs[0]},
            "wan_s": statistics.median(wan_s),
            "memory_bytes": max(each.memory_bytes or 0 for each in memory) or None,
        }


COLUMNS: tuple[Column[Row], ...] = (
    ("exchange", lambda row: row["exchange"] + ("*" if row["forecast"] else "")),
    ("rows", lambda row: f"{row['rows']:,}"),
    ("parties x columns", lambda row: f"{row['parties']} x {row['columns']:,}"),
    ("rounds", lambda row: str(row["rounds"])),
    ("set-up, CPU", lambda row: seconds(row["setup_cpu_s"])),
    ("a round, CPU", lambda row: seconds(row["round_cpu_s"])),
    ("busiest party", lambda row: seconds(row["busiest_round_cpu_s"])),
    ("lan", lambda row: seconds(row["round_s"])),
    ("wan", lambda row: seconds(row["wan_s"])),
    ("set-up sends", lambda row: or_dash(row["setup_bytes"] or None, size)),
    ("a round sends", lambda row: size(row["round_bytes"])),
    ("memory", lambda row: or_dash(row["memory_bytes"], size)),
)

ROWS, SIDES, PARTIES = (10_000, 100_000, 1_000_000), (5, 50, 500, 1_500), (2, 3, 5, 9, 17)
BFV: dict[str, Any] = {"exchange": "bfv"}
BLIND = {"exchange": "blind", "repeats": 1}

EXPERIMENT = Experiment(
    name="growth",
    about=__doc__ or "",
    runs={
        "rows-plain": Run(60, {"rows": ROWS}),
        "rows-bfv": Run(60, {**BFV, "rows": ROWS}),
        "rows-blind": Run(60, {**BLIND, "rows": ROWS[:2]}),
        "forecast-blind": Run(90, {**BLIND, "rows": ROWS[2], "forecast": True}),
        "columns-plain": Run(60, {"rows": ROWS[1], "columns": SIDES, "repeats": 1}),
        "columns-bfv": Run(60, {**BFV, "rows": ROWS[1], "columns": SIDES[:3], "repeats": 1}),
        "wide-bfv": Run(90, {**BFV, "rows": ROWS[1], "columns": SIDES[3], "repeats": 1}),
        "columns-blind": Run(60, {**BLIND, "columns": SIDES[:3]}),
        "parties-plain": Run(10, {"parties": PARTIES}),
        "parties-bfv": Run(30, {**BFV, "parties": PARTIES}),
        "parties-blind": Run(60, {**BLIND, "parties": PARTIES}),
        "rounds-blind": Run(60, {**BLIND, "rounds": (5, 10, 20)}),
    },
    quick={"rows": 200, "columns": 3, "parties": 2, "rounds": 1, "repeats": 1},
    settings=GrowthSettings,
    measure=growth,
    columns=COLUMNS,
    tables={"laws": laws, "on_paper": on_paper},
)

if __name__ == "__main__":
    main(EXPERIMENT)
