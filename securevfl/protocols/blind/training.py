"""One party's part of a job whose parameters stay in shares."""

from collections.abc import Sequence

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.models.curvature import Curvature
from securevfl.models.losses import Squared, TaylorLogistic
from securevfl.models.sigmoid_series import SigmoidSeries
from securevfl.protocols.blind.ahead import Links
from securevfl.protocols.blind.fourier import FourierResiduals
from securevfl.protocols.blind.phases import PhaseFormat
from securevfl.protocols.blind.relays import Relays
from securevfl.protocols.blind.residuals import (
    AffineResiduals,
    LogisticResiduals,
    ResidualShares,
)
from securevfl.protocols.blind.rounds import Rounds, SharedWeights
from securevfl.protocols.blind.schedule import Schedule
from securevfl.protocols.blind.scoring import establish_scoring
from securevfl.protocols.blind.widths import Widths
from securevfl.protocols.exchange import Batch
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.agreement import Agreement, agree
from securevfl.protocols.session.keeping import Kept
from securevfl.protocols.session.label_guard import LeakageCount
from securevfl.protocols.session.party import Party
from securevfl.protocols.vertical.batches import PartyBatches
from securevfl.protocols.vertical.held_out_guarding import require_held_out_guard
from securevfl.protocols.vertical.program import Trained, Training
from securevfl.runtime.costs import SETUP


async def take_part(training: Training) -> Trained:
    """Agree, make everything ahead, take all rounds, take what is revealed, score.

    Raises:
        PeerError: a peer broke the protocol or is gone.
        RangeExceeded: fixed point has no room for the job, or the end shows that it had not.
        HeldOutLeakRefused: scoring would show too much of this party's held-out rows.
    """
    party, plan, part = training.party, training.plan, training.part
    write_down_scorings = require_held_out_guard(training)
    async with party.costs.compute(SETUP):
        curvature = Curvature(part.model, part.inputs, plan.loss.curvature, plan.l2)
        into, out = curvature.whitening
        features = part.inputs @ into
    agreement = await agree(party, plan.hash, features, len(part.held_out))
    del features
    series = SigmoidSeries(period_of(plan)) if plan.loss.name == "logistic" else None
    widths = Widths.of(plan, agreement, series)
    async with party.costs.compute(SETUP):
        batches = PartyBatches(plan, training.workplace.data, part.inputs)
        rows = [batches.at(each) for each in range(plan.rounds)]
        schedule = _schedule(training, agreement, rows, (into, out))
        scales = schedule.scales(widths)
        start = part.model.weights[:, 0]
        own = SharedWeights(out @ start, widths, scales)
        matrices = schedule.matrices(widths, scales)
    links = await Links.establish(
        party, plan, agreement, schedule, widths=widths, scales=scales, matrices=matrices
    )
    residuals = await _residuals(party, plan, widths, series)
    scoring = await establish_scoring(training, agreement)
    write_down_scorings()
    pads = await links.make(schedule.rounds)
    if residuals is not None:
        await residuals.make_ahead(sum(each.rows for each in schedule.rounds))
    rounds = Rounds(
        party,
        links.own.holder,
        own,
        matrices=matrices,
        pads=pads,
        residuals=Relays(party, agreement.masks, residuals),
    )
    for each, batch in zip(schedule.rounds, rows, strict=True):
        await rounds.take(each, batch.labels)
        if each.index == plan.rounds - 1:
            moved = await rounds.reveal() - out @ start
            part.model.weights = (start + into @ moved)[:, None]
        party.costs.end_round()
        if training.workplace.progress is not None:
            training.workplace.progress(each.index + 1)
    if scoring is not None:
        await scoring.ends(plan.rounds, part.model)
    return Trained(
        Kept(plan.rounds, plan.rounds),
        [] if scoring is None else scoring.scores,
        LeakageCount(plan.facts.rows, plan.loss.outputs, agreement.columns),
    )


def period_of(plan: Plan) -> int:
    """Λ of a job."""
    del plan
    return 64


async def _residuals(
    party: Party, plan: Plan, widths: Widths, series: SigmoidSeries | None
) -> ResidualShares | None:
    """This party's side of residuals, where it is one of the two that compute them."""
    two = (party.label_party, party.feature_parties[0])
    if party.name not in two:
        return None
    if isinstance(plan.loss, Squared):
        return AffineResiduals(plan.loss, widths.shared_residual_bits)
    assert series is not None  # noqa: S101
    visits = sum(len(plan.schedule.batch(each)) for each in range(plan.rounds))
    (peer,) = {*two} - {party.name}
    phases = PhaseFormat(series, widths.prediction_bits)
    side = await FourierResiduals.establish(party, peer, phases, visits, first=party.holds_labels)
    return LogisticResiduals(side, TaylorLogistic())


def _schedule(
    training: Training,
    agreement: Agreement,
    batches: Sequence[Batch],
    whitening: tuple[FloatArray, FloatArray],
) -> Schedule:
    plan, part = training.plan, training.part
    columns = sum((agreement.own_columns, *agreement.columns.values()))
    steps = plan.steps(part.model, part.inputs, columns)
    penalty = np.full(len(part.model.weights), plan.l2)
    if part.model.intercept:
        penalty[-1] = 0.0
    return Schedule(batches, steps, whitening, penalty)
