import json
from math import inf, isinf
from pathlib import Path

import dp_accounting
import pytest
from dp_accounting import pld

from securevfl.errors import BudgetExhausted, ConfigError
from securevfl.privacy.accounting import LocalNoise, calibrated_multiplier, require_budget, spent
from securevfl.privacy.mechanisms import Mechanism, MechanismName

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "epsilon.json").read_text("utf-8"))
DELTA: float = VECTORS["delta"]
TABLE: list[tuple[MechanismName, float, int, str]] = [
    (name, float(multiplier), int(count), repr(epsilon))
    for name in ("gaussian", "laplace")
    for multiplier, by_count in VECTORS[name].items()
    for count, epsilon in by_count.items()
]


def epsilon(name: MechanismName, multiplier: float, releases: int) -> float:
    return spent(Mechanism(name, multiplier, 2.0), releases, DELTA).release


@pytest.mark.parametrize(("name", "multiplier", "releases", "expected"), TABLE)
def test_epsilon_is_that_of_the_table(
    name: MechanismName, multiplier: float, releases: int, expected: str
) -> None:
    last_digit = 10.0 ** -len(expected.partition(".")[2])
    tolerance = max(0.01, last_digit / 2)
    assert epsilon(name, multiplier, releases) == pytest.approx(float(expected), abs=tolerance)


def test_composed_gaussians_are_what_the_accountant_says() -> None:
    accountant = pld.PLDAccountant()
    step = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(8), 5)
    both = dp_accounting.ComposedDpEvent([dp_accounting.GaussianDpEvent(4), step])
    accountant.compose(dp_accounting.SelfComposedDpEvent(both, 20))
    found = spent(Mechanism("gaussian", 4, 1.0), 20, DELTA, LocalNoise(8, 100))
    assert found.end_to_end == pytest.approx(accountant.get_epsilon(DELTA), abs=0.01)


def test_release_noise_alone_is_no_end_to_end_guarantee() -> None:
    found = spent(Mechanism("gaussian", 4, 1.0), 10, DELTA)
    assert found.release == pytest.approx(3.341, abs=0.01)
    assert isinf(found.end_to_end)


def test_noisy_local_steps_cost_something_end_to_end() -> None:
    local = spent(Mechanism("gaussian", 4, 1.0), 10, DELTA, LocalNoise(4, 50))
    assert local.release < local.end_to_end < inf
    # One release and five steps of the same multiplier are six releases.
    assert local.end_to_end == pytest.approx(epsilon("gaussian", 4, 60), abs=1e-6)
    mixed = spent(Mechanism("laplace", 10, 1.0), 3, DELTA, LocalNoise(10, 3))
    assert mixed.release < mixed.end_to_end < inf


def test_no_noise_promises_nothing() -> None:
    assert isinf(epsilon("gaussian", 0, 1))
    assert isinf(epsilon("laplace", 0, 1))


@pytest.mark.parametrize("name", ["gaussian", "laplace"])
# The search for 0.5 and 3 ends a little above the target.
@pytest.mark.parametrize(("target", "releases"), [(1.0, 1), (3.34, 10), (0.5, 3)])
def test_a_calibrated_multiplier_just_meets_its_target(
    name: MechanismName, target: float, releases: int
) -> None:
    multiplier = calibrated_multiplier(name, target, releases, DELTA)
    assert epsilon(name, multiplier, releases) <= target
    assert epsilon(name, multiplier * 0.98, releases) > target


def test_a_budget_is_about_the_whole_view() -> None:
    mechanism = Mechanism("gaussian", 4, 1.0)
    require_budget(spent(mechanism, 10, DELTA, LocalNoise(8, 10)), 5.0)
    with pytest.raises(BudgetExhausted, match="the budget is 1"):
        require_budget(spent(mechanism, 10, DELTA, LocalNoise(8, 10)), 1.0)
    with pytest.raises(BudgetExhausted, match="would be inf end to end"):
        require_budget(spent(mechanism, 10, DELTA), 1000.0)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, float("nan")])
def test_a_delta_that_cannot_be_is_refused(delta: float) -> None:
    with pytest.raises(ConfigError, match="delta"):
        spent(Mechanism("gaussian", 1, 1.0), 1, delta)
    with pytest.raises(ConfigError, match="delta"):
        calibrated_multiplier("gaussian", 1.0, 1, delta)


def test_other_bad_values_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="releases = -1"):
        spent(Mechanism("gaussian", 1, 1.0), -1, DELTA)
    with pytest.raises(ConfigError, match="releases = 0"):
        calibrated_multiplier("gaussian", 1.0, 0, DELTA)
    with pytest.raises(ConfigError, match="epsilon = 0"):
        calibrated_multiplier("gaussian", 0.0, 1, DELTA)
