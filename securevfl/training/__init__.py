"""Training in one process: every party is its own program, over the simulated network.

A program gets its party's columns, and labels only at the label party or if the algorithm gives
them to all; nothing here reads two parties' data together.
"""

import hashlib
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from securevfl.data.scaling import require_columns
from securevfl.data.tables import PartyTable, VerticalDataset
from securevfl.data.tables import check as check_dataset
from securevfl.errors import ConfigError
from securevfl.job import Job
from securevfl.models.local_model import LocalModel, MakeModule
from securevfl.protocols.catalogue import algorithm_of
from securevfl.protocols.exchange import Exchange, TrainsOnShares
from securevfl.protocols.plan import Facts, Plan
from securevfl.protocols.resolving import resolve
from securevfl.protocols.session.checkpoints import SessionState
from securevfl.protocols.session.keys import KeyMaker
from securevfl.protocols.session.pad_store import PadPlaces
from securevfl.protocols.session.workplace import PartyData, Workplace
from securevfl.protocols.vertical.runner import MadeOffline, MakeOffline, run_offline
from securevfl.runtime.costs import JobCosts, Pace, Stopwatch, job_costs
from securevfl.runtime.line import LinkCosts
from securevfl.runtime.simulation import Program, Simulated, T, Tamper, simulate
from securevfl.sparse import Matrix
from securevfl.threads import spread_over
from securevfl.training.result import TrainingResult, model_files, save_models

__all__ = [
    "Environment",
    "Made",
    "TrainingResult",
    "data_of",
    "make_offline",
    "model_files",
    "plan_for",
    "require_offline",
    "resolved",
    "save_models",
    "train",
    "workplaces",
]


@dataclass(frozen=True)
class Environment:
    """What a run may use besides its job and data; tests and benchmarks change it.

    Attributes:
        keys: makes homomorphic keys.
        stopwatch: measures computation.
        links: what real links cost besides their lines (`parties.link_costs`); None counts nothing.
        record_views: record every party's view.
        tamper: fault injection into the network.
        guard_directory: records of earlier jobs' leakage, by which this job may be refused; None
            only reports the ratio.
        checkpoints: where parties save the state to resume from during training
            (`session.checkpoints`); None saves nothing.
        progress: called with the number of rounds done.
        modules: by party, a function from the numbers of features and outputs to its network.
        wrap_model: maps a party's name and its local model at θ⁰ to the model that it trains.
        paces: by party, the factor by which its computation is slower than measured.
        keep_state: called after every round of every party with its state.
        resume: by party, the state to resume from; all of the same round.
        pads: where `make_offline` stored pads, which are used once; None stores none.
    """

    keys: KeyMaker = field(default_factory=KeyMaker)
    stopwatch: Stopwatch | None = None
    links: LinkCosts | None = None
    record_views: bool = False
    tamper: Tamper | None = None
    guard_directory: Path | None = None
    checkpoints: Path | None = None
    progress: Callable[[int], None] | None = None
    modules: Mapping[str, MakeModule] = field(default_factory=dict)
    wrap_model: Callable[[str, LocalModel], LocalModel] | None = None
    paces: Mapping[str, Pace] = field(default_factory=dict)
    keep_state: Callable[[SessionState], None] | None = None
    resume: Mapping[str, SessionState] = field(default_factory=dict)
    pads: PadPlaces | None = None


def workplaces(
    plan: Plan, dataset: VerticalDataset[Matrix], environment: Environment
) -> dict[str, Workplace]:
    """By party, what its program receives of an environment and of the data: its own part only."""
    return {each.name: _workplace(plan, dataset, each, environment) for each in dataset.parties}


def _workplace(
    plan: Plan,
    dataset: VerticalDataset[Matrix],
    table: PartyTable[Matrix],
    environment: Environment,
) -> Workplace:
    name, facts, wrap = table.name, plan.facts, environment.wrap_model
    return Workplace(
        data=data_of(plan, dataset, table),
        keys=environment.keys,
        start=np.random.default_rng([plan.job.job.seed, facts.names.index(name)]),
        guard_directory=environment.guard_directory,
        checkpoints=environment.checkpoints,
        progress=environment.progress if name == facts.label_party else None,
        make_module=environment.modules.get(name),
        wrap_model=None if wrap is None else partial(wrap, name),
        keep_state=environment.keep_state,
        resume=environment.resume.get(name),
        pads=None if environment.pads is None else environment.pads.of(name),
    )


def data_of(plan: Plan, dataset: VerticalDataset[Matrix], table: PartyTable[Matrix]) -> PartyData:
    """A party's own part of a data set: its columns, and labels if it may have them."""
    is_label_party = table.name == plan.facts.label_party
    with_labels = plan.algorithm.labels_everywhere or is_label_party
    return PartyData(
        table,
        dataset.train_labels if with_labels else None,
        dataset.test_labels if with_labels else None,
        dataset.own_rows if is_label_party else None,
        dataset.class_names if is_label_party else (),
    )


