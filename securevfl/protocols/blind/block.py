"""What all know of a job's rounds before the first, and each party of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.errors import LabelLeakRefused
from securevfl.models.curvature import Curvature
from securevfl.models.sigmoid_series import SigmoidSeries
from securevfl.protocols.blind.phases import PhaseFormat
from securevfl.protocols.blind.schedule import Matrices, Scales, Schedule
from securevfl.protocols.blind.widths import REVEALED_BITS, Widths
from securevfl.protocols.exchange import Batch
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.agreement import Agreement, agree
from securevfl.protocols.vertical.batches import PartyBatches
from securevfl.protocols.vertical.program import Training
from securevfl.runtime.costs import SETUP

Whitening = tuple[FloatArray, FloatArray]


@dataclass(frozen=True, eq=False)
class Block:
    """One party's rounds.

    Attributes:
        training: whose.
        agreement: what the parties told each other.
        series: what stands for σ in logistic residuals; None of an affine loss.
        widths: of the job.
        batches: its rows, by round.
        whitening: W and W⁺ of its columns, each of shape (P, P).
        schedule: its rounds.
        scales: of its steps.
        matrices: by group of rounds.
    """

    training: Training
    agreement: Agreement
    series: SigmoidSeries | None
    widths: Widths
    batches: Sequence[Batch]
    whitening: Whitening
    schedule: Schedule
    scales: Scales
    matrices: Mapping[int, Matrices]

    @property
    def phases(self) -> PhaseFormat | None:
        """Fixed point of logistic residuals; None of an affine loss."""
        if self.series is None:
            return None
        return PhaseFormat(self.series, self.widths.prediction_bits)

    @property
    def failure(self) -> float:
        """Bound on the probability that a truncation goes wrong: of own steps, a part of rows'."""
        plan, values = self.training.plan, len(self.schedule.rounds) * len(self.whitening[0])
        of_steps = self.widths.step_failure(self.scales.step_bits, values)
        return of_steps + self.widths.row_failure(plan) / len(plan.facts.names)

    @classmethod
    async def of(cls, training: Training, whitening: Whitening | None = None) -> "Block":
        """Agree with the others, and compute what follows.

        Args:
            training: whose.
            whitening: that its shares are in, where it goes on.

        Raises:
            PeerError: a peer broke the protocol or is gone.
            RangeExceeded: fixed point has no room for the job.
            LabelLeakRefused: so few rows that the end would tell their labels.
        """
        party, plan, part = training.party, training.plan, training.part
        async with party.costs.compute(SETUP):
            curvature = Curvature(part.model, part.inputs, plan.loss.curvature, plan.l2)
            whitening = whitening or curvature.whitening
            features = part.inputs @ whitening[0]
        agreement = await agree(party, plan.hash, features, len(part.held_out))
        del features
        _require_rows(training, agreement)
        series = sigmoid_series(plan) if plan.loss.name == "logistic" else None
        widths = Widths.of(plan, agreement, series)
        async with party.costs.compute(SETUP):
            batches = PartyBatches(plan, training.workplace.data, part.inputs)
            rows = [batches.at(each) for each in range(plan.rounds)]
            schedule = _schedule(training, agreement, rows, whitening)
            scales = schedule.scales(widths)
            matrices = schedule.matrices(widths, scales)
        return cls(training, agreement, series, widths, rows, whitening, schedule, scales, matrices)


def _require_rows(training: Training, agreement: Agreement) -> None:
    """Check that what ends open is less than labels have in them, whatever steps were like.

    Where others' predictions have hardly moved, after a round or many small ones from a known
    start, θ_k is exact sums of labels, of which a number tells as many bits as are revealed.

    Raises:
        LabelLeakRefused: it may not be.
    """
    plan, party = training.plan, training.party
    visited = np.unique(np.concatenate([plan.schedule.batch(each) for each in range(plan.rounds)]))
    columns = sum((agreement.own_columns, *agreement.columns.values()))
    columns -= {party.name: agreement.own_columns, **agreement.columns}[party.label_party]
    least = REVEALED_BITS * columns
    if len(visited) < least and not plan.job.job.allow_label_leak:
        raise LabelLeakRefused(
            f"blind: labels of {len(visited)} rows can be read from the {columns} parameters that "
            f"feature parties learn, of {REVEALED_BITS} bits each; train on {least} rows, or set "
            "allow_label_leak = true"
        )


def sigmoid_series(plan: Plan) -> SigmoidSeries:
    """What stands for σ, of the period that the job says, or that its rounds ask for."""
    period = plan.job.exchange.period
    if period is not None:
        return SigmoidSeries.of_period(period)
    accelerated = plan.job.job.acceleration == "nesterov"
    return SigmoidSeries.for_training(plan.rounds, accelerated=accelerated)


def _schedule(
    training: Training, agreement: Agreement, batches: Sequence[Batch], whitening: Whitening
) -> Schedule:
    plan, part = training.plan, training.part
    columns = sum((agreement.own_columns, *agreement.columns.values()))
    steps = plan.steps(part.model, part.inputs, columns)
    penalty = np.full(len(part.model.weights), plan.l2)
    if part.model.intercept:
        penalty[-1] = 0.0
    return Schedule(batches, steps, whitening, penalty)
