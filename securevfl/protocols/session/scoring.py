"""Scoring on held-out rows during training.

Learns:
    label party: held-out predictions of every feature party, or only their sum if the exchange
        masks them. Each scoring of a linear model reveals a column X_test·θ, so as many scorings as
        X_test has rank span its columns (`feature_guard` counts them). If an exchange scores by
        sums over classes (`exchanges.class_sums`), only these sums.
    feature party: whether training stops.
Neither the time nor the messages of scoring count as training.
Source: docs/decisions/0017-held-out-rows.md.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from math import sqrt
from statistics import fmean
from typing import Literal

from typing_extensions import override

from securevfl.arrays import FloatArray, Labels, is_real
from securevfl.errors import ConfigError
from securevfl.models.local_model import LocalModel
from securevfl.models.scores import accuracy, auc, mean_absolute_error, mean_squared_error, r2_of
from securevfl.protocols.session.gathering import Gathering, Party
from securevfl.runtime.channel import tell
from securevfl.runtime.costs import SCORING
from securevfl.sparse import Matrix
from securevfl.wire.codec import StepMessage, message_kind

DOUBLING_UNTIL, LATE_SCORINGS = 32, 20
MOST_SEEN = 1 << 24
"""Numbers that are kept of what earlier scorings saw."""


@message_kind(11, stage="evaluation")
class Verdict(StepMessage):
    """After scoring, the label party says whether training stops here."""

    stop: bool


@dataclass(frozen=True)
class Score:
    """Held-out scores after `rounds` rounds.

    Attributes:
        rounds: done so far.
        class_auc: area under the ROC curve; None for real targets.
        class_accuracy: share of rows whose most likely class is right; None for real targets, and
            where the AUC is binormal.
        binormal: whether the AUC is estimated from the classes' means and variances, as of two
            normal distributions, because the label party knows nothing else.
        training_loss: mean loss of the batches since the last scoring, as exchanged; None where
            the label party does not see H without noise.
        r2: share of the variance of real targets that is explained; None for classes.
        rmse: root of the mean squared error, in the targets' units; None for classes.
        mae: mean absolute error; None also where only sums are known.
    """

    rounds: int
    class_auc: float | None = None
    class_accuracy: float | None = None
    binormal: bool = False
    training_loss: float | None = None
    r2: float | None = None
    rmse: float | None = None
    mae: float | None = None

    @classmethod
    def of(
        cls, rounds: int, predictions: FloatArray, labels: Labels, middle: float = 0.0
    ) -> "Score":
        """The score of predictions, shape (test rows, C), and labels, shape (test rows,)."""
        if not is_real(labels):
            found = accuracy(predictions, labels, middle)
            return cls(rounds, auc(predictions, labels), found)
        return cls.of_squares(
            rounds,
            mean_squared_error(predictions, labels),
            labels,
            mae=mean_absolute_error(predictions, labels),
        )

    @classmethod
    def of_squares(
        cls, rounds: int, mean_squared: float, targets: Labels, mae: float | None = None
    ) -> "Score":
        """The score of a mean squared error."""
        return cls(rounds, r2=r2_of(mean_squared, targets), rmse=sqrt(mean_squared), mae=mae)

    @property
    def auc(self) -> float:
        """The AUC; ConfigError where targets are real."""
        return _of_classes(self.class_auc)

    @property
    def accuracy(self) -> float:
        """The accuracy; ConfigError where it is not known."""
        return _of_classes(self.class_accuracy)

    @property
    def figure(self) -> float:
        """The figure that models are compared by: AUC for classes, R² for real targets."""
        return self.auc if self.r2 is None else self.r2

    def in_units(self, unit: float) -> "Score":
        """The same score with errors multiplied by the unit of the targets."""
        return replace(
            self,
            rmse=None if self.rmse is None else unit * self.rmse,
            mae=None if self.mae is None else unit * self.mae,
            training_loss=None if self.training_loss is None else unit**2 * self.training_loss,
        )


def _of_classes(figure: float | None) -> float:
    if figure is None:
        raise ConfigError("score: no AUC or accuracy of real targets, and no accuracy from sums")
    return figure


@dataclass(frozen=True)
class Timetable:
    """The rounds after which held-out rows are scored.

    Attributes:
        rounds: R. The selected state is always scored at the end.
        every: rounds between scorings, or doubling distances up to 20; 0 scores only the end.
        test_rows: 0 turns scoring off.
    """

    rounds: int
    every: int | Literal["doubling"]
    test_rows: int

    def due(self, rounds: int) -> bool:
        """Whether to score after this many rounds: also after the last if any before it."""
        last = rounds == self.rounds and self.every != 0
        return self.test_rows > 0 and (self._regular(rounds) or last)

    def times(self, rounds: int) -> int:
        """How often held-out rows are scored in a job that ends after this many rounds."""
        if self.test_rows == 0:
            return 0
        return sum(map(self._regular, range(1, rounds))) + 1

    def _regular(self, done: int) -> bool:
        if self.every == "doubling":
            # More scorings would cost a quick job as much as its rounds.
            late = done - DOUBLING_UNTIL
            return late % LATE_SCORINGS == 0 if late > 0 else done.bit_count() == 1
        return self.every > 0 and done % self.every == 0


class HeldOut(ABC):
    """How held-out predictions become a score at the label party.

    Attributes:
        seen: H as last scored, shape (test rows, C), at a label party that sees it.
    """

    seen: FloatArray | None = None

    def check(self, labels: Labels) -> None:  # noqa: B027
        """Refuse held-out rows that cannot be scored, before training."""

    @abstractmethod
    async def give(self, step: int, predictions: FloatArray) -> None:
        """A feature party's part in the scoring of a step."""

    @abstractmethod
    async def score(self, step: int, own: FloatArray, labels: Labels) -> Score:
        """The label party's part, from its own predictions: the score of a step."""


