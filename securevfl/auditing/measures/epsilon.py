"""Measured lower bounds on ε: no claimed ε may be below them.

If an adversary distinguishes neighbouring data sets with few errors, ε is not small.
The upper ends of the Clopper-Pearson intervals of both error rates give two lower bounds, each
wrong with probability at most 5 %:

- for any mechanism, ε ≥ log((1 − δ − misses)/false alarms) (Kairouz, Oh and Viswanath, ICML 2015),
  which is weak for large ε because rare errors are never observed;
- for Gaussian noise, Φ⁻¹(1 − false alarms) − Φ⁻¹(misses) bounds the μ of Gaussian differential
  privacy, and thereby ε(δ) (Dong, Roth, Su 2022; Nasr et al., USENIX Security 2023): one threshold
  determines the whole curve.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import ceil, log, log1p, sqrt
from typing import Literal

import dp_accounting
import numpy as np
from scipy.stats import beta, norm

from securevfl.arrays import FloatArray, IntArray
from securevfl.auditing.judging import EPSILON, Finding
from securevfl.auditing.measuring import Attack, AttackCase, add_attack
from securevfl.auditing.subject import Subject, with_section
from securevfl.auditing.worlds import (
    Neighbours,
    Scores,
    extreme_record,
    released_canaries,
    scaling_record,
    scored_runs,
    worst_case,
)
from securevfl.data.scaling import Bounds
from securevfl.errors import ConfigError
from securevfl.job import Job, PrivacySettings
from securevfl.privacy.accounting import spent
from securevfl.privacy.mechanisms import Mechanism
from securevfl.protocols.session.privacy_account import Promise
from securevfl.training import plan_for

CONFIDENCE = 0.95
TINY = 1e-12
CANARIES = 20_000
MOST_RELEASES = 100
WORLD_ROWS, MOST_ROUNDS = 256, 10
STEP_SIZE = 0.1
LEAST_RUNS, MOST_RUNS = 100, 400
WORLDS = "everything except the noise and one record, which has one of two values"
UNIT_BOUNDS = (-sqrt(3), sqrt(3))  # they change no column that was scaled by its bounds before
LIKE_RELEASES = {"gradient_clip": 1.0, "gradient_noise_multiplier": 4.0}


@add_attack
@partial(
    Attack,
    "epsilon",
    "label party",
    "the canary predicts minus or plus the clip",
    place=230,
    quick=False,
)
def empirical_epsilon(subject: Subject) -> Iterable[AttackCase]:
    """Recognize canaries by their own releases, and one record by the messages of all others.

    Without noise no ε is claimed. The attack is then not run: a policy on epsilon needs a claim.
    """
    if not subject.exchange.adds_noise:
        raise ConfigError("no noise: no epsilon is claimed")
    privacy = subject.job.privacy
    assert privacy.noise_multiplier is not None  # noqa: S101
    if privacy.noise_multiplier == 0:
        raise ConfigError("noise multiplier 0 claims nothing")
    half = privacy.model_copy(update={"noise_multiplier": privacy.noise_multiplier / 2})
    yield AttackCase(partial(_canaries, subject, privacy), "own releases")
    yield AttackCase(partial(_canaries, subject, half), "control: half the noise", control=True)
    job = subject.job
    bounds = dict.fromkeys(subject.bounded, UNIT_BOUNDS)
    if privacy.gradient_clip is not None and not any(subject.fitted.values()):
        yield from _end_to_end(subject, job, bounds)
        return
    # There is no end-to-end claim: what if a reader took the claim about releases for one?
    released = _ClaimedWorlds(subject, job)
    yield AttackCase(
        partial(released.finding, "others"), "release claim, in situ", WORLDS, what_if=True
    )
    if job.job.learning_rate == "auto":
        # DP-SGD covers no step sizes that are derived from the rows.
        job = job.with_settings(learning_rate=STEP_SIZE, local_steps=None, acceleration=None)
    noisy = job
    if privacy.gradient_clip is None:
        noisy = with_section(job, "privacy", **LIKE_RELEASES)
    scaling = _ClaimedWorlds(subject, noisy.with_settings(bounds=bounds), scaling=True)
    yield AttackCase(
        partial(scaling.finding, "others"), "DP-SGD, columns standardized", WORLDS, what_if=True
    )
    for each in _end_to_end(subject, noisy):
        yield replace(each, name=f"DP-SGD, {each.name}", what_if=True)


def _end_to_end(subject: Subject, job: Job, bounds: Bounds | None = None) -> Iterable[AttackCase]:
    """A record among the job's own rows, one among worst-case rows, and a huge one in bounds."""
    own, worst = _ClaimedWorlds(subject, job), _ClaimedWorlds(subject, job, worst=True)
    exact = {"gradient_noise_multiplier": 0.0}
    forgotten = _ClaimedWorlds(subject, job, worst=True, noise=exact)
    yield AttackCase(partial(own.finding, "all"), "in situ", WORLDS)
    yield AttackCase(partial(own.finding, "others"), "in situ, by others", WORLDS)
    yield AttackCase(partial(worst.finding, "all"), "worst case", WORLDS)
    yield AttackCase(partial(worst.finding, "others"), "worst case, by others", WORLDS)
    yield AttackCase(
        partial(forgotten.finding, "all"), "control: no gradient noise", WORLDS, control=True
    )
    within, control = "a huge record within bounds", "control: columns standardized"
    worlds = ((within, job.with_settings(bounds=bounds)), (control, job)) if bounds else ()
    for name, each in worlds:
        attack = partial(_ClaimedWorlds(subject, each, scaling=True).finding, "others")
        yield AttackCase(attack, name, WORLDS, control=name == control)


