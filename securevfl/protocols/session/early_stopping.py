"""Early stopping and checkpoint selection: the label party's word on where a job is heading.

*Course.* The label party has the loss of every exchange anyway. Once a round, before it gives
residuals, it says one of four things in two bits: this point is the best so far, keep it; the loss
has gone up, go back to the best one and move half as far; it no longer falls, training ends; or
none of these. The last word may also be to go back and end there.

*Which state is kept.* Steps that are too long, batches that are too small or noise that is too
strong can undo what was learned. So every party keeps its own weights of some rounds, the same ones
at all, and at the end the label party says once of which round all keep theirs: the last, unless
what it saw of an earlier one was better by more than chance explains. It goes by its training loss
where it sees that, and else by its held-out scores.

Learns:
    feature party: every word, and so how many rounds the label party's loss took to settle. It is a
        function of labels that no other guard counts, at most two bits a round and one at the end.
        The round that is kept: at most log2(`MOST_SNAPSHOTS` + 1) bits of labels once a job;
        nothing where noise on residuals is all that it may see of labels.
    label party: nothing.
Source: docs/decisions/0025-which-state-is-kept.md.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import hypot, inf, isfinite, sqrt
from statistics import fmean, stdev
from typing import Literal

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.errors import TrainingDiverged, UnexpectedMessage
from securevfl.models.local_model import LocalModel
from securevfl.protocols.session.gathering import Party
from securevfl.protocols.session.scoring import Score
from securevfl.wire.codec import Message, StepMessage, message_kind

SHORTEST_WINDOW, LONGEST_WINDOW = 5, 20
PATIENCE = 3
MOST_WAYS_BACK = 5
NOISY_RISE = 0.05


@message_kind(14, stage="round", shows="course")
class Course(StepMessage):
    """The label party's word before residuals: one of the three, none, or back and stop."""

    keep: bool = False
    back: bool = False
    stop: bool = False


@dataclass
class Judge:
    """What losses say of a run.

    With minibatches or noise single losses say little: they count in windows, and a rise only
    beyond thrice its standard error and a part of the baseline.

    Attributes:
        baseline: the loss of the best constant prediction.
        tolerance: training ends once `PATIENCE` windows together gain less, as a part of the
            baseline; 0 never ends it.
        window: rounds whose mean counts as one loss; 1 for full batches without noise.
        losses: of rounds since the last way back.
        bests: the least mean so far, after every round that was no way back.
        ways_back: since the last best one.
    """

    baseline: float
    tolerance: float
    window: int = 1
    losses: list[float] = field(default_factory=list)
    bests: list[float] = field(default_factory=list)
    ways_back: int = 0

    def course(self, index: int, loss: float, *, majorizes: bool = False) -> Course:
        """What to say of a round whose exchange showed a loss.

        Where steps are short enough whatever the data (`majorizes`), a loss that rises is L2
        pulling back or momentum, and no reason to go back.
        """
        if not isfinite(loss):
            return self._way_back(index)
        self.losses.append(loss)
        recent = self.losses[-self.window :]
        mean = fmean(recent) if len(recent) == self.window else inf
        best = self.bests[-1] if self.bests else inf
        if (not self.bests and len(self.losses) == 1) or mean < best:
            self.bests.append(mean)
            self.ways_back = 0
            settled = self._settled()
            return Course(index, keep=not settled, stop=settled)
        if mean == inf:
            return Course(index)
        if mean > best + self._tolerated(recent):
            return Course(index, stop=self._steady()) if majorizes else self._way_back(index)
        self.bests.append(best)
        return Course(index, stop=self._settled())

    @property
    def learned(self) -> bool:
        """Whether the loss has fallen below that of the best constant, and stayed there."""
        recent = self.losses[-self.window :]
        if len(recent) < self.window and self.bests and self.bests[-1] < inf:
            return self.bests[-1] < self.baseline
        return bool(recent) and fmean(recent) < self.baseline

    def state(self) -> dict[str, FloatArray]:
        """What it takes to go on."""
        held = {"losses": self.losses, "bests": self.bests, "ways back": [float(self.ways_back)]}
        return {name: np.array(each) for name, each in held.items()}

    def resume(self, state: Mapping[str, FloatArray]) -> None:
        """Go on from a state."""
        self.losses, self.bests = state["losses"].tolist(), state["bests"].tolist()
        self.ways_back = int(state["ways back"][0])

    def _way_back(self, index: int) -> Course:
        self.losses = []
        self.ways_back += 1
        return Course(index, back=True, stop=self.ways_back == MOST_WAYS_BACK)

    def _tolerated(self, recent: list[float]) -> float:
        """How far a mean may rise above the best one."""
        if self.window == 1:
            return self.tolerance * self.baseline
        return NOISY_RISE * self.baseline + 3 * stdev(recent) / sqrt(self.window)

    def _steady(self) -> bool:
        """Whether the loss, above the best one, stays where it is."""
        recent = self.losses[-1 - PATIENCE :]
        return len(recent) > PATIENCE and max(recent) - min(recent) < self.tolerance * self.baseline

    def _settled(self) -> bool:
        rounds = PATIENCE * self.window
        if len(self.bests) <= rounds:
            return False
        return self.bests[-1 - rounds] - self.bests[-1] < self.tolerance * self.baseline


