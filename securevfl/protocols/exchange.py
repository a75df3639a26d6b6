"""The interface between an algorithm and the exchange that protects its rounds.

The algorithm asks for a *signal* and never knows which exchange gives it. Each party holds its
own side of an exchange and reaches the others only through its channel.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from securevfl.arrays import FloatArray, IntArray
from securevfl.models.local_model import LocalModel
from securevfl.protocols.session.party import Step
from securevfl.protocols.signals import Signal


@dataclass(frozen=True)
class Batch:
    """The rows of a round at one party.

    Attributes:
        key: the same for the same rows.
        repeats: whether a key can come again: what was prepared for it is worth keeping.
        rows: the row numbers, shape (S,).
        inputs: this party's X of those rows, shape (S, P).
        labels: the labels, at the label party only, shape (S,).
        tangent: computes the Jacobian of a non-linear local model at the exchange's θ⁰.
    """

    key: int
    repeats: bool
    rows: IntArray
    inputs: FloatArray
    labels: IntArray | None
    tangent: Callable[[], FloatArray] | None = None

    @property
    def matrix(self) -> FloatArray:
        """∂H/∂θ of the rows at θ⁰: X, shape (S, P), or the Jacobian, shape (S·C, p)."""
        return self.inputs if self.tangent is None else self.tangent()

    def seen_by(self, model: LocalModel) -> "Batch":
        """The batch with a model's Jacobian, which changes with θ and is never worth keeping."""
        if model.is_linear:
            return self
        return replace(self, repeats=False, tangent=model.tangent(self.inputs))


class Exchange(Protocol):
    """One party's side of an exchange."""

    async def signal(self, step: Step, batch: Batch, predictions: FloatArray) -> Signal | None:
        """Take part in one exchange.

        Args:
            step: who gets a signal.
            batch: the rows.
            predictions: this party's H of those rows, shape (S, C).

        Returns:
            The signal, if this party is among the receivers.

        Raises:
            PeerError: a peer broke the protocol or is gone; nothing of this party has changed.
            RangeExceeded: predictions or residuals leave the agreed range.
        """
