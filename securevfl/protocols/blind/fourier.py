"""Logistic residuals between two computing parties: from shares of H to shares of σ(H) − ½.

**Ahead**, for many rows at once: each party draws its share of ρ, uniform phases, and both make
shares of cos(mρ), sin(mρ) for every odd harmonic m (phase_products).

**In a round**: each sends its share of the phase of H plus its share of ρ, two bytes a row, both at
once; all other parties send theirs to both (`relays`). Both know z = H + ρ then, and add up the
series on their own shares.

Learns: nobody anything. z is uniform whatever H is, as either party's share of ρ is, and a pad is
    used once.
A residual is wrong altogether with the probability that `PhaseFormat.failure_probability` states,
and of the other sign where |H| is beyond half a period, which nobody sees in a round; see
range_check.
Source: docs/decisions/0034-logistic-residuals-in-shares.md.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from securevfl.arrays import RingArray
from securevfl.crypto.bfv_parameters import DEGREE
from securevfl.crypto.slot_parameters import SlotParameters, pairs_of
from securevfl.errors import CryptoError, UnexpectedMessage
from securevfl.protocols.blind.phase_pads import PhasePads, uniform_phases
from securevfl.protocols.blind.phase_products import (
    own_slot_key,
    peer_slot_key,
    products_of_first,
    products_of_second,
)
from securevfl.protocols.blind.phases import PhaseArray, PhaseFormat
from securevfl.protocols.session.party import Party
from securevfl.runtime.channel import collect
from securevfl.runtime.costs import AHEAD
from securevfl.wire.codec import StepMessage, message_kind

if TYPE_CHECKING:
    from securevfl.crypto.slot_products import SlotEvaluator, SlotOwner

_WIRE = np.dtype("<u2")


@message_kind(67, stage="round", carries="masked", shows="predictions")
class MaskedPhases(StepMessage):
    """The sender's share of H + ρ for every row of a batch, two little-endian bytes each."""

    phases: bytes


class FourierResiduals:
    """One computing party's side; `establish` makes both.

    Args:
        party: who it is.
        peer: the other computing party.
        phase_format: fixed point of the job.
        key: its end of the second party's key; None where all pads have been made.
        first: which of the two parties; exactly one says yes.
        pads: what was made before, if any.
    """

    def __init__(
        self,
        party: Party,
        peer: str,
        phase_format: PhaseFormat,
        key: "SlotOwner | SlotEvaluator | None",
        *,
        first: bool,
        pads: PhasePads | None = None,
    ) -> None:
        self._party = party
        self._peer = peer
        self.phase_format = phase_format
        self._key = key
        self._first = first
        self.pads = PhasePads.none(phase_format) if pads is None else pads

    @classmethod
    async def establish(
        cls, party: Party, peer: str, phase_format: PhaseFormat, rows: Sequence[int], *, first: bool
    ) -> "FourierResiduals":
        """Exchange the second party's key.

        Args:
            party: who it is.
            peer: the other computing party.
            phase_format: fixed point of the job.
            rows: all visits that are ever made ahead, by what is made together.
            first: which of the two parties; exactly one says yes.

        Raises:
            RangeExceeded: more rows than can be flooded for.
            PeerError: the key is none.
        """
        pairs = sum(pairs_of(each * phase_format.terms) for each in rows)
        parameters = SlotParameters.of(pairs * DEGREE)
        exchange_key = peer_slot_key if first else own_slot_key
        key = await exchange_key(party, peer, parameters)
        return cls(party, peer, phase_format, key, first=first)

    async def make_ahead(self, rows: int) -> None:
        """Make pads for so many rows, with the peer.

        Raises:
            MalformedMessage: bytes that are no ciphertexts of the key.
            CryptoError: there is no key.
        """
        if self._key is None:
            raise CryptoError("phase pads: all of them have been made, no key is there for more")
        party, peer, fmt = self._party, self._peer, self.phase_format
        async with party.costs.compute(AHEAD):
            phases = uniform_phases(rows)
            parts = fmt.parts(phases)
        if self._first:
            shares = await products_of_first(party, peer, cast("SlotEvaluator", self._key), parts)
        else:
            shares = await products_of_second(party, peer, cast("SlotOwner", self._key), parts)
        self.pads = self.pads.followed_by(PhasePads(phases, fmt.tables(shares)))

    async def residual_shares(self, step: int, predictions: RingArray) -> RingArray:
        """Shares of σ(H) − ½ modulo 2^59, at the format's fraction bits.

        Args:
            step: the exchange.
            predictions: this party's shares of H, shape (rows,); those of all parties add up to it.

        Raises:
            CryptoError: pads for fewer rows are left.
            UnexpectedMessage: phases of another number of rows.
        """
        party, peer, fmt = self._party, self._peer, self.phase_format
        async with party.costs.compute("local"):
            pads = self.pads.take(len(predictions))
            own: PhaseArray = fmt.phases(predictions, first=self._first) + pads.phases
        await party.channel.send(peer, masked_phases(step, own))
        senders = [peer, *party.feature_parties[1:]]
        received = await collect(party.channel, senders, MaskedPhases, step)
        opened = own
        for sender, message in received.items():
            if len(message.phases) != _WIRE.itemsize * len(own):
                raise UnexpectedMessage(
                    f"{sender} sent {len(message.phases)} bytes of phases, "
                    f"{_WIRE.itemsize * len(own)} due"
                )
            opened = opened + np.frombuffer(message.phases, _WIRE)
        async with party.costs.compute("local"):
            return fmt.residuals(opened, pads.tables)


def masked_phases(step: int, phases: PhaseArray) -> MaskedPhases:
    """Phases as they travel."""
    return MaskedPhases(step, phases.astype(_WIRE).tobytes())
