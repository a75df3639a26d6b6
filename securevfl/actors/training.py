"""Training by actors: as `securevfl.training.train`, with each party in a process of its own."""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

from securevfl.actors.leftover import ledger_at, outcome_at
from securevfl.actors.own_data import require_own_data, write_facts
from securevfl.actors.supervisor import supervise
from securevfl.actors.task import ActorTask, Host
from securevfl.data.tables import VerticalDataset
from securevfl.errors import ConfigError, DataError
from securevfl.files import remove_unfinished
from securevfl.job import Job
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.checkpoints import Checkpoints, SessionState, last_session
from securevfl.protocols.session.pad_store import PadPlaces
from securevfl.sparse import Matrix
from securevfl.training import TrainingResult, resolved

WORK = ".actors"
RESTARTS = 3
MOST_PORT = 65_535


@dataclass(frozen=True)
class Places:
    """Where actors find things."""

    output: Path  # folder of models and states, the same for all actors
    beside: Path  # folder that the paths of the parties' files are relative to
    guard_directory: Path  # where key owners record what jobs revealed
    data_dir: Path | None = None  # where named data sets are looked for first
    pads: PadPlaces | None = None  # made offline
    # HOST:PORT to listen at over TCP with TLS, each actor at the next port, or 0 for free ones;
    # None for Unix sockets in a private folder
    listen: str | None = None


@dataclass(frozen=True)
class Supervision:
    """How a job is supervised."""

    restarts: int = RESTARTS  # the most restarts of all actors
    progress: Callable[[int], None] = lambda rounds: None
    say: Callable[[str], None] = lambda line: None  # called with lines for the user
    threads: int = 1  # of linear algebra in each actor


def train_by_actors(
    job: Job,
    dataset: VerticalDataset[Matrix],
    host: Host,
    places: Places,
    *,
    resume: Mapping[str, SessionState] | None = None,
    supervision: Supervision | None = None,
) -> TrainingResult:
    """Run all parties of a job as actors, and leave their models in the output folder.

    Times are measured; the job's `[network]` has no effect.

    Args:
        job: the settings.
        dataset: the data for planning the job; actors open their own data and get none of these.
        host: where actors run.
        places: where they find their files.
        resume: the state to resume from by party, all of the same round.
        supervision: how to supervise the job.

    Raises:
        ConfigError: the job does not fit the data, or cannot be run by actors.
        SecureVFLError: an actor failed, or died after the last restart.
    """
    watched, resume = supervision or Supervision(), resume or {}
    require_own_data(job)
    plan, taken = resolved(job, dataset, ())
    rounds_before = max((each.rounds for each in resume.values()), default=0)
    sockets = Path(tempfile.mkdtemp(prefix="securevfl-"))
    # Short names, as a socket's path has at most about 100 bytes.
    names_of_sockets = (sockets / str(attempt) for attempt in count())
    work = places.output / WORK
    started = time.perf_counter()
    try:
        _make_private(work)
        if not resume:
            for name in plan.facts.names:
                Checkpoints(places.output, name).clear()
        write_facts(work, plan, places.beside.resolve())
        supervise(
            host,
            partial(_tasks, plan, places, names_of_sockets, watched.threads),
            resume_rounds=rounds_before if resume else None,
            restarts=watched.restarts,
            restart_from=partial(_restart_from, plan, places),
            progress=watched.progress,
            say=watched.say,
        )
        names = plan.facts.names
        outcomes = {name: outcome_at(work, places.output, name, plan) for name in names}
        ledgers = {name: ledger_at(work / f"{name}.ledger") for name in _names(plan)}
    finally:
        shutil.rmtree(sockets, ignore_errors=True)
        shutil.rmtree(work, ignore_errors=True)
        # All writers have ended, but a killed one may have left an unfinished file.
        for name in plan.facts.names:
            remove_unfinished(places.output / f"{name}.state")
            remove_unfinished(places.output / f"{name}.safetensors")
    label = plan.facts.label_party
    return TrainingResult(
        plan=plan,
        outcomes=outcomes,
        ledgers=ledgers,
        wall_s=time.perf_counter() - started,
        data=taken,
        rounds_before=outcomes[label].rounds - len(ledgers[label].snapshots),
    )


def _names(plan: Plan) -> tuple[str, ...]:
    """The parties, and servers that take part without data."""
    return tuple(dict.fromkeys((*plan.facts.names, *plan.algorithm.programs(plan, {}))))


def _make_private(work: Path) -> None:
    try:
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(mode=0o700, parents=True)
    except OSError as error:
        raise DataError(f"output folder {work}: {error.strerror}") from error


def _tasks(
    plan: Plan,
    places: Places,
    sockets: Iterator[Path],
    threads: int,
    resume_rounds: int | None,
) -> dict[str, ActorTask]:
    pads: tuple[str, ...] = ()
    if places.pads is not None:
        pads = str(places.pads.folder.resolve()), str(places.pads.keys.resolve())
    job = plan.job.model_dump(mode="json", exclude_unset=True)
    # New names in each attempt: an actor that is killed before it is connected leaves its socket.
    own, names = next(sockets), _names(plan)
    return {
        name: ActorTask(
            name=name,
            job=job,
            job_hash=plan.hash.hex(),
            names=names,
            beside=str(places.beside.resolve()),
            data_dir="" if places.data_dir is None else str(places.data_dir.resolve()),
            work=str((places.output / WORK).resolve()),
            output=str(places.output.resolve()),
            # A server has no state.
            resume_rounds=resume_rounds if name in plan.facts.names else None,
            listen=_address(places.listen, f"{own}-{number}", number),
            guard_directory=str(places.guard_directory.resolve()),
            pads=pads,
            threads=threads,
        )
        for number, name in enumerate(names)
    }


def _address(listen: str | None, path: str, number: int) -> str:
    if listen is None:
        return f"unix:{path}"
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(f"{listen!r}: expected HOST:PORT, port 0 for free ones")
    own = int(port) + number if int(port) else 0
    if own > MOST_PORT:
        raise ConfigError(f"{listen!r}: a process would have port {own}, at most {MOST_PORT}")
    return f"tcp:{host}:{own}"


def _restart_from(plan: Plan, places: Places) -> int | None:
    """The rounds from which actors can restart, None for 0; a ConfigError with noise."""
    if plan.account is not None:
        raise ConfigError(f"it is not started again: {plan.never_resumes}")
    states = last_session(places.output, plan.facts.names)
    here = [each for each in states.values() if each.job_hash == plan.hash.hex()]
    return here[0].rounds if here and plan.never_resumes is None else None
