"""The exchange without encryption: residuals travel in clear.

With `ClearGathering` this is `plain`, with `MaskedGathering` `masked`, with `NoisyGathering` `dp`.

Learns:
    label party: what its gathering tells: every H_k, or only their sum.
    feature party: d per sample; for logistic loss that is every label and ΣH (d = σ(H) − y
        inverts), and with it, at K = 3, the other feature party's predictions.
Messages a round of FedBCD-p: 2(K − 1).
"""

from collections.abc import Callable

from securevfl.arrays import FloatArray
from securevfl.protocols.exchange import Batch
from securevfl.protocols.session.gathering import Gathering
from securevfl.protocols.session.party import Party, Step
from securevfl.protocols.signals import PredictionsSignal, ResidualSignal, Signal
from securevfl.runtime.channel import expect_shape
from securevfl.wire.codec import StepMessage, message_kind

Perturb = Callable[[FloatArray], FloatArray]


@message_kind(4, stage="round", carries="values")
class Residuals(StepMessage):
    """Residuals d = ∂f/∂H of a batch in clear, shape (S, C)."""

    values: FloatArray


class PlainFeatureSide:
    """A feature party's side."""

    def __init__(self, party: Party, gathering: Gathering) -> None:
        self._party = party
        self._gathering = gathering

    async def signal(self, step: Step, batch: Batch, predictions: FloatArray) -> Signal | None:
        """Give predictions, take residuals."""
        del batch
        party = self._party
        await self._gathering.give(step, predictions)
        if party.name not in step.receivers:
            return None
        sender, message = await party.channel.receive([party.label_party], Residuals, step.index)
        expect_shape(sender, message.values, predictions.shape)
        return ResidualSignal(message.values)


class PlainLabelSide:
    """The label party's side.

    Args:
        party: who it is.
        gathering: how it comes to the others' predictions.
        perturb: adds noise to residuals; then its own steps start from the same noisy d, so that a
            label touches nothing else that others ever see.
    """

    def __init__(self, party: Party, gathering: Gathering, perturb: Perturb | None = None) -> None:
        self._party = party
        self._gathering = gathering
        self._perturb = perturb

    async def signal(self, step: Step, batch: Batch, predictions: FloatArray) -> Signal | None:
        """Gather predictions, give residuals."""
        party = self._party
        assert batch.labels is not None  # noqa: S101
        others = await self._gathering.take_sum(step, predictions.shape)
        receivers = [name for name in party.feature_parties if name in step.receivers]
        exact = PredictionsSignal(others, batch.labels)
        steps = party.name in step.receivers
        if not receivers and self._perturb is None:
            return exact if steps else None
        async with party.costs.compute("local"):
            residuals = party.loss.residuals(others + predictions, batch.labels)
        if self._perturb is not None:
            async with party.costs.compute("encrypt"):
                residuals = self._perturb(residuals)
        for name in receivers:
            await party.channel.send(name, Residuals(step.index, residuals))
        if not steps:
            return None
        return exact if self._perturb is None else ResidualSignal(residuals)
