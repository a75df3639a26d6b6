"""The exchanges `plain` and `masked`, whose residuals travel in clear.

With `ClearGathering` this is `plain`, with `MaskedGathering` `masked`, with `NoisyGathering` `dp`.
The descriptions at the end of this file, and in `noisy`, say who learns what. For logistic loss
d = σ(H) − y reveals every label and ΣH.

Under `local_rule = "exact"` the label party sends ΣH beside d for any loss. ΣH and d reveal every
label, and a party that subtracts its own H_k has the sum of the others'. A round takes 3(K − 1)
messages in place of 2(K − 1).

With a head at the label party, feature parties send representations u_k and receive d and θ_k.
Since H = Σ_k u_k·θ_k + b, ∂f/∂u_k = d·θ_kᵀ: a party needs d, C entries per row, and its own θ_k,
w·C entries per batch, to take local steps. Only the party and the label party know θ_k, so a round
takes K − 1 messages each way.
Source: Liu et al. 2019, Algorithm 1; docs/decisions/0020-a-head-over-representations.md.
"""

from collections.abc import Callable

import numpy as np
from typing_extensions import override

from securevfl.arrays import FloatArray, Labels
from securevfl.errors import ConfigError
from securevfl.job import ExchangeSettings, Job
from securevfl.models.head import HeadedModel
from securevfl.models.losses import labels_from_residuals
from securevfl.privacy.streams import Purpose
from securevfl.protocols.exchange import (
    IN_CLEAR,
    AsTheyAre,
    Batch,
    Established,
    Exchange,
    GatheringSide,
    Learns,
    Session,
    Side,
    as_shown,
)
from securevfl.protocols.local_steps import (
    BesideOthersSignal,
    PredictionsSignal,
    ResidualSignal,
    Signal,
    ThroughHeadSignal,
)
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.gathering import (
    ClearGathering,
    Gathering,
    Party,
    Predictions,
    Step,
    gathering_of,
    require_summands,
)
from securevfl.protocols.session.privacy_account import Noise
from securevfl.runtime.channel import expect_shape, receive_values
from securevfl.wire.codec import StepMessage, message_kind

Perturb = Callable[[FloatArray], FloatArray]


@message_kind(4, stage="round", carries="values", shows="residuals")
class Residuals(StepMessage):
    """Residuals d = ∂f/∂H of a batch in clear, shape (S, C)."""

    values: FloatArray


@message_kind(40, stage="round", carries="values", shows="residuals")
class HeadResiduals(StepMessage):
    """Residuals d of a batch, shape (S, C), and the receiver's θ_k, shape (w, C), in clear."""

    values: FloatArray
    head: FloatArray


class PlainFeatureSide(GatheringSide):
    """A feature party receives residuals and, if the label party sends it, ΣH."""

    def __init__(self, party: Party, gathering: Gathering, *, sends_sum: bool = False) -> None:
        super().__init__(party, gathering)
        self._sends_sum = sends_sum

    async def signal(
        self, step: Step, batch: Batch, predictions: FloatArray, others: FloatArray | None
    ) -> Signal | None:
        """The residuals, or with ΣH the same signal as at the label party."""
        del batch, others
        party = self.party
        if party.name not in step.receivers:
            return None
        channel, sender, shape = party.channel, party.label_party, predictions.shape
        residuals = await receive_values(channel, sender, Residuals, step.index, shape)
        if not self._sends_sum:
            return ResidualSignal(residuals)
        total = await receive_values(channel, sender, Predictions, step.index, shape)
        async with party.costs.compute("local"):
            labels = labels_from_residuals(party.loss, residuals, total)
        return PredictionsSignal(total - predictions, labels)


