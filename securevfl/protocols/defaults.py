"""What a job leaves open, from what all parties know: settled once, the same at every party."""

from collections.abc import Collection

from securevfl.errors import ConfigError
from securevfl.job import Job
from securevfl.protocols.algorithm import Algorithm
from securevfl.protocols.exchange import Exchange

LOCAL_STEPS, BATCH_SIZE = 5, 128
NETWORK_STEPS = 20
# Exact steps with acceleration from zero; docs/exact-steps.md.
BLIND_ROUNDS = 20


def settled(
    job: Job, algorithm: Algorithm, exchange: Exchange, rows: int, networks: Collection[str]
) -> Job:
    """The job with rounds, start, local steps, batch size, acceleration, L2 and scorings said.

    Args:
        job: the settings.
        algorithm: the job's.
        exchange: the job's.
        rows: N.
        networks: the parties that train one.

    Raises:
        ConfigError: steps that the job cannot take, or a target that it never looks at.
    """
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
    # Gradients of batches tell labels where predictions and residuals are hidden.
    whole = exact or exchange.learns(job).gradients
    accelerated = exact and not algorithm.in_turns
    l2 = 1 / rows if auto and not settings.l1 else 0.0
    every = settings.eval_every
    if every == "never" and settings.target_auc is not None:
        raise ConfigError("target_auc needs held-out rows scored: eval_every = 'never'")
    if every is None:
        every = 0 if exchange.counts_held_out(job) else "doubling"
        if settings.target_auc is not None:
            every = 1
    blind = exchange.shares_parameters
    rounds = BLIND_ROUNDS if blind and exact and not rounds_said else settings.rounds
    # Where all know the labels a random start hides nothing, and rare columns unlearn it slowly.
    zero = blind or (algorithm.labels_everywhere and not networks)
    return job.with_settings(
        rounds=rounds,
        start=settings.start or ("zero" if zero else "random"),
        loss=algorithm.loss(job),
        eval_every=every,
        local_steps=local_steps,
        batch_size=settings.batch_size or ("full" if whole else min(BATCH_SIZE, rows)),
        acceleration=settings.acceleration or ("nesterov" if accelerated else "none"),
        l2=l2 if settings.l2 is None else settings.l2,
    )


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
