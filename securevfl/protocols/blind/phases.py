"""Fixed point of logistic residuals in shares: phases, tables and public coefficients.

A *phase* is an angle 2π·H/Λ as a word of 16 bits. Both parties know the phase z of H + ρ; they have
shares of cos(mρ) and sin(mρ), and add up

    σ(H) − ½ = Σ b_m·sin(m(z − ρ)) = Σ b_m·(sin(mz)·cos(mρ) − cos(mz)·sin(mρ)), m odd.

The coefficients b_m·sin(mz) have to be the same integers at both ends, whatever machine computes
them, since shares are multiplied by them: no value may lie where a last bit could round it
otherwise, which is checked. H moves by less than one part in 2^16 of the period, tables round to
2^−table_bits: both without bias, since ρ and the shares are uniform.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import FloatArray, IntArray, RingArray
from securevfl.crypto import ring
from securevfl.crypto.slot_parameters import failure_probability
from securevfl.errors import CryptoError, RangeExceeded
from securevfl.models.sigmoid_series import PERIOD_BITS, SigmoidSeries

PHASE_BITS = 16
PHASES = 1 << PHASE_BITS
PhaseArray = NDArray[np.uint16]
_QUARTER = np.uint16(PHASES // 4)
_TIE = 1e-11


@dataclass(frozen=True)
class PhaseFormat:
    """How logistic residuals of one job are computed.

    Attributes:
        series: what stands for σ.
        prediction_fraction_bits: of the shares of H.
        table_bits: each party's cosines and sines are integers up to 2^table_bits.
        coefficient_bits: fraction bits of b_m·sin(mz).

    Raises:
        RangeExceeded: H with more fraction bits than the ring has beside a period.
    """

    series: SigmoidSeries
    prediction_fraction_bits: int
    table_bits: int = 8
    coefficient_bits: int = 10

    def __post_init__(self) -> None:
        if not 0 <= self.prediction_fraction_bits <= ring.RING_BITS - PERIOD_BITS:
            raise RangeExceeded(
                f"predictions of {self.prediction_fraction_bits} fraction bits, at most "
                f"{ring.RING_BITS - PERIOD_BITS} expected beside a period of {PERIOD_BITS} bits"
            )

    @property
    def fraction_bits(self) -> int:
        """Of the residuals."""
        return 2 * self.table_bits + self.coefficient_bits

    @property
    def terms(self) -> int:
        """Harmonics."""
        return self.series.terms

    @property
    def _dropped(self) -> int:
        return PERIOD_BITS + self.prediction_fraction_bits - PHASE_BITS

    def failure_probability(self, rows: float) -> float:
        """Bound on the probability that any residual of so many rows is wrong altogether."""
        # Rounding adds less than one part in 2^table_bits to the size of either factor.
        largest = (2.0**self.table_bits + 1) ** 2
        return failure_probability(rows * self.terms, largest)

    def phases(self, share: RingArray, *, first: bool) -> PhaseArray:
        """A share of the phase of H, from a share of H; the two add up modulo 2^16."""
        turns = share * np.uint64(self.series.multiplier)
        return ring.truncated(turns, self._dropped, first=first).astype(np.uint16)

    def parts(self, phases: PhaseArray) -> IntArray:
        """cos(mρ) and sin(mρ) of one party's ρ, shape (2, rows·terms), rows one after the other."""
        turned = self._turned(phases)
        table = _rounded_cosines(2.0**self.table_bits)
        both = np.stack([table[turned], table[turned - _QUARTER]])
        return both.reshape(2, -1).astype(np.int64)

    def tables(self, parts: RingArray) -> RingArray:
        """What `residuals` takes, shape (rows, 2·terms), of shares of products of `parts`."""
        by_row = parts.reshape(2, -1, self.terms).transpose(1, 0, 2)
        return np.ascontiguousarray(by_row.reshape(-1, 2 * self.terms))

    def residuals(self, opened: PhaseArray, tables: RingArray) -> RingArray:
        """Shares of σ(H) − ½ modulo 2^59.

        Args:
            opened: the phases of H + ρ, shape (rows,).
            tables: shares of cos(mρ), then of sin(mρ), shape (rows, 2·terms).
        """
        turned = self._turned(opened)
        angles = np.concatenate([turned - _QUARTER, turned + 2 * _QUARTER], axis=1)
        weights = _weights(self.series, self.coefficient_bits)
        factors = weights[np.tile(np.arange(self.terms), 2), angles].astype(np.int64)
        return ring.reduced(np.einsum("rm,rm->r", factors.view(np.uint64), tables))

    def _turned(self, phases: PhaseArray) -> PhaseArray:
        """Phases times every harmonic, shape (rows, terms); 16-bit words wrap as angles do."""
        return np.multiply.outer(phases, self.series.harmonics.astype(np.uint16))


@cache
def _weights(series: SigmoidSeries, fraction_bits: int) -> NDArray[np.int16]:
    """b_m·cos of every phase, shape (terms, PHASES)."""
    scaled = np.ldexp(series.coefficients, fraction_bits)
    return np.stack([_rounded_cosines(size) for size in scaled.tolist()])


@cache
def _rounded_cosines(size: float) -> NDArray[np.int16]:
    """The integers nearest size·cos of every phase, shape (PHASES,).

    Raises:
        CryptoError: one that another machine might round otherwise, or a size beyond 2^15.
    """
    exact: FloatArray = size * np.cos(2 * np.pi * np.arange(PHASES) / PHASES)
    rounded = np.rint(exact)
    if size >= PHASES // 2:
        raise CryptoError(f"cosines of size {size!r} do not fit 16 bits")
    if np.any(np.abs(np.abs(exact - rounded) - 0.5) < _TIE):
        raise CryptoError(f"a cosine of size {size!r} lies half-way between two integers")
    found: NDArray[np.int16] = rounded.astype(np.int16)
    return found
