"""A job in one process: every party as a program of its own, over the simulated network.

A program gets its party's columns, and the labels only where it is the label party; nothing
here reads two parties' data together.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from securevfl.data.partition import BatchSchedule
from securevfl.data.tables import VerticalDataset
from securevfl.data.tables import check as check_dataset
from securevfl.job import Job
from securevfl.models.local_model import LocalModel, MakeModule
from securevfl.models.losses import loss_for
from securevfl.models.scores import auc
from securevfl.models.storage import save_model
from securevfl.protocols.exchanges.setting_up import check_exchange, reveals_gradients
from securevfl.protocols.plans import schedule_of
from securevfl.protocols.session.keys import KeyMaker, SchemeKeys
from securevfl.protocols.session.privacy_account import PrivacyAccount, Promise, account_of
from securevfl.protocols.session.scoring import Score
from securevfl.protocols.vertical.fdml import SERVER, Served, check_fdml, serve
from securevfl.protocols.vertical.local_part import check_local_models
from securevfl.protocols.vertical.program import PartyOutcome, run_party
from securevfl.protocols.vertical.workplace import PartyData, Workplace
from securevfl.runtime.costs import Costs, JobCosts, Stopwatch, job_costs
from securevfl.runtime.pace import Pace
from securevfl.runtime.simulation import Program, Tamper, simulate
from securevfl.runtime.views import View


@dataclass(frozen=True)
class Environment:
    """What a run may use besides its job and data; tests and benchmarks change it.

    Attributes:
        keys: makes homomorphic keys.
        stopwatch: how computation is timed.
        record_views: keep every party's view.
        tamper: fault injection into the network.
        guard_directory: where earlier jobs' leakage is remembered and this one's refused or
            noted; None only reports the ratio, as benchmarks do.
        checkpoints: where parties write their models as training goes on; None writes none.
        progress: called with rounds done.
        modules: by party what makes its network, where its model is custom: a function of the
            numbers of features and outputs.
        wrap_model: gives what a party trains in place of its local model at θ⁰, from its name
            and that model; None trains the model itself.
        paces: by party, how much longer than measured it computes.
    """

    keys: KeyMaker = field(default_factory=SchemeKeys)
    stopwatch: Stopwatch | None = None
    record_views: bool = False
    tamper: Tamper | None = None
    guard_directory: Path | None = None
    checkpoints: Path | None = None
    progress: Callable[[int], None] | None = None
    modules: Mapping[str, MakeModule] = field(default_factory=dict)
    wrap_model: Callable[[str, LocalModel], LocalModel] | None = None
    paces: Mapping[str, Pace] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainingResult:
    """A finished job.

    Attributes:
        job: the job in force.
        outcomes: by party.
        scores: the label party's held-out scores.
        rounds: rounds done.
        ledgers: each party's costs.
        views: each party's view, where recorded.
        label_guard_ratio: highest ratio at any key owner; None where gradients stay hidden.
        wall_s: seconds on this machine's clock.
        test_labels: of the held-out rows.
        served: what fdml's server saw.
    """

    job: Job
    outcomes: dict[str, PartyOutcome]
    scores: list[Score]
    rounds: int
    ledgers: dict[str, Costs]
    views: dict[str, View]
    label_guard_ratio: float | None
    wall_s: float
    test_labels: NDArray[np.int64]
    served: Served | None = None

    def costs(self, rounds: int | None = None) -> JobCosts:
        """Costs of the job's first rounds; of all by default."""
        return job_costs(self.ledgers, rounds or self.rounds)

    @property
    def privacy(self) -> Promise | None:
        """What the job's noise promises; None where there is none."""
        return next(iter(self.outcomes.values())).privacy

    @property
    def clear_auc(self) -> float:
        """Held-out AUC of the trained models' exact predictions.

        No party can compute it: under noise they score noisy predictions.
        """
        predictions = np.sum([each.held_out for each in self.outcomes.values()], axis=0)
        return auc(predictions, self.test_labels)

    @property
    def key_fingerprints(self) -> dict[str, str]:
        """Fingerprints of the homomorphic keys, by owner."""
        return {
            name: outcome.key_fingerprint
            for name, outcome in self.outcomes.items()
            if outcome.key_fingerprint is not None
        }

    @property
    def key_bits(self) -> int | None:
        """Key size in force, where the scheme has a choice."""
        sizes = [outcome.key_bits for outcome in self.outcomes.values()]
        return next((size for size in sizes if size is not None), None)


