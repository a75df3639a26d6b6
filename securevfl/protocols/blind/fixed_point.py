"""Fixed point of a blind job, from public figures, and the failure probability of truncations.

Weights have `weight_bits` fraction bits and features `feature_bits` (fewer where exact), so shares
of predictions have the sum of both. Residuals of an affine loss have two more if c = ¼, and are
truncated to `residual_bits` before products. The owner of a link chooses the `step_bits` of its
steps (`Scales`) and sends them to the holder: no other figures depend on data.

Logistic residuals: a *phase* is an angle 2π·H/Λ as a 16-bit word. Both parties know the phase z of
H + ρ, hold shares of cos(mρ) and sin(mρ), and add up

    σ(H) − ½ = Σ b_m·sin(m(z − ρ)) = Σ b_m·(sin(mz)·cos(mρ) − cos(mz)·sin(mρ)), m odd.

Both parties multiply shares by the coefficients b_m·sin(mz), which must be the same integers on any
CPU. So no value may lie so close to a rounding boundary that a last bit matters, which is checked.
Rounding moves H by less than 2^−16 of the period and tables by 2^−table_bits, both without bias as
ρ and the shares are uniform.
Source: docs/decisions/0032-blind.md, 0034-logistic-residuals-in-shares.md.
"""

from dataclasses import dataclass
from functools import cache
from math import log2

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import FloatArray, IntArray, RingArray
from securevfl.crypto import ring, slot_parameters
from securevfl.crypto.ring import RING_BITS
from securevfl.errors import CryptoError, RangeExceeded
from securevfl.models.sigmoid_series import PERIOD_BITS, SigmoidSeries
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.agreement import Agreement

FEATURE_BITS, RESIDUAL_BITS, ENTRY_BITS = 12, 12, 12
MOST_WEIGHT_BITS, LEAST_WEIGHT_BITS = 20, 14
EXTRAPOLATION_BITS = 10
REVEALED_BITS = 12
LARGEST_WEIGHT = 2.0**12
# Of the words at the end: the bits of a weight and its sign, and 3 by which the check of sizes
# notices a wrong one. More would be room for an owner that multiplies by a matrix of its choice.
OPENED_BITS = 28
# Mean of |d| over a batch: at θ = 0 it is at most 1 for every loss here, and training lowers it.
TYPICAL_RESIDUAL = 2.0
# Of the changes of a party's weights in a round.
TYPICAL_STEP = 1.0
ACCEPTED_FAILURE, MOST_FAILURE = 2.0**-12, 2.0**-6

