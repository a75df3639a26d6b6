"""What a party has in hand when it turns against the others: all that an attack may use."""

from dataclasses import dataclass

from securevfl.arrays import FloatArray, IntArray
from securevfl.models.local_model import LocalModel
from securevfl.runtime.views import View


@dataclass(frozen=True, eq=False)
class Seat:
    """What a party has in hand: all that an attack may use.

    Attributes:
        name: the party.
        view: what it received.
        inputs: its X as it trains on it, shape (N, P).
        model: its local model at θ⁰.
        labels: shape (N,), at the label party only.
    """

    name: str
    view: View
    inputs: FloatArray
    model: LocalModel
    labels: IntArray | None
