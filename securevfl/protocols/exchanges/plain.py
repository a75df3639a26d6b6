"""The exchanges without encryption: residuals travel in clear.

With `ClearGathering` this is `plain`, with `MaskedGathering` `masked`, with `NoisyGathering` `dp`.
Who learns what: the descriptions at the end of this file, and of `noisy`. For logistic loss d tells
every label and ΣH (d = σ(H) − y inverts).

Under `local_rule = "exact"` the label party sends ΣH beside d, for any loss: with d that is every
label, and without its own H_k the sum of all others'. Messages a round: 3(K − 1) in place of
2(K − 1).

With a head at the label party representations travel one way, d and θ_k the other.
H = Σ_k u_k·θ_k + b, so ∂f/∂u_k = d·θ_kᵀ: a party needs d, one number a row and output, and its own
θ_k, w numbers whatever the batch, and with both it follows its own changes as without a head. Each
θ_k is only its party's and the label party's, so that K − 1 messages each way do; a head that
mixes parties' u before d is known, or a label at each party, would need them pairwise, K² − K.
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
    """A feature party's side; with residuals may come ΣH."""

    def __init__(self, party: Party, gathering: Gathering, *, told_sum: bool = False) -> None:
        super().__init__(party, gathering)
        self._told_sum = told_sum

    async def signal(
        self, step: Step, batch: Batch, predictions: FloatArray, others: FloatArray | None
    ) -> Signal | None:
        """Take residuals, and with ΣH what the label party steps from."""
        del batch, others
        party = self.party
        if party.name not in step.receivers:
            return None
        channel, sender, shape = party.channel, party.label_party, predictions.shape
        residuals = await receive_values(channel, sender, Residuals, step.index, shape)
        if not self._told_sum:
            return ResidualSignal(residuals)
        total = await receive_values(channel, sender, Predictions, step.index, shape)
        async with party.costs.compute("local"):
            labels = labels_from_residuals(party.loss, residuals, total)
        return PredictionsSignal(total - predictions, labels)


class PlainLabelSide(GatheringSide):
    """The label party's side.

    Where `perturb` adds noise to residuals, its own steps start from the same noisy d, so that a
    label touches nothing else that others ever see.
    """

    def __init__(
        self,
        party: Party,
        gathering: Gathering,
        perturb: Perturb | None = None,
        *,
        tells_sum: bool = False,
    ) -> None:
        super().__init__(party, gathering)
        self.perturb = perturb
        self._tells_sum = tells_sum

    async def signal(
        self, step: Step, batch: Batch, predictions: FloatArray, others: FloatArray | None
    ) -> Signal | None:
        """Give residuals."""
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
            if self._tells_sum:
                await party.channel.send(name, Predictions(step.index, others + predictions))
        if not steps:
            return None
        return exact if self.perturb is None else ResidualSignal(residuals)

    async def residuals(self, total: FloatArray, labels: Labels) -> FloatArray:
        """D as it is given."""
        async with self.party.costs.compute("local"):
            residuals = self.party.loss.residuals(total, labels)
        if self.perturb is not None:
            async with self.party.costs.compute("encrypt"):
                residuals = self.perturb(residuals)
        return residuals


class HeadFeatureSide(GatheringSide):
    """A feature party's side under a head: gives u_k."""

    async def signal(
        self, step: Step, batch: Batch, predictions: FloatArray, others: FloatArray | None
    ) -> Signal | None:
        """Take d and θ_k."""
        del batch, others
        party = self.party
        if party.name not in step.receivers:
            return None
        sender, told = await party.channel.receive([party.label_party], HeadResiduals, step.index)
        rows, width = predictions.shape
        expect_shape(sender, told.values, (rows, party.loss.outputs))
        expect_shape(sender, told.head, (width, party.loss.outputs))
        return ThroughHeadSignal(told.values, told.head)


class HeadLabelSide(PlainLabelSide):
    """The label party's side under a head, which its local steps move; takes Σ u_k·θ_k."""

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
    """What all exchanges have in common whose residuals travel without encryption."""

    takes = tuple(ExchangeSettings.model_fields)

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
        """Whether predictions travel masked, so that only their sum shows."""
        return settings.predictions == "masked"

    @override
    def messages(self, settings: ExchangeSettings, parties: int) -> int:
        return 2 * (parties - 1)

    def protected(self, session: Session) -> tuple[Gathering, Perturb | None]:
        """How predictions come together, and what is done to residuals before they are given."""
        if session.plan.representation is not None:
            return ClearGathering(session.party, session.head), None
        sums = self.sums(session.plan.job.exchange)
        return gathering_of(session.party, session.agreement.masks, sums=sums), None

    async def establish(self, session: Session) -> Established:
        """Gather as the settings say, residuals in clear."""
        party, told = session.party, session.plan.rule.own_loss
        gathering, perturb = self.protected(session)
        side: Side
        if session.plan.representation is not None:
            assert isinstance(gathering, ClearGathering)  # noqa: S101
            side = HeadFeatureSide(party, gathering)
            if session.head is not None:
                side = HeadLabelSide(party, gathering, session.head, perturb)
        elif party.holds_labels:
            side = PlainLabelSide(party, gathering, perturb, tells_sum=told)
        else:
            side = PlainFeatureSide(party, gathering, told_sum=told)
        return Established(side, gathering)

    async def establish_residuals(self, session: Session) -> Established:
        """The same sides: either half of a round stands by itself."""
        return await self.establish(session)


HEAD_LEARNS = Learns(
    label_party="every u_k, w numbers a row",
    label_party_not="features, as far as u_k does not tell them",
    feature_party="d, so every label and H, and θ_k",
    feature_party_not="others' features",
    predictions="singly",
    residuals="clear",
    gradients=False,
)
"""Of a network with w units or more than P, u_k mostly is all that there is to know of the row."""
MASKED_LEARNS = Learns(
    label_party="only the sum of the others' H_k",
    label_party_not="any single H_k, unless all other feature parties tell it theirs",
    feature_party=f"{CLEAR_RESIDUALS}; at K = 3 the other's H_k",
    feature_party_not="features",
    predictions="summed",
    residuals="clear",
    gradients=False,
)


class PlainExchange(InClear):
    """Predictions and residuals in clear: the baseline."""

    name = "plain"
    tells_sum = True
    takes_head = True
    new_rows = as_shown

    @override
    def check(self, plan: Plan) -> None:
        super().check(plan)
        if plan.rule.own_loss and self.sums(plan.job.exchange):
            raise ConfigError("local_rule = 'exact' tells ΣH: not with predictions = 'masked'")

    @override
    def learns(self, job: Job) -> Learns:
        if self.sums(job.exchange):
            return MASKED_LEARNS
        if job.job.head != "sum":
            return HEAD_LEARNS
        told = job.job.local_rule == "exact"
        return Learns(
            label_party="every H_k",
            label_party_not="features",
            feature_party=f"{CLEAR_RESIDUALS}, told beside it" if told else CLEAR_RESIDUALS,
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
