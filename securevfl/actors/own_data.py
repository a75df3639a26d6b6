"""What an actor knows about the data, and how it opens its own.

Before the actors start, the supervisor writes what all parties know: the number of rows, their
digests and, for the parties' own files, the aligned ids. Each actor opens its own party's data; of
a named data set it keeps only its own columns. If an algorithm gives all parties the labels, each
actor reads them from the label party's file.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter
from safetensors.numpy import save

from securevfl.data.ids import read_aligned, write_aligned
from securevfl.data.join import (
    OwnData,
    align_digests,
    align_files,
    load_files,
    load_own,
    load_party,
)
from securevfl.data.read import FileSource
from securevfl.data.shards import is_shard, read_header
from securevfl.data.sources import load
from securevfl.data.tables import VerticalDataset
from securevfl.errors import ConfigError, DataError
from securevfl.files import read_arrays, reading, replace_file
from securevfl.job import Job
from securevfl.protocols.catalogue import algorithm_of
from securevfl.protocols.plan import Facts, Plan
from securevfl.protocols.resolving import file_source
from securevfl.protocols.session.workplace import PartyData
from securevfl.sparse import Matrix
from securevfl.training import data_of

FACTS, ALIGNED = "facts", "aligned.json"
DIGESTS, TEST_DIGESTS = "row digests", "test digests"


@dataclass(frozen=True)
class _Facts:
    __pydantic_config__ = ConfigDict(extra="forbid")

    names: tuple[str, ...]
    label_party: str
    rows: int
    test_rows: int
    classes: int
    standardize: bool
    unbounded: dict[str, int]


_FACTS = TypeAdapter(_Facts)


def job_data(job: Job, beside: Path, data_dir: Path | None) -> VerticalDataset[Matrix]:
    """The data of a job: a set by name, or the parties' files and shards, relative to `beside`.

    Raises:
        ConfigError: a party without a data file.
        DataError: missing or malformed data.
    """
    if job.job.dataset is not None:
        return load(job.job.dataset, parties=job.job.parties, data_dir=data_dir)
    return load_files(file_sources(job, beside), regression=job.job.loss == "squared")


def file_sources(job: Job, beside: Path) -> list[FileSource]:
    """The parties' own files, or folders that are shards.

    Args:
        job: with `[[party]]` sections.
        beside: the folder that their paths are relative to.

    Raises:
        ConfigError: a party without a data file, or labels where they do not belong.
        DataError: a shard whose header cannot be read.
    """
    sources = []
    for party in job.party:
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
            raise ConfigError(
                f"party {party.name!r} with role {party.role!r}: the label party, and only it, "
                "has a label_column"
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


def require_own_data(job: Job) -> None:
    """Check that each party can open its part of the data by itself; otherwise a ConfigError."""
    if job.job.dataset is None and job.job.algorithm == "ftl":
        raise ConfigError(
            "algorithm = 'ftl' on own files needs all files in one process to choose the rows of "
            "its overlap: train without --processes and --ray"
        )


def write_facts(work: Path, plan: Plan, beside: Path) -> None:
    """Write what actors may know about the data before they start; a DataError if that fails."""
    facts, job = plan.facts, plan.job
    public = {each.name: getattr(facts, each.name) for each in fields(_Facts)}
    digests = {DIGESTS: facts.row_digests}
    if job.job.dataset is None:
        sources = file_sources(job, beside)
        if _has_shards(sources):
            digests[TEST_DIGESTS] = align_digests(sources)[1]
        else:
            aligned = align_files(sources, regression=job.job.loss == "squared")
            write_aligned(work / ALIGNED, aligned)
    replace_file(work / FACTS, save(digests, {FACTS: json.dumps(public)}), "facts")


def _has_shards(sources: Sequence[FileSource]) -> bool:
    return any(is_shard(source.path) for source in sources)


def read_facts(work: Path) -> Facts:
    """Read what `write_facts` wrote; a DataError if it cannot be read, or is damaged."""
    with reading(f"facts {work / FACTS}", verb="are"):
        texts, digests = read_arrays(work / FACTS)
        public = _FACTS.validate_json(texts[FACTS])
    return Facts(**asdict(public), row_digests=digests[DIGESTS])


def own_data(plan: Plan, name: str, work: Path, beside: Path, data_dir: Path | None) -> PartyData:
    """Open a party's own data.

    Raises:
        ConfigError: see `load` and `load_party`.
        DataError: they are missing, malformed, or not those that the facts are of.
    """
    data = _own_columns(plan, name, data_dir) if plan.job.job.dataset else None
    if data is None:
        data = _own_file(plan, name, work, beside)
    if (len(data.table.train), len(data.table.test)) != (plan.facts.rows, plan.facts.test_rows):
        raise DataError(f"party {name!r}: its data are not those that the job was planned for")
    return data


def _own_columns(plan: Plan, name: str, data_dir: Path | None) -> PartyData:
    job = plan.job
    assert job.job.dataset is not None  # noqa: S101
    dataset = load(job.job.dataset, parties=job.job.parties, data_dir=data_dir)
    dataset = algorithm_of(job).rows(job, dataset)
    table = next(each for each in dataset.parties if each.name == name)
    # A copy: a view would keep all columns alive.
    table = replace(table, train=table.train.copy(), test=table.test.copy())
    return data_of(plan, dataset, table)


def _own_file(plan: Plan, name: str, work: Path, beside: Path) -> PartyData:
    sources = {each.name: each for each in file_sources(plan.job, beside)}
    label_party = plan.facts.label_party
    own = _loaded(plan, list(sources.values()), sources[name], work)
    labels = own
    if plan.algorithm.labels_everywhere and name != label_party:
        labels = _loaded(plan, list(sources.values()), sources[label_party], work)
    names = own.label_names
    if name == label_party and not names:
        names = tuple(map(str, range(plan.facts.classes)))
    return PartyData(own.table, labels.train_labels, labels.test_labels, class_names=names)


def _loaded(
    plan: Plan, sources: Sequence[FileSource], source: FileSource, work: Path
) -> OwnData[Matrix]:
    if not _has_shards(sources):
        return load_party(source, read_aligned(work / ALIGNED))
    test = read_arrays(work / FACTS)[1][TEST_DIGESTS]
    regression = plan.job.job.loss == "squared"
    return load_own(source, plan.facts.row_digests, test, regression=regression)
