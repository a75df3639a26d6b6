"""The data of a job: a set by name, or the files and shards that its parties name."""

from pathlib import Path
from typing import TYPE_CHECKING

from securevfl.job import Job

if TYPE_CHECKING:
    from securevfl.data.tables import VerticalDataset
    from securevfl.sparse import Matrix


def job_data(job: Job, beside: Path, data_dir: Path | None) -> "VerticalDataset[Matrix]":
    """The data of a job: a set by name, or the parties' files and shards, relative to the job file.

    Raises:
        ConfigError: a party without a data file.
        DataError: missing or malformed data.
    """
    from securevfl.actors.own_data import file_sources
    from securevfl.data.join import load_parties
    from securevfl.data.sources import load

    if job.job.dataset is not None:
        return load(job.job.dataset, parties=job.job.parties, data_dir=data_dir)
    return load_parties(file_sources(job, beside), regression=job.job.loss == "squared")
