"""What all know of a job's rounds before the first, and each party of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.models.curvature import Curvature
from securevfl.models.sigmoid_series import SigmoidSeries
from securevfl.protocols.blind.phases import PhaseFormat
from securevfl.protocols.blind.schedule import Matrices, Scales, Schedule
from securevfl.protocols.blind.widths import Widths
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
        """
        party, plan, part = training.party, training.plan, training.part
        async with party.costs.compute(SETUP):
            curvature = Curvature(part.model, part.inputs, plan.loss.curvature, plan.l2)
            whitening = whitening or curvature.whitening
            features = part.inputs @ whitening[0]
        agreement = await agree(party, plan.hash, features, len(part.held_out))
        del features
        series = sigmoid_series(plan) if plan.loss.name == "logistic" else None
        widths = Widths.of(plan, agreement, series)
        async with party.costs.compute(SETUP):
            batches = PartyBatches(plan, training.workplace.data, part.inputs)
            rows = [batches.at(each) for each in range(plan.rounds)]
            schedule = _schedule(training, agreement, rows, whitening)
            scales = schedule.scales(widths)
            matrices = schedule.matrices(widths, scales)
        return cls(training, agreement, series, widths, rows, whitening, schedule, scales, matrices)


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
