"""Resolves a job into a plan: fills in its defaults, and refuses what cannot run.

The result depends only on the job and the public facts of the data, so all parties get the same.
"""

from collections.abc import Collection, Mapping
from math import inf, isinf
from pathlib import Path
from typing import Literal

from securevfl.data.csv_files import CsvOptions
from securevfl.data.partition import BatchSchedule
from securevfl.data.read import FileSource
from securevfl.errors import ConfigError, LabelLeakRefused
from securevfl.job import Job, LocalModelSettings, PartySettings, check_models
from securevfl.models.local_model import Network, Precision, require_torch
from securevfl.models.losses import Logistic, Multinomial, Weighted, loss_for
from securevfl.protocols.algorithm import Algorithm
from securevfl.protocols.catalogue import EXCHANGES, algorithm_of, exchange_of
from securevfl.protocols.exchange import NEEDS, Exchange, SendsSignals
from securevfl.protocols.plan import Facts, Plan

LOCAL_STEPS, BATCH_SIZE = 5, 128
NETWORK_STEPS = 20
# Exact steps with acceleration from zero; docs/explanation/exact-steps.md.
BLIND_ROUNDS = 20
ENCRYPTED_HEAD = (
    " (a gradient through a head reveals d, and θ_k, which the party needs in clear, follows d)"
)

GUARDED_WEIGHTS = (
    "under encryption the label guard refuses most jobs with weights; `securevfl predict "
    "--cost-false-negative` chooses a cut-off by cost without any"
)


