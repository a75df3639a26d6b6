"""What feature parties say of their weights in a line search: each by itself, or only the sum.

Learns:
    label party: for a grid of steps the penalty λ₁‖θ_k‖₁ + ½λ‖θ_k‖² that they would leave, and
        two numbers on how far θ_k is from optimal; of a job that masks predictions, their sums.
"""

import numpy as np

from securevfl.arrays import FloatArray, RingArray
from securevfl.crypto.fixed_point import decode, encode, from_ring, to_ring
from securevfl.crypto.masks import PairwiseMasks
from securevfl.protocols.session.gathering import FRACTION_BITS, PREDICTION_BOUND
from securevfl.protocols.session.party import Party
from securevfl.runtime.channel import collect, expect_shape
from securevfl.wire.codec import StepMessage, message_kind


@message_kind(45, stage="round", carries="values", shows="penalties")
class Penalties(StepMessage):
    """Penalties by step, shape (A, B), and what bounds the gap; see `L1Block`."""

    table: FloatArray
    optimality: FloatArray


@message_kind(46, stage="round", carries="shares", shows="penalties")
class MaskedPenalties(StepMessage):
    """The same in fixed point plus masks that cancel in the sum over parties."""

    table: RingArray
    optimality: RingArray


class PenaltySums:
    """Feature parties give, the label party takes the sum.

    Args:
        party: who it is.
        masks: with the others; None sends each party's own numbers in clear.
    """

    def __init__(self, party: Party, masks: PairwiseMasks | None) -> None:
        self._party, self._masks = party, masks

    async def give(self, step: int, table: FloatArray, optimality: FloatArray) -> None:
        """Send a feature party's numbers.

        Raises:
            RangeExceeded: numbers beyond what masks are made for.
        """
        message: Penalties | MaskedPenalties = Penalties(step, table, optimality)
        if self._masks is not None:
            async with self._party.costs.compute("encrypt"):
                message = MaskedPenalties(
                    step,
                    self._masked(f"penalties {step}", table),
                    self._masked(f"optimality {step}", optimality),
                )
        await self._party.channel.send(self._party.label_party, message)

    async def take(
        self, step: int, table: FloatArray, optimality: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """All parties' numbers, added to the label party's own."""
        party = self._party
        kind: type[Penalties] | type[MaskedPenalties]
        kind = Penalties if self._masks is None else MaskedPenalties
        received = await collect(party.channel, party.feature_parties, kind, step)
        tables: list[FloatArray | RingArray] = []
        optimalities: list[FloatArray | RingArray] = []
        for sender, message in received.items():
            assert isinstance(message, Penalties | MaskedPenalties)  # noqa: S101
            expect_shape(sender, message.table, table.shape)
            expect_shape(sender, message.optimality, optimality.shape)
            tables.append(message.table)
            optimalities.append(message.optimality)
        return table + _total(tables), optimality + _total(optimalities)

    def _masked(self, context: str, values: FloatArray) -> RingArray:
        assert self._masks is not None  # noqa: S101
        share = self._masks.zero_share(self._party.feature_parties, context, values.shape)
        return to_ring(encode(values, FRACTION_BITS, PREDICTION_BOUND, context)) + share


def _total(summands: list[FloatArray | RingArray]) -> FloatArray:
    total = np.sum(summands, axis=0)
    if total.dtype == np.uint64:
        return decode(from_ring(total), FRACTION_BITS)
    clear: FloatArray = total
    return clear
