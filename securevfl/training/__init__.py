"""A job in one process: every party as a program of its own, over the simulated network.

A program gets its party's columns, and the labels only at the label party or where the algorithm
gives them to all; nothing here reads two parties' data together.
"""

import time
from collections.abc import Collection

from securevfl.data.tables import VerticalDataset
from securevfl.data.tables import check as check_dataset
from securevfl.job import Job
from securevfl.protocols.catalogue import algorithm_of
from securevfl.protocols.plan import Facts, Plan
from securevfl.protocols.resolving import resolve
from securevfl.runtime.simulation import simulate
from securevfl.sparse import Matrix
from securevfl.training.environment import Environment, data_of, workplace_of
from securevfl.training.result import TrainingResult, model_files, save_models

__all__ = [
    "Environment",
    "TrainingResult",
    "data_of",
    "model_files",
    "plan_for",
    "resolved",
    "save_models",
    "train",
    "workplace_of",
]


def train(
    job: Job, dataset: VerticalDataset[Matrix], environment: Environment | None = None
) -> TrainingResult:
    """Run all parties of a job in this process.

    Raises:
        ConfigError: a job that does not fit the data, or would leak too much about labels.
        RangeExceeded: fixed-point products could overflow; before anything is sent.
        BudgetExhausted: the job would spend more than its privacy budget.
        PeerError: a party broke the protocol (with fault injection).
    """
    environment = environment or Environment()
    plan, dataset = resolved(job, dataset, environment.modules)
    places = {
        table.name: workplace_of(plan, dataset, table, environment) for table in dataset.parties
    }
    started = time.perf_counter()
    simulated = simulate(
        plan.algorithm.programs(plan, places),
        plan.line,
        job_hash=plan.hash,
        stopwatch=environment.stopwatch,
        record_views=environment.record_views,
        tamper=environment.tamper,
        paces=environment.paces,
    )
    wall = time.perf_counter() - started
    return TrainingResult(
        plan=plan,
        outcomes={name: simulated.results[name] for name in places},
        ledgers=simulated.costs,
        wall_s=wall,
        data=dataset,
        rounds_before=max((each.rounds for each in environment.resume.values()), default=0),
        views=simulated.views,
        others={name: each for name, each in simulated.results.items() if name not in places},
    )


def plan_for(job: Job, dataset: VerticalDataset[Matrix], modules: Collection[str] = ()) -> Plan:
    """The job resolved for a data set, before any work.

    Args:
        job: the settings.
        dataset: the data.
        modules: the parties for which there is a custom module.

    Raises:
        ConfigError: a loss, local model, exchange, network or batch size that does not fit.
        DataError: data that no job could train on.
        BudgetExhausted: the job would spend more than its privacy budget.
    """
    return resolved(job, dataset, modules)[0]


def resolved(
    job: Job, dataset: VerticalDataset[Matrix], modules: Collection[str]
) -> tuple[Plan, VerticalDataset[Matrix]]:
    """The plan, and the rows that take part."""
    check_dataset(dataset)
    taken = algorithm_of(job).rows(job, dataset)
    if taken is not dataset:
        check_dataset(taken)
    return resolve(job, Facts.of(taken), modules), taken
