"""An exchange and an algorithm of another package, as somebody outside would write them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from pydantic import Field
from typing_extensions import override

from securevfl.arrays import FloatArray
from securevfl.auditing.local_rules import ruled
from securevfl.job import ExchangeSettings, Job, Section
from securevfl.models.local_model import LocalModel
from securevfl.protocols.catalogue import ALGORITHMS, EXCHANGES
from securevfl.protocols.exchange import Batch, Established, Exchange, Learns, Session
from securevfl.protocols.exchanges.plain import Residuals
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.gathering import ClearGathering
from securevfl.protocols.session.party import Party, Step
from securevfl.protocols.session.workplace import Workplace
from securevfl.protocols.signals import PredictionsSignal, ResidualSignal, Signal
from securevfl.protocols.vertical.fedbcd import FedBcd
from securevfl.runtime.channel import expect_shape
from securevfl.runtime.simulation import Program
from securevfl.wire.codec import message_kind


@message_kind(200, stage="round", carries="values", shows="residuals")
class RoundedResiduals(Residuals):
    """Residuals rounded to multiples of 2^-16, shape (S, C)."""


class RoundedSide:
    """Either party's side: predictions in clear, residuals rounded."""

    def __init__(self, party: Party) -> None:
        self.party = party
        self.gathering = ClearGathering(party)

    async def gather(self, step: Step, predictions: FloatArray) -> FloatArray | None:
        """Predictions, in clear."""
        if self.party.holds_labels:
            return await self.gathering.take_sum(step, predictions.shape)
        await self.gathering.give(step, predictions)
        return None

    async def signal(
        self, step: Step, batch: Batch, predictions: FloatArray, others: FloatArray | None
    ) -> Signal | None:
        """Residuals, rounded."""
        party = self.party
        if not party.holds_labels:
            if party.name not in step.receivers:
                return None
            sender, message = await party.channel.receive(
                [party.label_party], RoundedResiduals, step.index
            )
            expect_shape(sender, message.values, predictions.shape)
            return ResidualSignal(message.values)
        assert batch.labels is not None
        assert others is not None
        async with party.costs.compute("local"):
            exact = party.loss.residuals(others + predictions, batch.labels)
            rounded = np.ldexp(np.rint(np.ldexp(exact, 16)), -16)
        for name in party.feature_parties:
            if name in step.receivers:
                await party.channel.send(name, RoundedResiduals(step.index, rounded))
        return PredictionsSignal(others, batch.labels) if party.name in step.receivers else None


class Rounded(Exchange):
    """Residuals of 16 bits."""

    name = "rounded"

    @override
    def check(self, plan: Plan) -> None:
        """Whatever the settings are."""

    @override
    def learns(self, job: Job) -> Learns:
        return Learns(
            label_party="every H_k",
            label_party_not="features",
            feature_party="d, rounded",
            feature_party_not="others' features",
            predictions="singly",
            residuals="clear",
            gradients=False,
        )

    @override
    def messages(self, settings: ExchangeSettings, parties: int) -> int:
        return 2 * (parties - 1)

    async def establish(self, session: Session) -> Established:
        side = RoundedSide(session.party)
        return Established(side, side.gathering)


class HeavyBallSettings(Section):
    """`[heavy-ball]`."""

    momentum: float = Field(default=0.9, ge=0, lt=1)


class HeavyBall(FedBcd):
    """FedBCD whose local steps have momentum."""

    settings = HeavyBallSettings

    @override
    def programs(self, plan: Plan, places: Mapping[str, Workplace]) -> dict[str, Program[Any]]:
        momentum = plan.job.section(HeavyBallSettings, self.name).momentum

        def with_momentum(model: LocalModel) -> LocalModel:
            velocity = np.zeros_like(model.weights)

            def heavy_ball(weights: FloatArray, step: FloatArray) -> FloatArray:
                nonlocal velocity
                velocity = momentum * velocity + step
                return velocity

            return ruled(model, heavy_ball)

        return super().programs(
            plan, {n: replace(each, wrap_model=with_momentum) for n, each in places.items()}
        )


ROUNDED = Rounded()
HEAVY_BALL = HeavyBall("heavy-ball")


def install() -> None:
    """Make both known."""
    EXCHANGES.add(ROUNDED)
    ALGORITHMS.add(HEAVY_BALL)
