"""Empirical ε as rows of the audit: no claim may be below what was measured."""

from collections.abc import Iterable
from functools import partial

import numpy as np

from securevfl.audit.canaries import in_situ, released_canaries
from securevfl.audit.epsilon_bound import EpsilonBound, epsilon_bound, runs_to_pass
from securevfl.audit.judging import EPSILON, Finding
from securevfl.audit.measuring import Case, attack_in_cases
from securevfl.audit.subject import Subject
from securevfl.errors import ConfigError
from securevfl.job import Job, PrivacySettings
from securevfl.privacy.accounting import spent
from securevfl.privacy.mechanisms import Mechanism
from securevfl.training import plan_for

CANARIES = 20_000
MOST_RELEASES = 100
WORLD_ROWS, MOST_ROUNDS = 256, 10
STEP_SIZE = 0.1
LEAST_RUNS, MOST_RUNS = 100, 400
WORLDS = "all but whether one record is 10,000 times as large, and wrong"
LIKE_RELEASES = {"gradient_clip": 1.0, "gradient_noise_multiplier": 4.0}


@attack_in_cases("epsilon", "label party", "the canary predicts minus or plus the clip")
def empirical_epsilon(subject: Subject) -> Iterable[Case]:
    """Canaries by their own releases, with a control; one record by the others' messages.

    Without noise nothing is promised, and a policy on epsilon is not kept: whoever asks for one
    wants the claim that is not there, and anybody's record can be told.
    """
    if not subject.exchange.adds_noise:
        raise ConfigError("no noise: no epsilon is claimed")
    privacy = subject.job.privacy
    assert privacy.noise_multiplier is not None  # noqa: S101
    if privacy.noise_multiplier == 0:
        raise ConfigError("noise multiplier 0 claims nothing")
    half = privacy.model_copy(update={"noise_multiplier": privacy.noise_multiplier / 2})
    yield Case(partial(_canaries, subject, privacy), "own releases")
    yield Case(partial(_canaries, subject, half), "control: half the noise", control=True)
    case = partial(Case, side_knowledge=WORLDS)
    if privacy.gradient_clip is not None:
        yield case(partial(_worlds, subject, subject.job), "in situ")
        return
    # Nothing is claimed end to end: what if somebody took the release claim for it?
    yield case(partial(_worlds, subject, subject.job), "release claim, in situ", what_if=True)
    job = subject.job
    if job.job.learning_rate == "auto":
        # Steps that follow from rows exactly are nothing that DP-SGD can promise.
        job = job.with_settings(learning_rate=STEP_SIZE, local_steps=None, acceleration=None)
    noisy = Job.of(**{**dict(job), "privacy": {**dict(privacy), **LIKE_RELEASES}})
    yield case(partial(_worlds, subject, noisy), "DP-SGD, in situ", what_if=True)


def _canaries(subject: Subject, noise: PrivacySettings) -> Finding:
    """Held against the job's own claim, whatever the noise."""
    privacy = subject.job.privacy
    assert privacy.noise_multiplier is not None  # noqa: S101
    releases = min(subject.releases, MOST_RELEASES)
    mechanism = Mechanism(privacy.mechanism, privacy.noise_multiplier, privacy.clip)
    claim = spent(mechanism, releases, privacy.delta).release
    generator = np.random.default_rng([subject.seed, 5])
    scores = released_canaries(noise, releases, CANARIES, generator)
    return _finding(subject.job, epsilon_bound(*scores, privacy.delta), claim, releases)


def _worlds(subject: Subject, job: Job) -> Finding:
    small = subject.with_rows(WORLD_ROWS)
    # Few rounds where there is little noise: a claim that is large anyway takes many runs to pass.
    rounds = int(min(max(2, (job.privacy.noise_multiplier or 0) ** 2), MOST_ROUNDS))
    job = job.with_settings(rounds=rounds, batch_size="full", algorithm="fedbcd-p", eval_every=0)
    account = plan_for(job, small.dataset).account
    assert account is not None  # noqa: S101
    promise = account.after(rounds)
    claim = promise.epsilon_end_to_end or promise.epsilon_release
    assert claim is not None  # noqa: S101
    runs = runs_to_pass(claim, job.privacy.delta)
    if runs > MOST_RUNS:
        raise ConfigError("so little noise that no number of runs tells")
    scores = in_situ(job, small.dataset, max(runs, LEAST_RUNS))
    bound = epsilon_bound(*scores, job.privacy.delta)
    return _finding(job, bound, claim, promise.releases)


def _finding(job: Job, bound: EpsilonBound, claim: float, releases: int) -> Finding:
    # The bound through `mu` takes the noise for Gaussian, gradients' included.
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
