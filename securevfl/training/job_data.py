"""The data of a job where one operator holds them: a set by name, or all parties' files."""

from dataclasses import replace
from pathlib import Path

from securevfl.data.join import load_files
from securevfl.data.read import FileSource
from securevfl.data.shards import is_shard, read_header
from securevfl.data.sources import load
from securevfl.data.tables import VerticalDataset
from securevfl.errors import ConfigError
from securevfl.files import sha256
from securevfl.job import Job
from securevfl.protocols.resolving import file_source
from securevfl.sparse import Matrix


def job_data(job: Job, beside: Path, data_dir: Path | None) -> VerticalDataset[Matrix]:
    """The data of a job: a set by name, or the parties' files and shards, relative to `beside`.

    Raises:
        ConfigError: a party without a data file.
        DataError: missing or malformed data.
    """
    if job.job.dataset is not None:
        named = job.job
        return load(
            str(named.dataset), parties=named.parties, data_dir=data_dir, preprocess=job.preprocess
        )
    return load_files(file_sources(job, beside), regression=job.job.loss == "squared")


def data_hashes(job: Job, beside: Path, *parties: str) -> dict[str, str]:
    """SHA-256 of the files of a job's parties, by party and key; none of a set by name."""
    if job.job.dataset is not None:
        return {}
    return {
        f"{source.name} {key}": sha256(path)
        for source in file_sources(job, beside, *parties)
        for key, path in (("data", source.path), ("test_data", source.test_path))
        if path is not None
    }


def file_sources(job: Job, beside: Path, *parties: str) -> list[FileSource]:
    """The parties' own files, or folders that are shards.

    Args:
        job: with `[[party]]` sections.
        beside: the folder that their paths are relative to.
        parties: names of those that count; all by default.

    Raises:
        ConfigError: a party without a data file, or labels where they do not belong.
        DataError: a shard whose header cannot be read.
    """
    sources = []
    for party in [each for each in job.party if each.name in parties or not parties]:
        if party.data is None:
            raise ConfigError(f"party {party.name!r}: data is missing, expected a file or a shard")
        path = beside / party.data
        if is_shard(path):
            if (read_header(path).labels is not None) != (party.role == "label"):
                remedy = (
                    "has no labels (`securevfl data convert` keeps LIBSVM's, or --label-column)"
                    if party.role == "label"
                    else "has labels (`securevfl data convert --no-labels` leaves them out)"
                )
                raise ConfigError(
                    f"party {party.name!r} with role {party.role!r}: shard {party.data} {remedy}"
                )
        elif (party.label_column is not None) != (party.role == "label"):
            needs = "needs a label_column, the name of the column" if party.role == "label" else ""
            raise ConfigError(
                f"party {party.name!r} with role {party.role!r} "
                + (needs or "has a label_column: only the label party has labels")
            )
        source = replace(
            file_source(party, path),
            features=party.features,
            test_path=beside / party.test_data if party.test_data else None,
            drop=party.drop,
            preprocess=party.preprocess or job.preprocess,
        )
        sources.append(source)
    return sources