class PlainLabelSide(GatheringSide):
    """The label party sends residuals.

    Where `perturb` adds noise to them, its own steps use the same noisy d: nothing else that others
    see depends on labels.
    """

    def __init__(
        self,
        party: Party,
        gathering: Gathering,
        perturb: Perturb | None = None,
        *,
        sends_sum: bool = False,
    ) -> None:
        super().__init__(party, gathering)
        self.perturb = perturb
        self._sends_sum = sends_sum

    async def signal(
        self, step: Step, batch: Batch, predictions: FloatArray, others: FloatArray | None
    ) -> Signal | None:
        """Send residuals, and step on the exact loss unless they are noisy."""
        party = self.party
        assert batch.labels is not None and others is not None  # noqa: S101, PT018
        receivers = [name for name in party.feature_parties if name in step.receivers]
        exact = PredictionsSignal(others, batch.labels)
        steps = party.name in step.receivers
        if not receivers and self.perturb is None:
            return exact if steps else None
        residuals = await self.residuals(others + predictions, batch.labels)
        for name in receivers:
            await party.channel.send(name, Residuals(step.index, residuals))
            if self._sends_sum:
                await party.channel.send(name, Predictions(step.index, others + predictions))
        if not steps:
            return None
        return exact if self.perturb is None else ResidualSignal(residuals)

    async def residuals(self, total: FloatArray, labels: Labels) -> FloatArray:
        """Residuals d as they are sent."""
        async with self.party.costs.compute("local"):
            residuals = self.party.loss.residuals(total, labels)
        if self.perturb is not None:
            async with self.party.costs.compute("encrypt"):
                residuals = self.perturb(residuals)
        return residuals


class HeadFeatureSide(GatheringSide):
    """A feature party under a head sends u_k and receives d and θ_k."""

    async def signal(
        self, step: Step, batch: Batch, predictions: FloatArray, others: FloatArray | None
    ) -> Signal | None:
        """The signal of d and θ_k."""
        del batch, others
        party = self.party
        if party.name not in step.receivers:
            return None
        sender, message = await party.channel.receive(
            [party.label_party], HeadResiduals, step.index
        )
        rows, width = predictions.shape
        expect_shape(sender, message.values, (rows, party.loss.outputs))
        expect_shape(sender, message.head, (width, party.loss.outputs))
        return ThroughHeadSignal(message.values, message.head)


class HeadLabelSide(PlainLabelSide):
    """The label party under a head, which its local steps train."""

    def __init__(
        self,
        party: Party,
        gathering: ClearGathering,
        head: HeadedModel,
        perturb: Perturb | None = None,
    ) -> None:
        super().__init__(party, gathering, perturb)
        self._given = gathering
        self._head = head

    @override
    async def signal(
        self, step: Step, batch: Batch, predictions: FloatArray, others: FloatArray | None
    ) -> Signal | None:
        party = self.party
        assert batch.labels is not None and others is not None  # noqa: S101, PT018
        total = others + predictions
        residuals = await self.residuals(total, batch.labels)
        for name in party.feature_parties:
            if name in step.receivers:
                message = HeadResiduals(step.index, residuals, self._head.part(name))
                await party.channel.send(name, message)
        if party.name not in step.receivers:
            return None
        signal: PredictionsSignal | ResidualSignal = ResidualSignal(residuals)
        if self.perturb is None:
            signal = PredictionsSignal(np.zeros_like(total), batch.labels)
        return BesideOthersSignal(signal, self._given.side_by_side, total)


CLEAR_RESIDUALS = "d, so every label and ΣH"


