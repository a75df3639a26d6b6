"""The local steps of a party of transfer learning, and what they start from.

`Exact` follows the party's own changes through the network and through Φ, the other's components
as they were exchanged (equation (7) of FedBCD). `Linearized` is all that a gradient under
encryption allows: G⁰ plus the party's own curvature along the linearization at θ⁰, with a public
bound in place of the other's matrix.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.errors import TrainingDiverged
from securevfl.models.layers import DenseLayer
from securevfl.protocols.exchange import Batch
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.party import Step
from securevfl.protocols.transfer.objective import Bend, Components, Objective


@dataclass(frozen=True)
class Exact:
    """Components in clear, and the bound of their matrix."""

    objective: Objective
    given: Components

    def gradient(self, moved: FloatArray) -> FloatArray:
        """At the weights now, wherever they moved from."""
        del moved
        return self.objective.gradient(self.given)


@dataclass(frozen=True)
class Linearized:
    """G⁰ at θ⁰, shape (P, w), and how it bends."""

    value: FloatArray
    bend: Bend

    def gradient(self, moved: FloatArray) -> FloatArray:
        """G⁰ + bend(θ − θ⁰)."""
        return self.value + self.bend(moved)


@dataclass(frozen=True)
class Signal:
    """What an exchange gives a party.

    Attributes:
        course: the gradient along its steps.
        steepest: a bound on how much that bends.
    """

    course: Exact | Linearized
    steepest: float


def take_steps(plan: Plan, model: DenseLayer, round_index: int, signal: Signal) -> None:
    """Take Q gradient steps in place.

    A derived step size is half of one over the bend, as both parties may move at once.

    Raises:
        TrainingDiverged: the new weights are not finite.
    """
    rule, start = plan.rule, model.weights
    eta = plan.step_size.at(round_index)
    if plan.derives_steps:
        eta /= 2 * signal.steepest + rule.l2 + rule.proximal
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(rule.local_steps):
            moved = model.weights - start
            gradient = signal.course.gradient(moved) + model.penalty_gradient(rule.l2)
            model.weights = model.weights - eta * (gradient + rule.proximal * moved)
    if not np.isfinite(model.weights).all():
        raise TrainingDiverged(f"training diverged at learning rate {eta:g}: use a smaller one")


class Side(Protocol):
    """One party's side of an exchange of components.

    Attributes:
        scores: φ of the last batch as it was exchanged, shape (S, 1), where A can tell.
    """

    scores: FloatArray | None

    async def signal(self, step: Step, batch: Batch, objective: Objective) -> Signal | None:
        """Take part in an exchange.

        Args:
            step: who gets a signal.
            batch: the rows.
            objective: this party's side of the batch, at its weights now.

        Returns:
            The signal, if this party is among the receivers.

        Raises:
            PeerError: the peer broke the protocol or is gone; nothing of this party has changed.
        """
