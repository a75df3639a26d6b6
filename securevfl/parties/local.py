"""Training where one operator starts all parties: as `securevfl.training.train`, each elsewhere.

Parties live as between organizations (`life`), with identities that the operator makes for the job
and rows that it has joined. Who holds these identities can read all messages.
"""

import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from securevfl.data.shards import is_shard
from securevfl.data.tables import VerticalDataset, rows_fingerprint
from securevfl.errors import ConfigError, DataError
from securevfl.files import remove_unfinished
from securevfl.job import Job
from securevfl.parties.alignment import Common
from securevfl.parties.door import UNIX
from securevfl.parties.identity import Identity
from securevfl.parties.leftover import ledger_at, outcome_at
from securevfl.parties.local_party import WS, folder_of, key_file, own_file
from securevfl.parties.own_data import ALIGNED, join, keep_common
from securevfl.parties.supervisor import Supervisor
from securevfl.parties.task import Host, Task
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.checkpoints import Checkpoints, SessionState
from securevfl.protocols.session.pad_store import PadPlaces
from securevfl.sparse import Matrix
from securevfl.training import TrainingResult, resolved
from securevfl.training.job_data import file_sources

WORK = ".parties"
SESSION = b"joined by one operator"
RESTARTS = 3
MOST_PORT = 65_535


@dataclass(frozen=True)
class Places:
    """Where parties find things."""

    output: Path  # folder of models and states, the same for all parties
    beside: Path  # folder that the paths of the parties' files are relative to
    guard_directory: Path  # where key owners record what jobs revealed
    data_dir: Path | None = None  # where named data sets are looked for first
    pads: PadPlaces | None = None  # made offline
    # HOST:PORT to listen at over TCP, each party at the next port, or 0 for free ones; None for
    # Unix sockets in a private folder
    listen: str | None = None


@dataclass(frozen=True)
class Supervision:
    """How a job is supervised."""

    restarts: int = RESTARTS  # the most restarts of all parties
    progress: Callable[[int], None] = lambda rounds: None
    say: Callable[[str], None] = lambda line: None  # called with lines for the user
    threads: int = 1  # of linear algebra at each party


def train_locally(
    job: Job,
    dataset: VerticalDataset[Matrix],
    host: Host,
    places: Places,
    *,
    resume: Mapping[str, SessionState] | None = None,
    supervision: Supervision | None = None,
) -> TrainingResult:
    """Run all parties of a job on a host, and leave their models in the output folder.

    Times are measured; the job's `[network]` has no effect.

    Args:
        job: the settings.
        dataset: the data for planning the job; parties open their own data and get none of these.
        host: where parties run.
        places: where they find their files.
        resume: the state to resume from by party, all of the same round.
        supervision: how to supervise the job.

    Raises:
        ConfigError: the job does not fit the data, or needs all data in one process.
        SecureVFLError: a party failed, or died after the last restart.
    """
    if job.job.dataset is None and job.job.algorithm == "ftl":
        raise ConfigError(
            "algorithm = 'ftl' on own files needs all files in one process to choose the rows of "
            "its overlap: train without --processes and --ray"
        )
    watched = supervision or Supervision()
    plan, taken = resolved(job, dataset, ())
    names, label = plan.facts.names, plan.facts.label_party
    work, sockets = places.output / WORK, Path(tempfile.mkdtemp(prefix="securevfl-"))
    started = time.perf_counter()

    def require_again() -> None:
        if plan.account is not None:
            raise ConfigError(f"it is not started again: {plan.never_resumes}")

    try:
        _make_private(work)
        if not resume:
            for name in names:
                Checkpoints(places.output, name).clear()
        tasks = _tasks(plan, places, sockets, watched.threads)
        _join(plan, tasks)
        supervisor = Supervisor(
            host=host,
            restarts=watched.restarts,
            require_again=require_again,
            progress=watched.progress,
            say=watched.say,
        )
        supervisor.run(tasks)
        outcomes = {name: outcome_at(work, places.output, name, plan) for name in names}
        programs = dict.fromkeys((*names, *plan.algorithm.servers))
        ledgers = {name: ledger_at(work / f"{name}.ledger") for name in programs}
    finally:
        shutil.rmtree(sockets, ignore_errors=True)
        shutil.rmtree(work, ignore_errors=True)
        # All writers have ended, but a killed one may have left an unfinished file.
        for name in names:
            remove_unfinished(places.output / f"{name}.state")
            remove_unfinished(places.output / f"{name}.safetensors")
    return TrainingResult(
        plan=plan,
        outcomes=outcomes,
        ledgers=ledgers,
        wall_s=time.perf_counter() - started,
        data=taken,
        rounds_before=outcomes[label].rounds - len(ledgers[label].snapshots),
    )


def _make_private(work: Path) -> None:
    try:
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(mode=0o700, parents=True)
    except OSError as error:
        raise DataError(f"output folder {work}: {error.strerror}") from error


def _tasks(plan: Plan, places: Places, sockets: Path, threads: int) -> dict[str, Task]:
    """The task of each party, whose new identity lies in the work folder."""
    facts = plan.facts
    pads: tuple[str, ...] = ()
    if places.pads is not None:
        pads = str(places.pads.folder.resolve()), str(places.pads.keys.resolve())
    identities = {name: Identity.generate() for name in facts.names}
    beside = places.beside.resolve()
    sources = [] if plan.job.job.dataset else file_sources(plan.job, beside)
    tasks = {
        name: Task(
            name=name,
            job=plan.job.model_dump(mode="json", exclude_unset=True),
            job_hash=plan.hash.hex(),
            identities={name: each.public.hex() for name, each in identities.items()},
            label_party=facts.label_party,
            by_digest=any(is_shard(source.path) for source in sources),
            beside=str(beside),
            data_dir="" if places.data_dir is None else str(places.data_dir.resolve()),
            work=str((places.output / WORK).resolve()),
            output=str(places.output.resolve()),
            addresses={
                # A socket's path has at most about 100 bytes.
                name: _address(places.listen, f"{sockets}/{number}", number)
                for number, name in enumerate(facts.names)
            },
            guard_directory=str(places.guard_directory.resolve()),
            pads=pads,
            threads=threads,
        )
        for name in facts.names
    }
    for name, identity in identities.items():
        identity.save(key_file(tasks[name]))
    return tasks


def _join(plan: Plan, tasks: Mapping[str, Task]) -> None:
    """Write beforehand what the parties would find by alignment."""
    if plan.job.job.dataset is not None:
        every = Common(np.arange(plan.facts.rows), np.zeros(0, np.int64))
        found = dict.fromkeys(tasks, (every, rows_fingerprint(plan.facts.row_digests)))
    else:
        rows = {name: own_file(task) for name, task in tasks.items()}
        common = join(rows, plan.facts.label_party)
        found = {name: (common[name], rows[name].digest) for name in tasks}
    for name, task in tasks.items():
        keep_common(folder_of(task) / ALIGNED, *found[name], SESSION)


def _address(listen: str | None, path: str, number: int) -> str:
    if listen is None:
        return UNIX + path
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(f"{listen!r}: expected HOST:PORT, port 0 for free ones")
    own = int(port) + number if int(port) else 0
    if own > MOST_PORT:
        raise ConfigError(f"{listen!r}: a process would have port {own}, at most {MOST_PORT}")
    return f"{WS}{host}:{own}"
