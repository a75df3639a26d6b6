"""Where a job is heading: the label party watches its own training loss and tells all others.

It has the loss of every exchange anyway. Once a round, before it gives residuals, it says one of
four things in two bits: this point is the best so far, keep it; the loss has gone up, go back to
the best one and move half as far; it no longer falls, training ends; or none of these. The last
word may also be to go back and end there.

Learns:
    feature party: that, and so how many rounds the label party's loss took to settle. It is a
        function of labels that no other guard counts, at most two bits a round and one at the end.
    label party: nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, isfinite, sqrt
from statistics import fmean, stdev
from typing import Protocol

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.errors import UnexpectedMessage
from securevfl.protocols.session.party import Party
from securevfl.wire.codec import StepMessage, message_kind

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
        """What to say of a round.

        Args:
            index: the round's.
            loss: of what was exchanged.
            majorizes: whether steps are short enough as it is, whatever the data: a loss that rises
                then is L2 pulling back or momentum, and no reason to go back.
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
        ways_back = np.array([float(self.ways_back)])
        return {
            "losses": np.array(self.losses),
            "bests": np.array(self.bests),
            "ways back": ways_back,
        }

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


class Watch(Protocol):
    """One party's side of the label party's word."""

    async def course(self, index: int, loss: float | None, *, majorizes: bool) -> Course:
        """Give or take the word of a round.

        Args:
            index: the round's.
            loss: at the label party, of what was exchanged.
            majorizes: see `Judge.course`.
        """


class FollowedWatch:
    """A feature party's side: it takes the label party's word."""

    def __init__(self, party: Party) -> None:
        self._party = party

    async def course(self, index: int, loss: float | None, *, majorizes: bool) -> Course:
        """Take the word.

        Raises:
            UnexpectedMessage: one that contradicts itself.
        """
        del loss, majorizes
        party = self._party
        sender, course = await party.channel.receive([party.label_party], Course, index)
        if course.keep and (course.back or course.stop):
            raise UnexpectedMessage(f"{sender} says to keep a point and to leave it")
        return course


class LabelWatch:
    """The label party's side.

    Args:
        party: the label party.
        judge: of its losses.
        told: whether the others hear of it; else nothing is ever said.
    """

    def __init__(self, party: Party, judge: Judge, *, told: bool) -> None:
        self._party, self.judge, self._told = party, judge, told

    async def course(self, index: int, loss: float | None, *, majorizes: bool) -> Course:
        """Judge and, where they listen, tell all others."""
        assert loss is not None  # noqa: S101
        if not self._told:
            self.judge.losses.append(loss)
            return Course(index)
        course = self.judge.course(index, loss, majorizes=majorizes)
        for name in self._party.feature_parties:
            await self._party.channel.send(name, course)
        return course


class NoWatch:
    """A feature party's side where nothing is said."""

    async def course(self, index: int, loss: float | None, *, majorizes: bool) -> Course:
        """Go on."""
        del loss, majorizes
        return Course(index)
