"""One party's part of a job whose parameters stay in shares."""

from securevfl.models.losses import quadratic_loss
from securevfl.protocols.blind.block import Block
from securevfl.protocols.blind.links import holder_of
from securevfl.protocols.blind.residuals import AffineResiduals, BetweenTwo
from securevfl.protocols.blind.rounds import Rounds, SharedWeights
from securevfl.protocols.blind.shares import shares_of
from securevfl.protocols.session.agreement import Agreement
from securevfl.protocols.session.gathering import gathering_of
from securevfl.protocols.session.keeping import Kept
from securevfl.protocols.session.label_guard import LeakageCount
from securevfl.protocols.session.scoring import ByRow, FeatureScoring, LabelScoring, Score
from securevfl.protocols.vertical.held_out_guarding import require_held_out_guard
from securevfl.protocols.vertical.memory import go_on, keep_state
from securevfl.protocols.vertical.program import Trained, Training


async def take_part(training: Training) -> Trained:
    """Agree, make everything ahead, take all rounds, take what is revealed, score.

    Raises:
        PeerError: a peer broke the protocol or is gone.
        RangeExceeded: fixed point has no room for the job, or the end shows that it had not.
        HeldOutLeakRefused: scoring would show too much of this party's held-out rows.
    """
    party, plan, part = training.party, training.plan, training.part
    write_down_scorings = require_held_out_guard(training)
    block = await Block.of(training)
    leakage = LeakageCount(plan.facts.rows, plan.loss.outputs, block.agreement.columns)
    shares, first = shares_of(block), 0
    if training.workplace.resume is not None:
        first = go_on(training.workplace.resume, training, leakage, shares)
    pads, matrices, scales = await block.obtained(first, shares.held)
    write_down_scorings()
    own = SharedWeights(part.model.weights[:, 0] * block.units, block.widths, scales)
    if training.workplace.resume is not None:
        own.go_on(shares.own)
    else:
        shares.begin(own)
        keep_state(training, leakage, shares, 0)
    residuals = AffineResiduals(quadratic_loss(plan.loss.name), block.widths.shared_residual_bits)
    rounds = Rounds(
        party,
        holder_of(party),
        own,
        matrices=matrices,
        pads=pads,
        residuals=BetweenTwo(party, residuals),
    )
    for each, batch in zip(block.schedule.rounds[first:], block.batches[first:], strict=True):
        await rounds.take(each, batch.labels)
        shares.after(each.index, own, pads)
        if each.index == plan.rounds - 1:
            part.model.weights = (await rounds.reveal() / block.units)[:, None]
        party.costs.end_round()
        if training.workplace.progress is not None:
            training.workplace.progress(each.index + 1)
        keep_state(training, leakage, shares, each.index + 1)
    return Trained(Kept(plan.rounds, plan.rounds), await _score(training, block.agreement), leakage)


async def _score(training: Training, agreement: Agreement) -> list[Score]:
    """Score once what was revealed to all; the label party's scores."""
    party, plan, part = training.party, training.plan, training.part
    summed = plan.algorithm.held_out(plan) == "summed"
    by_row = ByRow(party, gathering_of(party, agreement.masks, sums=summed))
    scoring: FeatureScoring | LabelScoring
    if training.workplace.data.test_labels is None:
        scoring = FeatureScoring(party, by_row, plan.timetable, part.held_out)
    else:
        scoring = LabelScoring(
            party,
            by_row,
            plan.timetable,
            inputs=part.held_out,
            labels=training.workplace.data.test_labels,
            target_auc=None,
        )
    await scoring.ends(plan.rounds, part.model)
    return scoring.scores