class ByRow(HeldOut):
    """Held-out predictions are gathered row by row, as those of a batch."""

    def __init__(self, party: Party, gathering: Gathering) -> None:
        self._party, self._gathering = party, gathering

    @override
    async def give(self, step: int, predictions: FloatArray) -> None:
        await self._gathering.held_out(step, predictions)

    @override
    async def score(self, step: int, own: FloatArray, labels: Labels) -> Score:
        others = await self._gathering.held_out(step, own)
        assert others is not None  # noqa: S101
        self.seen = own + others
        async with self._party.costs.compute(SCORING):
            return Score.of(step + 1, self.seen, labels, self._party.loss.middle)


class Scoring(ABC):
    """One party's side of scoring.

    Attributes:
        losses: of the exchanged batches, where this party saw them.
        scores: so far, at the label party.
        seen: by rounds, the scored H of two classes where the label party sees it, shape
            (test rows, 1); of the last scorings, as far as there is room.
    """

    def __init__(self, party: Party, timetable: Timetable, inputs: Matrix) -> None:
        self._party, self._timetable, self._inputs = party, timetable, inputs
        self.losses: list[float] = []
        self.scores: list[Score] = []
        self.seen: dict[int, FloatArray] = {}

    def _note(self, score: Score, seen: FloatArray | None) -> None:
        """Keep a score, and what it was computed from."""
        self.scores.append(score)
        if seen is None or score.class_auc is None or seen.shape[1] > 1:
            return
        self.seen[score.rounds] = seen
        if len(self.seen) > max(MOST_SEEN // len(seen), 1):
            del self.seen[min(self.seen)]

    async def stops(self, rounds: int, model: LocalModel, *, loss: float | None) -> bool:
        """Score if scheduled after this round; returns whether training ends here.

        `loss` is that of the exchanged batch, if this party saw it.
        """
        if loss is not None:
            self.losses.append(loss)
        return self._timetable.due(rounds) and await self._score(rounds, model)

    async def ends(self, rounds: int, model: LocalModel, *, first_round: int = 0) -> bool:
        """Score the selected model, unless it has been scored after the same rounds already.

        Its score becomes the last one. An earlier session scored the first `first_round` rounds.
        """
        if not self._timetable.test_rows:
            return False
        if not self._timetable.due(rounds) or rounds <= first_round:
            return await self._score(rounds, model)
        if self.scores and self.scores[-1].rounds != rounds:
            self.scores.append(next(each for each in self.scores if each.rounds == rounds))
        return False

    @abstractmethod
    async def _score(self, rounds: int, model: LocalModel) -> bool:
        """Take part in one scoring; returns whether training ends here."""


class GatheredScoring(Scoring):
    """A feature party sends held-out predictions; the label party scores and may stop training.

    Only the label party has `labels`, and `target_auc`, at which training ends.
    """

    def __init__(
        self,
        party: Party,
        held_out: HeldOut,
        timetable: Timetable,
        *,
        inputs: Matrix,
        labels: Labels | None,
        target_auc: float | None,
    ) -> None:
        if labels is not None:
            held_out.check(labels)
        super().__init__(party, timetable, inputs)
        self._held_out, self._labels, self._target = held_out, labels, target_auc
        self._since = 0

    @override
    async def _score(self, rounds: int, model: LocalModel) -> bool:
        party, round_index = self._party, rounds - 1
        async with party.costs.compute(SCORING):
            own = model.predict(self._inputs)
        if self._labels is None:
            await self._held_out.give(round_index, own)
            _, verdict = await party.channel.receive([party.label_party], Verdict, round_index)
            return verdict.stop
        score = await self._held_out.score(round_index, own, self._labels)
        seen, self._since = self.losses[self._since :], len(self.losses)
        score = replace(score, training_loss=fmean(seen) if seen else None)
        self._note(score, self._held_out.seen)
        stop = self._target is not None and score.auc >= self._target
        await tell(party.channel, party.feature_parties, Verdict(round_index, stop))
        return stop
