"""What ε noise can be told to have at least: canaries, and a test that tells two worlds apart.

Whoever tells which of two neighbouring data sets was used, with few errors of either kind, has
shown that ε is not small. From the upper ends of Clopper-Pearson intervals of both error rates
follow two lower bounds, each wrong with probability 5 % at most:

- of any mechanism, ε ≥ log((1 − δ − misses)/false alarms) (Kairouz, Oh and Viswanath, ICML 2015),
  weak where ε is large, since rare errors are never seen;
- of one that claims to be Gaussian, Φ⁻¹(1 − false alarms) − Φ⁻¹(misses) bounds its `mu`, the μ of
  Gaussian differential privacy, then ε(δ) (Dong, Roth, Su 2022; Nasr et al., USENIX Security
  2023): errors at one threshold tell the whole curve.
"""

from dataclasses import dataclass
from math import ceil, log, log1p, sqrt

import dp_accounting
import numpy as np
from scipy.stats import beta, norm

from securevfl.arrays import FloatArray, IntArray
from securevfl.errors import ConfigError

CONFIDENCE = 0.95
TINY = 1e-12


@dataclass(frozen=True)
class EpsilonBound:
    """Lower bounds on ε, each with 95 % confidence.

    Attributes:
        gaussian: of a mechanism that claims to be Gaussian.
        any_mechanism: of any.
        mu: the lower bound on `mu` behind the first.
    """

    gaussian: float
    any_mechanism: float
    mu: float


def epsilon_bound(without: FloatArray, present: FloatArray, delta: float) -> EpsilonBound:
    """What scores of two worlds show.

    Args:
        without: scores in the first world; below 0 is a right guess, up to noise.
        present: scores in the second; above 0 is a right guess.
        delta: δ of the claim.

    Raises:
        ConfigError: fewer than two scores of either.
    """
    if min(len(without), len(present)) < 2:  # noqa: PLR2004
        raise ConfigError(
            f"scores: {len(without)} and {len(present)}, expected two of each at least"
        )
    # 0 is between the worlds whatever the scores are, so no correction for having chosen it.
    (false_alarms,), (misses,) = _error_rates(without, present, np.zeros(1))
    mu = max(0.0, float(norm.isf(false_alarms) - norm.ppf(misses)))
    gaussian = float(dp_accounting.get_epsilon_gaussian(1 / mu, delta)) if mu > 0 else 0.0
    return EpsilonBound(gaussian, _any_mechanism(without, present, delta), mu)


def mu_of(epsilon: float, delta: float) -> float:
    """The `mu` of Gaussian differential privacy that has this ε at δ."""
    return 1 / float(dp_accounting.get_sigma_gaussian(epsilon, delta))


def separation(without: FloatArray, present: FloatArray) -> float:
    """d′ of scores of two worlds: how far their means are apart, in deviations.

    An estimate of `mu` where the noise is Gaussian, and no bound.
    """
    deviation = sqrt((np.var(without, ddof=1) + np.var(present, ddof=1)) / 2)
    return float(np.mean(present) - np.mean(without)) / deviation if deviation > 0 else 0.0


def runs_to_pass(claim: float, delta: float) -> int:
    """How many runs of each world, all told apart, show more than a claimed ε; with some to spare.

    Args:
        claim: ε.
        delta: δ.
    """
    most_errors = float(norm.sf((mu_of(claim, delta) + 1) / 2))
    return ceil(log((1 - CONFIDENCE) / 2) / log1p(-max(most_errors, TINY)))


def _any_mechanism(without: FloatArray, present: FloatArray, delta: float) -> float:
    """The threshold is chosen on every other score and tried on the rest."""
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
    larger: FloatArray = np.maximum(*bounds)
    return larger


def _error_rates(
    without: FloatArray, present: FloatArray, thresholds: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Upper ends of the rates of false alarms and misses, both right with 95 %."""
    above = len(without) - np.searchsorted(np.sort(without), thresholds, side="right")
    below = np.searchsorted(np.sort(present), thresholds, side="right")
    return _upper_ends(above, len(without)), _upper_ends(below, len(present))


def _upper_ends(errors: IntArray, trials: int) -> FloatArray:
    """Of one-sided Clopper-Pearson intervals, each with half of the doubt."""
    least = (1 + CONFIDENCE) / 2
    ends: FloatArray = np.where(
        errors < trials, beta.ppf(least, errors + 1, np.maximum(trials - errors, 1)), 1.0
    )
    return ends
