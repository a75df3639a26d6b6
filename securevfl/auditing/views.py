"""Reading views: predictions, residuals, gradients, and all numbers in clear.

Messages are selected by what they declare to show, whichever protocol they belong to.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import FloatArray, RingArray
from securevfl.crypto.fixed_point import decode, from_ring
from securevfl.protocols.exchange import Shown
from securevfl.protocols.session.early_stopping import Decision
from securevfl.protocols.session.gathering import FRACTION_BITS
from securevfl.runtime.views import Learned, Received, View
from securevfl.wire.codec import Carries, Message, Shows, Stage, StepMessage


@dataclass(frozen=True)
class Spot:
    """The place of an array in a run."""

    party: str
    kind: str  # the message's class, or `learned`
    step: int  # of the job; scorings are counted by themselves
    sender: str  # empty for a sum over several senders, in which masks cancel
    number: int = 0  # which array of the message


def clear_arrays(
    view: View, shows: Shows, sender: str = "", stage: Stage = "round"
) -> list[tuple[int, list[NDArray[Any]]]]:
    """Step and arrays of each message in clear that shows this, from one sender or from anyone."""
    return [
        (message.step, arrays_of(message))
        for name, message in view.showing(shows, stage)
        if message.carries == "values" and name == (sender or name)
    ]


def predictions_of(view: View, party: str) -> list[FloatArray]:
    """Every H_k of a party in the label party's view, in clear or decrypted, one per round.

    With round_trips = 1 the first predictions travel in clear; each reply then holds the next ones
    under the label party's own key.
    """
    found = {step: values for step, (values, *_) in clear_arrays(view, "predictions", party)}
    for each in view.learned():
        if (each.sender, each.shows) == (party, "predictions"):
            found[each.step + 1] = each.values
    return [found[step] for step in sorted(found)]


def held_out_of(view: View, party: str) -> tuple[list[FloatArray], float]:
    """Held-out predictions in the label party's view, one per scoring, of shapes (rows, C).

    They are one party's if these travel in clear, and sums over the parties otherwise. The second
    value is the rounding error of a sum, 0 for one party's predictions.
    """
    shown = clear_arrays(view, "predictions", party, "evaluation")
    singly = [values for _, (values, *_) in shown]
    sums: dict[int, RingArray] = {}
    for _, message in view.showing("predictions", "evaluation"):
        if message.carries == "shares":
            sums[message.step] = sums.get(message.step, np.uint64(0)) + arrays_of(message)[0]
    if singly or not sums:
        return singly, 0.0
    totals = [decode(from_ring(sums[step]), FRACTION_BITS) for step in sorted(sums)]
    return totals, 2.0**-FRACTION_BITS


def residuals_of(view: View) -> list[FloatArray]:
    """The residuals that a party received, one per round, of shapes (S, C)."""
    return [values for _, (values, *_) in clear_arrays(view, "residuals")]


def components_of(view: View) -> list[tuple[FloatArray, FloatArray]]:
    """V, shape (S, w), and Φ, shape (w,), as the label party of transfer learning sent them."""
    return [(rows, phi) for _, (rows, phi) in clear_arrays(view, "components")]


def decisions_of(view: View) -> dict[int, Decision]:
    """Early-stopping decisions that a party received, by round."""
    messages = (message for _, message in view.showing("stopping"))
    return {each.step: each for each in messages if isinstance(each, Decision)}


def gradients_of(view: View) -> list[FloatArray]:
    """The gradients Xᵀd/S that a feature party learned, one per round, of shapes (P, C)."""
    return [entry.values for entry in view.learned() if entry.shows == "gradients"]


def shown_beyond(view: View, claim: Shown) -> str:
    """The first message of a round whose arrays, in clear or in shares, contradict a claim.

    What the message itself declares to show does not matter. Empty if there is no such message.
    """
    everything: list[Carries] = ["control", "values", "shares"]
    beyond = {"singly": [], "summed": everything[:2], "hidden": everything}[claim]
    for entry in view.received(StepMessage):
        message = entry.message
        assert isinstance(message, StepMessage)  # noqa: S101
        if message.stage == "round" and message.carries in beyond and arrays_of(message):
            return f"{type(message).__name__} of {entry.sender}"
    return ""


def clear_values(views: Iterable[View]) -> dict[Spot, FloatArray]:
    """All numbers in clear of some views, in the order of their arrival.

    Left out are masked products that a key owner decrypts and single summands under cancelling
    masks, which are uniform whatever they hide. All other numbers must agree between two runs that
    the theory calls indistinguishable.
    """
    found: dict[Spot, FloatArray] = {}
    for view in views:
        sums: dict[Spot, RingArray] = {}
        for entry in view.entries:
            if isinstance(entry, Learned):
                found[Spot(view.party, "learned", entry.step, entry.sender)] = entry.values
            elif isinstance(entry, Received) and entry.message.carries == "values":
                found |= _placed(view.party, entry.sender, entry.message)
            elif isinstance(entry, Received) and entry.message.carries == "shares":
                for spot, share in _placed(view.party, "", entry.message).items():
                    sums[spot] = sums.get(spot, np.uint64(0)) + share
        for spot, total in sums.items():
            found[spot] = decode(from_ring(total), FRACTION_BITS)
    return found


def _placed(party: str, sender: str, message: Message) -> dict[Spot, NDArray[Any]]:
    assert isinstance(message, StepMessage)  # noqa: S101
    kind = type(message).__name__
    return {
        Spot(party, kind, message.step, sender, number): array
        for number, array in enumerate(arrays_of(message))
    }


def arrays_of(message: StepMessage) -> list[NDArray[Any]]:
    """The arrays of a message, in the order of its fields."""
    values = (getattr(message, field.name) for field in fields(message))
    return [value for value in values if isinstance(value, np.ndarray)]


def blobs_of(message: StepMessage) -> list[bytes]:
    """The ciphertexts of a message, in order."""
    values = (getattr(message, field.name) for field in fields(message))
    lists = [value for value in values if isinstance(value, tuple | list)]
    return [blob for each in lists for blob in each if isinstance(blob, bytes)]
