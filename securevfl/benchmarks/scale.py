"""FDML on shards of many sparse rows beside training in one place, in one run on one machine.

Seconds an epoch, each with its ratio to one place's of the same kind:

- `cpu`: of this process, all parties and the server after each other: what FDML computes in all.
- `virtual`: on a network of parties and server that are machines of their own, which compute at the
  same time; of computation CPU seconds, so that other work on this machine is in neither.
- `processes`: of the wall, every party and the server a process of its own on this machine.

Peak memory is that of this process during a training, its own and of mapped files, all parties
together; with processes that of the largest of them, a party with its own mapped files alone.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from securevfl.benchmarks.fdml_processes import timed_processes
from securevfl.benchmarks.fdml_profile import profiled
from securevfl.benchmarks.in_one_place import InOnePlace, one_table, train_in_one_place
from securevfl.benchmarks.peak_memory import forget_peak, peak_bytes
from securevfl.benchmarks.progress import Report, silent
from securevfl.benchmarks.settings.scale import ScaleSettings
from securevfl.benchmarks.timed import timed_rounds
from securevfl.data.planted_sparse import PARTIES
from securevfl.data.shards import open_shard
from securevfl.data.tables import PartyTable, VerticalDataset
from securevfl.errors import DataError
from securevfl.job import Job
from securevfl.reports.scale import ScaleRow
from securevfl.sparse import Matrix, SparseRows

FDML, ONE_PLACE = "fdml", "one place"


@dataclass(frozen=True)
class Measured:
    """What a training took."""

    auc: float
    cpu_s: float
    wall_s: float


def planted_shards(folder: Path) -> VerticalDataset[Matrix]:
    """The made set as it lies on disk, mapped.

    Raises:
        DataError: no shards there.
    """
    if not folder.is_dir():
        raise DataError(
            f"{folder} is not there: `securevfl data make planted-sparse --to {folder}` makes it"
        )
    tables, labels, digests = [], {}, None
    for party in PARTIES:
        train, test = (open_shard(folder / party.name / part) for part in ("train", "test"))
        tables.append(PartyTable(party.name, train.header.column_names, train.rows, test.rows))
        if train.labels is not None and test.labels is not None:
            labels = {"train": train.labels, "test": test.labels}
        digests = train.digests
    assert digests is not None  # noqa: S101
    return VerticalDataset(
        name="planted-sparse",
        parties=tuple(tables),
        label_party=PARTIES[0].name,
        train_labels=labels["train"].astype(np.int64),
        test_labels=labels["test"].astype(np.int64),
        classes=2,
        standardize=False,
        row_digests=digests,
    )


def fdml_scale(settings: ScaleSettings, report: Report = silent) -> Iterator[ScaleRow]:
    """By set and batch size: each party alone, one place, and fdml.

    Raises:
        DataError: no shards there.
    """
    for folder in settings.shards:
        dataset = planted_shards(folder)
        for sizes in zip(settings.batch_size, settings.batches_per_message, strict=True):
            yield from _rows(settings, dataset, folder, sizes, report)


def _rows(
    settings: ScaleSettings,
    dataset: VerticalDataset[Matrix],
    folder: Path,
    sizes: tuple[int, int],
    report: Report,
) -> Iterator[ScaleRow]:
    size, several = sizes
    rows, epochs = len(dataset.train_labels), settings.epochs
    job = job_at_scale(settings, size, several, rows)

    def row(training: str, tables: tuple[PartyTable[Matrix], ...], found: Measured) -> ScaleRow:
        return {
            "dataset": dataset.name,
            "rows": rows,
            "columns": sum(table.train.shape[1] for table in tables),
            "ones_a_row": sum(_ones(table.train) for table in tables) / rows,
            "stored_bytes": sum(table.train.nbytes for table in tables),
            "model": settings.model,
            "training": training,
            "epochs": epochs,
            "batch_size": size,
            "batches_per_message": several,
            "precision": settings.precision,
            "learning_rate": settings.learning_rate,
            "auc": found.auc,
            "cpu_s_per_epoch": found.cpu_s / epochs,
            "wall_s_per_epoch": found.wall_s / epochs,
            "virtual_s_per_epoch": None,
            "network_s_per_epoch": None,
            "processes_s_per_epoch": None,
            "peak_bytes": peak_bytes(),
            "process_peak_bytes": None,
            "ratio_to_one_place": None,
            "virtual_ratio": None,
            "processes_ratio": None,
            "phases_s": None,
        }

    what = f"{settings.model}, {rows} rows, S = {size}"
    report(f"{what}, fdml")
    forget_peak()
    run, cpu = timed_rounds(job, dataset, time.process_time)
    costs = run.costs()
    of_fdml = row(FDML, dataset.parties, Measured(run.clear_auc, cpu, run.wall_s))
    del run
    if settings.alone:
        for table in dataset.parties:
            report(f"{what}, {table.name} alone")
            forget_peak()
            alone = train_in_one_place(job, dataset, [table.name])
            yield row(f"{table.name} alone", (table,), _of(alone))
    report(f"{what}, one place")
    together = one_table(dataset)
    forget_peak()
    one = train_in_one_place(job, dataset, one_model=together)
    yield row(ONE_PLACE, (together,), _of(one))
    of_fdml |= {
        "ratio_to_one_place": cpu / one.cpu_s,
        "virtual_s_per_epoch": costs.total_s / epochs,
        "network_s_per_epoch": costs.communication_s / epochs,
        "virtual_ratio": costs.total_s / one.cpu_s,
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


def _of(found: InOnePlace) -> Measured:
    return Measured(found.auc, found.cpu_s, found.training_s)


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
            "name": "fdml-scale",
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
