"""FedSGD, FedBCD-p and FedBCD-s (Liu et al. 2019, Algorithm 1), one program for each role.

In a round of FedBCD-p all parties exchange once and then take Q local steps at the same time.
In FedBCD-s they take turns on the same batch, the label party first: the party whose turn it is
gets a signal that holds everyone's newest predictions. FedSGD is FedBCD-p at Q = 1.

The program is the same at both roles: what differs is the side of the exchange they hold, and
who scores.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import sqrt
from typing import Protocol

from securevfl.models.local_model import LocalModel
from securevfl.protocols.exchange import Batch, Exchange
from securevfl.protocols.session.party import Party, Step
from securevfl.protocols.signals import LocalRule


@dataclass(frozen=True)
class StepSize:
    """η at round t: η0, η0/√(t + 1), and either divided by √K.

    Raises nothing: the job has been validated.
    """

    learning_rate: float
    decays: bool = False
    parties: int = 1

    def at(self, round_index: int) -> float:
        """η of a round, counted from 0."""
        eta = self.learning_rate / sqrt(self.parties)
        return eta / sqrt(round_index + 1) if self.decays else eta


class Batches(Protocol):
    """Which rows a round takes, the same at every party."""

    def at(self, round_index: int) -> Batch:
        """This party's rows of a round."""


class Scoring(Protocol):
    """Scoring on held-out rows after a round."""

    async def stops(self, round_index: int, model: LocalModel) -> bool:
        """Take part in scoring if it is due; whether training ends here."""


@dataclass(frozen=True)
class Plan:
    """How a job runs.

    Attributes:
        rounds: R.
        in_turns: FedBCD-s in place of FedBCD-p.
        step_size: η.
        rule: Q local steps and what else is in them.
    """

    rounds: int
    in_turns: bool
    step_size: StepSize
    rule: LocalRule

    def steps(self, round_index: int, party: Party) -> Iterator[Step]:
        """The exchanges of a round."""
        if not self.in_turns:
            yield Step(round_index, receivers=party.names, fresh=party.names)
            return
        turns = (party.label_party, *party.feature_parties)
        first = round_index * len(turns)
        fresh = party.names
        for turn, name in enumerate(turns):
            yield Step(first + turn, receivers=(name,), fresh=fresh)
            fresh = (name,)


async def train(
    party: Party,
    model: LocalModel,
    plan: Plan,
    *,
    batches: Batches,
    exchange: Exchange,
    scoring: Scoring,
    after_round: Callable[[int], None],
) -> int:
    """Train one party's part of the model, in place.

    Args:
        party: who it is.
        model: θ⁰ of this party.
        plan: rounds, local steps and step sizes.
        batches: this party's rows.
        exchange: this party's side of the exchange.
        scoring: this party's side of scoring.
        after_round: called with the number of rounds done, for checkpoints and progress.

    Returns:
        The number of rounds done.

    Raises:
        PeerError: a peer failed; the model is as after the last whole round or turn.
    """
    for round_index in range(plan.rounds):
        batch = batches.at(round_index)
        for step in plan.steps(round_index, party):
            async with party.costs.compute("local"):
                predictions = model.predict(batch.inputs)
                seen = batch.seen_by(model)
            signal = await exchange.signal(step, seen, predictions)
            if signal is not None:
                async with party.costs.compute("local"):
                    plan.rule.apply(
                        model,
                        batch.inputs,
                        predictions=predictions,
                        signal=signal,
                        step_size=plan.step_size.at(round_index),
                        tangent=seen.tangent,
                    )
        party.costs.end_round()
        after_round(round_index + 1)
        if await scoring.stops(round_index, model):
            return round_index + 1
    return plan.rounds