@dataclass(frozen=True, eq=False)
class _ClaimedWorlds:
    """Runs of two neighbouring worlds, compared with the job's own claim."""

    subject: Subject
    job: Job
    worst: bool = False  # worst-case rows instead of the subject's
    scaling: bool = False  # a huge record; columns without bounds are standardized
    noise: dict[str, float] = field(default_factory=dict)  # other noise settings than the job's

    def finding(self, seen: Literal["all", "others"]) -> Finding:
        """By all that the label party received, or only by the other records' releases."""
        scores = self._scores[seen == "others"]
        return _finding(self.job, scores, self._claim, self._promise.releases)

    @cached_property
    def _neighbours(self) -> Neighbours:
        # Few rounds if there is little noise: large claims take many runs.
        rounds = int(min(max(2, (self.job.privacy.noise_multiplier or 0) ** 2), MOST_ROUNDS))
        small = self.subject.with_rows(WORLD_ROWS).dataset
        job = self.job.with_settings(
            rounds=rounds, batch_size="full", algorithm="fedbcd-p", eval_every=0
        )
        job = with_section(job, "privacy", **self.noise)
        if self.scaling:
            return scaling_record(job, small)
        if not self.worst:
            return extreme_record(job, small)
        # One local step per round: new residuals within a round pull back and reveal less.
        return worst_case(job.privacy, rounds, local_steps=1)

    @cached_property
    def _promise(self) -> Promise:
        neighbours = self._neighbours
        unscaled = neighbours.job.with_settings(standardize=False)
        job = with_section(unscaled, "privacy", **dict(self.job.privacy))
        account = plan_for(job, neighbours.worlds[0]).account
        assert account is not None  # noqa: S101
        return account.after(account.rounds)

    @property
    def _claim(self) -> float:
        claim = self._promise.epsilon_end_to_end or self._promise.epsilon_release
        assert claim is not None  # noqa: S101
        return claim

    @cached_property
    def _scores(self) -> tuple[Scores, Scores]:
        runs = runs_to_pass(self._claim, self.job.privacy.delta)
        if runs > MOST_RUNS:
            raise ConfigError(
                f"epsilon = {self._claim:.3g} is too large to test: more than {MOST_RUNS} runs"
            )
        return scored_runs(self._neighbours, max(runs, LEAST_RUNS))


def _canaries(subject: Subject, noise: PrivacySettings) -> Finding:
    privacy = subject.job.privacy
    assert privacy.noise_multiplier is not None  # noqa: S101
    account = subject.plan.account
    assert account is not None  # noqa: S101
    releases = min(account.after(account.rounds).releases, MOST_RELEASES)
    mechanism = Mechanism(privacy.mechanism, privacy.noise_multiplier, privacy.clip)
    claim = spent(mechanism, releases, privacy.delta).release
    generator = np.random.default_rng([subject.seed, 5])
    scores = released_canaries(noise, releases, CANARIES, generator)
    return _finding(subject.job, scores, claim, releases)