class Watch:
    """One party's side of the label party's word.

    `judge` is there at the label party alone; where the others are not `told`, nothing is said.
    """

    def __init__(self, party: Party, judge: Judge | None, *, told: bool) -> None:
        self._party, self.judge, self._told = party, judge, told

    async def course(self, index: int, loss: float | None, *, majorizes: bool) -> Course:
        """Give the word of a round, from the loss of what was exchanged, or take it.

        Raises:
            UnexpectedMessage: a word that contradicts itself.
        """
        party, judge = self._party, self.judge
        if judge is None and self._told:
            sender, course = await party.channel.receive([party.label_party], Course, index)
            if course.keep and (course.back or course.stop):
                raise UnexpectedMessage(f"{sender} says to keep a point and to leave it")
            return course
        if judge is None:
            return Course(index)
        assert loss is not None  # noqa: S101
        if not self._told:
            judge.losses.append(loss)
            return Course(index)
        course = judge.course(index, loss, majorizes=majorizes)
        for name in party.feature_parties:
            await party.channel.send(name, course)
        return course


EARLY, EVEN = 8, 12
MOST_SNAPSHOTS = EARLY + EVEN
MOST_NUMBERS = 1 << 24
"""In all snapshots of one party; of large networks there are fewer."""
FEWEST_SNAPSHOTS = 4
CLEAR_RISE = 0.05
CLEAR_FALL = 0.02
ERRORS = 3.0
LARGEST_WEIGHT = 1e100
"""Predictions by weights of a larger norm could leave float64, and could not be sent."""


@message_kind(50, stage="evaluation")
class KeepState(Message):
    """The label party's word at the end: all keep their state after so many rounds."""

    rounds: int


@dataclass(frozen=True)
class Kept:
    """The state that a job keeps, as one party knows it.

    Attributes:
        rounds: after which it was.
        done: rounds of the job.
        seen: what told the label party that the end is worse; None where nothing did.
        better: rounds after which it was better.
        since: the first round that was clearly worse.
        best: the loss, or the held-out figure, of the state that is better.
        last: the same of the end.
        lost: rounds done when this party's weights left float64; None where they did not.
    """

    rounds: int
    done: int
    seen: Literal["loss", "score"] | None = None
    better: int = 0
    since: int = 0
    best: float = 0.0
    last: float = 0.0
    lost: int | None = None

    @property
    def went_wrong(self) -> bool:
        """Whether the end is worse than what was there before, kept or not."""
        return self.seen is not None or self.lost is not None


