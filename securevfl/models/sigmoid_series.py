"""The sigmoid as a Fourier series, for residuals on secret shares.

The wave σ(H) − σ(H − Λ/2) − ½, repeated with period Λ, is odd, changes sign after Λ/2, and equals
the sum over odd m of b_m·sin(2πmH/Λ) with

    b_m = (4π/Λ)/sinh(2π²m/Λ),

by Poisson's summation of σ′, whose Fourier transform is πω/sinh(πω). Up to |H| = Λ/2 − 4, its
*range*, it is within 0.018 of σ − ½, with the largest error at the ends. Beyond Λ/2 it has the
wrong sign. Coefficients decrease by a factor of e^(4π²/Λ) per term. Λ/8 terms are within 0.0045 of
σ − ½ up to |H| = Λ/4 or 8, whichever is less, and within 0.021 over the range.

*Doublings* lengthen the period to Λ·2^o by Λ/18 terms each where a longer Λ would take twice as
many: the low frequencies, which say on which side of 0 a large H lies, come on a mesh that is
halved o times, and the others stay. Least squares give the coefficients, for errors that may grow
to 0.2 beyond 0.4·Λ. So rows far out have about the right residual, and do not run away.
Source: docs/decisions/0034-logistic-residuals-in-shares.md and, of doublings, 0047.
"""

from dataclasses import dataclass
from functools import cached_property
from math import ceil, floor, sqrt

import numpy as np

from securevfl.arrays import FloatArray, IntArray
from securevfl.errors import ConfigError

PERIOD_BITS = 20
LEAST_PERIOD, LARGEST_PERIOD = 24, 512
MOST_DOUBLINGS = 6
# Omitted terms sum to 0.0046 at most.
TERMS_PER_PERIOD = 4 / 32
_PERIOD_PER_ADDED_TERM = 18
_NEAR, _FAR, _EDGE, _STEEPNESS = 0.003, 0.2, 0.4, 6
# Of fitted coefficients, so that no machine's linear algebra shows.
_COEFFICIENT_BITS = 26
_MARGIN = 4.0
_REACH_AFTER_20, _ROUNDS_THAT_MATTER = 30.0, 100


@dataclass(frozen=True)
class SigmoidSeries:
    """The first terms of the series; phases are multiplier·H modulo 2^PERIOD_BITS, as integers."""

    multiplier: int
    doublings: int = 0

    @classmethod
    def of_period(cls, period: int) -> "SigmoidSeries":
        """The series of about this period (within 0.03 %), from 24 to 512, or a ConfigError."""
        if not LEAST_PERIOD <= period <= LARGEST_PERIOD:
            raise ConfigError(f"period = {period}: {LEAST_PERIOD} to {LARGEST_PERIOD} expected")
        return cls(round((1 << PERIOD_BITS) / period))

    @classmethod
    def for_training(cls, rounds: int, *, accelerated: bool) -> "SigmoidSeries":
        """The series for a job of this many rounds.

        |H| has no useful bound, so the period is based on measurements with exact steps on
        synthetic data, where predictions of rows with large features grow from round to round.
        Gradient steps and minibatches reach no further. With Nesterov's extrapolation, R rounds
        reach as far as R²/4 rounds without.
        """
        pace = rounds if accelerated else 2 * sqrt(rounds)
        reach = _REACH_AFTER_20 * sqrt(min(pace, _ROUNDS_THAT_MATTER) / 20)
        terms = ceil(TERMS_PER_PERIOD * 2 * (reach + _MARGIN))
        return cls.of_period(max(floor(terms / TERMS_PER_PERIOD), LEAST_PERIOD))

    def lengthened(self, doublings: int) -> "SigmoidSeries":
        """This series of Λ with a period of Λ·2^doublings, up to 2^MOST_DOUBLINGS."""
        return SigmoidSeries(round(self.multiplier / 2**doublings), doublings)

    @property
    def period(self) -> float:
        """Λ·2^doublings."""
        return (1 << PERIOD_BITS) / self.multiplier

    @property
    def terms(self) -> int:
        """Number of terms."""
        return len(self.harmonics)

    @property
    def range(self) -> float:
        """The largest |H| for which the series is accurate, or nearly so after doublings."""
        return self.period / 2 - _MARGIN

    @cached_property
    def harmonics(self) -> IntArray:
        """The m, shape (terms,), odd without doublings."""
        of_base = self.period / 2**self.doublings
        odd = np.arange(1, 2 * ceil(TERMS_PER_PERIOD * (of_base - 0.5)), 2)
        if not self.doublings:
            return odd
        cut = 2 * round(of_base / _PERIOD_PER_ADDED_TERM)
        low, high = odd[odd < cut], odd[odd > cut] << self.doublings
        return np.concatenate([low, *(cut + low << each for each in range(self.doublings)), high])

    @cached_property
    def coefficients(self) -> FloatArray:
        """b_m, shape (terms,)."""
        if self.doublings:
            fitted = np.asarray(np.linalg.lstsq(*self.fitted_to(), rcond=None)[0], np.float64)
            return np.ldexp(np.rint(np.ldexp(fitted, _COEFFICIENT_BITS)), -_COEFFICIENT_BITS)
        frequencies = 2 * np.pi * self.harmonics / self.period
        found: FloatArray = 4 * np.pi / self.period / np.sinh(np.pi * frequencies)
        return found

    def fitted_to(self) -> tuple[FloatArray, FloatArray]:
        """Waves at some H, shape (points, terms), and σ − ½ there, both divided by tolerances."""
        at = np.arange(0.25, self.range, 0.5)
        beyond = (at / (_EDGE * self.period / 2**self.doublings)) ** _STEEPNESS
        tolerances = _NEAR + _FAR * beyond / (1 + beyond)
        waves = np.sin(np.multiply.outer(2 * np.pi / self.period * at, self.harmonics))
        return waves / tolerances[:, None], np.tanh(at / 2) / 2 / tolerances

    def values(self, predictions: FloatArray) -> FloatArray:
        """The approximation of σ(H) − ½, for predictions of any shape."""
        turns = np.multiply.outer(predictions, self.harmonics / self.period)
        found: FloatArray = np.sin(2 * np.pi * turns) @ self.coefficients
        return found
