"""Scoring on held-out rows during training.

Learns:
    label party: held-out predictions of every feature party, or only their sum where the
        exchange's gathering masks them: of linear models a column of X_test·θ a scoring, so that
        as many scorings as X_test has rank span its columns (`held_out_guard` counts them). Where
        an exchange has sums over classes (`exchanges.class_sums`), only these.
    feature party: whether training stops.
Scoring is no part of a round: neither its time nor its messages count as training.
"""

from dataclasses import dataclass, replace
from statistics import fmean
from typing import Protocol

from securevfl.arrays import FloatArray, IntArray
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
    """Held-out scores after `rounds` rounds.

    Attributes:
        rounds: done.
        auc: area under the ROC curve.
        accuracy: share of rows whose most likely class is theirs.
        binormal: whether both are those of normal distributions with the classes' means and
            variances, which is all that the label party knows.
        training_loss: mean over the rounds since the last scoring of the loss of a round's batch,
            as it was exchanged; None where the label party does not see H without noise.
    """

    rounds: int
    auc: float
    accuracy: float
    binormal: bool = False
    training_loss: float | None = None


@dataclass(frozen=True)
class Timetable:
    """When scoring is due.

    Attributes:
        rounds: R; the state that is kept in the end is always scored.
        every: rounds between scorings; 0 scores what is kept at the end only.
        test_rows: 0 turns scoring off.
    """

    rounds: int
    every: int
    test_rows: int

    def due(self, rounds: int) -> bool:
        """Whether to score after so many rounds, wherever the job ends."""
        return self.test_rows > 0 and self.every > 0 and rounds % self.every == 0

    def times(self, rounds: int) -> int:
        """How often held-out rows have been scored if a job ends after so many rounds."""
        if self.test_rows == 0:
            return 0
        ends_between = self.every == 0 or rounds % self.every != 0
        return (rounds // self.every if self.every else 0) + int(ends_between)


class GivesHeldOut(Protocol):
    """A feature party's way to have its held-out predictions scored."""

    async def give(self, step: int, predictions: FloatArray) -> None:
        """Take part in the scoring of a step.

        Raises:
            PeerError: a peer broke the protocol or is gone.
        """


class ScoresHeldOut(Protocol):
    """The label party's way to a score."""

    def check(self, labels: IntArray) -> None:
        """Check before training that held-out rows can be scored.

        Raises:
            ConfigError: they cannot.
        """

    async def score(self, step: int, own: FloatArray, labels: IntArray) -> Score:
        """The score of a step, from its own predictions and whatever the others give.

        Raises:
            PeerError: a peer broke the protocol or is gone.
        """


class ByRow:
    """Both sides, where held-out predictions are gathered row by row."""

    def __init__(self, party: Party, gathering: Gathering) -> None:
        self._party = party
        self._gathering = gathering

    async def give(self, step: int, predictions: FloatArray) -> None:
        """Give held-out predictions as in rounds."""
        await self._gathering.give_held_out(step, predictions)

    def check(self, labels: IntArray) -> None:
        """Nothing."""

    async def score(self, step: int, own: FloatArray, labels: IntArray) -> Score:
        """Score the sum of all predictions."""
        others = await self._gathering.take_held_out_sum(step, own.shape)
        async with self._party.costs.compute(SCORING):
            total = own + others
            return Score(step + 1, auc(total, labels), accuracy(total, labels))


class FeatureScoring:
    """A feature party's side."""

    def __init__(
        self, party: Party, held_out: GivesHeldOut, timetable: Timetable, inputs: FloatArray
    ) -> None:
        self._party = party
        self._held_out = held_out
        self._timetable = timetable
        self._inputs = inputs
        self.scores: list[Score] = []

    async def stops(self, rounds: int, model: LocalModel, *, loss: float | None) -> bool:
        """Give held-out predictions if it is due, take the verdict."""
        del loss
        return self._timetable.due(rounds) and await self._give(rounds, model)

    async def ends(self, rounds: int, model: LocalModel, *, first_round: int = 0) -> bool:
        """The same for what is kept, where it has not been scored."""
        if not self._timetable.test_rows or (self._timetable.due(rounds) and rounds > first_round):
            return False
        return await self._give(rounds, model)

    async def _give(self, rounds: int, model: LocalModel) -> bool:
        party, round_index = self._party, rounds - 1
        async with party.costs.compute(SCORING):
            predictions = model.predict(self._inputs)
        await self._held_out.give(round_index, predictions)
        _, verdict = await party.channel.receive([party.label_party], Verdict, round_index)
        return verdict.stop


class LabelScoring:
    """The label party's side; `scores` fills as training goes on."""

    def __init__(
        self,
        party: Party,
        held_out: ScoresHeldOut,
        timetable: Timetable,
        *,
        inputs: FloatArray,
        labels: IntArray,
        target_auc: float | None,
    ) -> None:
        held_out.check(labels)
        self._party = party
        self._held_out = held_out
        self._timetable = timetable
        self._inputs = inputs
        self._labels = labels
        self._target = target_auc
        self._losses: list[float] = []
        self.scores: list[Score] = []

    async def stops(self, rounds: int, model: LocalModel, *, loss: float | None) -> bool:
        """Score the sum of all predictions if it is due, and tell the others whether to stop.

        Args:
            rounds: done.
            model: after them.
            loss: of the last one's batch, as it was exchanged, if this party saw it.
        """
        if loss is not None:
            self._losses.append(loss)
        return self._timetable.due(rounds) and await self._score(rounds, model)

    async def ends(self, rounds: int, model: LocalModel, *, first_round: int = 0) -> bool:
        """Score what is kept, where it has not been scored; its score is the last in any case.

        Args:
            rounds: after which it was.
            model: as it was.
            first_round: rounds that were done, and scored, in an earlier session.
        """
        if not self._timetable.test_rows:
            return False
        if not self._timetable.due(rounds) or rounds <= first_round:
            return await self._score(rounds, model)
        if self.scores[-1].rounds != rounds:
            self.scores.append(next(each for each in self.scores if each.rounds == rounds))
        return False

    async def _score(self, rounds: int, model: LocalModel) -> bool:
        party, round_index = self._party, rounds - 1
        async with party.costs.compute(SCORING):
            own = model.predict(self._inputs)
        score = await self._held_out.score(round_index, own, self._labels)
        seen, self._losses = self._losses, []
        self.scores.append(replace(score, training_loss=fmean(seen) if seen else None))
        stop = self._target is not None and score.auc >= self._target
        for name in party.feature_parties:
            await party.channel.send(name, Verdict(round_index, stop))
        return stop
