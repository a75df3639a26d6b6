"""What all know of a job's rounds before the first, and each party of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from securevfl.arrays import FloatArray
from securevfl.models.sigmoid_series import SigmoidSeries
from securevfl.protocols.blind.links import links_of
from securevfl.protocols.blind.schedule import Matrices, Scales, Schedule, column_units
from securevfl.protocols.blind.widths import Widths
from securevfl.protocols.exchange import Batch
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.agreement import Agreement, agree
from securevfl.protocols.vertical.batches import PartyBatches
from securevfl.protocols.vertical.program import Training
from securevfl.runtime.costs import SETUP


@dataclass(frozen=True, eq=False)
class Block:
    """One party's rounds.

    Attributes:
        training: whose.
        agreement: what the parties told each other.
        series: what stands for σ in logistic residuals; None of an affine loss.
        widths: of the job.
        batches: its rows, by round.
        units: of its columns, shape (P,).
        schedule: its rounds.
        scales: of its steps.
        matrices: by group of rounds.
    """

    training: Training
    agreement: Agreement
    series: SigmoidSeries | None
    widths: Widths
    batches: Sequence[Batch]
    units: FloatArray
    schedule: Schedule
    scales: Scales
    matrices: Mapping[int, Matrices]

    @classmethod
    async def of(cls, training: Training) -> "Block":
        """Agree with the others, and compute what follows.

        Raises:
            PeerError: a peer broke the protocol or is gone.
            RangeExceeded: fixed point has no room for the job.
        """
        party, plan, part = training.party, training.plan, training.part
        async with party.costs.compute(SETUP):
            units = column_units(part.inputs)
        agreement = await agree(party, plan.hash, part.inputs / units, len(part.held_out))
        series = SigmoidSeries(period_of(plan)) if plan.loss.name == "logistic" else None
        widths = Widths.of(plan, agreement, series)
        async with party.costs.compute(SETUP):
            batches = PartyBatches(plan, training.workplace.data, part.inputs)
            rows = [batches.at(each) for each in range(plan.rounds)]
            schedule = _schedule(training, agreement, rows, units)
            scales = schedule.scales(widths)
            matrices = schedule.matrices(widths, scales)
        return cls(training, agreement, series, widths, rows, units, schedule, scales, matrices)

    @property
    def owners(self) -> tuple[str, ...]:
        """Whose shares this party holds."""
        party = self.training.party
        return tuple(each.owner for each in links_of(party) if each.holder == party.name)


def period_of(plan: Plan) -> int:
    """Λ of a job."""
    del plan
    return 64


def _schedule(
    training: Training, agreement: Agreement, batches: Sequence[Batch], units: FloatArray
) -> Schedule:
    plan, part = training.plan, training.part
    columns = sum((agreement.own_columns, *agreement.columns.values()))
    steps = plan.steps(part.model, part.inputs, columns)
    intercept = part.model.intercept
    return Schedule(batches, steps, units, l2=plan.l2, intercept=intercept)
