"""Which state a job keeps: the last one, or an earlier one where that was clearly better.

Steps that are too long, batches that are too small or noise that is too strong can undo what was
learned. So every party keeps its own weights of some rounds, the same ones at all, and at the end
the label party says once of which round all keep theirs: the last, unless what it saw of an
earlier one was better by more than chance explains. It goes by its training loss where it sees
that, and else by its held-out scores.

Learns:
    feature party: that round, at most log2(`MOST_SNAPSHOTS` + 1) bits of labels once a job; nothing
        where noise on residuals is all that it may see of labels.
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
from securevfl.protocols.session.party import Party
from securevfl.protocols.session.scoring import Score
from securevfl.wire.codec import Message, message_kind

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

    Args:
        eligible: rounds to choose from, in order: those that are scored, or else all.
        numbers: in the weights of the largest party.
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
        chance: standard error of that of scores that say nothing, of the held-out rows.
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
        """The losses of the states up to one."""
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
        """Whether one window of losses lies so far above another that it is neither chance."""
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

    Args:
        party: who it is.
        model: what it trains.
        due: see `snapshot_rounds`.
        told: whether the label party may tell the others what it saw.
        hindsight: what that is, at the label party.
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
        """Note what a round was like, and keep the weights after it if it is due.

        Args:
            rounds: done.
            scores: so far, at the label party.
            loss: of what was exchanged in the last one; None where it tells nothing.
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
            PeerError: the label party failed, or names a state that nobody keeps.
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
