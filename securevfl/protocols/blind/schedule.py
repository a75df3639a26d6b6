"""The schedule of a blind job: public facts of its rounds, and each party's own steps.

Every party k *owns* θ_k and learns it at the end. The *holder* of its link has the other share, and
a homomorphic key. The label party is the holder for all others; its *partner*, the first feature
party, is the holder for the label party. These two compute residuals.

Parameters are shared as φ = W⁺θ, in a basis in which all directions of the owner's data have equal
curvature (`Curvature.whitening`). So fixed-point errors of predictions H = XWφ do not depend on
units or correlations of columns. A round takes φ⁺ = ζ − N·[Eζ; d] from the exchanged point ζ. L2
adds rows E = Λ^½·W to those of the batch, with Λ = λ but 0 for an intercept, and
N = W⁺T·[Λ^½ | Xᵀ/S], with T of exact steps or Q gradient steps (`LocalSteps.planned`). Only the
owner knows N. Rounds with the same batch and step sizes have the same matrices and form a *group*.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, floor, log2

import numpy as np

from securevfl.arrays import FloatArray, IntArray
from securevfl.crypto.fixed_point import encode
from securevfl.crypto.ring import Factor
from securevfl.errors import RangeExceeded
from securevfl.models.curvature import Curvature
from securevfl.models.sigmoid_series import SigmoidSeries
from securevfl.protocols.blind.fixed_point import (
    ACCEPTED_FAILURE,
    ENTRY_BITS,
    PhaseFormat,
    Widths,
    require_rare,
    sigmoid_series,
)
from securevfl.protocols.blind.rehearsal import agreed_doublings, doublings_for, rehearsed_reach
from securevfl.protocols.exchange import Batch, PartyBatches
from securevfl.protocols.guards.label_guard import commitments
from securevfl.protocols.local_steps import LocalSteps, Planned
from securevfl.protocols.session.agreement import Agreement, agree
from securevfl.protocols.session.gathering import Party
from securevfl.protocols.vertical.runner import Training
from securevfl.runtime.costs import SETUP
from securevfl.wire.codec import Message, message_kind

LEAST_ENTRY_BITS, LARGEST_SCALE = 8, 48
Whitening = tuple[FloatArray, FloatArray]


def partner_of(party: Party) -> str:
    """The first feature party."""
    return party.feature_parties[0]


def computing_parties(party: Party) -> tuple[str, str]:
    """The two parties that compute residuals: the label party and its partner."""
    return party.label_party, partner_of(party)


def holders(party: Party) -> dict[str, str]:
    """By owner, the holder of the other share of its parameters."""
    label_party, partner = computing_parties(party)
    return {name: partner if name == label_party else label_party for name in party.names}


def owners_held_by(party: Party) -> tuple[str, ...]:
    """The owners for which this party is the holder."""
    return tuple(owner for owner, holder in holders(party).items() if holder == party.name)


@message_kind(73, stage="setup")
class Scales(Message):
    """An owner's message to its holder: fraction bits of steps, and bits that bound entries."""

    step_bits: int
    entry_bits: int

    @property
    def largest(self) -> int:
        """The larger number."""
        return max(self.step_bits, self.entry_bits)


@dataclass(frozen=True, eq=False)
class PlannedRound:
    """The public facts of a round.

    Attributes:
        index: counted from 0.
        rows: S.
        beta: α of the extrapolation after it.
        group: of rounds that share matrices.
    """

    index: int
    rows: int
    beta: float
    group: int


def by_group(rounds: Sequence[PlannedRound]) -> list[list[PlannedRound]]:
    """These rounds by group."""
    found: dict[int, list[PlannedRound]] = {}
    for each in rounds:
        found.setdefault(each.group, []).append(each)
    return list(found.values())


