"""The two ways of shares in a round, among two parties or more.

The label party L and the first feature party, its *partner*, compute residuals. Every other party p
holds a share of H too: `gather_shares` hands it to L under p's share of zero among all
feature parties, so that L and the partner, which keeps its own share of zero and sends nothing, end
with a sharing of H. `hand_back` brings to every owner k the word d − w_k, for the pad w_k that the
other party of k's link, its *holder*, drew:

    owner L, holder the partner: the partner sends d⟨1⟩ − w_L;
    owner the partner, holder L: L sends d⟨L⟩ − w_1;
    any other owner p, holder L: L sends d⟨L⟩ − w_p + m, the partner d⟨1⟩ − m, m fresh among them.

Learns:
    label party: of each p a uniform word a row, whatever it knows of p's link. With the partner the
        sum of what the others hold of H, and no summand; at K = 3 that is one party's.
    partner: nothing on the way in; d − w_1, uniform, on the way back.
    another feature party: d − w_p, in two parts of which each is uniform. With L, which drew w_p
        and knows m, it learns d.
Guarantees: against semi-honest parties; masks are pairwise streams, one context a step and owner.
Messages a round: 3K − 4, 8 bytes a row each, in two hops; 2 in one hop between two parties.
"""

from collections.abc import Mapping

import numpy as np

from securevfl.arrays import RingArray
from securevfl.crypto import ring
from securevfl.crypto.masks import PairwiseMasks
from securevfl.protocols.session.party import Party
from securevfl.runtime.channel import collect, expect_shape
from securevfl.wire.codec import StepMessage, message_kind


@message_kind(68, stage="round", carries="shares")
class PredictionShares(StepMessage):
    """A share of H of a batch plus a share of zero, modulo 2^59, shape (S,)."""

    values: RingArray


@message_kind(69, stage="round", carries="shares")
class PaddedResiduals(StepMessage):
    """A share of d less the receiver's pad or a mask, modulo 2^59, shape (S,)."""

    values: RingArray


def partner_of(party: Party) -> str:
    """The feature party that computes residuals with the label party."""
    return party.feature_parties[0]


def holder_of(party: Party, owner: str) -> str:
    """Who draws the pads of an owner."""
    return partner_of(party) if owner == party.label_party else party.label_party


async def gather_shares(
    party: Party, masks: PairwiseMasks, step: int, share: RingArray
) -> RingArray | None:
    """Bring the shares of H to the label party and its partner.

    Args:
        party: who it is.
        masks: with all others.
        step: of the job; never gathered before.
        share: this party's of H, residues modulo 2^59, shape (S,).

    Returns:
        The label party's or the partner's share of H, shape (S,); None at all others.

    Raises:
        PeerError: a peer broke the protocol or is gone.
        CryptoError: the step's masks were used before.
    """
    partner, *rest = party.feature_parties
    if not rest:
        return share
    if party.holds_labels:
        received = await collect(party.channel, rest, PredictionShares, step)
        for sender, message in received.items():
            expect_shape(sender, message.values, share.shape)
            share = share + message.values
        return ring.reduced(share)
    async with party.costs.compute("local"):
        zero = masks.zero_share(party.feature_parties, f"shares of H {step}", share.shape)
        share = ring.reduced(share + zero)
    if party.name == partner:
        return share
    await party.channel.send(party.label_party, PredictionShares(step, share))
    return None


async def hand_back(
    party: Party,
    masks: PairwiseMasks,
    step: int,
    share: RingArray | None,
    *,
    pads: Mapping[str, RingArray],
    shape: tuple[int, ...],
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

    Returns:
        d − w of this party's link, modulo 2^59.

    Raises:
        PeerError: a peer broke the protocol or is gone.
        CryptoError: the step's masks were used before.
    """
    computing = (party.label_party, partner_of(party))
    if share is not None:
        for owner in party.others:
            async with party.costs.compute("local"):
                padded = share
                if holder_of(party, owner) == party.name:
                    padded = padded - pads[owner]
                if owner not in computing:
                    context = f"shares of d {step} {owner}"
                    padded = padded + masks.zero_share(computing, context, shape)
            await party.channel.send(owner, PaddedResiduals(step, ring.reduced(padded)))
    senders = [name for name in computing if name != party.name]
    received = await collect(party.channel, senders, PaddedResiduals, step)
    total = np.zeros(shape, np.uint64) if share is None else share
    for sender, message in received.items():
        expect_shape(sender, message.values, shape)
        total = total + message.values
    return ring.reduced(total)
