"""From shares of H to shares of d, and from these to what a link's owner multiplies.

Affine losses have d = c·H + a number of the label: shares of H, with two bits more behind the
point where c = ¼, are shares of c·H.

Between two parties, per round: both send their share of d minus the pad w of the link that they
hold, at the same time, 8 bytes a row; the other adds its own share and has d − w.

Learns: nothing: what travels is uniform, under a pad used once.
"""

from collections.abc import Mapping
from typing import Protocol

from securevfl.arrays import Labels, RingArray
from securevfl.crypto import ring
from securevfl.models.losses import QuadraticLoss, TaylorLogistic
from securevfl.protocols.blind.fourier import FourierResiduals
from securevfl.protocols.session.party import Party
from securevfl.runtime.channel import expect_shape
from securevfl.wire.codec import StepMessage, message_kind


@message_kind(63, stage="round", carries="masked")
class MaskedResiduals(StepMessage):
    """The sender's share of d minus the pad of the link that it holds, shape (S,)."""

    values: RingArray


class ResidualShares(Protocol):
    """A computing party's way from its share of H to its share of d."""

    async def of(self, index: int, predictions: RingArray, labels: Labels | None) -> RingArray:
        """Its share of d of a round.

        Args:
            index: the round's.
            predictions: its share of H, shape (S,).
            labels: at the label party.

        Raises:
            PeerError: a peer broke the protocol or is gone.
        """

    async def make_ahead(self, rows: int) -> None:
        """Make with the other computing party what so many rows take.

        Raises:
            PeerError: it failed.
        """


class AffineResiduals:
    """Of a loss whose residuals are affine: without any message, now or ahead.

    Args:
        loss: f.
        bits: fraction bits of shares of d.
    """

    def __init__(self, loss: QuadraticLoss, bits: int) -> None:
        self._loss, self._bits = loss, bits

    async def of(self, index: int, predictions: RingArray, labels: Labels | None) -> RingArray:
        """The share of H itself, with more fraction bits, and the label's part."""
        del index
        if labels is None:
            return predictions
        part, bound = self._loss.label_part(labels)[:, 0], self._loss.label_bound
        return ring.reduced(predictions + ring.encode(part, self._bits, bound, "labels"))

    async def make_ahead(self, rows: int) -> None:
        """Nothing."""


class LogisticResiduals:
    """Of the logistic loss, by a Fourier series with the other computing party.

    Args:
        sigmoid: this party's side of σ(H) − ½.
        loss: f.
    """

    def __init__(self, sigmoid: FourierResiduals, loss: TaylorLogistic) -> None:
        self._sigmoid = sigmoid
        self._label_part = AffineResiduals(loss, sigmoid.phase_format.fraction_bits)

    async def of(self, index: int, predictions: RingArray, labels: Labels | None) -> RingArray:
        """One message each way, two bytes a row."""
        share = await self._sigmoid.residual_shares(index, predictions)
        # σ(H) − y and its expansion ½ + ¼H − y take labels in alike.
        return await self._label_part.of(index, share, labels)

    async def make_ahead(self, rows: int) -> None:
        """Make the pads of so many rows."""
        await self._sigmoid.make_ahead(rows)


class BetweenTwo:
    """How a party comes to d − w of the link that it owns, w being its holder's pad, at K = 2."""

    def __init__(self, party: Party, residuals: ResidualShares) -> None:
        self._party, self._residuals = party, residuals

    async def masked(
        self,
        index: int,
        predictions: RingArray,
        labels: Labels | None,
        pads: Mapping[str, RingArray],
    ) -> RingArray:
        """Take part in a round; see `rounds.MaskedResidualsOf`."""
        party, (peer,) = self._party, self._party.others
        share = await self._residuals.of(index, predictions, labels)
        async with party.costs.compute("local"):
            message = MaskedResiduals(index, ring.reduced(share - pads[peer]))
        await party.channel.send(peer, message)
        _, received = await party.channel.receive([peer], MaskedResiduals, index)
        expect_shape(peer, received.values, share.shape)
        return ring.reduced(share + received.values)
