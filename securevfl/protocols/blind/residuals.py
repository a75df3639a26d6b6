"""From shares of H to shares of d, and from these to what a link's owner multiplies.

Affine losses have d = c·H + a number of the label: shares of H, with two bits more behind the
point where c = ¼, are shares of c·H.

Learns: nothing: affine residuals take no message, and of logistic ones see `fourier`.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from numpy.typing import NDArray

from securevfl.arrays import Labels, RingArray
from securevfl.crypto import ring
from securevfl.models.losses import QuadraticLoss, TaylorLogistic
from securevfl.protocols.blind.fourier import FourierResiduals


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

    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """What was made ahead and is left, by name."""


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

    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """None."""
        return {}


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

    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """Phases and tables."""
        return self._sigmoid.pads.arrays()
