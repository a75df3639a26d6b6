"""One party's part of a job whose parameters stay in shares."""

from securevfl.arrays import FloatArray
from securevfl.protocols.blind.offline import Offline
from securevfl.protocols.blind.rounds import BlindRounds, SharedWeights, Shares, require_range
from securevfl.protocols.blind.schedule import BlindJob
from securevfl.protocols.blind.scoring import establish_scoring
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
    shares, resume, first = Shares.of(training), training.workplace.resume, 0
    if resume is not None:
        first = go_on(resume, training, leakage, shares)
    blind = await BlindJob.of(training, None if resume is None else shares.whitening)
    scoring = await establish_scoring(training, blind.agreement)
    offline = await Offline.of(blind, first, shares.held)
    write_down_scorings()
    async with party.costs.compute(SETUP):
        offline.prepare()
    (into, out), start = offline.whitening, part.model.weights[:, 0]
    own = SharedWeights(out @ start, blind.widths, offline.scales)
    if resume is None:
        shares.begin(own, offline.whitening)
        keep_state(training, leakage, shares, 0)
    else:
        own.go_on(shares.own)
    rounds = BlindRounds(blind, own, offline)
    for each, batch in zip(blind.schedule.rounds[first:], blind.batches[first:], strict=True):
        await rounds.take(each, batch.labels)
        shares.after(each.index, own, offline.pads)
        await offline.after(each)
        if each.index == plan.rounds - 1:
            moved = await rounds.reveal() - out @ start
            await _keep(blind, start + into @ moved)
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
        failure=blind.failure,
    )


async def _keep(blind: BlindJob, weights: FloatArray) -> None:
    """Make what was revealed this party's model, if it is of any use.

    Raises:
        RangeExceeded: predictions left what logistic residuals were computed for.
        PeerError: a peer failed.
    """
    part = blind.training.part
    part.model.weights = weights[:, None]
    if blind.series is not None:
        await require_range(blind.training.party, part.inputs @ weights, blind.series)
