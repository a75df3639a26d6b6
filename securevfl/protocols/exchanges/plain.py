"""The exchange without encryption: residuals travel in clear.

With `ClearGathering` this is `plain`, with `MaskedGathering` `masked`, with `NoisyGathering` `dp`.
Who learns what: the descriptions at the end of this file, and of `noisy`. For logistic loss d tells
every label and ΣH (d = σ(H) − y inverts).

Under `local_rule = "exact"` the label party sends ΣH beside d, for any loss: with d that is every
label, and without its own H_k the sum of all others'. Messages a round: 3(K − 1) in place of
2(K − 1).
"""

from collections.abc import Callable

from typing_extensions import override

from securevfl.arrays import FloatArray
from securevfl.errors import ConfigError
from securevfl.job import ExchangeSettings, Job
from securevfl.models.losses import labels_told
from securevfl.protocols.exchange import Batch, Established, Exchange, Learns, Session
from securevfl.protocols.exchanges.headed import HEAD_LEARNS, established_with_head
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.gathering import (
    ClearGathering,
    Gathering,
    Predictions,
    gathering_of,
    require_summands,
)
from securevfl.protocols.session.party import Party, Step
from securevfl.protocols.signals import PredictionsSignal, ResidualSignal, Signal
from securevfl.runtime.channel import expect_shape
from securevfl.wire.codec import StepMessage, message_kind

Perturb = Callable[[FloatArray], FloatArray]


@message_kind(4, stage="round", carries="values", shows="residuals")
class Residuals(StepMessage):
    """Residuals d = ∂f/∂H of a batch in clear, shape (S, C)."""

    values: FloatArray


class PlainFeatureSide:
    """A feature party's side.

    Args:
        party: who it is.
        gathering: how it gives its predictions.
        told_sum: whether ΣH comes with residuals.
    """

    def __init__(self, party: Party, gathering: Gathering, *, told_sum: bool = False) -> None:
        self._party = party
        self._gathering = gathering
        self._told_sum = told_sum

    async def gather(self, step: Step, predictions: FloatArray) -> None:
        """Give predictions."""
        await self._gathering.give(step, predictions)

    async def signal(
        self, step: Step, batch: Batch, predictions: FloatArray, others: FloatArray | None
    ) -> Signal | None:
        """Take residuals, and with ΣH what the label party steps from."""
        del batch, others
        party = self._party
        if party.name not in step.receivers:
            return None
        sender, message = await party.channel.receive([party.label_party], Residuals, step.index)
        expect_shape(sender, message.values, predictions.shape)
        if not self._told_sum:
            return ResidualSignal(message.values)
        _, total = await party.channel.receive([party.label_party], Predictions, step.index)
        expect_shape(sender, total.values, predictions.shape)
        async with party.costs.compute("local"):
            labels = labels_told(party.loss, message.values, total.values)
        return PredictionsSignal(total.values - predictions, labels)


class PlainLabelSide:
    """The label party's side.

    Args:
        party: who it is.
        gathering: how it comes to the others' predictions.
        perturb: adds noise to residuals; then its own steps start from the same noisy d, so that a
            label touches nothing else that others ever see.
        tells_sum: whether ΣH goes with residuals.
    """

    def __init__(
        self,
        party: Party,
        gathering: Gathering,
        perturb: Perturb | None = None,
        *,
        tells_sum: bool = False,
    ) -> None:
        self._party = party
        self._gathering = gathering
        self._perturb = perturb
        self._tells_sum = tells_sum

    async def gather(self, step: Step, predictions: FloatArray) -> FloatArray:
        """Take predictions."""
        return await self._gathering.take_sum(step, predictions.shape)

    async def signal(
        self, step: Step, batch: Batch, predictions: FloatArray, others: FloatArray | None
    ) -> Signal | None:
        """Give residuals."""
        party = self._party
        assert batch.labels is not None and others is not None  # noqa: S101, PT018
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
            if self._tells_sum:
                await party.channel.send(name, Predictions(step.index, others + predictions))
        if not steps:
            return None
        return exact if self._perturb is None else ResidualSignal(residuals)


CLEAR_RESIDUALS = "d, so every label and ΣH"


class InClear(Exchange):
    """What all exchanges have in common whose residuals travel without encryption."""

    @override
    def check(self, plan: Plan) -> None:
        """Refuse what only encryption has, and a masked sum of one."""
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
        """2(K − 1)."""
        return 2 * (parties - 1)

    @override
    async def establish(self, session: Session) -> Established:
        """Gather as the settings say, residuals in clear."""
        party = session.party
        if session.plan.representation is not None:
            return established_with_head(session, ClearGathering(party, session.head))
        sums = self.sums(session.plan.job.exchange)
        gathering = gathering_of(party, session.agreement.masks, sums=sums)
        told = session.plan.rule.own_loss
        if party.holds_labels:
            return Established(PlainLabelSide(party, gathering, tells_sum=told), gathering)
        return Established(PlainFeatureSide(party, gathering, told_sum=told), gathering)


class Plain(InClear):
    """Predictions and residuals in clear: the baseline."""

    name = "plain"
    tells_sum = True
    takes_head = True

    @override
    def check(self, plan: Plan) -> None:
        """Refuse also to tell the sum that masks are there to hide."""
        super().check(plan)
        if plan.rule.own_loss and self.sums(plan.job.exchange):
            raise ConfigError("local_rule = 'exact' tells ΣH: not with predictions = 'masked'")

    @override
    def learns(self, job: Job) -> Learns:
        """Everything but features."""
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


MASKED_LEARNS = Learns(
    label_party="only the sum of the others' H_k",
    label_party_not="any single H_k, unless all other feature parties tell it theirs",
    feature_party=f"{CLEAR_RESIDUALS}; at K = 3 the other's H_k",
    feature_party_not="features",
    predictions="summed",
    residuals="clear",
    gradients=False,
)


class Masked(InClear):
    """Predictions under masks that cancel in their sum."""

    name = "masked"
    fewest_parties = 3

    @override
    def sums(self, settings: ExchangeSettings) -> bool:
        return True

    @override
    def learns(self, job: Job) -> Learns:
        """As `plain`, but for single predictions."""
        return MASKED_LEARNS
