"""The numbers in clear of a view: what stands in messages, opens under a key, or adds up.

A masked product that a key owner decrypts is uniform whatever it masks, and a mask that cancels
hides its summand: neither is here. What is left has to agree between two runs that the theory
calls indistinguishable.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import FloatArray, RingArray
from securevfl.crypto.fixed_point import decode, from_ring
from securevfl.protocols.session.gathering import FRACTION_BITS
from securevfl.runtime.views import Learned, Received, View
from securevfl.wire.codec import Message, StepMessage


@dataclass(frozen=True)
class Place:
    """Where numbers stand in a run.

    Attributes:
        party: who sees them.
        kind: the message's, `learned`, or that of messages whose masks cancel in the sum.
        step: of the job; scoring counts for itself.
        sender: who they come from; empty for a sum of several.
        number: which array of the message.
    """

    party: str
    kind: str
    step: int
    sender: str
    number: int = 0


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
            elif isinstance(entry, Received) and entry.message.carries == "values":
                found |= _placed(view.party, entry.sender, entry.message)
            elif isinstance(entry, Received) and entry.message.carries == "shares":
                for place, share in _placed(view.party, "", entry.message).items():
                    sums[place] = sums.get(place, np.uint64(0)) + share
        for place, total in sums.items():
            found[place] = decode(from_ring(total), FRACTION_BITS)
    return found


def _placed(party: str, sender: str, message: Message) -> dict[Place, NDArray[Any]]:
    """The arrays of a message, in the order of its fields."""
    assert isinstance(message, StepMessage)  # noqa: S101
    values = (getattr(message, field.name) for field in fields(message))
    arrays = [value for value in values if isinstance(value, np.ndarray)]
    return {
        Place(party, type(message).__name__, message.step, sender, number): array
        for number, array in enumerate(arrays)
    }