@dataclass(frozen=True, eq=False)
class Matrices:
    """One group's matrices, at the owner.

    Attributes:
        steps: −N, with step fraction bits in products, shape (P, P + S).
        features: [E; XW], shape (P + S, P).
    """

    steps: IntArray
    features: IntArray

    def prepare(self) -> None:
        """Prepare both for the products of rounds."""
        _ = self.of_residuals, self.of_features

    @cached_property
    def of_residuals(self) -> Factor:
        """−N."""
        return Factor(self.steps)

    @cached_property
    def of_features(self) -> Factor:
        """[E; XW]."""
        return Factor(self.features)


class Schedule:
    """A job's rounds, and one party's step in each.

    Args:
        whitening: W and W⁺ of its columns, each of shape (P, P).
        penalty: Λ, shape (P,).
    """

    def __init__(
        self, batches: Sequence[Batch], steps: LocalSteps, whitening: Whitening, penalty: FloatArray
    ) -> None:
        groups: dict[object, int] = {}
        rounds: list[PlannedRound] = []
        self._groups: list[tuple[Batch, Planned]] = []
        for index, batch in enumerate(batches):
            planned = steps.planned(index, batch.inputs)
            key = batch.key, planned.pace
            if key not in groups:
                groups[key] = len(groups)
                self._groups.append((batch, planned))
            rounds.append(PlannedRound(index, len(batch.rows), planned.beta, groups[key]))
        self.rounds = tuple(rounds)
        self._whitening, self._penalty = whitening, penalty

    def blocks(self, first: int, size: int | None) -> list[Sequence[PlannedRound]]:
        """All rounds from `first` on in blocks of this size, or in one."""
        rounds = self.rounds[first:]
        size = size or len(rounds)
        return [rounds[at : at + size] for at in range(0, len(rounds), size)]

    def scales(self, widths: Widths) -> Scales:
        """The scales of this party's matrices, for its holder.

        Raises:
            RangeExceeded: steps so small or so many that truncations are likely to fail, or so
                large that they do not fit.
        """
        of_rows, of_pulls = (
            max(float(np.max(np.abs(matrix), initial=0.0)) for matrix in matrices)
            for matrices in zip(*(self._steps(*group) for group in self._groups), strict=True)
        )
        values = len(self.rounds) * len(self._penalty)
        step_bits = widths.weight_bits
        if of_rows > 0:
            for entry_bits in range(ENTRY_BITS, LEAST_ENTRY_BITS - 1, -1):
                finest = floor(entry_bits - log2(of_rows)) + widths.residual_bits
                step_bits = max(widths.weight_bits, finest)
                if widths.step_failure(step_bits, values) <= ACCEPTED_FAILURE:
                    break
        require_rare(widths.step_failure(step_bits, values), "steps", len(self.rounds))
        entries = max(
            of_rows * 2.0 ** (step_bits - widths.residual_bits),
            of_pulls * 2.0 ** (step_bits - widths.pull_bits),
        )
        scales = Scales(step_bits, ceil(log2(entries + 1)))
        if scales.largest >= LARGEST_SCALE:
            raise RangeExceeded(
                f"blind: steps of {scales.largest} bits in fixed point, fewer than {LARGEST_SCALE} "
                "expected: take a smaller learning_rate, or 'auto'"
            )
        return scales

    def matrices(self, widths: Widths, scales: Scales) -> dict[int, Matrices]:
        """By group, in fixed point."""
        return {
            group: self._fixed(batch, planned, widths, scales)
            for group, (batch, planned) in enumerate(self._groups)
        }

    def _fixed(self, batch: Batch, planned: Planned, widths: Widths, scales: Scales) -> Matrices:
        of_rows, of_pulls = self._steps(batch, planned)
        bits = np.repeat([widths.pull_bits, widths.residual_bits], [len(of_pulls), len(batch.rows)])
        steps = np.ldexp(-np.hstack([of_pulls, of_rows]), scales.step_bits - bits)
        into, _ = self._whitening
        features = np.vstack([np.sqrt(self._penalty)[:, None] * into, batch.inputs @ into])
        largest = float(np.max(np.abs(features), initial=0.0))
        return Matrices(
            encode(steps, 0, 2.0**scales.entry_bits, "steps"),
            encode(features, widths.feature_bits, largest, "features"),
        )

    def _steps(self, batch: Batch, planned: Planned) -> tuple[FloatArray, FloatArray]:
        """N for the batch's rows and for those of E, shapes (P, S) and (P, P)."""
        moves = self._whitening[1] @ planned.matrix
        return moves @ batch.inputs.T / len(batch.inputs), moves * np.sqrt(self._penalty)