PHASE_BITS = 16
PHASES = 1 << PHASE_BITS
PhaseArray = NDArray[np.uint16]
_QUARTER = np.uint16(PHASES // 4)
_TIE = 1e-11


@dataclass(frozen=True)
class PhaseFormat:
    """How logistic residuals of one job are computed.

    Attributes:
        series: the approximation of σ.
        prediction_fraction_bits: of the shares of H.
        table_bits: each party's cosines and sines are integers up to 2^table_bits.
        coefficient_bits: fraction bits of b_m·sin(mz).

    Raises:
        RangeExceeded: H has more fraction bits than the ring has room for.
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
        """Bound on the probability that any residual of this many rows is wrong altogether."""
        # Rounding adds less than one part in 2^table_bits to the size of either factor.
        largest = (2.0**self.table_bits + 1) ** 2
        return slot_parameters.failure_probability(rows * self.terms, largest)

    def phases(self, share: RingArray, *, first: bool) -> PhaseArray:
        """A share of the phase of H, modulo 2^16, from a share of H."""
        turns = share * np.uint64(self.series.multiplier)
        return ring.truncated(turns, self._dropped, first=first).astype(np.uint16)

    def parts(self, phases: PhaseArray) -> IntArray:
        """cos(mρ) and sin(mρ) of one party's ρ, shape (2, rows·terms), rows one after the other."""
        turned = self._turned(phases)
        table = _rounded_cosines(2.0**self.table_bits)
        both = np.stack([table[turned], table[turned - _QUARTER]])
        return both.reshape(2, -1).astype(np.int64)

    def tables(self, parts: RingArray) -> RingArray:
        """Shares of products of `parts`, arranged for `residuals`: shape (rows, 2·terms)."""
        by_row = parts.reshape(2, -1, self.terms).transpose(1, 0, 2)
        return np.ascontiguousarray(by_row.reshape(-1, 2 * self.terms))

    def residuals(self, opened: PhaseArray, tables: RingArray) -> RingArray:
        """Shares of σ(H) − ½ modulo 2^59.

        From the opened phases of H + ρ, shape (rows,), and shares of cos(mρ), then of sin(mρ),
        shape (rows, 2·terms).
        """
        turned = self._turned(opened)
        angles = np.concatenate([turned - _QUARTER, turned + 2 * _QUARTER], axis=1)
        weights = _weights(self.series, self.coefficient_bits)
        factors = weights[np.tile(np.arange(self.terms), 2), angles].astype(np.int64)
        return ring.reduced(np.einsum("rm,rm->r", factors.view(np.uint64), tables))

    def _turned(self, phases: PhaseArray) -> PhaseArray:
        """Phases times every harmonic, shape (rows, terms); 16-bit words wrap as angles do."""
        return np.multiply.outer(phases, self.series.harmonics.astype(np.uint16))


def sigmoid_series(plan: Plan) -> SigmoidSeries | None:
    """The series for σ, with the job's period or one for its rounds; None for affine losses."""
    if plan.loss.name != "logistic":
        return None
    period = plan.job.exchange.period
    if period is not None:
        return SigmoidSeries.of_period(period)
    accelerated = plan.job.job.acceleration == "nesterov"
    return SigmoidSeries.for_training(plan.rounds, accelerated=accelerated)


@dataclass(frozen=True)
class Widths:
    """Fraction bits.

    Attributes:
        feature_bits: of X.
        weight_bits: of θ.
        residual_bits: of d where it meets a matrix.
        shared_residual_bits: of d in shares before that.
        pull_bits: of the rows of E where they meet a matrix.
    """

    feature_bits: int
    weight_bits: int
    residual_bits: int
    shared_residual_bits: int
    pull_bits: int

    @classmethod
    def of(cls, plan: Plan, agreement: Agreement, series: SigmoidSeries | None) -> "Widths":
        """The widths of a job; `series` is None for affine losses.

        Raises:
            RangeExceeded: with so many rows and rounds a truncation is likely to fail.
        """
        feature_bits = min(FEATURE_BITS, agreement.feature_fraction_bits)
        bend_bits = -round(log2(plan.loss.curvature))
        widths = [
            cls(
                feature_bits,
                weight_bits,
                RESIDUAL_BITS,
                PhaseFormat(series, feature_bits + weight_bits).fraction_bits
                if series is not None
                else feature_bits + weight_bits + bend_bits,
                # N contains 1/S: this gives both factors the same bits.
                min(feature_bits + weight_bits, RESIDUAL_BITS + int(log2(plan.most_batch_rows))),
            )
            for weight_bits in range(MOST_WEIGHT_BITS, LEAST_WEIGHT_BITS - 1, -1)
        ]
        found = next((w for w in widths if w.row_failure(plan) <= ACCEPTED_FAILURE), widths[-1])
        of_tables = 0.0
        if series is not None:
            of_tables = PhaseFormat(series, found.prediction_bits).failure_probability(visits(plan))
        require_rare(found.row_failure(plan) + of_tables, "residuals", plan.rounds)
        return found

    @property
    def prediction_bits(self) -> int:
        """Of H in shares."""
        return self.feature_bits + self.weight_bits

    @property
    def dropped_of_pulls(self) -> int:
        """Bits that the rows of E lose."""
        return self.prediction_bits - self.pull_bits

    def truncated(self, pulls: RingArray, residuals: RingArray, *, first: bool) -> RingArray:
        """A share of the vector that steps multiply: rows of E, then d."""
        dropped = self.shared_residual_bits - self.residual_bits
        parts = (pulls, self.dropped_of_pulls), (residuals, dropped)
        return np.hstack([ring.truncated(part, bits, first=first) for part, bits in parts])

    def row_failure(self, plan: Plan) -> float:
        """Probability that any residual of the job is truncated wrongly."""
        largest = TYPICAL_RESIDUAL * 2.0**self.shared_residual_bits
        return ring.failure_probability(visits(plan) * len(plan.facts.names), largest)

    def step_failure(self, step_bits: int, values: int) -> float:
        """The same for this many steps of single weights, their extrapolation, and rows of E."""
        bits = step_bits, self.weight_bits + EXTRAPOLATION_BITS, self.prediction_bits
        return sum(ring.failure_probability(values, TYPICAL_STEP * 2.0**each) for each in bits)


def visits(plan: Plan) -> int:
    """The number of rows of all rounds of a job, with repetition."""
    return sum(map(plan.schedule.size, range(plan.rounds)))


def require_rare(probability: float, what: str, rounds: int) -> None:
    """Refuse a job that is likely to fail."""
    if probability > MOST_FAILURE:
        fewer = "fewer rounds or " if rounds > 1 else ""
        raise RangeExceeded(
            f"blind: some share of {what} in the ring of {RING_BITS} bits goes wrong with "
            f"probability {probability:.2g}, at most {MOST_FAILURE:.2g} accepted; use {fewer}"
            "smaller batches"
        )


@cache
def _weights(series: SigmoidSeries, fraction_bits: int) -> NDArray[np.int16]:
    """b_m·cos of every phase, shape (terms, PHASES)."""
    scaled = np.ldexp(series.coefficients, fraction_bits)
    return np.stack([_rounded_cosines(size) for size in scaled.tolist()])


@cache
def _rounded_cosines(size: float) -> NDArray[np.int16]:
    """The integers nearest size·cos of every phase, shape (PHASES,).

    Refuses sizes beyond 2^15, and values that another CPU might round differently.
    """
    exact: FloatArray = size * np.cos(2 * np.pi * np.arange(PHASES) / PHASES)
    rounded = np.rint(exact)
    if size >= PHASES // 2:
        raise CryptoError(f"cosines of size {size!r} do not fit 16 bits")
    if np.any(np.abs(np.abs(exact - rounded) - 0.5) < _TIE):
        raise CryptoError(f"a cosine of size {size!r} lies half-way between two integers")
    found: NDArray[np.int16] = rounded.astype(np.int16)
    return found