def snapshot_rounds(eligible: Sequence[int], numbers: int) -> frozenset[int]:
    """Rounds after which all parties keep their weights: close together early on, then even.

    They are chosen from `eligible` ones, in order: those that are scored, or else all. `numbers`
    are in the weights of the largest party.
    """
    last = len(eligible)
    most = min(MOST_SNAPSHOTS, max(FEWEST_SNAPSHOTS, MOST_NUMBERS // max(numbers, 1)))
    early = most * EARLY // MOST_SNAPSHOTS
    close, even = np.geomspace(1, last, early + 1)[:-1], np.linspace(0, last, most - early + 1)[1:]
    places = np.unique(np.rint(np.hstack([close, even]))).astype(int)
    return frozenset(eligible[place - 1] for place in places)


@dataclass
class Hindsight:
    """What the label party saw of a job's states.

    Attributes:
        baseline: the loss of the best constant prediction.
        window: rounds whose mean counts as one loss.
        chance: standard error of held-out scores that say nothing.
        losses: by rounds done before, as exchanged in the next one.
        figures: held-out AUC, or R² of real targets, by rounds done.
    """

    baseline: float
    window: int
    chance: float
    losses: list[float] = field(default_factory=list)
    figures: dict[int, float] = field(default_factory=dict)

    def saw(self, loss: float) -> None:
        """Note the loss of a round."""
        self.losses.append(loss if isfinite(loss) else inf)

    def judge(self, snapshots: Collection[int], done: int) -> Kept:
        """The state to keep, of these rounds or the last."""
        earlier = sorted(each for each in snapshots if each < done)
        return self._by_loss(earlier, done) or self._by_score(earlier, done) or Kept(done, done)

    def learned(self, kept: Kept) -> bool:
        """Whether the training loss of a state is below that of the best constant."""
        seen = self._until(kept.rounds) if kept.rounds < kept.done else self.losses[-self.window :]
        return not seen or fmean(seen) < self.baseline

    def _until(self, rounds: int) -> list[float]:
        return self.losses[max(0, rounds + 1 - self.window) : rounds + 1]

    def _by_loss(self, earlier: list[int], done: int) -> Kept | None:
        earlier = [each for each in earlier if self.window <= each + 1 <= len(self.losses)]
        if not earlier:
            return None
        best = min(earlier, key=lambda each: fmean(self._until(each)))
        least, last = self._until(best), self.losses[-self.window :]
        if not self._rises(least, last):
            return None
        # Of those that are as good by their loss.
        as_good = [each for each in earlier if not self._rises(least, self._until(each))]
        best = max(as_good, key=lambda each: (self.figures.get(each, 0.0), each == best))
        better = self.figures.get(done, 0.0) > self.figures.get(best, 1.0) + self._fall
        if better and fmean(last) < self.baseline:
            return None
        rounds = range(best + 1, len(self.losses))
        since = next((each for each in rounds if self._rises(least, self._until(each))), done)
        return Kept(best, done, "loss", best, since, fmean(least), fmean(last))

    def _rises(self, least: list[float], recent: list[float]) -> bool:
        """Whether one window of losses lies above another by more than chance."""
        low, high = fmean(least), fmean(recent)
        if not isfinite(high):
            return isfinite(low)
        undone = low < self.baseline <= high
        errors = hypot(*(stdev(each) if len(each) > 1 else 0.0 for each in (least, recent)))
        chance = (1.0 if undone else ERRORS) * errors / sqrt(self.window)
        return high > low + CLEAR_RISE * self.baseline + chance

    @property
    def _fall(self) -> float:
        return max(CLEAR_FALL, ERRORS * self.chance)

    def _by_score(self, earlier: list[int], done: int) -> Kept | None:
        scored = [each for each in earlier if each in self.figures]
        if not scored or done not in self.figures:
            return None
        best, last = max(scored, key=self.figures.__getitem__), self.figures[done]
        floor = self.figures[best] - self._fall
        if last >= floor:
            return None
        since = min(each for each in self.figures if each > best and self.figures[each] < floor)
        return Kept(best, done, "score", best, since, self.figures[best], last)

    def arrays(self) -> dict[str, FloatArray]:
        """What it takes to go on."""
        return {
            "losses": np.array(self.losses),
            "scored": np.array(list(self.figures), np.float64),
            "figures": np.array(list(self.figures.values())),
        }

    def restore(self, arrays: Mapping[str, FloatArray]) -> None:
        """Go on from there."""
        self.losses = arrays["losses"].tolist()
        self.figures = dict(
            zip(arrays["scored"].astype(int).tolist(), arrays["figures"], strict=True)
        )


class Keeper:
    """One party's snapshots of what it trains, and its side of the word at the end.

    `due` are `snapshot_rounds`. `hindsight` is the label party's alone, and the others hear of it
    where they may be `told`.
    """

    def __init__(
        self,
        party: Party,
        model: LocalModel,
        due: Collection[int],
        *,
        told: bool,
        hindsight: Hindsight | None = None,
    ) -> None:
        self._party, self._model, self._due, self._told = party, model, due, told
        self.hindsight = hindsight
        self.snapshots: dict[int, FloatArray] = {}
        self.lost: int | None = None

    def after(self, rounds: int, scores: Sequence[Score], *, loss: float | None) -> None:
        """Note a round's loss and score, and keep the weights after it if it is due.

        `loss` is of what was exchanged; None where it tells nothing.
        """
        if self.hindsight is not None and loss is not None:
            self.hindsight.saw(loss)
        if self.hindsight is not None and scores and scores[-1].rounds == rounds:
            self.hindsight.figures[rounds] = scores[-1].figure
        if rounds in self._due:
            self.snapshots[rounds] = self._model.weights

    @contextmanager
    def watches(self, rounds: int) -> Iterator[None]:
        """Around steps: where they lead out of float64 the weights stay where they were.

        Raises:
            TrainingDiverged: they do before there is any state to go back to.
        """
        model, start = self._model, self._model.weights
        told = TrainingDiverged("training diverged: use a smaller learning rate")
        try:
            yield
        except TrainingDiverged as error:
            model.weights, told = np.full_like(start, inf), error
        weights = model.weights.ravel()
        with np.errstate(over="ignore", invalid="ignore"):
            length = weights @ weights
        if not length < LARGEST_WEIGHT**2:
            model.weights, self.lost = start, rounds
            if not self.snapshots:
                raise told

    async def end(self, done: int) -> Kept:
        """Say, or hear, which state is kept, and go back to it.

        Raises:
            UnexpectedMessage: the label party names a state that nobody keeps.
        """
        kept, party = Kept(done, done), self._party
        if self.hindsight is not None:
            kept = self.hindsight.judge(self.snapshots, done)
            if not self._told:
                kept = replace(kept, rounds=done)
            for name in party.feature_parties if self._told else ():
                await party.channel.send(name, KeepState(kept.rounds))
        elif self._told:
            sender, word = await party.channel.receive([party.label_party], KeepState)
            if word.rounds != done and word.rounds not in self.snapshots:
                raise UnexpectedMessage(f"{sender} goes back to round {word.rounds}, kept by none")
            kept = Kept(word.rounds, done)
        if kept.rounds != done:
            self._model.weights = self.snapshots[kept.rounds]
        return replace(kept, lost=self.lost)

    def arrays(self) -> dict[str, FloatArray]:
        """What it takes to go on."""
        snapshots = {str(rounds): weights for rounds, weights in self.snapshots.items()}
        return snapshots | ({} if self.hindsight is None else self.hindsight.arrays())

    def restore(self, arrays: Mapping[str, FloatArray]) -> None:
        """Go on from there."""
        self.snapshots = {int(name): each for name, each in arrays.items() if name.isdecimal()}
        if self.hindsight is not None:
            self.hindsight.restore(arrays)
