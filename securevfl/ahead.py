"""What all parties of a job make before it starts, in one process over the simulated network."""

import time
from dataclasses import dataclass, replace
from functools import partial

from securevfl.data.tables import VerticalDataset
from securevfl.errors import ConfigError
from securevfl.job import Job
from securevfl.protocols.plan import Plan
from securevfl.protocols.vertical.program import MadeAhead, run_ahead
from securevfl.runtime.costs import JobCosts, job_costs
from securevfl.runtime.simulation import simulate
from securevfl.sparse import Matrix
from securevfl.training import Environment, resolved, workplace_of


@dataclass(frozen=True)
class Made:
    """What was made.

    Attributes:
        parts: by party.
        costs: of making them, which the job that uses them counts too.
        wall_s: seconds on this machine's clock.
    """

    parts: dict[str, MadeAhead]
    costs: JobCosts
    wall_s: float


def require_ahead(plan: Plan) -> None:
    """Check that a job has something to make ahead.

    Raises:
        ConfigError: its rounds take nothing that was made before.
    """
    if plan.exchange.make_ahead is None:
        raise ConfigError(
            f"ahead: exchange {plan.exchange.name!r} makes no pads, its rounds take nothing that "
            "could be made before them; scheme = 'blind' does"
        )


def make_ahead(job: Job, dataset: VerticalDataset[Matrix], environment: Environment) -> Made:
    """Make the pads of a job, and write them to `environment.pads`.

    Raises:
        ConfigError: a job that has none, or does not fit the data.
        DataError: pads are there already, or cannot be written; what was written is dropped.
        RangeExceeded: fixed point has no room for the job.
        PeerError: a party broke the protocol (with fault injection).
    """
    plan, dataset = resolved(job, dataset, environment.modules)
    require_ahead(plan)
    assert plan.exchange.make_ahead is not None  # noqa: S101
    if environment.pads is None:
        raise ConfigError("ahead: nowhere to write pads to, and to keep their keys")
    stores = [environment.pads.of(name) for name in plan.facts.names]
    for store in stores:
        store.require_none()
    environment = replace(environment, resume={})
    places = {
        table.name: workplace_of(plan, dataset, table, environment) for table in dataset.parties
    }
    started = time.perf_counter()
    try:
        simulated = simulate(
            {
                name: partial(run_ahead, plan=plan, workplace=place, make=plan.exchange.make_ahead)
                for name, place in places.items()
            },
            plan.line,
            job_hash=plan.hash,
            stopwatch=environment.stopwatch,
            tamper=environment.tamper,
            paces=environment.paces,
        )
    except BaseException:
        for store in stores:
            store.discard()
        raise
    return Made(simulated.results, job_costs(simulated.costs, 1), time.perf_counter() - started)
