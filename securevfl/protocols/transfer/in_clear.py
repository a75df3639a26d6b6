"""Transfer learning without encryption: components and held-out scores in clear or with noise.

Learns:
    label party: u of B's rows of every batch, shape (S, w), and φ of its held-out rows.
    feature party: Φ, and ½ y_i Φ + 2g u_i^A of every row of a batch: as Φ is known, every label up
        to what 2g u_i^A covers, which at small g is nothing, and u_i^A once y_i is guessed.
Messages: two a round, and two a scoring.

Under the `dp` exchange units and Φ leave with noise, labels do not. A release of a sample's units
is clipped and noised like predictions of w outputs. Φ is a mean over all rows of the label party
and changes by 2/N_A at most in each of w numbers where one of them is replaced: it takes noise of
the same multiplier once a round, which the account counts as one more release of every sample. The
rest that is given follows from these (½ y Φ + 2g u, ΦΦᵀ, φ). No ε covers labels: y multiplies Φ in
every row of a batch, and the label party's own steps take y as it is, so that noise on what is
given would not cover its later units. Held-out rows are scored by the Φ that was given last:
another release would cost more.
"""

from collections.abc import Callable

import numpy as np

from securevfl.arrays import FloatArray, Labels
from securevfl.errors import TrainingDiverged
from securevfl.models.scores import accuracy, auc
from securevfl.protocols.exchange import Batch, Outgoing
from securevfl.protocols.session.gathering import HeldOutPredictions, Party, Step
from securevfl.protocols.session.scoring import Score
from securevfl.protocols.transfer.objective import (
    Components,
    Exact,
    Linearized,
    OwnGradient,
    OwnObjective,
    feature_components,
)
from securevfl.runtime.channel import expect_shape
from securevfl.runtime.costs import SCORING
from securevfl.wire.codec import StepMessage, message_kind


@message_kind(30, stage="round", carries="values", shows="components")
class LabelComponents(StepMessage):
    """½ y Φ + 2g u of a batch, shape (S, w), and Φ, shape (w,)."""

    rows: FloatArray
    phi: FloatArray


@message_kind(31, stage="round", carries="values", shows="units")
class FeatureComponents(StepMessage):
    """u of a batch, shape (S, w)."""

    rows: FloatArray


@message_kind(32, stage="evaluation", carries="values", shows="components")
class ScoreVector(StepMessage):
    """Φ, by which held-out rows are scored, shape (w,)."""

    phi: FloatArray


class ClearSide:
    """Either party's side.

    It steps on the linearization where `linearized`, as encryption has it. `release` is made of
    units and of Φ before they are given; without one they are given as they are.
    """

    def __init__(self, party: Party, *, linearized: bool, release: Outgoing | None = None) -> None:
        self._party, self._linearized, self._release = party, linearized, release
        self._phi: FloatArray | None = None
        self.scores: FloatArray | None = None

    def given_phi(self) -> FloatArray:
        """Φ as the label party gave it last."""
        assert self._phi is not None  # noqa: S101
        return self._phi

    async def signal(self, step: Step, batch: Batch, objective: OwnObjective) -> OwnGradient | None:
        """Give components to who steps, and take the other's if this party does."""
        del batch
        party = self._party
        (peer,) = party.others
        async with party.costs.compute("local"):
            own = objective.components(self._release)
        if peer in step.receivers:
            await self._give(peer, step.index, own)
        if party.name not in step.receivers:
            return None
        given = await self._take(peer, step.index, own.rows.shape)
        async with party.costs.compute("local"):
            if party.holds_labels:
                self.scores = given.rows @ own.factor.T
            largest = given.largest
            steepest = objective.steepest(largest)
            if not self._linearized:
                return OwnGradient(Exact(objective, given), steepest)
            return OwnGradient(
                Linearized(objective.gradient(given), objective.bend(largest)), steepest
            )

    async def _give(self, peer: str, index: int, own: Components) -> None:
        channel = self._party.channel
        if self._party.holds_labels:
            self._phi = own.factor[0]
            await channel.send(peer, LabelComponents(index, own.rows, self._phi))
        else:
            await channel.send(peer, FeatureComponents(index, own.rows))

    async def _take(self, peer: str, index: int, shape: tuple[int, ...]) -> Components:
        channel = self._party.channel
        if self._party.holds_labels:
            _, units = await channel.receive([peer], FeatureComponents, index)
            expect_shape(peer, units.rows, shape)
            return feature_components(units.rows)
        _, message = await channel.receive([peer], LabelComponents, index)
        expect_shape(peer, message.rows, shape)
        expect_shape(peer, message.phi, shape[1:])
        return Components(message.rows, message.phi[None])


class ClearFeatureScores:
    """B's side of scoring: takes Φ, gives φ of units as they are, or as a release of them."""

    def __init__(self, party: Party, release: Outgoing | None = None) -> None:
        self._party, self._release = party, release

    async def give(self, step: int, predictions: FloatArray) -> None:
        """Give φ = Φ·u of held-out rows from u, shape (test rows, w)."""
        party = self._party
        sender, message = await party.channel.receive([party.label_party], ScoreVector, step)
        expect_shape(sender, message.phi, predictions.shape[1:])
        async with party.costs.compute(SCORING):
            units = predictions if self._release is None else self._release.units(predictions)
            with np.errstate(over="ignore", invalid="ignore"):
                scores = units @ message.phi[:, None]
            if not np.isfinite(scores).all():
                raise TrainingDiverged("training diverged: scores leave float64")
        await party.channel.send(party.label_party, HeldOutPredictions(step, scores))


class ClearLabelScores:
    """A's side: gives Φ at the weights now, takes φ."""

    def __init__(self, party: Party, phi: Callable[[], FloatArray]) -> None:
        self._party, self._phi = party, phi

    def check(self, labels: Labels) -> None:
        """Nothing."""

    async def score(self, step: int, own: FloatArray, labels: Labels) -> Score:
        """Score B's rows; the label party's own columns of them play no part."""
        del own
        party = self._party
        (peer,) = party.feature_parties
        async with party.costs.compute(SCORING):
            phi = self._phi()
        await party.channel.send(peer, ScoreVector(step, phi))
        _, message = await party.channel.receive([peer], HeldOutPredictions, step)
        expect_shape(peer, message.values, (len(labels), 1))
        async with party.costs.compute(SCORING):
            return Score(step + 1, auc(message.values, labels), accuracy(message.values, labels))
