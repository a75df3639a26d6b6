"""A round of FedBCD at one party: exchange predictions, hear where training heads, step."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from securevfl.arrays import FloatArray, IntArray
from securevfl.protocols.exchange import Batch, Side
from securevfl.protocols.local_steps import LocalSteps
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.course import (
    LONGEST_WINDOW,
    SHORTEST_WINDOW,
    Course,
    FollowedWatch,
    Judge,
    LabelWatch,
    NoWatch,
    Watch,
)
from securevfl.protocols.session.party import Party, Step
from securevfl.protocols.vertical.program import Training


@dataclass(frozen=True, eq=False)
class Rounds:
    """What takes a party through a round.

    Attributes:
        training: who it is, its model and the plan.
        side: its side of the exchange.
        steps: its own, of the same model.
        watch: its side of the label party's word.
    """

    training: Training
    side: Side
    steps: LocalSteps
    watch: Watch

    async def take(self, round_index: int, batch: Batch) -> Course:
        """One round; what the label party said of it.

        Raises:
            PeerError: a peer failed; the model is as after the last whole round or turn.
        """
        party, model, steps = self.training.party, self.training.model, self.steps
        async with party.costs.compute("local"):
            steps.begin(round_index, len(batch.rows))
        course = Course(round_index)
        for turn, step in enumerate(steps_of(self.training.plan, round_index)):
            async with party.costs.compute("local"):
                predictions = model.predict(batch.inputs)
                seen = batch.seen_by(model)
            others = await self.side.gather(step, predictions)
            if turn == 0:
                loss = await self._loss(batch, predictions, others)
                course = await self.watch.course(round_index, loss)
                if course.back or course.stop:
                    break
                if course.keep:
                    steps.keep()
            signal = await self.side.signal(step, seen, predictions, others)
            if signal is not None:
                async with party.costs.compute("local"):
                    steps.apply(
                        batch.inputs, predictions=predictions, signal=signal, tangent=seen.jacobian
                    )
        async with party.costs.compute("local"):
            steps.follow(course)
        return course

    async def _loss(
        self, batch: Batch, predictions: FloatArray, others: FloatArray | None
    ) -> float | None:
        """The training loss at the label party, or as much of it as it can tell.

        Where nobody sees the sum of predictions it counts what its own steps promise to gain.
        """
        if batch.labels is None:
            return None
        if others is None:
            return -self.steps.gained
        async with self.training.party.costs.compute("local"):
            return self.training.plan.loss.value(others + predictions, batch.labels)


def watch_of(party: Party, plan: Plan, labels: IntArray | None) -> Watch:
    """A party's side of the label party's word.

    Args:
        party: who it is.
        plan: of the job.
        labels: of all training rows, at the label party.
    """
    if labels is None or not party.holds_labels:
        return FollowedWatch(party) if plan.is_watched else NoWatch()
    constant = np.broadcast_to(plan.loss.constant(labels), (len(labels), plan.loss.outputs))
    window = 1
    if not plan.full_batches or plan.exchange.adds_noise:
        window = min(max(plan.schedule.batches, SHORTEST_WINDOW), LONGEST_WINDOW)
    judge = Judge(plan.loss.value(constant, labels), plan.job.job.tolerance, window)
    return LabelWatch(party, judge, told=plan.is_watched)


def steps_of(plan: Plan, round_index: int) -> Iterator[Step]:
    """The exchanges of a round."""
    names, label_party = plan.facts.names, plan.facts.label_party
    if not plan.algorithm.in_turns:
        yield Step(round_index, receivers=names, fresh=names)
        return
    turns = (label_party, *(name for name in names if name != label_party))
    first = round_index * len(turns)
    fresh = names
    for turn, name in enumerate(turns):
        yield Step(first + turn, receivers=(name,), fresh=fresh)
        fresh = (name,)
