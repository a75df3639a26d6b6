"""Made sets of sparse rows on disk, as `securevfl data make planted-sparse` writes them."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from securevfl.benchmarks.progress import Report, silent
from securevfl.data.planted_sparse import PARTIES, make_planted_sparse
from securevfl.data.shards import open_shard
from securevfl.data.tables import PartyTable, VerticalDataset
from securevfl.processes import Tell, in_processes
from securevfl.sparse import Matrix

WORKERS = 2


def made(
    folder: Path, sizes: Sequence[tuple[int, int]], set_seed: int, report: Report = silent
) -> list[Path]:
    """Where the sets lie within a folder; those that are missing are made there.

    Each size is a set of its own: a party opens its whole shard, so a part of a larger one would
    have all of its pages in the peak memory.

    Args:
        folder: of all sets.
        sizes: rows and columns of each set, in all.
        set_seed: of all sets.
        report: told what is made.

    Raises:
        ConfigError: too few rows, too few or too many columns, or a negative seed.
        DataError: a set cannot be written.
    """
    places = [folder / f"planted-{rows}-{columns}-{set_seed}" for rows, columns in sizes]
    missing = [  # the job file is written last
        (place, *size)
        for place, size in zip(places, sizes, strict=True)
        if not (place / "job.toml").exists()
    ]

    def note(_task: int, what: str, done: float) -> None:
        report(what, done, 1)

    # In other processes, since memory that is not given back would count in this one's peaks.
    work, rows = partial(_make, set_seed), [size[1] for size in missing]
    with in_processes(work, missing, WORKERS, "sets", progress=note, costs=rows) as ended:
        for _ in ended:
            pass
    return places


def _make(set_seed: int, task: tuple[Path, int, int], tell: Tell) -> None:
    place, rows, columns = task

    def progress(done: int) -> None:
        tell(f"making {place}", done, rows)

    make_planted_sparse(place, rows, set_seed, columns=columns, force=True, progress=progress)


def opened(place: Path) -> VerticalDataset[Matrix]:
    """The set that lies there, its shards mapped.

    Raises:
        DataError: a shard is damaged.
    """
    tables, labels, digests = [], {}, None
    for party in PARTIES:
        train, test = (open_shard(place / party.name / part) for part in ("train", "test"))
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
