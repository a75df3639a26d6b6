"""What noise promises, by Google's dp-accounting; two guarantees that are never confused.

*Release*: T noisy releases of a sample's own prediction, the model taken as given. *End-to-end*:
the same over the whole view. A sample's features also enter the party's weights through its
gradients and so touch every later prediction: the guarantee holds only if the party's updates are
noisy too, and is infinite otherwise.

No subsampling amplification is ever claimed: the other side chooses or knows the minibatch. The
sensitivity 2C is inside the noise multiplier, and the accountant keeps its default relation: with
REPLACE_ONE it would double the sensitivity again.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

import dp_accounting
import numpy as np
from dp_accounting import pld
from numpy.typing import NDArray

from securevfl.errors import BudgetExhausted, ConfigError
from securevfl.privacy.mechanisms import Mechanism, MechanismName

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class LocalNoise:
    """DP-SGD at a party's own local steps.

    Attributes:
        noise_multiplier: z_g = σ_g / (2·C_g), σ_g the deviation of the noise on the summed clipped
            gradient.
        steps: Q, how many follow a release of the batch.
    """

    noise_multiplier: float
    steps: int


@dataclass(frozen=True)
class Spent:
    """What has been promised so far.

    Attributes:
        releases: T, of the sample that was released most often.
        delta: δ.
        release: ε of the releases, the model taken as given.
        end_to_end: ε over the whole view; infinite without noise on gradients.
    """

    releases: int
    delta: float
    release: float
    end_to_end: float


def spent(
    mechanism: Mechanism, releases: int, delta: float, local: LocalNoise | None = None
) -> Spent:
    """Both guarantees after T releases of a sample.

    Args:
        mechanism: on predictions.
        releases: T ≥ 0.
        delta: δ in (0, 1).
        local: noise on the party's own gradients, if there is any.

    Raises:
        ConfigError: a δ or T that cannot be.
    """
    _require_delta(delta)
    if releases < 0:
        raise ConfigError(f"releases = {releases}: expected 0 or more")
    each = _event(mechanism)
    end_to_end = inf
    if local is not None:
        noisy_steps = dp_accounting.SelfComposedDpEvent(
            dp_accounting.GaussianDpEvent(local.noise_multiplier), local.steps
        )
        end_to_end = _epsilon(dp_accounting.ComposedDpEvent([each, noisy_steps]), releases, delta)
    return Spent(releases, delta, _epsilon(each, releases, delta), end_to_end)


def require_budget(found: Spent, budget: float) -> None:
    """Check a job's promise against what it may spend, before it starts.

    Args:
        found: after its last round.
        budget: the largest end-to-end ε.

    Raises:
        BudgetExhausted: it would spend more.
    """
    if not found.end_to_end <= budget:
        raise BudgetExhausted(
            f"epsilon after {found.releases} releases of a sample would be "
            f"{found.end_to_end:.4g} end to end (releases alone {found.release:.4g}) at delta = "
            f"{found.delta:g}, the budget is {budget:g}"
        )


def calibrated_multiplier(
    name: MechanismName, epsilon: float, releases: int, delta: float
) -> float:
    """The least noise multiplier whose T releases stay within ε.

    Raises:
        ConfigError: an ε, T or δ that cannot be.
    """
    if not (np.isfinite(epsilon) and epsilon > 0):
        raise ConfigError(f"epsilon = {epsilon}: expected a positive number")
    if releases < 1:
        raise ConfigError(f"releases = {releases}: expected at least 1")
    _require_delta(delta)
    if name == "gaussian":
        return float(dp_accounting.get_sigma_gaussian(epsilon, delta) * np.sqrt(releases))
    return float(
        dp_accounting.calibrate_dp_mechanism(
            pld.PLDAccountant,
            lambda scale: dp_accounting.SelfComposedDpEvent(
                dp_accounting.LaplaceDpEvent(scale), releases
            ),
            epsilon,
            delta,
            # Scale T/ε gives ε without any δ.
            bracket_interval=dp_accounting.mechanism_calibration.ExplicitBracketInterval(
                releases / epsilon / 10, releases / epsilon
            ),
        )
    )


def _require_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise ConfigError(f"delta = {delta}: expected a number between 0 and 1")


def most_releases(batches: Iterable[IntArray]) -> int:
    """T: how often the sample that is in most of these batches is released."""
    counts = Counter(int(row) for batch in batches for row in batch)
    return max(counts.values(), default=0)


def _event(mechanism: Mechanism) -> dp_accounting.DpEvent:
    if mechanism.noise_multiplier == 0:
        return dp_accounting.NonPrivateDpEvent()
    if mechanism.name == "gaussian":
        return dp_accounting.GaussianDpEvent(mechanism.noise_multiplier)
    return dp_accounting.LaplaceDpEvent(mechanism.noise_multiplier)


def _epsilon(event: dp_accounting.DpEvent, count: int, delta: float) -> float:
    if count == 0:
        return 0.0
    variance = _inverse_variance(event)
    if variance is not None:  # Gaussians compose to one Gaussian, exactly
        return float(dp_accounting.get_epsilon_gaussian(1 / np.sqrt(count * variance), delta))
    accountant = pld.PLDAccountant()
    accountant.compose(dp_accounting.SelfComposedDpEvent(event, count))
    return float(accountant.get_epsilon(delta))


def _inverse_variance(event: dp_accounting.DpEvent) -> float | None:
    """Σ 1/z² of an event that is Gaussians alone; None of any other."""
    if isinstance(event, dp_accounting.GaussianDpEvent):
        return float(event.noise_multiplier) ** -2
    if isinstance(event, dp_accounting.SelfComposedDpEvent):
        inner = _inverse_variance(event.event)
        return None if inner is None else inner * event.count
    if isinstance(event, dp_accounting.ComposedDpEvent):
        parts = [_inverse_variance(each) for each in event.events]
        return None if None in parts else float(sum(part for part in parts if part is not None))
    return None
