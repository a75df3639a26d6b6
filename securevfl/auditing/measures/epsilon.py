"""Empirical ε as rows of the audit: no claim may be below what was measured."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.auditing.canaries import released_canaries
from securevfl.auditing.epsilon_bound import epsilon_bound, mu_of, runs_to_pass, separation
from securevfl.auditing.judging import EPSILON, Finding
from securevfl.auditing.measuring import Case, attack_in_cases
from securevfl.auditing.neighbours import Neighbours, Told, extreme_record, told_apart, worst_case
from securevfl.auditing.subject import Subject
from securevfl.errors import ConfigError
from securevfl.job import Job, PrivacySettings
from securevfl.privacy.accounting import spent
from securevfl.privacy.mechanisms import Mechanism
from securevfl.protocols.session.privacy_account import Promise
from securevfl.training import plan_for

CANARIES = 20_000
MOST_RELEASES = 100
WORLD_ROWS, MOST_ROUNDS = 256, 10
STEP_SIZE = 0.1
LEAST_RUNS, MOST_RUNS = 100, 400
WORLDS = "all but the noise and which of two values one record has"
LIKE_RELEASES = {"gradient_clip": 1.0, "gradient_noise_multiplier": 4.0}
Scores = tuple[FloatArray, FloatArray]


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
    job = subject.job
    if privacy.gradient_clip is not None:
        yield from _end_to_end(subject, job)
        return
    # Nothing is claimed end to end: what if somebody took the release claim for it?
    released = _Worlds(subject, job)
    yield Case(released.by_others, "release claim, in situ", WORLDS, what_if=True)
    if job.job.learning_rate == "auto":
        # Steps that follow from rows exactly are nothing that DP-SGD can promise.
        job = job.with_settings(learning_rate=STEP_SIZE, local_steps=None, acceleration=None)
    noisy = _with_privacy(job, {**dict(privacy), **LIKE_RELEASES})
    for each in _end_to_end(subject, noisy):
        yield replace(each, name=f"DP-SGD, {each.name}", what_if=True)


def _end_to_end(subject: Subject, job: Job) -> Iterable[Case]:
    """A record among the job's own rows, and one among the worst rows there are."""
    own, worst = _Worlds(subject, job), _Worlds(subject, job, worst=True)
    exact = {"gradient_noise_multiplier": 0.0}
    forgotten = _Worlds(subject, job, worst=True, noise=exact)
    yield Case(own.by_all, "in situ", WORLDS)
    yield Case(own.by_others, "in situ, by others", WORLDS)
    yield Case(worst.by_all, "worst case", WORLDS)
    yield Case(worst.by_others, "worst case, by others", WORLDS)
    yield Case(forgotten.by_all, "control: no gradient noise", WORLDS, control=True)


@dataclass(frozen=True, eq=False)
class _Worlds:
    """Runs of two neighbouring worlds, held against the job's own claim.

    Attributes:
        subject: whose rows.
        job: whose claim.
        worst: whether other rows are the worst that there are, in place of the subject's.
        noise: what runs have in place of the job's, as the adversary knows.
    """

    subject: Subject
    job: Job
    worst: bool = False
    noise: dict[str, float] = field(default_factory=dict)

    def by_all(self) -> Finding:
        """By all that the label party received."""
        return self._finding(self._told.by_all)

    def by_others(self) -> Finding:
        """By the other records' releases alone."""
        return self._finding(self._told.by_others)

    @cached_property
    def _neighbours(self) -> Neighbours:
        # Few rounds where there is little noise: a claim that is large anyway takes many runs.
        rounds = int(min(max(2, (self.job.privacy.noise_multiplier or 0) ** 2), MOST_ROUNDS))
        small = self.subject.with_rows(WORLD_ROWS).dataset
        job = self.job.with_settings(
            rounds=rounds, batch_size="full", algorithm="fedbcd-p", eval_every=0
        )
        job = _with_privacy(job, {**dict(job.privacy), **self.noise})
        if not self.worst:
            return extreme_record(job, small)
        # One local step a round: residuals that more steps renew pull back, and tell less.
        return worst_case(job.privacy, rounds, local_steps=1)

    @cached_property
    def _promise(self) -> Promise:
        neighbours = self._neighbours
        job = _with_privacy(neighbours.job, dict(self.job.privacy))
        account = plan_for(job, neighbours.worlds[0]).account
        assert account is not None  # noqa: S101
        return account.after(account.rounds)

    @property
    def _claim(self) -> float:
        claim = self._promise.epsilon_end_to_end or self._promise.epsilon_release
        assert claim is not None  # noqa: S101
        return claim

    @cached_property
    def _told(self) -> Told:
        runs = runs_to_pass(self._claim, self.job.privacy.delta)
        if runs > MOST_RUNS:
            raise ConfigError("so little noise that no number of runs tells")
        return told_apart(self._neighbours, max(runs, LEAST_RUNS))

    def _finding(self, scores: Scores) -> Finding:
        return _finding(self.job, scores, self._claim, self._promise.releases)


def _with_privacy(job: Job, privacy: dict[str, Any]) -> Job:
    return Job.of(**{**dict(job), "privacy": privacy})


def _canaries(subject: Subject, noise: PrivacySettings) -> Finding:
    """Held against the job's own claim, whatever the noise."""
    privacy = subject.job.privacy
    assert privacy.noise_multiplier is not None  # noqa: S101
    releases = min(subject.releases, MOST_RELEASES)
    mechanism = Mechanism(privacy.mechanism, privacy.noise_multiplier, privacy.clip)
    claim = spent(mechanism, releases, privacy.delta).release
    generator = np.random.default_rng([subject.seed, 5])
    scores = released_canaries(noise, releases, CANARIES, generator)
    return _finding(subject.job, scores, claim, releases)


def _finding(job: Job, scores: Scores, claim: float, releases: int) -> Finding:
    privacy = job.privacy
    bound = epsilon_bound(*scores, privacy.delta)
    # The bound through `mu` takes the noise for Gaussian, gradients' included.
    gaussian = privacy.mechanism == "gaussian"
    return Finding(
        EPSILON,
        bound.gaussian if gaussian else bound.any_mechanism,
        allowed=claim,
        detail={
            "claimed_epsilon": claim,
            "claimed_mu": mu_of(claim, privacy.delta),
            "d_prime": separation(*scores),
            "releases": releases,
            "noise_multiplier": privacy.noise_multiplier,
            "delta": privacy.delta,
            "mu_lower_bound": bound.mu,
            "clopper_pearson": bound.any_mechanism,
        },
    )
