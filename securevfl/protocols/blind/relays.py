"""The two ways of shares in a round, among two parties or more.

The label party L and the first feature party, its *partner*, compute residuals. Every other party p
holds a share of H too: `gather_shares` hands it to L under p's share of zero among all
feature parties, so that L and the partner, which keeps its own share of zero and sends nothing, end
with a sharing of H. `hand_back` brings to every owner k the word d − w_k, for the pad w_k that the
other party of k's link, its *holder*, drew:

    owner L, holder the partner: the partner sends d⟨1⟩ − w_L;
    owner the partner, holder L: L sends d⟨L⟩ − w_1;
    any other owner p, holder L: L sends d⟨L⟩ − w_p + m, the partner d⟨1⟩ − m, m fresh among them.

Logistic residuals take the phase of H alone, which the two open under a pad of theirs. There p
sends both the phase of the same masked word (`give_phases`), two bytes a row, and the opening waits
for no other message.

Learns:
    label party: of each p a uniform word a row, whatever it knows of p's link. With the partner the
        sum of what the others hold of H, and no summand; at K = 3 that is one party's.
    partner: nothing on the way in, or the phase of a word that p's pad v makes uniform, whatever
        it knows of p's mask; d − w_1, uniform, on the way back.
    another feature party: d − w_p, in two parts of which each is uniform. With L, which drew w_p
        and knows m, it learns d.
Guarantees: against semi-honest parties; masks are pairwise streams, one context a step and owner.
Messages a round: 3K − 4, 8 bytes a row each, in two hops; 2 in one hop between two parties. Of
    logistic residuals 4(K − 1), half of them of 2 bytes a row, in two hops whatever K is.
"""

from collections.abc import Awaitable, Callable, Mapping

import numpy as np

from securevfl.arrays import RingArray
from securevfl.crypto import ring
from securevfl.crypto.masks import PairwiseMasks
from securevfl.protocols.blind.fixed_point import PhaseFormat
from securevfl.protocols.blind.residuals import MaskedPhases, masked_phases
from securevfl.protocols.blind.schedule import computing_parties, owners_held_by
from securevfl.protocols.session.gathering import Party
from securevfl.runtime.channel import collect_values
from securevfl.wire.codec import StepMessage, message_kind


@message_kind(68, stage="round", carries="masked", shows="predictions")
class PredictionShares(StepMessage):
    """A share of H of a batch plus a share of zero, modulo 2^59, shape (S,)."""

    values: RingArray


@message_kind(70, stage="evaluation", carries="masked", shows="predictions")
class HeldOutShares(StepMessage):
    """Predictions of the held-out rows plus a share of zero, modulo 2^59, shape (test rows,)."""

    values: RingArray


@message_kind(63, stage="round", carries="masked", shows="residuals")
class MaskedResiduals(StepMessage):
    """A share of d less the receiver's pad or a mask, modulo 2^59, shape (S,)."""

    values: RingArray


async def gather_shares(
    party: Party,
    masks: PairwiseMasks,
    step: int,
    share: RingArray,
    *,
    kind: type[PredictionShares | HeldOutShares] = PredictionShares,
    phase: str = "local",
) -> RingArray | None:
    """Bring the shares of H, residues modulo 2^59, to the label party and its partner.

    Each kind of message has masks of its own; a step of the job is never gathered twice.

    Returns:
        The label party's or the partner's share of H, shape (S,); None at all others.
    """
    rest = party.feature_parties[1:]
    if not rest:
        return share
    if party.holds_labels:
        received = await collect_values(party.channel, rest, kind, step, share.shape)
        return ring.reduced(sum(received.values(), share))
    share = await _under_zero(party, masks, f"{kind.__name__} {step}", share, phase)
    if party.name not in rest:
        return share
    await party.channel.send(party.label_party, kind(step, share))
    return None


async def give_phases(
    party: Party, masks: PairwiseMasks, step: int, share: RingArray, phases: PhaseFormat
) -> RingArray | None:
    """Send the two the phase of this party's share of H, where it is none of them.

    The two open the phase of H plus a pad in the same hop (`residuals`).

    Returns:
        Its share, of those of which all parties' add up to H, at the label party and its partner;
        None at all others.
    """
    rest = party.feature_parties[1:]
    if not rest or party.holds_labels:
        return share
    share = await _under_zero(party, masks, f"{MaskedPhases.__name__} {step}", share, "local")
    if party.name not in rest:
        return share
    message = masked_phases(step, phases.phases(share, first=False))
    for name in computing_parties(party):
        await party.channel.send(name, message)
    return None


async def _under_zero(
    party: Party, masks: PairwiseMasks, context: str, share: RingArray, phase: str
) -> RingArray:
    async with party.costs.compute(phase):
        zero = masks.zero_share(party.feature_parties, context, share.shape)
        return ring.reduced(share + zero)


async def hand_back(
    party: Party,
    masks: PairwiseMasks,
    step: int,
    share: RingArray | None,
    *,
    pads: Mapping[str, RingArray],
    shape: tuple[int, ...],
    meanwhile: Callable[[], Awaitable[None]] | None = None,
) -> RingArray:
    """Bring d, less its owner's pad, to every owner.

    Args:
        party: who it is.
        masks: with all others.
        step: of the job; never handed back before.
        share: the label party's or the partner's of d; None at all others.
        pads: this party's, by owner: of every feature party at the label party, of the label party
            at the partner; each used once.
        shape: of d.
        meanwhile: done once this party's messages are on their way.

    Returns:
        d − w of this party's link, modulo 2^59.
    """
    computing, held = computing_parties(party), owners_held_by(party)
    if share is not None:
        for owner in party.others:
            async with party.costs.compute("local"):
                padded = share
                if owner in held:
                    padded = padded - pads[owner]
                if owner not in computing:
                    context = f"{MaskedResiduals.__name__} {step} {owner}"
                    padded = padded + masks.zero_share(computing, context, shape)
            await party.channel.send(owner, MaskedResiduals(step, ring.reduced(padded)))
    if meanwhile is not None:
        await meanwhile()
    senders = [name for name in computing if name != party.name]
    received = await collect_values(party.channel, senders, MaskedResiduals, step, shape)
    total = np.zeros(shape, np.uint64) if share is None else share
    return ring.reduced(sum(received.values(), total))
