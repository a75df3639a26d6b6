"""One party's part of a job whose parameters stay in shares."""

from securevfl.arrays import FloatArray
from securevfl.protocols.blind.block import Block
from securevfl.protocols.blind.links import holder_of
from securevfl.protocols.blind.range_check import require_range
from securevfl.protocols.blind.relays import Relays, nothing
from securevfl.protocols.blind.rounds import Rounds, SharedWeights
from securevfl.protocols.blind.scoring import establish_scoring
from securevfl.protocols.blind.shares import shares_of
from securevfl.protocols.blind.supplies import supplies_of
from securevfl.protocols.session.keeping import Kept
from securevfl.protocols.session.label_guard import LeakageCount
from securevfl.protocols.vertical.held_out_guarding import require_held_out_guard
from securevfl.protocols.vertical.memory import go_on, keep_state
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
    leakage = LeakageCount(plan.facts.rows, plan.loss.outputs, {})
    shares, resume, first = shares_of(training), training.workplace.resume, 0
    if resume is not None:
        first = go_on(resume, training, leakage, shares)
    block = await Block.of(training, None if resume is None else shares.whitening)
    scoring = await establish_scoring(training, block.agreement)
    supplies = await supplies_of(block, first, shares.held)
    write_down_scorings()
    async with party.costs.compute(SETUP):
        supplies.prepare()
    (into, out), start = supplies.whitening, part.model.weights[:, 0]
    own = SharedWeights(out @ start, block.widths, supplies.scales)
    if resume is None:
        shares.begin(own, supplies.whitening)
        keep_state(training, leakage, shares, 0)
    else:
        own.go_on(shares.own)
    rounds = Rounds(
        party,
        holder_of(party),
        own,
        matrices=supplies.matrices,
        pads=supplies.pads,
        residuals=Relays(party, block.agreement.masks, supplies.residuals, block.phases),
    )
    for each, batch in zip(block.schedule.rounds[first:], block.batches[first:], strict=True):
        coming = supplies.coming
        await rounds.take(each, batch.labels, coming.meanwhile if coming else nothing)
        shares.after(each.index, own, supplies.pads)
        if coming is not None:
            await coming.after(each, supplies.pads)
        if each.index == plan.rounds - 1:
            moved = await rounds.reveal() - out @ start
            await _keep(block, start + into @ moved)
        party.costs.end_round()
        if training.workplace.progress is not None:
            training.workplace.progress(each.index + 1)
        keep_state(training, leakage, shares, each.index + 1)
    if scoring is not None:
        await scoring.ends(plan.rounds, part.model)
    return Trained(
        Kept(plan.rounds, plan.rounds),
        [] if scoring is None else scoring.scores,
        leakage,
        failure=block.failure,
    )


async def _keep(block: Block, weights: FloatArray) -> None:
    """Make what was revealed this party's model, if it is of any use.

    Raises:
        RangeExceeded: predictions left what logistic residuals were computed for.
        PeerError: a peer failed.
    """
    part = block.training.part
    part.model.weights = weights[:, None]
    if block.series is not None:
        await require_range(block.training.party, part.inputs @ weights, block.series)
