"""A party's rounds, with what was made ahead, and the rounded reveal at their end.

Per round r and party: its share of H is X·ζ⟨k⟩ + v_r and the h_r of the links that it holds; from
shares of d it comes to a = d − w_r of its own link (`residuals`); its share of θ_{r+1} is
ζ⟨k⟩ + trunc(−N·trunc(a) + s_r), and extrapolated with e_r of ζ_{r+1}.

After the agreed number of rounds holders send the top bits of their share of θ.

Learns:
    owner: θ_k, on a grid of 2^−12 whose offset follows from its own share, and nothing in between.
    holder: nothing.
"""

from collections.abc import Mapping

import numpy as np

from securevfl.arrays import FloatArray, Labels, RingArray
from securevfl.crypto import ring
from securevfl.errors import RangeExceeded
from securevfl.protocols.blind.ahead import Pads
from securevfl.protocols.blind.pads import Extrapolation, OwnerPads
from securevfl.protocols.blind.relays import Meanwhile, Relays, nothing
from securevfl.protocols.blind.schedule import Matrices, Round, Scales
from securevfl.protocols.blind.widths import LARGEST_WEIGHT, REVEALED_BITS, Widths
from securevfl.protocols.session.party import Party
from securevfl.runtime.channel import expect_shape
from securevfl.runtime.views import Share, record
from securevfl.wire.codec import Message, message_kind


@message_kind(64, stage="round", carries="masked", shows="weights")
class RevealedShare(Message):
    """The top bits of a holder's share of θ, for its owner, shape (P,)."""

    values: RingArray


class SharedWeights:
    """An owner's shares of θ and of the exchanged point ζ, round by round.

    Args:
        start: φ⁰, shape (P,), which the owner knows.
        widths: of the job.
        scales: of its link.

    Attributes:
        weights: its share of θ.
        point: its share of ζ.
        widths: of the job.
    """

    def __init__(self, start: FloatArray, widths: Widths, scales: Scales) -> None:
        self.widths, self._scales = widths, scales
        self._extrapolation = Extrapolation(first=False)
        self.weights = ring.encode(start, widths.weight_bits, LARGEST_WEIGHT, "starting weights")
        self.point = self.weights
        self._pulls = self.weights

    @property
    def shares(self) -> RingArray:
        """Of θ and of ζ, shape (2, P)."""
        return np.stack([self.weights, self.point])

    def go_on(self, shares: RingArray) -> None:
        """Be where an earlier run was, whose `shares` these are."""
        self.weights, self.point = shares

    def predictions(self, each: Round, matrices: Matrices, pads: OwnerPads) -> RingArray:
        """Its share of H, shape (S,); what it has of the rows of E stays here."""
        seen = matrices.of_features @ self.point
        columns = len(self.point)
        self._pulls = ring.reduced(seen[:columns] + pads.pulls.pop(each.index))
        return ring.reduced(seen[columns:] + pads.predictions.pop(each.index))

    def move(self, each: Round, matrices: Matrices, pads: OwnerPads, masked: RingArray) -> None:
        """Its part of a round's step.

        Args:
            each: the round.
            matrices: of its group.
            pads: this party's.
            masked: d − w of its link, shape (S,).
        """
        widths = self.widths
        parts = (self._pulls, widths.dropped_of_pulls), (masked, widths.dropped_of_residuals)
        residuals = [ring.truncated(part, bits, first=False) for part, bits in parts]
        step = matrices.of_residuals @ np.hstack(residuals) + pads.steps.pop(each.index)
        dropped = self._scales.step_bits - widths.weight_bits
        new = ring.reduced(self.point + ring.truncated(step, dropped, first=False))
        extrapolated = self._extrapolation.of(new, self.weights, each.beta)
        self.weights = new
        self.point = ring.reduced(extrapolated + pads.corrections.pop(each.index))

    def opened(self, top: RingArray) -> FloatArray:
        """φ, from the top bits of the holder's share.

        Raises:
            RangeExceeded: weights beyond what any job has: training diverged, or a truncation went
                wrong.
        """
        dropped = self.widths.weight_bits - REVEALED_BITS
        own = ring.truncated(self.weights, dropped, first=False)
        values = ring.decode(ring.reduced(top + own), REVEALED_BITS)
        largest = float(np.max(np.abs(values), initial=0.0))
        if largest > LARGEST_WEIGHT:
            raise RangeExceeded(
                f"blind: the revealed weights reach {largest:.3g}, at most {LARGEST_WEIGHT:g} "
                "expected: training diverged, or a truncation of shares went wrong; use smaller "
                "steps, or run again with fresh pads"
            )
        return values


def top_of(weights: RingArray, widths: Widths) -> RevealedShare:
    """What a holder reveals of its share of θ."""
    dropped = widths.weight_bits - REVEALED_BITS
    return RevealedShare(ring.truncated(weights, dropped, first=True))


class Rounds:
    """One party's rounds.

    Args:
        party: who it is.
        holder: of its link.
        own: its shares of its weights.
        matrices: by group.
        pads: what it has made ahead.
        residuals: takes it from its share of H to d − w of its link.
    """

    def __init__(
        self,
        party: Party,
        holder: str,
        own: SharedWeights,
        *,
        matrices: Mapping[int, Matrices],
        pads: Pads,
        residuals: Relays,
    ) -> None:
        self._party, self._holder, self._own = party, holder, own
        self._matrices, self._pads, self._residuals = matrices, pads, residuals

    async def take(
        self, each: Round, labels: Labels | None, meanwhile: Meanwhile = nothing
    ) -> None:
        """Take part in one.

        Args:
            each: the round.
            labels: of its batch, at the label party.
            meanwhile: done while this party waits.

        Raises:
            PeerError: a peer broke the protocol or is gone.
        """
        party, own, pads = self._party, self._own, self._pads
        matrices = self._matrices[each.group]
        record(party.channel, Share(party.name, "point", each.index, own.point))
        async with party.costs.compute("local"):
            share = own.predictions(each, matrices, pads.own)
            for held in pads.held.values():
                share = share + held.predictions.pop(each.index)
            held_pads = {name: held.residuals.pop(each.index) for name, held in pads.held.items()}
        masked = await self._residuals.masked(
            each.index, ring.reduced(share), labels, held_pads, meanwhile
        )
        record(party.channel, Share(party.name, "residuals", each.index, masked))
        async with party.costs.compute("local"):
            own.move(each, matrices, pads.own, masked)

    async def reveal(self) -> FloatArray:
        """Open every link's θ to its owner; the own φ.

        Raises:
            PeerError: the holder failed.
            RangeExceeded: weights that no job has.
        """
        party, own = self._party, self._own
        for name, held in self._pads.held.items():
            await party.channel.send(name, top_of(held.weights, own.widths))
        _, message = await party.channel.receive([self._holder], RevealedShare)
        expect_shape(self._holder, message.values, own.weights.shape)
        async with party.costs.compute("local"):
            return own.opened(message.values)
