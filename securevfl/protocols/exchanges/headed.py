"""A head at the label party, in clear: representations one way, d and θ_k the other.

H = Σ_k u_k·θ_k + b, so ∂f/∂u_k = d·θ_kᵀ: a party needs d, one number a row and output, and its own
θ_k, w numbers whatever the batch, and with both it follows its own changes as without a head. Each
θ_k is only its party's and the label party's, so that K − 1 messages each way do; a head that
mixes parties' u before d is known, or a label at each party, would need them pairwise, K² − K.

Learns:
    label party: every u_k of every batch, w numbers a row where H_k is one: of a network with
        w units or more than P, mostly all that there is to know of the row at that time.
    feature party: d, so every label and H, and its θ_k.
Source: Liu et al. 2019, Algorithm 1; docs/decisions/0020-a-head-over-representations.md.
"""

from collections.abc import Callable

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.models.head import HeadedModel
from securevfl.protocols.exchange import Batch, Established, Learns, Session
from securevfl.protocols.session.gathering import ClearGathering
from securevfl.protocols.session.party import Party, Step
from securevfl.protocols.signals import (
    BesideOthersSignal,
    PredictionsSignal,
    ResidualSignal,
    Signal,
    ThroughHeadSignal,
)
from securevfl.runtime.channel import expect_shape
from securevfl.wire.codec import StepMessage, message_kind

Perturb = Callable[[FloatArray], FloatArray]

HEAD_LEARNS = Learns(
    label_party="every u_k, w numbers a row",
    label_party_not="features, as far as u_k does not tell them",
    feature_party="d, so every label and H, and θ_k",
    feature_party_not="others' features",
    predictions="singly",
    residuals="clear",
    gradients=False,
)


@message_kind(40, stage="round", carries="values", shows="residuals")
class HeadResiduals(StepMessage):
    """Residuals d of a batch, shape (S, C), and the receiver's θ_k, shape (w, C), in clear."""

    values: FloatArray
    head: FloatArray


class HeadFeatureSide:
    """A feature party's side."""

    def __init__(self, party: Party, gathering: ClearGathering) -> None:
        self._party = party
        self._gathering = gathering

    async def gather(self, step: Step, predictions: FloatArray) -> None:
        """Give u_k."""
        await self._gathering.give(step, predictions)

    async def signal(
        self, step: Step, batch: Batch, predictions: FloatArray, others: FloatArray | None
    ) -> Signal | None:
        """Take d and θ_k."""
        del batch, others
        party = self._party
        if party.name not in step.receivers:
            return None
        sender, told = await party.channel.receive([party.label_party], HeadResiduals, step.index)
        rows, width = predictions.shape
        expect_shape(sender, told.values, (rows, party.loss.outputs))
        expect_shape(sender, told.head, (width, party.loss.outputs))
        return ThroughHeadSignal(told.values, told.head)


class HeadLabelSide:
    """The label party's side.

    Args:
        party: who it is.
        gathering: takes the others' u.
        head: its model, which local steps move.
        perturb: adds noise to residuals; its own steps then start from the same noisy d, so that
            a label touches θ, which the others see, in no other way.
    """

    def __init__(
        self,
        party: Party,
        gathering: ClearGathering,
        head: HeadedModel,
        perturb: Perturb | None = None,
    ) -> None:
        self._party = party
        self._gathering = gathering
        self._head = head
        self._perturb = perturb

    async def gather(self, step: Step, predictions: FloatArray) -> FloatArray:
        """Take the others' u, as far as they are fresh; Σ u_k·θ_k of all others."""
        return await self._gathering.take_sum(step, predictions.shape)

    async def signal(
        self, step: Step, batch: Batch, predictions: FloatArray, others: FloatArray | None
    ) -> Signal | None:
        """Give d and to each its θ_k."""
        party = self._party
        assert batch.labels is not None and others is not None  # noqa: S101, PT018
        total = others + predictions
        signal: PredictionsSignal | ResidualSignal
        signal = PredictionsSignal(np.zeros_like(total), batch.labels)
        async with party.costs.compute("local"):
            residuals = party.loss.residuals(total, batch.labels)
        if self._perturb is not None:
            async with party.costs.compute("encrypt"):
                residuals = self._perturb(residuals)
            signal = ResidualSignal(residuals)
        for name in party.feature_parties:
            if name in step.receivers:
                message = HeadResiduals(step.index, residuals, self._head.part(name))
                await party.channel.send(name, message)
        if party.name not in step.receivers:
            return None
        return BesideOthersSignal(signal, self._gathering.side_by_side, total)


def established_with_head(
    session: Session, gathering: ClearGathering, perturb: Perturb | None = None
) -> Established:
    """One party's exchange where there is a head."""
    if session.head is None:
        return Established(HeadFeatureSide(session.party, gathering), gathering)
    side = HeadLabelSide(session.party, gathering, session.head, perturb)
    return Established(side, gathering)
