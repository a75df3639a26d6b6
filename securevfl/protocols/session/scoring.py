"""Scoring on held-out rows during training.

Learns:
    label party: held-out predictions of every feature party, or only their sum where the
        exchange's gathering masks them.
    feature party: whether training stops.
Scoring is no part of a round: neither its time nor its messages count as training.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import FloatArray
from securevfl.models.local_model import LocalModel
from securevfl.models.scores import accuracy, auc
from securevfl.protocols.session.gathering import Gathering
from securevfl.protocols.session.party import Party
from securevfl.runtime.costs import SCORING
from securevfl.wire.codec import StepMessage, message_kind


@message_kind(11, stage="evaluation")
class Verdict(StepMessage):
    """The label party's word after scoring: go on, or stop here."""

    stop: bool


@dataclass(frozen=True)
class Score:
    """Held-out scores after `rounds` rounds."""

    rounds: int
    auc: float
    accuracy: float


@dataclass(frozen=True)
class Timetable:
    """When scoring is due.

    Attributes:
        rounds: R; the last round is always scored, whichever it turns out to be.
        every: rounds between scorings; 0 scores the last round only.
        test_rows: 0 turns scoring off.
    """

    rounds: int
    every: int
    test_rows: int

    def due(self, round_index: int, *, last: bool = False) -> bool:
        """Whether to score after this round, counted from 0."""
        done = round_index + 1
        regular = self.every > 0 and done % self.every == 0
        return self.test_rows > 0 and (regular or last or done == self.rounds)

    def times(self, rounds: int) -> int:
        """How often held-out rows have been scored if a job ends after so many rounds."""
        if self.test_rows == 0:
            return 0
        ends_between = self.every == 0 or rounds % self.every != 0
        return (rounds // self.every if self.every else 0) + int(ends_between)


class FeatureScoring:
    """A feature party's side."""

    def __init__(
        self, party: Party, gathering: Gathering, timetable: Timetable, inputs: FloatArray
    ) -> None:
        self._party = party
        self._gathering = gathering
        self._timetable = timetable
        self._inputs = inputs

    async def stops(self, round_index: int, model: LocalModel, *, last: bool = False) -> bool:
        """Give held-out predictions, take the verdict."""
        if not self._timetable.due(round_index, last=last):
            return False
        party = self._party
        async with party.costs.compute(SCORING):
            predictions = model.predict(self._inputs)
        await self._gathering.give_held_out(round_index, predictions)
        _, verdict = await party.channel.receive([party.label_party], Verdict, round_index)
        return verdict.stop


class LabelScoring:
    """The label party's side; `scores` fills as training goes on."""

    def __init__(
        self,
        party: Party,
        gathering: Gathering,
        timetable: Timetable,
        *,
        inputs: FloatArray,
        labels: NDArray[np.int64],
        target_auc: float | None,
    ) -> None:
        self._party = party
        self._gathering = gathering
        self._timetable = timetable
        self._inputs = inputs
        self._labels = labels
        self._target = target_auc
        self.scores: list[Score] = []

    async def stops(self, round_index: int, model: LocalModel, *, last: bool = False) -> bool:
        """Score the sum of all predictions and tell the others whether to stop."""
        if not self._timetable.due(round_index, last=last):
            return False
        party = self._party
        async with party.costs.compute(SCORING):
            own = model.predict(self._inputs)
        others = await self._gathering.take_held_out_sum(round_index, own.shape)
        async with party.costs.compute(SCORING):
            total = own + others
            score = Score(round_index + 1, auc(total, self._labels), accuracy(total, self._labels))
        self.scores.append(score)
        stop = self._target is not None and score.auc >= self._target
        for name in party.feature_parties:
            await party.channel.send(name, Verdict(round_index, stop))
        return stop
