"""The data of a job: a set by name, or the files that its parties name."""

from pathlib import Path
from typing import TYPE_CHECKING

from securevfl.errors import ConfigError
from securevfl.job import Job

if TYPE_CHECKING:
    from securevfl.data.tables import VerticalDataset
    from securevfl.sparse import Matrix


def job_data(job: Job, beside: Path, data_dir: Path | None) -> "VerticalDataset[Matrix]":
    """The data of a job: a set by name, or the parties' files, relative to the job file.

    Raises:
        ConfigError: a party without a data file.
        DataError: missing or malformed data.
    """
    from securevfl.data.csv_format import GivenFormat
    from securevfl.data.own_files import FileSource
    from securevfl.data.sharded import load_parties
    from securevfl.data.shards import is_shard, read_header
    from securevfl.data.sources import load

    if job.job.dataset is not None:
        return load(job.job.dataset, parties=job.job.parties, data_dir=data_dir)
    sources = []
    for party in job.party:
        if party.data is None:
            raise ConfigError(f"party {party.name!r}: data is missing, expected a file or a shard")
        path = beside / party.data
        if is_shard(path):
            if (read_header(path).labels is not None) != (party.role == "label"):
                raise ConfigError(
                    f"party {party.name!r} with role {party.role!r}: the label party's shard, and "
                    "only it, has labels"
                )
        elif (party.label_column is not None) != (party.role == "label"):
            raise ConfigError(
                f"party {party.name!r} with role {party.role!r}: the label party, and only it, "
                "has a label_column"
            )
        sources.append(
            FileSource(
                name=party.name,
                path=path,
                id_column=party.id_column,
                label_column=party.label_column,
                features=party.features,
                test_path=beside / party.test_data if party.test_data else None,
                drop=party.drop,
                csv=GivenFormat(party.separator, party.decimal, party.thousands, party.encoding),
                id_format=party.id_format,
                preprocess=party.preprocess or job.preprocess,
            )
        )
    return load_parties(sources, regression=job.job.loss == "squared")