def _finding(job: Job, scores: Scores, claim: float, releases: int) -> Finding:
    privacy = job.privacy
    bound = epsilon_bound(*scores, privacy.delta)
    # The bound through `mu` needs Gaussian noise.
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


@dataclass(frozen=True)
class EpsilonBound:
    """Lower bounds with 95 % confidence each."""

    gaussian: float  # on ε of Gaussian noise
    any_mechanism: float  # on ε
    mu: float  # on the μ of Gaussian noise, from which the first follows


def epsilon_bound(without: FloatArray, present: FloatArray, delta: float) -> EpsilonBound:
    """Lower bounds on ε at δ from the scores of two worlds, at least two of each.

    Scores below 0 guess the first world, above 0 the second.
    """
    if min(len(without), len(present)) < 2:  # noqa: PLR2004
        raise ConfigError(f"scores: {len(without)} and {len(present)}, expected at least two each")
    # The threshold 0 does not depend on the scores, so choosing it needs no correction.
    (false_alarms,), (misses,) = _error_rates(without, present, np.zeros(1))
    mu = max(0.0, float(norm.isf(false_alarms) - norm.ppf(misses)))
    gaussian = float(dp_accounting.get_epsilon_gaussian(1 / mu, delta)) if mu > 0 else 0.0
    return EpsilonBound(gaussian, _any_mechanism(without, present, delta), mu)


def mu_of(epsilon: float, delta: float) -> float:
    """The μ of Gaussian differential privacy that has this ε at δ."""
    return 1 / float(dp_accounting.get_sigma_gaussian(epsilon, delta))


def separation(without: FloatArray, present: FloatArray) -> float:
    """d′: the distance of the worlds' mean scores in standard deviations.

    Under Gaussian noise it estimates μ, without being a bound.
    """
    deviation = sqrt((np.var(without, ddof=1) + np.var(present, ddof=1)) / 2)
    return float(np.mean(present) - np.mean(without)) / deviation if deviation > 0 else 0.0


def runs_to_pass(claim: float, delta: float) -> int:
    """How many runs of each world, if all are recognized, show more than the claim."""
    most_errors = float(norm.sf((mu_of(claim, delta) + 1) / 2))
    return ceil(log((1 - CONFIDENCE) / 2) / log1p(-max(most_errors, TINY)))


def _any_mechanism(without: FloatArray, present: FloatArray, delta: float) -> float:
    """The threshold is chosen on one half of the scores and tested on the other."""
    candidates = np.quantile(np.concatenate([without[::2], present[::2]]), np.linspace(0, 1, 201))
    best = int(np.argmax(_shown(without[::2], present[::2], candidates, delta)))
    tried = _shown(without[1::2], present[1::2], candidates[best : best + 1], delta)
    return max(0.0, float(tried[0]))


def _shown(
    without: FloatArray, present: FloatArray, thresholds: FloatArray, delta: float
) -> FloatArray:
    false_alarms, misses = _error_rates(without, present, thresholds)
    bounds = [
        np.log(np.maximum(1 - delta - other, TINY) / rate)
        for rate, other in ((false_alarms, misses), (misses, false_alarms))
    ]
    return np.asarray(np.maximum(*bounds))


def _error_rates(
    without: FloatArray, present: FloatArray, thresholds: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Upper ends (Clopper-Pearson) of the rates of false alarms and misses, both with 95 %."""
    above = len(without) - np.searchsorted(np.sort(without), thresholds, side="right")
    below = np.searchsorted(np.sort(present), thresholds, side="right")
    return _upper_ends(above, len(without)), _upper_ends(below, len(present))


def _upper_ends(errors: IntArray, trials: int) -> FloatArray:
    least = (1 + CONFIDENCE) / 2  # each rate has half of the error probability
    inside = beta.ppf(least, errors + 1, np.maximum(trials - errors, 1))
    return np.where(errors < trials, inside, 1.0)
