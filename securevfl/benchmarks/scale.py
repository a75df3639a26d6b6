"""FDML on shards of many sparse rows beside training in one place, in one run on one machine.

Seconds an epoch are of this process alone (`cpu`: what other work on the machine takes is not in
them) and on the clock of the wall, of all parties and the server after each other. Peak memory is
that of this process during a training, its own and of mapped files, all parties together.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from securevfl.benchmarks.fdml import timed_rounds
from securevfl.benchmarks.in_one_place import InOnePlace, one_table, train_in_one_place
from securevfl.benchmarks.progress import Report, silent
from securevfl.benchmarks.settings.scale import ScaleSettings
from securevfl.data.planted_sparse import PARTIES
from securevfl.data.shards import open_shard
from securevfl.data.tables import PartyTable, VerticalDataset
from securevfl.job import Job
from securevfl.reports.rows import ScaleRow
from securevfl.sparse import Matrix, SparseRows

FDML, ONE_PLACE = "fdml", "one place"


@dataclass(frozen=True)
class Measured:
    """What a training took."""

    auc: float
    cpu_s: float
    wall_s: float
    virtual_s: float | None = None


def planted_shards(folder: Path) -> VerticalDataset[Matrix]:
    """The made set as it lies on disk, mapped.

    Raises:
        DataError: no shards there.
    """
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


def fdml_scale(
    settings: ScaleSettings, dataset: VerticalDataset[Matrix], report: Report = silent
) -> Iterator[ScaleRow]:
    """By rows and batch size: each party alone, one place, and fdml."""
    for rows in settings.rows:
        fewer = first_rows(dataset, rows or len(dataset.train_labels))
        for size, several in zip(settings.batch_size, settings.batches_a_message, strict=True):
            yield from _rows(settings, fewer, size, several, report)


def _rows(
    settings: ScaleSettings,
    dataset: VerticalDataset[Matrix],
    size: int,
    several: int,
    report: Report,
) -> Iterator[ScaleRow]:
    rows = len(dataset.train_labels)
    job = _job(settings, size, several, rows)

    def row(training: str, tables: tuple[PartyTable[Matrix], ...], found: Measured) -> ScaleRow:
        return {
            "dataset": dataset.name,
            "rows": rows,
            "columns": sum(table.train.shape[1] for table in tables),
            "ones_a_row": sum(_ones(table.train) for table in tables) / rows,
            "stored_bytes": sum(table.train.nbytes for table in tables),
            "model": settings.model,
            "training": training,
            "epochs": settings.epochs,
            "batch_size": size,
            "batches_a_message": several,
            "learning_rate": settings.learning_rate,
            "auc": found.auc,
            "cpu_s_per_epoch": found.cpu_s / settings.epochs,
            "wall_s_per_epoch": found.wall_s / settings.epochs,
            "virtual_s_per_epoch": (
                None if found.virtual_s is None else found.virtual_s / settings.epochs
            ),
            "peak_bytes": peak_bytes(),
            "ratio_to_one_place": None,
        }

    what = f"{settings.model}, {rows} rows, S = {size}"
    report(f"{what}, fdml")
    forget_peak()
    run, cpu = timed_rounds(job, dataset, time.process_time)
    found = Measured(run.clear_auc, cpu, run.wall_s, run.costs().total_s)
    of_fdml = row(FDML, dataset.parties, found)
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
    yield {**of_fdml, "ratio_to_one_place": cpu / one.cpu_s}


def _of(found: InOnePlace) -> Measured:
    return Measured(found.auc, found.cpu_s, found.training_s)


def first_rows(dataset: VerticalDataset[Matrix], rows: int) -> VerticalDataset[Matrix]:
    """The first N training rows, as views, and all held-out ones."""
    return replace(
        dataset,
        parties=tuple(replace(t, train=t.train[slice(0, rows)]) for t in dataset.parties),
        train_labels=dataset.train_labels[:rows],
        row_digests=dataset.row_digests[:rows],
    )


def _ones(x: Matrix) -> int:
    return x.nnz if isinstance(x, SparseRows) else int(np.count_nonzero(x))


def _job(settings: ScaleSettings, size: int, several: int, rows: int) -> Job:
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
            **model,
        },
        network=settings.network,
        fdml={
            "staleness": several - 1,
            "batches_a_message": several,
            "precision": settings.precision,
        },
    )


def forget_peak() -> None:
    """Count the peak of this process's memory from here on, where the system can."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def peak_bytes() -> int | None:
    """The most memory that this process had since; None where the system does not say."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    found = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
    return 1024 * int(found[0]) if found else None
