"""How shares travel in a round, between two parties or more.

The label party L and the first feature party, its *partner*, compute residuals. Every other party p
also holds a share of H. `gather_shares` sends it to L, masked by p's share of zero among all
feature parties. The partner adds its own share of zero and sends nothing. Then L and the partner
hold shares of H. `hand_back` sends every owner k the word d − w_k, with the pad w_k that the
*holder* of k's link drew:

    owner L, holder the partner: the partner sends d⟨1⟩ − w_L;
    owner the partner, holder L: L sends d⟨L⟩ − w_1;
    any other owner p, holder L: L sends d⟨L⟩ − w_p + m, the partner d⟨1⟩ − m, m fresh among them.

Logistic residuals only need the phase of H, which L and the partner open under a pad. There p sends
both of them the phase of the same masked word (`give_phases`), two bytes per row, in the same hop.

Learns:
    label party: a uniform word per row from each p. Colluding with the partner it learns the sum
        of the others' shares of H, and no summand; at K = 3 that is one party's share.
    partner: nothing, or phases of words that p's pad v makes uniform; then d − w_1, which is
        uniform.
    another feature party: d − w_p, in two parts that are uniform each. Colluding with L, which drew
        w_p and knows m, it learns d.
Guarantees: against semi-honest parties; masks are pairwise streams, one context per step and owner.
Messages per round: 3K − 4 in two hops, 8 bytes per row each; 2 in one hop between two parties. With
    logistic residuals 4(K − 1) in two hops, half of them with 2 bytes per row.
Source: docs/decisions/0036-more-parties-and-scores-in-shares.md.
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
from securevfl.runtime.channel import collect_values, tell
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
    """Collect the shares of H, modulo 2^59, at the label party and its partner.

    Each kind of message has masks of its own; no step is gathered twice.

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
    """Send the phase of this party's share of H to the label party and its partner.

    These two open the phase of H plus a pad in the same hop (`residuals`).

    Returns:
        Their own shares at the label party and its partner; None at all others.
    """
    rest = party.feature_parties[1:]
    if not rest or party.holds_labels:
        return share
    share = await _under_zero(party, masks, f"{MaskedPhases.__name__} {step}", share, "local")
    if party.name not in rest:
        return share
    message = masked_phases(step, phases.phases(share, first=False))
    await tell(party.channel, computing_parties(party), message)
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
    """Send every owner d minus its pad.

    Args:
        party: this party.
        masks: with all others.
        step: of the job; used once.
        share: the label party's or the partner's share of d; None at all others.
        pads: by owner, those that this party drew as a holder; each is used once.
        shape: of d.
        meanwhile: runs once this party's messages are sent.

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
