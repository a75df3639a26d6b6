"""Every exchange and algorithm by name, and a job resolved with them into a plan.

A new exchange or algorithm is a file of its own, an entry here and its name; `add_exchange` and
`add_algorithm` take those of other packages.
"""

from collections.abc import Collection, Mapping
from math import isinf
from types import MappingProxyType
from typing import TypeVar

from securevfl.crypto.schemes import SCHEMES
from securevfl.data.partition import BatchSchedule
from securevfl.errors import ConfigError, LabelLeakRefused
from securevfl.job import OWN_SECTIONS, Job
from securevfl.models.losses import loss_for
from securevfl.protocols import names
from securevfl.protocols.algorithm import Algorithm
from securevfl.protocols.blind.description import Blind
from securevfl.protocols.defaults import settled
from securevfl.protocols.exchange import Exchange
from securevfl.protocols.exchanges.noisy import Noisy
from securevfl.protocols.exchanges.plain import Masked, Plain
from securevfl.protocols.exchanges.under_encryption import UnderEncryption
from securevfl.protocols.local_models import check_head, networks_of
from securevfl.protocols.plan import Facts, Plan
from securevfl.protocols.regression import check_regression
from securevfl.protocols.transfer.ftl import Ftl
from securevfl.protocols.vertical.dbcd import Dbcd
from securevfl.protocols.vertical.fdml import Fdml
from securevfl.protocols.vertical.fedbcd import FEDBCD_P, FEDBCD_S, FEDSGD

D = TypeVar("D", Exchange, Algorithm)

_EXCHANGES: dict[str, Exchange] = {}
_ALGORITHMS: dict[str, Algorithm] = {}
EXCHANGES: Mapping[str, Exchange] = MappingProxyType(_EXCHANGES)
ALGORITHMS: Mapping[str, Algorithm] = MappingProxyType(_ALGORITHMS)


def add_exchange(exchange: Exchange) -> None:
    """Make an exchange known under its name.

    Raises:
        ConfigError: the name is taken.
    """
    _add(_EXCHANGES, names.EXCHANGES, exchange, "exchange")


def add_algorithm(algorithm: Algorithm) -> None:
    """Make an algorithm, and the section of job files that is its own, known under its name.

    Raises:
        ConfigError: the name is taken, by a section of job files perhaps.
    """
    if algorithm.name in Job.model_fields:
        raise ConfigError(f"algorithm {algorithm.name!r}: the name of a section of job files")
    _add(_ALGORITHMS, names.ALGORITHMS, algorithm, "algorithm")
    if algorithm.settings is not None:
        OWN_SECTIONS[algorithm.name] = algorithm.settings


def exchange_of(job: Job) -> Exchange:
    """The exchange that a job names.

    Raises:
        ConfigError: there is none; the message names the nearest.
    """
    names.check_names(job)
    return EXCHANGES[job.exchange.scheme]


def algorithm_of(job: Job) -> Algorithm:
    """The algorithm that a job names.

    Raises:
        ConfigError: there is none, or a section that is another algorithm's.
    """
    names.check_names(job)
    return ALGORITHMS[job.job.algorithm]


def resolve(job: Job, facts: Facts, modules: Collection[str] = ()) -> Plan:
    """A job as all its parties run it; what has to be refused is refused here, before any work.

    Args:
        job: the settings.
        facts: of the data.
        modules: the parties for which there is a custom module.

    Raises:
        ConfigError: a job that cannot be run, or not on these data.
        LabelLeakRefused: it starts at zero where gradients are revealed.
        BudgetExhausted: the job would spend more than its privacy budget.
    """
    algorithm = algorithm_of(job)
    networks = networks_of(job, facts, algorithm, modules)
    exchange = exchange_of(job)
    if facts.real_targets:
        check_regression(job, algorithm)
    job = settled(job, algorithm, exchange, facts.rows, networks)
    if job.job.target_auc is not None and not facts.test_rows:
        raise ConfigError("target_auc needs held-out rows, and there are none")
    if not exchange.shares_parameters:
        for key in ("scores", "ahead_rounds", "period"):
            if getattr(job.exchange, key) is not None:
                raise ConfigError(f"{key} is a setting of 'blind', not of {exchange.name!r}")
    size = job.job.batch_size
    plan = Plan(
        job=job,
        facts=facts,
        exchange=exchange,
        algorithm=algorithm,
        loss=loss_for(job.job.loss, facts.classes, facts.rows),
        line=job.network.resolve(),
        networks=networks,
        schedule=BatchSchedule(
            facts.row_digests,
            facts.rows if size is None or size == "full" else size,
            seed=job.job.seed,
            sampling=job.job.sampling,
        ),
    )
    _check_rule(plan)
    check_head(plan)
    plan.exchange.check(plan)
    plan.algorithm.check(plan)
    if plan.learns.gradients and job.job.start == "zero" and not job.job.allow_label_leak:
        raise LabelLeakRefused(
            "start = 'zero' tells labels: the first gradient is Xᵀ(½ − y), sums of known numbers "
            "over the rows of one class; use 'random', or set allow_label_leak = true"
        )
    if plan.account is not None:
        plan.account.require_budget()
    return plan


def agreed_hash(job: Job, facts: Facts, modules: Collection[str] = ()) -> bytes:
    """The hash that a job has once what it leaves open is settled, as models have it.

    Raises:
        ConfigError: a job that cannot be settled.
    """
    algorithm = algorithm_of(job)
    networks = networks_of(job, facts, algorithm, modules)
    return settled(job, algorithm, exchange_of(job), facts.rows, networks).hash()


def _check_rule(plan: Plan) -> None:
    """Check that parties can step as the job says.

    Raises:
        ConfigError: they are not told what that takes, or the loss has no curvature for it.
    """
    rule, loss = plan.rule, plan.loss
    if rule.own_loss and not plan.exchange.tells_sum:
        raise ConfigError(
            "local_rule = 'exact' tells feature parties labels and ΣH: with exchange 'plain' "
            f"alone, not {plan.exchange.name!r}"
        )
    if isinf(loss.curvature) and (plan.derives_steps or not (rule.frozen or rule.own_loss)):
        raise ConfigError(
            f"loss = {loss.name!r} bends without bound: give a learning_rate, and local_rule = "
            "'frozen', or 'exact' under plain"
        )


def _add(known: dict[str, D], names: list[str], description: D, what: str) -> None:
    if description.name in known:
        raise ConfigError(f"{what} {description.name!r} is known already")
    known[description.name] = description
    if description.name not in names:
        names.append(description.name)


for _exchange in (Plain(), Masked(), Noisy(), *map(UnderEncryption, SCHEMES), Blind()):
    add_exchange(_exchange)
for _algorithm in (FEDSGD, FEDBCD_P, FEDBCD_S, Fdml(), Dbcd(), Ftl()):
    add_algorithm(_algorithm)
