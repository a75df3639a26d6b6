"""A round as the label party has it, for attacks on features, and what its view says of one."""

from dataclasses import dataclass

from securevfl.arrays import FloatArray, IntArray
from securevfl.protocols.session.gathering import Predictions
from securevfl.runtime.views import Learned, Received, View


@dataclass(frozen=True, eq=False)
class Round:
    """One exchange as the label party has it.

    Attributes:
        rows: of the batch, shape (S,).
        predictions: H_k of the party under attack, shape (S, C).
        residuals: d of the batch, shape (S, C).
    """

    rows: IntArray
    predictions: FloatArray
    residuals: FloatArray


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
