"""Privacy accounting with Google's dp-accounting, for two guarantees that must not be confused.

*Release*: ν noisy releases of a sample's own prediction, with the model considered public.
*End-to-end*: the adversary's whole view. A sample's features also enter the party's weights through
gradients and so affect every later prediction: this guarantee holds only if the party's updates
are noisy too, and is infinite otherwise.

Amplification by subsampling is never claimed: the other side chooses or knows the minibatch. The
noise multiplier already includes the sensitivity 2β, and the accountant keeps its default
neighbouring relation: REPLACE_ONE would double the sensitivity again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import inf, isfinite, sqrt
from typing import TYPE_CHECKING

from securevfl.errors import BudgetExhausted, ConfigError
from securevfl.privacy.mechanisms import Mechanism, MechanismName

if TYPE_CHECKING:
    import dp_accounting


@dataclass(frozen=True)
class LocalNoise:
    """DP-SGD: the local steps that use a sample's gradient, with noise of deviation z_g·2β_g."""

    noise_multiplier: float
    steps: int


@dataclass(frozen=True)
class PrivacySpent:
    """ε at δ after ν releases of the sample that was released most often.

    `release` considers the model public; `end_to_end` covers the whole view, and is infinite
    without noise on gradients.
    """

    releases: int
    delta: float
    release: float
    end_to_end: float


@cache
def spent(
    mechanism: Mechanism, releases: int, delta: float, local: LocalNoise | None = None
) -> PrivacySpent:
    """Both guarantees after ν releases of a sample, given noise on the party's own gradients."""
    _require_delta(delta)
    if releases < 0:
        raise ConfigError(f"releases = {releases}: expected 0 or more")
    import dp_accounting  # noqa: PLC0415  # slow to import, and rarely needed

    each = _event(mechanism)
    end_to_end = inf
    if local is not None:
        both = [
            (each, releases),
            (dp_accounting.GaussianDpEvent(local.noise_multiplier), local.steps),
        ]
        end_to_end = _epsilon(both, delta)
    return PrivacySpent(releases, delta, _epsilon([(each, releases)], delta), end_to_end)


def require_budget(found: PrivacySpent, budget: float) -> None:
    """Refuse a job whose end-to-end ε after the last round exceeds the budget."""
    if not found.end_to_end <= budget:
        raise BudgetExhausted(
            f"epsilon after {found.releases} releases of a sample would be "
            f"{found.end_to_end:.4g} end to end (releases alone {found.release:.4g}) at delta = "
            f"{found.delta:g}, the budget is {budget:g}"
        )


def require_release_budget(found: PrivacySpent, budget: float, whose: str = "a sample") -> None:
    """Refuse releases whose ε exceeds the budget, with the model considered public."""
    if not found.release <= budget:
        raise BudgetExhausted(
            f"epsilon of {found.releases} releases of {whose} would be {found.release:.4g} at "
            f"delta = {found.delta:g}, the budget is {budget:g}"
        )


def calibrated_multiplier(
    name: MechanismName, epsilon: float, releases: int, delta: float
) -> float:
    """The smallest noise multiplier for which ν releases stay within ε."""
    if not (isfinite(epsilon) and epsilon > 0):
        raise ConfigError(f"epsilon = {epsilon}: expected a positive number")
    if releases < 1:
        raise ConfigError(f"releases = {releases}: expected at least 1")
    _require_delta(delta)
    import dp_accounting  # noqa: PLC0415
    from dp_accounting import pld  # noqa: PLC0415

    if name == "gaussian":
        found = float(dp_accounting.get_sigma_gaussian(epsilon, delta) * sqrt(releases))
    else:
        found = float(
            dp_accounting.calibrate_dp_mechanism(
                pld.PLDAccountant,
                lambda scale: dp_accounting.SelfComposedDpEvent(
                    dp_accounting.LaplaceDpEvent(scale), releases
                ),
                epsilon,
                delta,
                # Scale ν/ε gives ε without any δ.
                bracket_interval=dp_accounting.mechanism_calibration.ExplicitBracketInterval(
                    releases / epsilon / 10, releases / epsilon
                ),
            )
        )
    # The search may end slightly above the budget.
    while spent(Mechanism(name, found, 1.0), releases, delta).release > epsilon:
        found *= 1 + 1e-5
    return found


def _require_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise ConfigError(f"delta = {delta}: expected a number between 0 and 1")


def _event(mechanism: Mechanism) -> "dp_accounting.DpEvent":
    import dp_accounting  # noqa: PLC0415

    if mechanism.noise_multiplier == 0:
        return dp_accounting.NonPrivateDpEvent()
    if mechanism.name == "gaussian":
        return dp_accounting.GaussianDpEvent(mechanism.noise_multiplier)
    return dp_accounting.LaplaceDpEvent(mechanism.noise_multiplier)


def _epsilon(events: Sequence[tuple["dp_accounting.DpEvent", int]], delta: float) -> float:
    import dp_accounting  # noqa: PLC0415
    from dp_accounting import pld  # noqa: PLC0415

    events = [(event, count) for event, count in events if count > 0]
    if not events:
        return 0.0
    if all(isinstance(event, dp_accounting.GaussianDpEvent) for event, _ in events):
        # Gaussians compose to one Gaussian, exactly.
        variance = sum(count / event.noise_multiplier**2 for event, count in events)
        return float(dp_accounting.get_epsilon_gaussian(1 / sqrt(variance), delta))
    accountant = pld.PLDAccountant()
    for event, count in events:
        accountant.compose(event, count)
    return float(accountant.get_epsilon(delta))
