"""At the end of a job with logistic loss: whether predictions stayed where their series holds.

Rows beyond half a period are pushed further outwards, in a long job fast. Every owner says of its
own rows and its own θ, once it has been revealed to it, whether its part of their predictions is
within half a period. Where this has spoiled a model some part was not, on all made sets of
docs/decisions/0034; the sum of parts may leave the range unnoticed, by less than K times.

Learns: everybody one bit of every other, true in a job that goes well.
"""

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.errors import RangeExceeded
from securevfl.models.sigmoid_series import LARGEST_PERIOD, SigmoidSeries
from securevfl.protocols.session.party import Party
from securevfl.runtime.channel import collect
from securevfl.wire.codec import Message, message_kind


@message_kind(76, stage="evaluation")
class StaysInRange(Message):
    """Whether the sender's part of every training row's prediction is within half a period."""

    within: bool


async def require_range(party: Party, own: FloatArray, series: SigmoidSeries) -> None:
    """Tell the others whether this party's part is within half a period, and hear it of them.

    Args:
        party: who it is.
        own: X_k·θ_k of its training rows.
        series: what stood for σ.

    Raises:
        RangeExceeded: some party's part is not; all parties raise it.
    """
    within = bool(np.max(np.abs(own), initial=0.0) <= series.period / 2)
    for name in party.others:
        await party.channel.send(name, StaysInRange(within))
    told = await collect(party.channel, party.others, StaysInRange)
    if within and all(each.within for each in told.values()):
        return
    longer = ""
    if round(series.period) < LARGEST_PERIOD:
        longer = f"set [exchange] period = {min(round(2 * series.period), LARGEST_PERIOD)}, "
    raise RangeExceeded(
        f"blind: predictions left half the period of {series.period:.0f} for which logistic "
        f"residuals were computed, and the model is not the one that was asked for: {longer}take "
        "fewer rounds or a larger l2, or bound features that reach many deviations"
    )
