"""Fixed point of a blind job, from public figures, and how likely truncations go wrong.

Weights have `weight_bits` behind the point, features `feature_bits` (fewer where that is exact),
so predictions in shares have both. Residuals of an affine loss have two more where c = ¼, and are
truncated to `residual_bits` before they are multiplied. The step of a link has `step_bits`
(`Scales`), which its owner chooses and its holder is told: these are the only figures that follow
from data.
Source: docs/decisions/0032-blind.md.
"""

from dataclasses import dataclass
from math import ceil, log2

from securevfl.crypto.ring import RING_BITS, failure_probability
from securevfl.errors import RangeExceeded
from securevfl.models.sigmoid_series import SigmoidSeries
from securevfl.protocols.blind.phases import PhaseFormat
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.agreement import Agreement

FEATURE_BITS, RESIDUAL_BITS, ENTRY_BITS = 12, 12, 12
MOST_WEIGHT_BITS, LEAST_WEIGHT_BITS = 20, 14
EXTRAPOLATION_BITS = 10
REVEALED_BITS = 12
LARGEST_WEIGHT = 2.0**12
# Mean of |d| over a batch: at θ = 0 it is at most 1 for every loss here, and training lowers it.
TYPICAL_RESIDUAL = 2.0
# Of the changes that a round makes to a party's weights.
TYPICAL_STEP = 1.0
ACCEPTED_FAILURE, MOST_FAILURE = 2.0**-12, 2.0**-6


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
        """Those of a job.

        Args:
            plan: of the job.
            agreement: what the parties told each other.
            series: what stands for σ in logistic residuals; None of an affine loss.

        Raises:
            RangeExceeded: so many rows and rounds that some truncation is likely to go wrong.
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
                # N has 1/S of E's factor: the same bits for both of what they are multiplied by.
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
    def dropped_of_residuals(self) -> int:
        """Bits that residuals lose."""
        return self.shared_residual_bits - self.residual_bits

    @property
    def dropped_of_pulls(self) -> int:
        """Bits that the rows of E lose."""
        return self.prediction_bits - self.pull_bits

    def row_failure(self, plan: Plan) -> float:
        """Probability that any residual of the job is truncated wrongly."""
        largest = TYPICAL_RESIDUAL * 2.0**self.shared_residual_bits
        return failure_probability(visits(plan) * len(plan.facts.names), largest)

    def step_failure(self, step_bits: int, values: int) -> float:
        """The same of so many steps of single weights, their extrapolation, and rows of E."""
        bits = step_bits, self.weight_bits + EXTRAPOLATION_BITS, self.prediction_bits
        return sum(failure_probability(values, TYPICAL_STEP * 2.0**each) for each in bits)


def visits(plan: Plan) -> int:
    """Of rows, over the job."""
    return sum(len(plan.schedule.batch(each)) for each in range(plan.rounds))


def require_rare(probability: float, what: str, rounds: int) -> None:
    """Check that a job of so many rounds is not likely to fail.

    Raises:
        RangeExceeded: it is.
    """
    if probability > MOST_FAILURE:
        fewer = "fewer rounds or " if rounds > 1 else ""
        raise RangeExceeded(
            f"blind: some share of {what} in the ring of {RING_BITS} bits goes wrong with "
            f"probability {probability:.2g}, at most {MOST_FAILURE:.2g} accepted; use {fewer}"
            "smaller batches"
        )


def bits_above(value: float) -> int:
    """The least b with value ≤ 2^b."""
    return ceil(log2(value))