@dataclass(frozen=True, eq=False)
class BlindJob:
    """One party's view of a job before its first round.

    Attributes:
        series: for σ in logistic residuals; None for affine losses.
        batches: its rows, by round.
        whitening: W and W⁺ of its columns, each of shape (P, P).
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
        """Fixed point of logistic residuals; None for affine losses."""
        if self.series is None:
            return None
        return PhaseFormat(self.series, self.widths.prediction_bits)

    @property
    def failure(self) -> float:
        """Bound on the failure probability of this party's truncations, with its share of rows."""
        plan, values = self.training.plan, len(self.schedule.rounds) * len(self.whitening[0])
        of_steps = self.widths.step_failure(self.scales.step_bits, values)
        return of_steps + self.widths.row_failure(plan) / len(plan.facts.names)

    @classmethod
    async def of(cls, training: Training, whitening: Whitening | None = None) -> "BlindJob":
        """Agree with the others and prepare the job; a resumed one passes its `whitening`.

        Raises:
            RangeExceeded: fixed point has no room for the job.
        """
        party, plan, part = training.party, training.plan, training.part
        async with party.costs.compute(SETUP):
            curvature = Curvature(part.model, part.inputs, plan.loss.curvature, plan.l2)
            whitening = whitening or curvature.whitening
            features = part.inputs @ whitening[0]
            committed = commitments(
                plan, party.name, part.inputs, training.workplace.guard_directory
            )
        agreement = await agree(
            party,
            plan.hash,
            features,
            len(part.held_out),
            rows_digest=training.workplace.data.table.rows_digest,
            commitments=committed,
        )
        del features
        async with party.costs.compute(SETUP):
            batches = PartyBatches(plan, training.workplace.data.train_labels, part.inputs)
            rows = [batches.at(each) for each in range(plan.rounds)]
        series = await _agreed_series(training, agreement, rows)
        widths = Widths.of(plan, agreement, series)
        async with party.costs.compute(SETUP):
            schedule = _schedule(training, agreement, rows, whitening)
            scales = schedule.scales(widths)
            matrices = schedule.matrices(widths, scales)
        return cls(training, agreement, series, widths, rows, whitening, schedule, scales, matrices)


def _schedule(
    training: Training, agreement: Agreement, batches: Sequence[Batch], whitening: Whitening
) -> Schedule:
    return Schedule(batches, _steps(training, agreement), whitening, _penalty(training))


async def _agreed_series(
    training: Training, agreement: Agreement, batches: Sequence[Batch]
) -> SigmoidSeries | None:
    """The series for σ: as the job sets it, or as long as rehearsals of all parties ask for."""
    party, plan = training.party, training.plan
    series = sigmoid_series(plan)
    if series is None or plan.job.exchange.period is not None:
        return series
    async with party.costs.compute(SETUP):
        steps, penalty = _steps(training, agreement), _penalty(training)
        reach = rehearsed_reach(training.part.inputs, batches, steps, penalty)
    return series.lengthened(await agreed_doublings(party, doublings_for(series, reach)))


def _steps(training: Training, agreement: Agreement) -> LocalSteps:
    columns = sum((agreement.own_columns, *agreement.columns.values()))
    return training.plan.steps(training.part.model, training.part.inputs, columns)


def _penalty(training: Training) -> FloatArray:
    penalty = np.full(len(training.part.model.weights), training.plan.l2)
    if training.part.model.intercept:
        penalty[-1] = 0.0
    return penalty