def train(
    job: Job, dataset: VerticalDataset, environment: Environment | None = None
) -> TrainingResult:
    """Run all parties of a job in this process.

    Raises:
        ConfigError: a job that does not fit the data, or would leak too much about labels.
        RangeExceeded: fixed-point products could overflow; before anything is sent.
        PeerError: a party broke the protocol (with fault injection).
    """
    environment = environment or Environment()
    check(job, dataset, environment.modules)
    schedule = schedule_of(job, dataset)
    programs: dict[str, Program[PartyOutcome | Served]] = {
        data.table.name: partial(
            run_party, job=job, data=data, workplace=_workplace(job, data, environment)
        )
        for data in _parties(dataset, schedule, everyone_labels=job.job.algorithm == "fdml")
    }
    if job.job.algorithm == "fdml":
        programs[SERVER] = _server(job, dataset, schedule)
    started = time.perf_counter()
    simulated = simulate(
        programs,
        job.network.resolve(),
        job_hash=job.hash(),
        stopwatch=environment.stopwatch,
        record_views=environment.record_views,
        tamper=environment.tamper,
        paces=environment.paces,
    )
    wall = time.perf_counter() - started
    outcomes = {
        name: outcome
        for name, outcome in simulated.results.items()
        if isinstance(outcome, PartyOutcome)
    }
    served = simulated.results.get(SERVER)
    label = outcomes[dataset.label_party]
    ratios = [outcome.leakage.ratio for outcome in outcomes.values()]
    return TrainingResult(
        job=job,
        outcomes=outcomes,
        scores=label.scores,
        rounds=label.rounds,
        ledgers=simulated.costs,
        views=simulated.views,
        label_guard_ratio=max(ratios) if reveals_gradients(job.exchange) else None,
        wall_s=wall,
        test_labels=dataset.test_labels,
        served=served if isinstance(served, Served) else None,
    )


def check(
    job: Job, dataset: VerticalDataset, modules: Mapping[str, MakeModule] | None = None
) -> None:
    """Check that a job fits the data, before any work.

    Raises:
        ConfigError: a loss, local model, exchange, network or batch size that does not.
        DataError: data that no job could train on.
        BudgetExhausted: the job would spend more than its privacy budget.
    """
    check_dataset(dataset)
    loss = loss_for(job.job.loss, dataset.classes)
    check_exchange(job.exchange, loss, len(dataset.parties), job.job.algorithm)
    check_local_models(
        job,
        loss,
        names=[table.name for table in dataset.parties],
        label_party=dataset.label_party,
        modules=modules or {},
    )
    check_fdml(job, [table.name for table in dataset.parties])
    job.network.resolve()
    account = privacy_account(job, dataset)
    if account is not None:
        account.require_budget()


def privacy_account(job: Job, dataset: VerticalDataset) -> PrivacyAccount | None:
    """The account of a job; None where its exchange adds no noise.

    Raises:
        ConfigError: a batch size that does not fit the data, or `[privacy]` without its exchange.
    """
    return account_of(
        job,
        schedule_of(job, dataset),
        parties=len(dataset.parties),
        outputs=loss_for(job.job.loss, dataset.classes).outputs,
        test_rows=len(dataset.test_labels),
    )


def save_models(result: TrainingResult, directory: Path) -> list[Path]:
    """Write every party's model to `directory/<party>.safetensors`.

    Raises:
        DataError: a file cannot be written.
    """
    paths = {name: directory / f"{name}.safetensors" for name in result.outcomes}
    for name, path in paths.items():
        save_model(path, result.outcomes[name].model)
    return list(paths.values())


def _server(
    job: Job, dataset: VerticalDataset, schedule: BatchSchedule
) -> Program[PartyOutcome | Served]:
    return partial(
        serve,
        workers=tuple(table.name for table in dataset.parties),
        job_hash=job.hash(),
        rounds=job.job.rounds,
        staleness=job.job.staleness,
        batch=schedule.batch,
        shape=(schedule.rows, loss_for(job.job.loss, dataset.classes).outputs),
        test_rows=len(dataset.test_labels),
    )


def _parties(
    dataset: VerticalDataset, schedule: BatchSchedule, *, everyone_labels: bool
) -> list[PartyData]:
    names = tuple(table.name for table in dataset.parties)
    holders = names if everyone_labels else (dataset.label_party,)
    return [
        PartyData(
            table=table,
            names=names,
            label_party=dataset.label_party,
            train_labels=dataset.train_labels if table.name in holders else None,
            test_labels=dataset.test_labels if table.name in holders else None,
            classes=dataset.classes,
            standardize=dataset.standardize,
            schedule=schedule,
        )
        for table in dataset.parties
    ]


def _workplace(job: Job, data: PartyData, environment: Environment) -> Workplace:
    is_label_party = data.table.name == data.label_party
    name, wrap = data.table.name, environment.wrap_model
    return Workplace(
        keys=environment.keys,
        start=np.random.default_rng([job.job.seed, data.names.index(name)]),
        guard_directory=environment.guard_directory,
        checkpoints=environment.checkpoints,
        progress=environment.progress if is_label_party else None,
        make_module=environment.modules.get(name),
        wrap_model=None if wrap is None else partial(wrap, name),
    )