def train(
    job: Job, dataset: VerticalDataset[Matrix], environment: Environment | None = None
) -> TrainingResult:
    """Run all parties of a job in this process.

    Raises:
        ConfigError: a job that does not match the data, or would reveal too much about labels.
        RangeExceeded: fixed-point products could overflow; before anything is sent.
        BudgetExhausted: the job would exceed its privacy budget.
        PeerError: a party violated the protocol (with fault injection).
    """
    environment = environment or Environment()
    plan, dataset = resolved(job, dataset, environment.modules)
    places = workplaces(plan, dataset, environment)
    own_code = environment.modules or environment.wrap_model or environment.tamper
    if environment.guard_directory is not None and plan.exchange.repeats and not own_code:
        known = _answer(plan, places)
        places = {name: replace(place, answer=known) for name, place in places.items()}
    started = time.perf_counter()
    finished = simulated(plan, plan.algorithm.programs(plan, places), environment)
    wall = time.perf_counter() - started
    return TrainingResult(
        plan=plan,
        outcomes={name: finished.results[name] for name in places},
        ledgers=finished.costs,
        wall_s=wall,
        data=dataset,
        rounds_before=max((each.rounds for each in environment.resume.values()), default=0),
        views=finished.views,
        others={name: each for name, each in finished.results.items() if name not in places},
        links=environment.links,
    )


def _answer(plan: Plan, places: Mapping[str, Workplace]) -> str:
    """SHA-256 (hex) of all that a simulated job's numbers follow from."""
    digest = hashlib.sha256(plan.hash + plan.facts.row_digests.tobytes())
    for name, place in sorted(places.items()):
        digest.update(f"|{name} {place.data.fingerprint}".encode())
    return digest.hexdigest()


def simulated(
    plan: Plan, programs: Mapping[str, Program[T]], environment: Environment
) -> Simulated[T]:
    with spread_over(plan.job.exchange.workers):
        return simulate(
            programs,
            plan.line,
            links=environment.links,
            job_hash=plan.hash,
            stopwatch=environment.stopwatch,
            record_views=environment.record_views,
            tamper=environment.tamper,
            paces=environment.paces,
        )


def plan_for(job: Job, dataset: VerticalDataset[Matrix], modules: Collection[str] = ()) -> Plan:
    """The job resolved for a data set; `modules` names the parties with a custom network.

    Raises:
        ConfigError: a loss, local model, exchange, network or batch size that does not match.
        DataError: data that no job could train on.
        BudgetExhausted: the job would exceed its privacy budget.
    """
    return resolved(job, dataset, modules)[0]


def resolved(
    job: Job, dataset: VerticalDataset[Matrix], modules: Collection[str]
) -> tuple[Plan, VerticalDataset[Matrix]]:
    """The plan, and the data set of the rows that take part."""
    check_dataset(dataset)
    require_columns(job.job.bounds, dataset)
    taken = algorithm_of(job).rows(job, dataset)
    if taken is not dataset:
        check_dataset(taken)
    return resolve(job, Facts.of(taken, job), modules), taken


@dataclass(frozen=True)
class Made:
    """What each party generated offline, and its costs, which the job that uses it includes."""

    parts: dict[str, MadeOffline]
    costs: JobCosts


def require_offline(exchange: Exchange) -> MakeOffline:
    """How a job's exchange generates pads; a ConfigError if it has none."""
    if not isinstance(exchange, TrainsOnShares):
        raise ConfigError(f"exchange {exchange.name!r} has no offline phase; use scheme = 'blind'")
    return exchange.make_offline


def make_offline(job: Job, dataset: VerticalDataset[Matrix], environment: Environment) -> Made:
    """Generate the pads of a job, and save them to `environment.pads`.

    Raises:
        ConfigError: a job without pads, or that does not match the data.
        DataError: pads exist already or cannot be written; anything written is deleted.
        RangeExceeded: fixed point has no room for the job.
        PeerError: a party violated the protocol (with fault injection).
    """
    plan, dataset = resolved(job, dataset, environment.modules)
    make = require_offline(plan.exchange)
    if environment.pads is None:
        raise ConfigError("--offline: set a folder for pads and their keys")
    stores = [environment.pads.of(name) for name in plan.facts.names]
    for store in stores:
        store.require_none()
    environment = replace(environment, resume={})
    places = workplaces(plan, dataset, environment)
    try:
        programs = {
            name: partial(run_offline, plan=plan, workplace=place, make=make)
            for name, place in places.items()
        }
        finished = simulated(plan, programs, environment)
    except BaseException:
        for store in stores:
            store.discard()
        raise
    return Made(finished.results, job_costs(finished.costs, 1))