class InClear(Exchange):
    """The base of exchanges whose residuals travel without encryption."""

    takes = tuple(ExchangeSettings.model_fields)
    repeats = True

    @override
    def check(self, plan: Plan) -> None:
        settings = plan.job.exchange
        if self.sums(settings):
            require_summands(len(plan.facts.names))
        if settings.hide == "both":
            raise ConfigError(f"hide = 'both' needs a homomorphic scheme, not {self.name!r}")
        if settings.round_trips == 1:
            raise ConfigError(f"round_trips = 1 needs a homomorphic scheme, not {self.name!r}")
        if settings.he_per_step:
            raise ConfigError(f"he_per_step needs a homomorphic scheme, not {self.name!r}")
        if settings.key_bits or settings.engine:
            raise ConfigError(f"exchange {self.name!r} has no keys: drop key_bits and engine")

    def sums(self, settings: ExchangeSettings) -> bool:
        """Whether predictions are masked, so that only their sum shows."""
        return settings.predictions == "masked"

    @override
    def messages(self, settings: ExchangeSettings, parties: int) -> int:
        return 2 * (parties - 1)

    def protected(self, session: Session) -> tuple[Gathering, Perturb | None]:
        """How predictions are gathered, and the noise on residuals if there is any."""
        if session.plan.representation is not None:
            return ClearGathering(session.party, session.head), None
        sums = self.sums(session.plan.job.exchange)
        return gathering_of(session.party, session.agreement.masks, sums=sums), None

    async def establish(self, session: Session) -> Established:
        """Gather as the settings say, residuals in clear."""
        party, sends_sum = session.party, session.plan.rule.own_loss
        gathering, perturb = self.protected(session)
        side: Side
        if session.plan.representation is not None:
            assert isinstance(gathering, ClearGathering)  # noqa: S101
            side = HeadFeatureSide(party, gathering)
            if session.head is not None:
                side = HeadLabelSide(party, gathering, session.head, perturb)
        elif party.holds_labels:
            side = PlainLabelSide(party, gathering, perturb, sends_sum=sends_sum)
        else:
            side = PlainFeatureSide(party, gathering, sends_sum=sends_sum)
        return Established(side, gathering)

    async def establish_residuals(self, session: Session) -> Established:
        """As `establish`: DBCD calls the two halves of an exchange in the other order."""
        return await self.establish(session)


HEAD_LEARNS = Learns(
    label_party="every u_k, w numbers a row",
    label_party_not="features, except for what u_k reveals",
    feature_party="d, so every label and H, and θ_k",
    feature_party_not="others' features",
    predictions="singly",
    residuals="clear",
    gradients=False,
)
"""A network with w ≥ P units mostly reveals the whole row in u_k."""
MASKED_LEARNS = Learns(
    label_party="only the sum of the others' H_k",
    label_party_not="any single H_k, unless all other feature parties reveal theirs",
    feature_party=f"{CLEAR_RESIDUALS}; at K = 3 the other's H_k",
    feature_party_not="features",
    predictions="summed",
    residuals="clear",
    gradients=False,
)


class PlainExchange(InClear):
    """Predictions and residuals in clear: the baseline."""

    name = "plain"
    sends_sum = True
    takes_head = True
    new_rows = as_shown

    @override
    def check(self, plan: Plan) -> None:
        super().check(plan)
        if plan.rule.own_loss and self.sums(plan.job.exchange):
            raise ConfigError("local_rule = 'exact' sends ΣH: not with predictions = 'masked'")

    @override
    def learns(self, job: Job) -> Learns:
        if self.sums(job.exchange):
            return MASKED_LEARNS
        if job.job.head != "sum":
            return HEAD_LEARNS
        sends_sum = job.job.local_rule == "exact"
        return Learns(
            label_party="every H_k",
            label_party_not="features",
            feature_party=f"{CLEAR_RESIDUALS}, sent beside it" if sends_sum else CLEAR_RESIDUALS,
            feature_party_not="others' features",
            predictions="singly",
            residuals="clear",
            gradients=False,
        )

    def release(self, noise: Noise | None, purpose: Purpose = "predictions") -> AsTheyAre:
        """Numbers as they are."""
        del noise, purpose
        return IN_CLEAR


class MaskedExchange(InClear):
    """Predictions under masks that cancel in their sum."""

    name = "masked"
    fewest_parties = 3
    new_rows = as_shown

    @override
    def sums(self, settings: ExchangeSettings) -> bool:
        return True

    @override
    def learns(self, job: Job) -> Learns:
        return MASKED_LEARNS


DESCRIPTIONS = (PlainExchange(), MaskedExchange())
