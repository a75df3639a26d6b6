"""The interface between an algorithm and the exchange that protects its rounds.

The algorithm asks for a *signal* and never knows which exchange gives it. Each party holds its
own side of an exchange and reaches the others only through its channel.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from securevfl.models.local_model import LocalModel
from securevfl.models.losses import Loss
from securevfl.protocols.signals import Signal
from securevfl.runtime.channel import Channel
from securevfl.runtime.costs import Costs

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Party:
    """Who takes part, as seen from one party.

    Attributes:
        channel: the way to the others; `channel.name` is this party.
        costs: this party's ledger.
        names: all parties, in the job's order.
        label_party: the one that holds the labels.
        loss: f, known to all.
    """

    channel: Channel
    costs: Costs
    names: tuple[str, ...]
    label_party: str
    loss: Loss

    @property
    def name(self) -> str:
        """This party."""
        return self.channel.name

    @property
    def holds_labels(self) -> bool:
        """Whether this is the label party."""
        return self.name == self.label_party

    @property
    def others(self) -> tuple[str, ...]:
        """All other parties."""
        return tuple(name for name in self.names if name != self.name)

    @property
    def feature_parties(self) -> tuple[str, ...]:
        """All parties without labels."""
        return tuple(name for name in self.names if name != self.label_party)


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


@dataclass(frozen=True)
class Step:
    """One exchange: in FedBCD-p there is one a round, in FedBCD-s one a party and round.

    Attributes:
        index: counts the exchanges of a job.
        receivers: who gets a signal.
        fresh: whose predictions of this batch the label party has not seen yet.
    """

    index: int
    receivers: tuple[str, ...]
    fresh: tuple[str, ...]


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
