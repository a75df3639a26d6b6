"""Empirical ε as rows of the audit: no claim may be below what was measured."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from securevfl.attacks.epsilon import EpsilonBound, epsilon_bound, runs_to_pass
from securevfl.audit.canaries import in_situ, released_canaries
from securevfl.audit.finding import EPSILON, Finding
from securevfl.audit.subject import Measurement, Subject
from securevfl.errors import ConfigError
from securevfl.job import Job
from securevfl.privacy.accounting import spent
from securevfl.privacy.mechanisms import Mechanism
from securevfl.training import plan_for

CANARIES = 20_000
MOST_RELEASES = 100
WORLD_ROWS, MOST_ROUNDS = 256, 10
LEAST_RUNS, MOST_RUNS = 100, 400
LIKE_RELEASES = {"gradient_clip": 1.0, "gradient_noise_multiplier": 4.0}


def empirical_epsilon(subject: Subject) -> Iterator[Measurement]:
    """Canaries by their own releases, with a control; one record by the others' messages."""
    cell = partial(Measurement, "epsilon", adversary="label party")
    if not subject.exchange.adds_noise:
        yield cell(reason="no noise: no epsilon is claimed")
        return
    privacy = subject.job.privacy
    assert privacy.noise_multiplier is not None  # noqa: S101
    if privacy.noise_multiplier == 0:
        yield cell(reason="noise multiplier 0 claims nothing")
        return
    releases = min(subject.releases, MOST_RELEASES)
    mechanism = Mechanism(privacy.mechanism, privacy.noise_multiplier, privacy.clip)
    claim = spent(mechanism, releases, privacy.delta).release
    half = privacy.model_copy(update={"noise_multiplier": privacy.noise_multiplier / 2})
    cases = (("own releases", privacy), ("control: half the noise", half))
    for case, noise in cases:
        generator = np.random.default_rng([subject.seed, 5])
        scores = released_canaries(noise, releases, CANARIES, generator)
        yield cell(
            case,
            side_knowledge="the canary predicts -C or C",
            finding=_finding(subject.job, epsilon_bound(*scores, privacy.delta), claim, releases),
            control=case.startswith("control"),
        )
    yield from _in_situ(subject)


def _in_situ(subject: Subject) -> Iterator[Measurement]:
    privacy = subject.job.privacy
    cell = partial(
        Measurement,
        "epsilon",
        adversary="label party",
        side_knowledge="all but whether one record is 10,000 times as large, and wrong",
    )
    exact = privacy.gradient_clip is None
    if not exact:
        yield _worlds(subject, subject.job, cell(case="in situ"))
        return
    # Nothing is claimed end to end: what if somebody took the release claim for it?
    yield _worlds(subject, subject.job, cell(case="release claim, in situ", what_if=True))
    noisy = Job.of(**{**dict(subject.job), "privacy": {**dict(privacy), **LIKE_RELEASES}})
    yield _worlds(subject, noisy, cell(case="DP-SGD, in situ", what_if=True))


def _worlds(subject: Subject, job: Job, cell: Measurement) -> Measurement:
    small = subject.with_rows(WORLD_ROWS)
    # Few rounds where there is little noise: a claim that is large anyway takes many runs to pass.
    rounds = int(min(max(2, (job.privacy.noise_multiplier or 0) ** 2), MOST_ROUNDS))
    job = job.with_settings(rounds=rounds, batch_size="full", algorithm="fedbcd-p", eval_every=0)
    try:
        account = plan_for(job, small.dataset).account
        assert account is not None  # noqa: S101
        promise = account.after(rounds)
        claim = promise.epsilon_end_to_end or promise.epsilon_release
        assert claim is not None  # noqa: S101
        runs = runs_to_pass(claim, job.privacy.delta)
        if runs > MOST_RUNS:
            return replace(cell, reason="so little noise that no number of runs tells")
        scores = in_situ(job, small.dataset, max(runs, LEAST_RUNS))
    except ConfigError as error:
        return replace(cell, reason=str(error))
    bound = epsilon_bound(*scores, job.privacy.delta)
    return replace(cell, finding=_finding(job, bound, claim, promise.releases))


def _finding(job: Job, bound: EpsilonBound, claim: float, releases: int) -> Finding:
    # The bound through μ takes the noise for Gaussian, gradients' included.
    gaussian = job.privacy.mechanism == "gaussian"
    return Finding(
        EPSILON,
        bound.gaussian if gaussian else bound.any_mechanism,
        allowed=claim,
        detail={
            "claimed_epsilon": claim,
            "releases": releases,
            "noise_multiplier": job.privacy.noise_multiplier,
            "delta": job.privacy.delta,
            "mu_lower_bound": bound.mu,
            "clopper_pearson": bound.any_mechanism,
        },
    )