def resolve(job: Job, facts: Facts, modules: Collection[str] = ()) -> Plan:
    """The plan of a job, as all parties run it; `modules` are the parties with a custom module.

    Raises:
        ConfigError: the job cannot run, or not on these data.
        LabelLeakRefused: it starts at zero where gradients are revealed.
        BudgetExhausted: it would spend more than its privacy budget.
    """
    algorithm = algorithm_of(job)
    networks = networks_of(job, facts, algorithm, modules)
    exchange = exchange_of(job)
    if facts.real_targets:
        check_regression(job, algorithm)
    job = settled(job, algorithm, exchange, facts, networks)
    if job.job.target_auc is not None and not facts.test_rows:
        raise ConfigError("target_auc needs held-out rows, and there are none")
    _check_hidden(job, exchange)
    size = job.job.batch_size
    loss = loss_for(job.job.loss, facts.classes, facts.rows)
    given = job.job.class_weight
    if (given or facts.weight_bits) and isinstance(loss, Logistic | Multinomial):
        known = [*given.values()] if isinstance(given, Mapping) else [1.0, inf]
        mean = 2.0 ** (facts.weight_bits - 64) if facts.weight_bits else 1.0
        loss = Weighted(loss, min(known) * mean, inf if facts.weight_bits else max(known))
    plan = Plan(
        job=job,
        facts=facts,
        exchange=exchange,
        algorithm=algorithm,
        loss=loss,
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
    _check_weights(plan)
    check_head(plan)
    _check_taken(plan)
    plan.exchange.check(plan)
    plan.algorithm.check(plan)
    _check_offers(plan)
    if plan.learns.gradients and job.job.start == "zero" and not job.job.allow_label_leak:
        raise LabelLeakRefused(
            "start = 'zero' reveals labels: the first gradient is Xᵀ(½ − y), sums of known numbers "
            "over the rows of one class; use 'random', or set allow_label_leak = true"
        )
    if plan.account is not None:
        plan.account.require_budget()
    return plan


def _check_hidden(job: Job, exchange: Exchange) -> None:
    """Refuse settings of exchanges that show nothing in rounds."""
    if exchange.shares_parameters:
        return
    for key in ("offline_rounds", "checks", "period"):
        if getattr(job.exchange, key) is not None:
            raise ConfigError(f"{key} is a setting of 'blind', not of {exchange.name!r}")
    if job.exchange.scores is not None and job.exchange.hide != "both":
        raise ConfigError(
            "scores is a setting of 'blind' and of hide = 'both', which show no prediction in "
            f"rounds, not of {exchange.name!r}"
        )


def _check_taken(plan: Plan) -> None:
    """Refuse settings that the exchange would ignore."""
    settings, exchange = plan.job.exchange, plan.exchange
    for key, each in type(settings).model_fields.items():
        if key not in ("scheme", *exchange.takes) and getattr(settings, key) != each.default:
            raise ConfigError(f"exchange {exchange.name!r} takes no {key}: drop it")


def _check_offers(plan: Plan) -> None:
    """Refuse an exchange that does not offer what the algorithm needs; name those that do."""
    algorithm, exchange = plan.algorithm, plan.exchange
    if not algorithm.needs:
        raise ConfigError(f"algorithm {algorithm.name!r} does not say what it needs of an exchange")
    if isinstance(exchange, algorithm.needs):
        return
    needed = ", or ".join(NEEDS.get(need, need.__name__) for need in algorithm.needs)
    lacks = "hides" if exchange.encrypts else "does not offer"
    able = [repr(name) for name, each in EXCHANGES.items() if isinstance(each, algorithm.needs)]
    use = " or ".join(filter(None, [", ".join(able[:-1]), *able[-1:]]))
    raise ConfigError(
        f"algorithm = {algorithm.name!r}: {needed}, which {exchange.name!r} {lacks}: use {use}"
    )


def agreed_hash(job: Job, facts: Facts, modules: Collection[str] = ()) -> bytes:
    """The hash of the job with all its defaults, as in model files."""
    algorithm = algorithm_of(job)
    networks = networks_of(job, facts, algorithm, modules)
    return settled(job, algorithm, exchange_of(job), facts, networks).hash()


def _check_rule(plan: Plan) -> None:
    """Check that the exchange sends what steps need, and that the loss has enough curvature."""
    rule, loss = plan.rule, plan.loss
    if rule.own_loss and not plan.exchange.sends_sum:
        raise ConfigError(
            "local_rule = 'exact' sends feature parties labels and ΣH: use exchange 'plain', "
            f"not {plan.exchange.name!r}"
        )
    if isinf(loss.curvature) and (plan.derives_steps or not (rule.frozen or rule.own_loss)):
        raise ConfigError(
            f"loss = {loss.name!r} has unbounded curvature: give a learning_rate, and local_rule = "
            "'frozen', or 'exact' under plain"
        )


def _check_weights(plan: Plan) -> None:
    """Refuse weights where they are not accounted for, or a peer would have to know them."""
    job, exchange, of_rows = plan.job, plan.exchange, plan.facts.weight_bits
    if not (job.job.class_weight or of_rows):
        return
    watched = plan.stops_early and plan.full_batches
    open_to = not (exchange.adds_noise or exchange.shares_parameters or job.exchange.hide == "both")
    for fits, takes in (
        (isinstance(plan.loss, Weighted), "loss = 'logistic' of classes"),
        (SendsSignals in plan.algorithm.needs, "algorithm 'fedsgd', 'fedbcd-p' or 'fedbcd-s'"),
        (not of_rows or (open_to and not exchange.encrypts), "exchange 'plain' or 'masked'"),
        (open_to, f"'plain' or 'masked', or encryption with hide = 'residuals': {GUARDED_WEIGHTS}"),
        (
            not exchange.encrypts or job.job.class_weight != "balanced",
            "a weight for each class under encryption, by its name: class_weight = { no = 1, yes = "
            "20 } (the range of residuals would tell balanced ones, and so the share of the rarest "
            f"class); {GUARDED_WEIGHTS}",
        ),
        (not plan.rule.own_loss, "no local_rule = 'exact', for which peers need the weights"),
        (watched or not plan.derives_steps, "batch_size = 'full' and no l1, or a learning_rate"),
    ):
        if not fits:
            raise ConfigError(f"{'weight_column' if of_rows else 'class_weight'} takes {takes}")


def settled(
    job: Job, algorithm: Algorithm, exchange: Exchange, facts: Facts, networks: Collection[str]
) -> Job:
    """The job with its defaults for the data and `networks`; a ConfigError if they do not fit."""
    left_open = {n: v for n, v in algorithm.defaults.items() if getattr(job.job, n) is None}
    rounds_said = "rounds" in job.job.model_fields_set
    job = job.with_settings(**left_open)
    settings = job.job
    auto = settings.learning_rate == "auto"
    if auto and job.privacy.gradient_clip is not None:
        raise ConfigError(
            "learning_rate = 'auto' follows from exact rows, which no epsilon covers: give a "
            "learning_rate with gradient_clip"
        )
    local_steps = settings.local_steps
    if local_steps is None:
        no_majorizer = settings.local_rule in ("frozen", "exact")
        scheduled = settings.schedule or settings.divide_by_sqrt_parties
        needs_numbers = algorithm.one_step or networks or no_majorizer or scheduled or settings.l1
        inexact = NETWORK_STEPS if auto and networks else LOCAL_STEPS
        local_steps = "exact" if auto and not needs_numbers else inexact
    if local_steps == "exact":
        _check_exact(job, algorithm, networks)
    elif algorithm.one_step:
        local_steps = 1
    exact = local_steps == "exact"
    # Where gradients are all that is revealed, those of batches reveal more of labels.
    whole = exact or exchange.learns(job).gradients
    accelerated = exact and not algorithm.alternating
    l2 = 1 / facts.rows if auto and not settings.l1 else 0.0
    blind = exchange.shares_parameters
    rounds = BLIND_ROUNDS if blind and exact and not rounds_said else settings.rounds
    # Where all parties know the labels, a random start hides nothing and costs rounds.
    zero = blind or (algorithm.labels_everywhere and not networks)
    return job.with_settings(
        rounds=rounds,
        start=settings.start or ("zero" if zero else "random"),
        loss=algorithm.loss(job),
        eval_every=_scorings(job, exchange, len(facts.names)),
        local_steps=local_steps,
        batch_size=settings.batch_size or ("full" if whole else min(BATCH_SIZE, facts.rows)),
        acceleration=settings.acceleration or ("nesterov" if accelerated else "none"),
        l2=l2 if settings.l2 is None else settings.l2,
    )


def _scorings(job: Job, exchange: Exchange, parties: int) -> int | Literal["doubling", "never"]:
    """When held-out rows are scored (`eval_every`); a ConfigError if they cannot be."""
    every, target = job.job.eval_every, job.job.target_auc
    if every == "never" and target is not None:
        raise ConfigError("target_auc needs held-out rows scored: eval_every = 'never'")
    hidden, opened = job.exchange.hide == "both", job.exchange.scores == "rows"
    closed = hidden and not opened and parties > 2  # noqa: PLR2004  # sums are for two
    if every is None:
        every = "never" if closed else 0 if exchange.counts_held_out(job) else "doubling"
        if target is not None:
            every = 1
    if closed and (every != "never" or job.exchange.scores == "sums"):
        raise ConfigError(
            "hide = 'both' among three parties or more scores only rows that they agree to open: "
            "set scores = 'rows', or eval_every = 'never'"
        )
    return every


def _check_exact(job: Job, algorithm: Algorithm, networks: Collection[str]) -> None:
    settings = job.job
    what = "local_steps = 'exact'"
    if settings.learning_rate != "auto":
        raise ConfigError(
            f"{what} has no step size: drop learning_rate = {settings.learning_rate:g}, or give a "
            "number of steps"
        )
    if settings.schedule or settings.divide_by_sqrt_parties:
        raise ConfigError(f"{what} has no step size: drop schedule and divide_by_sqrt_parties")
    if settings.local_rule in ("frozen", "exact"):
        raise ConfigError(
            f"{what} is the minimum of a majorizer: local_rule = {settings.local_rule!r} has none"
        )
    if algorithm.one_step:
        raise ConfigError(f"{what}: {algorithm.name} takes one gradient step; use fedbcd-p")
    for name in sorted(networks):
        raise ConfigError(f"{what} takes linear models, and party {name!r} trains a network")


def check_regression(job: Job, algorithm: Algorithm) -> None:
    """Refuse algorithms and settings that have no meaning for real targets."""
    if algorithm.only_loss is not None:
        raise ConfigError(
            f"algorithm = {algorithm.name!r} needs two classes ({algorithm.only_loss} loss), not "
            "real targets; use 'fedbcd-p'"
        )
    if job.job.target_auc is not None:
        raise ConfigError("target_auc: real targets have no AUC; drop it, training ends by itself")
    if job.privacy.label_noise_multiplier:
        raise ConfigError(
            "label_noise_multiplier: a real target moves a residual without a public bound, so no "
            "noise of a known size hides it; noise on predictions is still possible"
        )


def networks_of(
    job: Job, facts: Facts, algorithm: Algorithm, modules: Collection[str]
) -> dict[str, Network]:
    """The networks by party, without parties that train linear models.

    They include the algorithm's own; `modules` are the parties with a custom module.

    Raises:
        ConfigError: models that do not fit the job, missing or superfluous modules, or no torch.
    """
    check_models(job)
    precision, represents = job.job.precision, job.job.head != "sum"
    networks = algorithm.networks(job, facts)
    for name in facts.names:
        settings = job.model_of(name)
        if settings.model != "linear":
            require_torch()
            networks[name] = _network(name, settings, precision, represents=represents)
    custom = {name for name, network in networks.items() if network.kind == "custom"}
    for name in sorted(custom - set(modules)):
        raise ConfigError(f"party {name!r}: model = 'custom' needs a module from Python")
    for name in sorted(set(modules) - custom):
        raise ConfigError(f"a module for {name!r}, which is no party with model = 'custom'")
    if networks and job.job.start == "zero":
        raise ConfigError("start = 'zero' gives a network no gradient: use 'random'")
    if networks and job.privacy.gradient_clip and job.job.local_rule == "gauss-newton":
        raise ConfigError("gradient_clip needs local_rule = 'curvature' for networks")
    if precision == "single" and not networks:
        raise ConfigError("precision = 'single' is for networks: no party trains one")
    return networks


def _network(
    party: str, settings: LocalModelSettings, precision: Precision, *, represents: bool
) -> Network:
    if settings.model == "custom":
        return Network("custom", precision=precision)
    hidden, activation = settings.hidden, settings.activation
    if settings.model == "mlp":
        return Network("mlp", hidden, activation, precision=precision, represents=represents)
    if settings.image_width is None:
        raise ConfigError(
            f"party {party!r}: model = 'cnn' needs image_width, the pixels in a line of the image "
            "that its columns are (28 for mnist)"
        )
    return Network(
        "cnn", hidden, activation, settings.channels, settings.image_width, precision, represents
    )


def check_head(plan: Plan) -> None:
    """Refuse settings that do not fit a head, and a width without a head."""
    settings, exchange = plan.job.job, plan.exchange
    if plan.representation is None:
        if settings.representation is not None:
            raise ConfigError("representation is what a head is over: head = 'logistic'")
        return
    singly = exchange.takes_head and plan.learns.predictions == "singly"
    why = ENCRYPTED_HEAD if exchange.encrypts else ""
    refused = (
        (
            not plan.algorithm.takes_head,
            f"takes fedsgd, fedbcd-p or fedbcd-s, not algorithm {plan.algorithm.name!r}",
        ),
        (
            not singly,
            "needs each party's representation by itself and in clear or noisy: not with exchange "
            f"{exchange.name!r} as it is set{why}",
        ),
        (
            settings.loss not in ("logistic", "multinomial"),
            f"trains with loss = 'logistic', not {settings.loss!r}",
        ),
        (
            settings.learning_rate == "auto",
            "needs a learning_rate: 'auto' follows the curvature of summed predictions",
        ),
        (
            settings.local_rule not in ("curvature", "frozen"),
            f"takes local_rule = 'curvature' or 'frozen', not {settings.local_rule!r}",
        ),
        (settings.start == "zero", "has no gradient at start = 'zero': use 'random'"),
    )
    for is_so, reason in refused:
        if is_so:
            raise ConfigError(f"head = {settings.head!r} {reason}")


def file_source(party: PartySettings, path: Path) -> FileSource:
    """A party's file, of training or new rows, as its section describes it."""
    return FileSource(
        party.name,
        path,
        party.id_column,
        party.label_column,
        csv=CsvOptions(party.separator, party.decimal, party.thousands, party.encoding),
        id_format=party.id_format,
    )
