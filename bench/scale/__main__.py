"""What does FDML cost on millions of sparse rows, beside training in one place (FDML)?

Seconds per epoch, each with its ratio to one place's of the same kind:

- `cpu`: of this process, all parties and the server after each other: all that FDML computes, with
  every program's own order of rows and the first round. Set-up before it stands by itself.
- `virtual`: on a network, where parties and server are machines of their own and compute at the
  same time. Computation counts CPU seconds, so other work on this machine has no part in it.
- `processes`: on the wall clock, where every party and the server is a process of this machine.

Peak memory is that of this process during a training, its own and of mapped files, all parties
together. With processes it is that of the largest one, a party with its own mapped files alone.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, Literal, Self

import numpy as np
from pydantic import PositiveInt, model_validator

from bench.documents import by_columns
from bench.experiment import Experiment, Network, Run, Settings, Several, main
from bench.scale.peak_memory import forget_peak, peak_bytes
from bench.scale.phases import profiled
from bench.scale.planted import made, opened
from bench.scale.processes import timed_processes
from bench.scale.tables import (
    COLUMNS,
    PHASES,
    RATIOS,
    SCALE,
    laws,
    notes,
    of_fdml,
    phases_of,
    scale_page,
)
from bench.timed import timed_rounds
from securevfl.benchmarks.in_one_place import one_table, train_in_one_place
from securevfl.benchmarks.progress import Report, silent
from securevfl.data import planted_sparse
from securevfl.data.tables import PartyTable, VerticalDataset
from securevfl.job import Job, NetworkSettings
from securevfl.sparse import Matrix, SparseRows

FDML, ONE_PLACE = "fdml", "one place"
OF_FDML = (
    *("virtual_s_per_epoch", "network_s_per_epoch", "processes_s_per_epoch", "process_peak_bytes"),
    *("ratio_to_one_place", "ratios", "wall_ratio", "virtual_ratio", "processes_ratio"),
    *("setup_s", "phases_s"),
)
"""Figures that rows of other trainings have none of."""


class ScaleSettings(Settings):
    """Every set at every batch size.

    Attributes:
        data_dir: where the made sets lie; those that are missing are made there.
        rows: N of each set, in all; a tenth is held out.
        columns: P of each set, in all.
        set_seed: of the sets.
        model: lr, or nn for a network at each party.
        hidden: units of nn at each party.
        batch_size: S.
        batches_per_message: at each S; τ is one less.
        precision: what predictions travel in.
        learning_rate: η0, which falls with the root of rounds.
        standardize: scale columns to deviation 1.
        epochs: of every training.
        turns: trainings by FDML and in one place, in turns; seconds and ratios are medians.
        alone: train each party by itself, too.
        processes: train FDML with every party a process, too.
        profile: train FDML under a profiler, too.
        network: a preset, or LATENCY_MS:MBIT_PER_S.
    """

    data_dir: Path = Path("results")
    rows: Several[int] = (5_000_000,)
    columns: Several[int] = (planted_sparse.COLUMNS,)
    set_seed: int = 17
    model: Literal["lr", "nn"] = "lr"
    hidden: PositiveInt = 16
    batch_size: Several[PositiveInt] = (10_000, 1000)
    batches_per_message: Several[PositiveInt] = (1, 1)
    precision: Literal["double", "single"] = "double"
    learning_rate: float = 30.0
    standardize: bool = False
    epochs: PositiveInt = 2
    turns: PositiveInt = 1
    alone: bool = False
    processes: bool = False
    profile: bool = False
    network: Network = NetworkSettings(preset="lan")

    @model_validator(mode="after")
    def _one_each(self) -> Self:
        if len(self.batch_size) != len(self.batches_per_message):
            raise ValueError(
                f"batch_size has {len(self.batch_size)} values, batches_per_message "
                f"{len(self.batches_per_message)}: expected one each"
            )
        return self


def scale(settings: ScaleSettings, report: Report = silent) -> Iterator[dict[str, Any]]:
    """By set and batch size: each party alone, one place, and fdml.

    Bytes stored are of training rows, peaks of memory of the process.

    Raises:
        ConfigError: a size that sets cannot have.
        DataError: a set cannot be written or read.
    """
    sets = list(product(settings.rows, settings.columns))
    for folder in made(settings.data_dir, sets, settings.set_seed, report):
        dataset = opened(folder)
        for sizes in zip(settings.batch_size, settings.batches_per_message, strict=True):
            yield from _rows(settings, dataset, folder, sizes, report)


def _rows(
    settings: ScaleSettings,
    dataset: VerticalDataset[Matrix],
    folder: Path,
    sizes: tuple[int, int],
    report: Report,
) -> Iterator[dict[str, Any]]:
    size, several = sizes
    rows, epochs = len(dataset.train_labels), settings.epochs
    job = job_at_scale(settings, size, several, rows)

    def row(
        training: str, tables: Sequence[PartyTable[Matrix]], auc: float, cpu_s: float, wall_s: float
    ) -> dict[str, Any]:
        return {
            "dataset": dataset.name,
            "rows": rows,
            "columns": sum(table.train.shape[1] for table in tables),
            "ones_a_row": sum(_ones(table.train) for table in tables) / rows,
            "stored_bytes": sum(table.train.nbytes for table in tables),
            "model": settings.model,
            "training": training,
            "batch_size": size,
            "batches_per_message": several,
            "precision": settings.precision,
            "auc": auc,
            "cpu_s_per_epoch": cpu_s / epochs,
            "wall_s_per_epoch": wall_s / epochs,
            "peak_bytes": peak_bytes(),
            **dict.fromkeys(OF_FDML),
        }

    what = f"{settings.model}, {rows} rows, S = {size}"
    report(f"{what}, fdml")
    forget_peak()
    runs = [timed_rounds(job, dataset)]
    costs, clear_auc = runs[0].result.costs(), runs[0].result.clear_auc
    of_fdml = row(FDML, dataset.parties, clear_auc, runs[0].cpu_s, runs[0].wall_s)
    if settings.alone:
        for table in dataset.parties:
            report(f"{what}, {table.name} alone")
            forget_peak()
            alone = train_in_one_place(job, dataset, [table.name])
            yield row(f"{table.name} alone", [table], alone.auc, alone.cpu_s, alone.training_s)
    report(f"{what}, one place")
    together = one_table(dataset)
    forget_peak()
    ones = [train_in_one_place(job, dataset, one_model=together)]
    one = ones[0]
    in_one_place = row(ONE_PLACE, [together], one.auc, one.cpu_s, one.training_s)
    for turn in range(1, settings.turns):
        report(f"{what}, turn {turn + 1}")
        runs.append(timed_rounds(job, dataset))
        ones.append(train_in_one_place(job, dataset, one_model=together))
    pairs = [*zip(runs, ones, strict=True)]
    in_one_place["cpu_s_per_epoch"] = median(each.cpu_s for each in ones) / epochs
    yield in_one_place
    of_fdml |= {
        "cpu_s_per_epoch": median(each.cpu_s for each in runs) / epochs,
        "setup_s": median(each.setup_s for each in runs),
        "ratio_to_one_place": median(run.cpu_s / each.cpu_s for run, each in pairs),
        "ratios": [run.cpu_s / each.cpu_s for run, each in pairs],
        "wall_ratio": median(run.wall_s / each.training_s for run, each in pairs),
        "virtual_s_per_epoch": median(r.result.costs().total_s for r in runs) / epochs,
        "network_s_per_epoch": costs.communication_s / epochs,
        "virtual_ratio": median(r.result.costs().total_s / each.cpu_s for r, each in pairs),
    }
    if settings.processes:
        report(f"{what}, fdml as processes")
        apart = timed_processes(job, dataset, folder)
        of_fdml |= {
            "processes_s_per_epoch": apart.seconds / epochs,
            "processes_ratio": apart.seconds / one.training_s,
            "process_peak_bytes": apart.peak_bytes,
        }
    if settings.profile:
        report(f"{what}, fdml by phase")
        of_fdml["phases_s"] = profiled(job, dataset)
    yield of_fdml


def _ones(x: Matrix) -> int:
    return x.nnz if isinstance(x, SparseRows) else int(np.count_nonzero(x))


def job_at_scale(settings: ScaleSettings, size: int, several: int, rows: int) -> Job:
    """What is trained on so many rows."""
    model = (
        {"start": "zero"}
        if settings.model == "lr"
        else {"model": "mlp", "hidden": [settings.hidden], "activation": "tanh"}
    )
    return Job.of(
        job={
            "name": "scale",
            "algorithm": "fdml",
            "rounds": settings.epochs * (rows // size),
            "batch_size": size,
            "learning_rate": settings.learning_rate,
            "l2": 0.0,
            "sampling": "shuffle",
            "seed": settings.seed,
            "standardize": settings.standardize,
            **model,
        },
        network=settings.network,
        fdml={
            "staleness": several - 1,
            "batches_per_message": several,
            "precision": settings.precision,
        },
    )


EXPERIMENT = Experiment(
    name="scale",
    about=__doc__ or "",
    runs={
        "lr": Run(250, {"alone": True, "processes": True}),
        "single": Run(
            300,
            {
                "batch_size": (10_000, 1000, 1000),
                "batches_per_message": (1, 1, 2),
                "precision": "single",
                "processes": True,
            },
        ),
        "batch-100": Run(
            400,
            {
                "learning_rate": 10.0,
                "batch_size": (100, 100, 100),
                "batches_per_message": (1, 10, 16),
            },
        ),
        "law": Run(120, {"rows": (111_112, 333_334, 1_111_112), "turns": 5}),
        "columns": Run(
            120,
            {
                "rows": 333_334,
                "columns": (870, 2900, 8700, 26_100, 87_000),
                "epochs": 1,
                "processes": True,
            },
        ),
        "nn": Run(
            600,
            {
                "model": "nn",
                "epochs": 4,
                "standardize": True,
                "learning_rate": 1.0,
                "batch_size": 1000,
                "batches_per_message": 1,
            },
        ),
        "largest": Run(90, {"batch_size": 10_000, "batches_per_message": 1, "turns": 3}),
        "phases": Run(80, {"rows": 1_111_112, "profile": True}),
    },
    quick={
        "rows": (1000, 2000),
        "batch_size": 100,
        "batches_per_message": 2,
        "epochs": 1,
        "processes": False,
    },
    settings=ScaleSettings,
    measure=scale,
    columns=SCALE,
    below=lambda rows: (
        ("fdml, to one place", RATIOS, of_fdml(rows)),
        ("fdml by phase, under a profiler; CPU of all parties", PHASES, phases_of(rows)),
    ),
    notes=notes,
    tables={
        "ratios": lambda rows: by_columns(COLUMNS, *RATIOS)(of_fdml(rows)),
        "laws": lambda rows: [["training"], *([line] for line in laws(rows))],
        "phases": lambda rows: by_columns(*PHASES)(phases_of(rows)),
    },
    html=scale_page,
)

if __name__ == "__main__":
    main(EXPERIMENT)
