"""What parties train in place of linear models, and what goes with a head over them."""

from collections.abc import Collection

from securevfl.errors import ConfigError
from securevfl.job import Job, LocalModelSettings, check_models
from securevfl.models.local_model import Network, Precision, require_torch
from securevfl.protocols.algorithm import Algorithm
from securevfl.protocols.plan import Facts, Plan

ENCRYPTED_HEAD = (
    " (a gradient through it tells d as that of any network does, and θ_k, which the party needs "
    "in clear, follows d)"
)


def networks_of(
    job: Job, facts: Facts, algorithm: Algorithm, modules: Collection[str]
) -> dict[str, Network]:
    """The parties' networks by name; without those that train linear models.

    Args:
        job: the settings.
        facts: of the data.
        algorithm: the job's, which may bring networks of its own.
        modules: the parties for which there is a custom module.

    Raises:
        ConfigError: models that do not fit the job, or modules or torch that are missing, or
            modules too many.
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
        raise ConfigError("gradient_clip needs gradients of networks: local_rule = 'curvature'")
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
    if settings.image_line is None:
        raise ConfigError(
            f"party {party!r}: model = 'cnn' needs image_line, the pixels in a line of the image "
            "that its columns are (28 for mnist)"
        )
    return Network(
        "cnn", hidden, activation, settings.channels, settings.image_line, precision, represents
    )


def check_head(plan: Plan) -> None:
    """Refuse what a head does not go with.

    Raises:
        ConfigError: something that needs predictions summed, or a width without a head.
    """
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
    for is_so, told in refused:
        if is_so:
            raise ConfigError(f"head = {settings.head!r} {told}")
