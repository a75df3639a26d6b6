"""The one scoring of a blind job: at the end, when every owner knows its parameters.

Parameters are not known before, so nothing is scored between, and held-out rows stop no job.

Learns: as `class_sums` says, or, where a job opens rows (`scores = "rows"`), as other exchanges:
    the label party H_k of every held-out row between two parties, and only ΣH among more.
"""

from securevfl.crypto.masks import PairwiseMasks
from securevfl.protocols.blind.class_sums import RingSums, fraction_bits, sum_format
from securevfl.protocols.blind.links import take_ring_key
from securevfl.protocols.blind.schedule import partner_of
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.agreement import Agreement
from securevfl.protocols.session.gathering import ClearGathering, gathering_of
from securevfl.protocols.session.keys import PublicKey
from securevfl.protocols.session.party import Party
from securevfl.protocols.session.scoring import ByRow, FeatureScoring, LabelScoring
from securevfl.protocols.vertical.runner import Training
from securevfl.runtime.costs import SETUP

FOR_SCORES = "ring, scores"


async def establish_scoring(
    training: Training, agreement: Agreement
) -> FeatureScoring | LabelScoring:
    """This party's side of the one scoring at the end, if rows are held out.

    Raises:
        ConfigError: sums would be of a few rows.
        RangeExceeded: so many held-out rows that sums do not fit.
        PeerViolation: a key that does not fit.
    """
    party, plan, part = training.party, training.plan, training.part
    labels = training.workplace.data.test_labels
    shown = plan.algorithm.held_out(plan)
    side: ByRow | RingSums
    if not plan.timetable.test_rows:
        side = ByRow(party, ClearGathering(party))
    elif shown == "hidden":
        side = await establish_sums(party, plan, agreement.masks)
    else:
        side = ByRow(party, gathering_of(party, agreement.masks, sums=shown == "summed"))
    if labels is None:
        return FeatureScoring(party, side, plan.timetable, part.held_out)
    return LabelScoring(
        party, side, plan.timetable, inputs=part.held_out, labels=labels, target_auc=None
    )


async def establish_sums(party: Party, plan: Plan, masks: PairwiseMasks) -> RingSums:
    """This party's side, with a key of the label party's for it.

    Raises:
        RangeExceeded: so many held-out rows that sums do not fit.
        PeerViolation: a key that does not fit.
    """
    facts, bits = plan.facts, fraction_bits(plan.facts)
    fmt, partner = sum_format(facts, plan.line), partner_of(party)
    if party.holds_labels:
        # SEAL takes a second to load, and descriptions need none.
        from securevfl.crypto.ring_products import RingProductOwner  # noqa: PLC0415

        async with party.costs.compute(SETUP):
            owner = RingProductOwner(fmt)
        await party.channel.send(partner, PublicKey(FOR_SCORES, owner.public_bytes))
        return RingSums(party, masks, bits, owner=owner)
    evaluator = None
    if party.name == partner:
        evaluator = await take_ring_key(party, party.label_party, FOR_SCORES, fmt)
    return RingSums(party, masks, bits, evaluator=evaluator)
