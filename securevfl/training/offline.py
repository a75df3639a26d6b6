"""The offline phase of a job by itself: what all parties make before it, in one process."""

from dataclasses import dataclass, replace
from functools import partial

from securevfl.data.tables import VerticalDataset
from securevfl.errors import ConfigError
from securevfl.job import Job
from securevfl.protocols.exchange import KeepsShares
from securevfl.protocols.plan import Plan
from securevfl.protocols.vertical.runner import MadeAhead, MakeAhead, run_ahead
from securevfl.runtime.costs import JobCosts, job_costs
from securevfl.runtime.simulation import simulate
from securevfl.sparse import Matrix
from securevfl.training import Environment, resolved, workplace_of


@dataclass(frozen=True)
class Made:
    """What was made by each party, and its costs, which the job that uses it counts too."""

    parts: dict[str, MadeAhead]
    costs: JobCosts


def require_ahead(plan: Plan) -> MakeAhead:
    """How a job's exchange makes something ahead; ConfigError where rounds take nothing such."""
    if not isinstance(plan.exchange, KeepsShares):
        raise ConfigError(
            f"ahead: exchange {plan.exchange.name!r} makes no pads, its rounds take nothing that "
            "could be made before them; scheme = 'blind' does"
        )
    return plan.exchange.make_ahead


def make_ahead(job: Job, dataset: VerticalDataset[Matrix], environment: Environment) -> Made:
    """Make the pads of a job, and write them to `environment.pads`.

    Raises:
        ConfigError: a job that has none, or does not fit the data.
        DataError: pads are there already, or cannot be written; what was written is dropped.
        RangeExceeded: fixed point has no room for the job.
        PeerError: a party broke the protocol (with fault injection).
    """
    plan, dataset = resolved(job, dataset, environment.modules)
    make = require_ahead(plan)
    if environment.pads is None:
        raise ConfigError("ahead: nowhere to write pads to, and to keep their keys")
    stores = [environment.pads.of(name) for name in plan.facts.names]
    for store in stores:
        store.require_none()
    environment = replace(environment, resume={})
    places = {
        table.name: workplace_of(plan, dataset, table, environment) for table in dataset.parties
    }
    try:
        simulated = simulate(
            {
                name: partial(run_ahead, plan=plan, workplace=place, make=make)
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
    return Made(simulated.results, job_costs(simulated.costs, 1))
