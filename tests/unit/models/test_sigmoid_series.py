"""σ's series: coefficients against an integral, errors against σ, periods by rounds and bounds."""

from collections.abc import Iterable

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import expit

from securevfl.errors import ConfigError
from securevfl.models.sigmoid_series import MOST_DOUBLINGS, SigmoidSeries


@pytest.mark.parametrize("period", [24, 53, 64, 128])
def test_coefficients_are_those_of_the_smoothed_square_wave(period: int) -> None:
    series = SigmoidSeries.of_period(period)
    length = series.period
    # Images further away are σ of −3·Λ/2 or less there, e^−36 at the least period.
    shifts = length / 2 * np.arange(-3, 4)
    signs = np.where(np.arange(-3, 4) % 2, -1.0, 1.0)

    def wave(at: float) -> float:
        return float(np.sum(signs * (expit(at - shifts) - 0.5)))

    for harmonic, coefficient in zip(series.harmonics, series.coefficients, strict=True):
        weight = 2 * np.pi * harmonic / length
        integral, _ = quad(lambda at, w=weight: wave(at) * np.sin(w * at), 0, length / 2, limit=200)
        assert coefficient == pytest.approx(4 * integral / length, abs=1e-7)


@pytest.mark.parametrize("period", [24, 32, 53, 64, 128, 256, 512])
def test_errors_within_the_range(period: int) -> None:
    series = SigmoidSeries.of_period(period)
    at = np.linspace(-series.range, series.range, 4001)
    errors = series.values(at) - (expit(at) - 0.5)
    near = np.abs(at) < min(8.0, series.period / 4)
    assert np.abs(errors).max() < 0.021
    assert np.abs(errors[near]).max() < 0.006
    assert np.sqrt(np.mean(errors[near] ** 2)) < 0.003
    left_out = np.arange(2 * series.terms + 1, 40 * series.terms, 2) / series.period
    tail = np.sum(4 * np.pi / series.period / np.sinh(2 * np.pi**2 * left_out))
    assert tail < 0.006


@pytest.mark.parametrize("period", [24, 53, 77, 512])
def test_periods_are_those_that_are_asked_for(period: int) -> None:
    assert SigmoidSeries.of_period(period).period == pytest.approx(period, rel=3e-4)


@pytest.mark.parametrize("period", [23, 513, 0, -64])
def test_other_periods_are_refused(period: int) -> None:
    with pytest.raises(ConfigError, match="24 to 512 expected"):
        SigmoidSeries.of_period(period)


def test_the_period_grows_with_rounds() -> None:
    def period(rounds: int, *, accelerated: bool = True) -> float:
        return SigmoidSeries.for_training(rounds, accelerated=accelerated).period

    periods = [period(rounds) for rounds in (1, 5, 20, 50, 100, 1000)]
    assert periods == sorted(periods)
    assert periods[0] >= 23.9
    assert periods[-1] == periods[-2]
    assert period(20) == period(100, accelerated=False) > period(20, accelerated=False)


def test_the_period_is_as_long_as_its_terms_allow() -> None:
    for rounds in range(5, 120):
        series = SigmoidSeries.for_training(rounds, accelerated=True)
        longer = SigmoidSeries.of_period(round(series.period) + 2)
        assert longer.terms == series.terms + 1


@pytest.mark.parametrize("period", [72, 144])
@pytest.mark.parametrize("doublings", [1, 3, MOST_DOUBLINGS])
def test_a_doubled_period_is_accurate_near_and_has_the_right_sign_far_out(
    period: int, doublings: int
) -> None:
    base = SigmoidSeries.of_period(period)
    series = base.lengthened(doublings)
    assert series.period == pytest.approx(period * 2**doublings, rel=2e-3)
    assert series.terms == base.terms + doublings * round(period / 18)

    def largest_error(of: SigmoidSeries, low: float, high: float) -> float:
        at = np.arange(low, high, 0.1)
        return float(np.abs(of.values(at) - (expit(at) - 0.5)).max())

    assert largest_error(series, 0, 8) < 0.008
    assert largest_error(series, 8, period / 6) < 0.012
    # Below ½ the residual of a row far out has the right sign, or is no residual.
    assert largest_error(series, period / 6, 0.4 * series.period) < 0.45
    assert largest_error(base, period / 2, period) > 0.95


@pytest.mark.parametrize(
    ("rounds", "doublings"),
    [((1, 20, 100), (1, 4)), pytest.param(range(1, 101), range(1, 7), marks=pytest.mark.slow)],
    ids=["some", "all"],
)
def test_fitted_coefficients_do_not_show_how_they_were_solved_for(
    rounds: Iterable[int], doublings: Iterable[int]
) -> None:
    """Parties multiply shares by them, so that they must be the same on any machine."""
    bases = {
        SigmoidSeries.for_training(each, accelerated=fast)
        for each in rounds
        for fast in (False, True)
    }
    for series in (base.lengthened(each) for base in bases for each in doublings):
        waves, wanted = series.fitted_to()
        orthogonal, triangular = np.linalg.qr(waves)
        exact = np.linalg.solve(triangular, orthogonal.T @ wanted) * 2.0**26
        # Two solvers differ by 1e-6 of these units at most.
        assert np.abs(np.abs(exact - np.rint(exact)) - 0.5).min() > 1e-4
        np.testing.assert_array_equal(series.coefficients, np.rint(exact) / 2.0**26)
