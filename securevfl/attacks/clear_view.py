"""The numbers in clear of a view: what stands in messages, opens under a key, or adds up.

A masked product that a key owner decrypts is uniform whatever it masks, and a mask that cancels
hides its summand: neither is here. What is left has to agree between two runs that the theory
calls indistinguishable.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from securevfl.crypto.fixed_point import decode, from_ring
from securevfl.messages import (
    HeldOutPredictions,
    MaskedHeldOutPredictions,
    MaskedPredictions,
    Predictions,
    Residuals,
    StepMessage,
)
from securevfl.protocols.gathering import FRACTION_BITS
from securevfl.runtime.views import Learned, Received, View

FloatArray = NDArray[np.float64]
RingArray = NDArray[np.uint64]


@dataclass(frozen=True)
class Place:
    """Where numbers stand in a run.

    Attributes:
        party: who sees them.
        kind: the message's, `learned`, or that of messages whose masks cancel in the sum.
        step: of the job; scoring counts for itself.
        sender: who they come from; empty for a sum of several.
    """

    party: str
    kind: str
    step: int
    sender: str


def clear_values(views: Iterable[View]) -> dict[Place, FloatArray]:
    """All numbers in clear of some views, in the order in which they came.

    Args:
        views: of the parties that pool what they see.
    """
    found: dict[Place, FloatArray] = {}
    for view in views:
        sums: dict[Place, RingArray] = {}
        for entry in view.entries:
            if isinstance(entry, Learned):
                found[Place(view.party, "learned", entry.step, entry.sender)] = entry.values
            elif isinstance(entry, Received) and isinstance(entry.message, StepMessage):
                message = entry.message
                kind = type(message).__name__
                if isinstance(message, Predictions | Residuals | HeldOutPredictions):
                    place = Place(view.party, kind, message.step, entry.sender)
                    found[place] = message.values
                elif isinstance(message, MaskedPredictions | MaskedHeldOutPredictions):
                    place = Place(view.party, kind, message.step, "")
                    sums[place] = sums.get(place, np.uint64(0)) + message.values
        for place, total in sums.items():
            found[place] = decode(from_ring(total), FRACTION_BITS)
    return found
