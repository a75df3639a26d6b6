"""What stands in a view: predictions, residuals, gradients, and all its numbers in clear."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import FloatArray, RingArray
from securevfl.crypto.fixed_point import decode, from_ring
from securevfl.protocols.exchanges.plain import HeadResiduals, Residuals
from securevfl.protocols.session.course import Course
from securevfl.protocols.session.gathering import (
    FRACTION_BITS,
    HeldOutPredictions,
    MaskedHeldOutPredictions,
    Predictions,
)
from securevfl.protocols.transfer.in_clear import FeatureComponents, LabelComponents
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


def predictions_of(view: View, party: str) -> list[FloatArray]:
    """Every H_k of a party in the label party's view, in clear or opened, one a round.

    A job in one round trip has its first predictions in clear; each reply holds the next under the
    label party's own key.
    """
    found: dict[int, FloatArray] = {}
    for entry in view.entries:
        if isinstance(entry, Received) and isinstance(entry.message, Predictions):
            if entry.sender == party:
                found[entry.message.step] = entry.message.values
        elif isinstance(entry, Learned) and entry.sender == party:
            found[entry.step + 1] = entry.values
    return [found[step] for step in sorted(found)]


def held_out_of(view: View, party: str) -> tuple[list[FloatArray], float]:
    """Held-out predictions in the label party's view: of one party, or sums of several.

    Args:
        view: the label party's.
        party: whose predictions are wanted, where they show singly.

    Returns:
        One a scoring, each of shape (rows, C), and the rounding error of a sum; 0 of a single
        party's, which travel as they are.
    """
    singly = [
        entry.message.values
        for entry in view.received(HeldOutPredictions)
        if isinstance(entry.message, HeldOutPredictions) and entry.sender == party
    ]
    sums: dict[int, RingArray] = {}
    for entry in view.received(MaskedHeldOutPredictions):
        assert isinstance(entry.message, MaskedHeldOutPredictions)  # noqa: S101
        share = entry.message.values
        sums[entry.message.step] = sums.get(entry.message.step, np.uint64(0)) + share
    if singly or not sums:
        return singly, 0.0
    totals = [decode(from_ring(sums[step]), FRACTION_BITS) for step in sorted(sums)]
    return totals, 2.0**-FRACTION_BITS


def residuals_of(view: View) -> list[FloatArray]:
    """The residuals that a party received, each of shape (S, C), one a round."""
    messages = (entry.message for entry in view.received())
    kinds = (Residuals, HeadResiduals)
    return [message.values for message in messages if isinstance(message, kinds)]


def components_of(view: View) -> list[tuple[FloatArray, FloatArray]]:
    """V, shape (S, w), and Φ, shape (w,), as the label party of transfer learning sent them."""
    messages = (entry.message for entry in view.received(LabelComponents))
    return [(each.rows, each.phi) for each in messages if isinstance(each, LabelComponents)]


def units_of(view: View) -> list[FloatArray]:
    """The units of a batch, shape (S, w), as the other party sent them."""
    messages = (entry.message for entry in view.received(FeatureComponents))
    return [each.rows for each in messages if isinstance(each, FeatureComponents)]


def courses_of(view: View) -> dict[int, Course]:
    """What the label party told a party of where training heads, by round."""
    messages = (entry.message for entry in view.received(Course))
    return {each.step: each for each in messages if isinstance(each, Course)}


def gradients_of(view: View) -> list[FloatArray]:
    """The gradients Xᵀd/S that a feature party learned, one a round, shapes (P, C)."""
    return [entry.values for entry in view.learned()]


def clear_values(views: Iterable[View]) -> dict[Place, FloatArray]:
    """All numbers in clear of some views, in the order in which they came.

    A masked product that a key owner decrypts is uniform whatever it masks, and a mask that cancels
    hides its summand: neither is here. What is left has to agree between two runs that the theory
    calls indistinguishable.

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
