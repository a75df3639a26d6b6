"""σ as a Fourier series, for residuals that are computed in shares.

The wave σ(H) − σ(H − Λ/2) − ½, repeated with period Λ, is odd, repeats with the other sign after
Λ/2, and is Σ over odd m of b_m·sin(2πmH/Λ) with

    b_m = (4π/Λ)/sinh(2π²m/Λ),

by Poisson's summation of σ′ (whose Fourier transform is πω/sinh(πω)). Up to |H| = Λ/2 − 4 it is
within 0.018 of σ − ½, at the ends, and beyond Λ/2 it has the other sign: rows there are pushed
away. The terms that are left out are exponentially small in m/Λ.
Source: docs/decisions/0034-logistic-residuals-in-shares.md.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from securevfl.arrays import FloatArray, IntArray
from securevfl.errors import ConfigError

MARGIN = 4
LEAST_PERIOD, LARGEST_PERIOD = 32, 1024


@dataclass(frozen=True)
class SigmoidSeries:
    """The first terms of the series.

    Attributes:
        period: Λ, a power of two.

    Raises:
        ConfigError: another period.
    """

    period: int

    def __post_init__(self) -> None:
        fits = LEAST_PERIOD <= self.period <= LARGEST_PERIOD
        if not fits or self.period & (self.period - 1):
            raise ConfigError(
                f"period {self.period}: a power of two from {LEAST_PERIOD} to {LARGEST_PERIOD} "
                "expected"
            )

    @property
    def terms(self) -> int:
        """3·Λ/32: what is left out is 0.015 in all, 0.008 in the mean square of |H| < 8."""
        return 3 * self.period // 32

    @property
    def range(self) -> float:
        """The largest |H| that the series is for, Λ/2 − 4."""
        return self.period / 2 - MARGIN

    @cached_property
    def harmonics(self) -> IntArray:
        """The odd m, shape (terms,)."""
        return np.arange(1, 2 * self.terms, 2)

    @cached_property
    def coefficients(self) -> FloatArray:
        """b_m, shape (terms,)."""
        angles = 2 * np.pi * self.harmonics / self.period
        found: FloatArray = 4 * np.pi / self.period / np.sinh(np.pi * angles)
        return found

    def values(self, predictions: FloatArray) -> FloatArray:
        """What stands for σ(H) − ½, of predictions of any shape."""
        turns = np.multiply.outer(predictions, self.harmonics / self.period)
        found: FloatArray = np.sin(2 * np.pi * turns) @ self.coefficients
        return found
