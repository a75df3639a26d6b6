"""The sigmoid as a Fourier series, for residuals on secret shares.

The wave σ(H) − σ(H − Λ/2) − ½, repeated with period Λ, is odd, changes sign after Λ/2, and equals
the sum over odd m of b_m·sin(2πmH/Λ) with

    b_m = (4π/Λ)/sinh(2π²m/Λ),

by Poisson's summation of σ′, whose Fourier transform is πω/sinh(πω). Up to |H| = Λ/2 − 4, its
*range*, it is within 0.018 of σ − ½, with the largest error at the ends. Beyond Λ/2 it has the
wrong sign. Coefficients decrease by a factor of e^(4π²/Λ) per term. Λ/8 terms are within 0.0045 of
σ − ½ up to |H| = Λ/4 or 8, whichever is less, and within 0.021 over the range.
Source: docs/decisions/0034-logistic-residuals-in-shares.md.
"""

from dataclasses import dataclass
from functools import cached_property
from math import ceil, floor, sqrt

import numpy as np

from securevfl.arrays import FloatArray, IntArray
from securevfl.errors import ConfigError

PERIOD_BITS = 20
LEAST_PERIOD, LARGEST_PERIOD = 24, 512
# Omitted terms sum to 0.0046 at most.
TERMS_PER_PERIOD = 4 / 32
_MARGIN = 4.0
_REACH_AFTER_20, _ROUNDS_THAT_MATTER = 30.0, 100


@dataclass(frozen=True)
class SigmoidSeries:
    """The first terms of the series; phases are multiplier·H modulo 2^PERIOD_BITS, as integers."""

    multiplier: int

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

    @property
    def period(self) -> float:
        """Λ."""
        return (1 << PERIOD_BITS) / self.multiplier

    @property
    def terms(self) -> int:
        """Number of terms."""
        return ceil(TERMS_PER_PERIOD * (self.period - 0.5))

    @property
    def range(self) -> float:
        """The largest |H| for which the series is accurate."""
        return self.period / 2 - _MARGIN

    @cached_property
    def harmonics(self) -> IntArray:
        """The odd m, shape (terms,)."""
        return np.arange(1, 2 * self.terms, 2)

    @cached_property
    def coefficients(self) -> FloatArray:
        """b_m, shape (terms,)."""
        frequencies = 2 * np.pi * self.harmonics / self.period
        found: FloatArray = 4 * np.pi / self.period / np.sinh(np.pi * frequencies)
        return found

    def values(self, predictions: FloatArray) -> FloatArray:
        """The approximation of σ(H) − ½, for predictions of any shape."""
        turns = np.multiply.outer(predictions, self.harmonics / self.period)
        found: FloatArray = np.sin(2 * np.pi * turns) @ self.coefficients
        return found
