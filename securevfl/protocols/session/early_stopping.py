"""Early stopping and checkpoint selection: what the label party decides from its training loss.

*Early stopping.* The label party computes the loss of every exchange. Once per round, before it
sends residuals, it announces a decision in three flags: this point is the best so far; the loss has
risen, so all parties backtrack to the best point and halve their steps; the loss no longer falls,
so training ends. With none of them training goes on; the last decision may be to backtrack and end.

*Checkpoint selection.* Steps that are too long, batches that are too small or noise that is too
strong can undo what was learned. So every party keeps snapshots of its weights after the same few
rounds. At the end the label party announces once which snapshot becomes the model: the last state,
unless an earlier one was better by more than chance explains. It compares training losses where it
sees them, and held-out scores otherwise.

Learns:
    feature party: every decision, and so how many rounds the label party's loss took to settle. No
        guard counts this function of the labels: at most two bits per round, and one at the end.
        The selected round adds at most log2(`MOST_SNAPSHOTS` + 1) bits of labels per job. Nothing
        is announced where noise on residuals protects labels.
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
from securevfl.runtime.channel import tell
from securevfl.wire.codec import Message, StepMessage, message_kind

SHORTEST_WINDOW, LONGEST_WINDOW = 5, 20
PATIENCE = 3
MOST_BACKTRACKS = 5
NOISY_RISE = 0.05


@message_kind(14, stage="round", shows="stopping")
class Decision(StepMessage):
    """The label party's decision before it sends residuals: go on where no flag is set.

    `best` marks the best point so far, `backtrack` returns to it; `stop` ends training.
    """

    best: bool = False
    backtrack: bool = False
    stop: bool = False


@dataclass
class EarlyStopping:
    """The label party's rule: when to mark a best point, backtrack or stop.

    With minibatches or noise a single loss says little. Means over a window count instead, and a
    rise counts only beyond three standard errors and a share of the baseline.

    Attributes:
        baseline: the loss of the best constant prediction.
        tolerance: training ends once `PATIENCE` windows together gain less than this share of the
            baseline; 0 never ends it.
        window: rounds whose mean counts as one loss; 1 for full batches without noise.
        losses: since the last backtracking.
        bests: the least mean so far, after every round that did not backtrack.
        backtracks: since the last best point.
        most_backtracks: training ends with so many.
    """

    baseline: float
    tolerance: float
    window: int = 1
    losses: list[float] = field(default_factory=list)
    bests: list[float] = field(default_factory=list)
    backtracks: int = 0
    most_backtracks: int = MOST_BACKTRACKS

    def decide(self, index: int, loss: float, *, majorizes: bool = False) -> Decision:
        """The decision after a round's exchange showed a loss.

        Where steps are short enough for any data (`majorizes`), L2 or momentum explains a rise, and
        training does not backtrack.
        """
        if not isfinite(loss):
            return self._backtrack(index)
        self.losses.append(loss)
        recent = self.losses[-self.window :]
        mean = fmean(recent) if len(recent) == self.window else inf
        best = self.bests[-1] if self.bests else inf
        if (not self.bests and len(self.losses) == 1) or mean < best:
            self.bests.append(mean)
            self.backtracks = 0
            settled = self._settled()
            return Decision(index, best=not settled, stop=settled)
        if mean == inf:
            return Decision(index)
        if mean > best + self._tolerated(recent):
            if majorizes:
                return Decision(index, stop=self._steady())
            return self._backtrack(index)
        self.bests.append(best)
        return Decision(index, stop=self._settled())

    @property
    def learned(self) -> bool:
        """Whether the loss has fallen below that of the best constant, and stayed there."""
        recent = self.losses[-self.window :]
        if len(recent) < self.window and self.bests and self.bests[-1] < inf:
            return self.bests[-1] < self.baseline
        return bool(recent) and fmean(recent) < self.baseline

    def arrays(self) -> dict[str, FloatArray]:
        """The state of the rule, by name."""
        held = {"losses": self.losses, "bests": self.bests, "ways back": [float(self.backtracks)]}
        return {name: np.array(each) for name, each in held.items()}

    def restore(self, arrays: Mapping[str, FloatArray]) -> None:
        """Return to a state."""
        self.losses, self.bests = arrays["losses"].tolist(), arrays["bests"].tolist()
        self.backtracks = int(arrays["ways back"][0])

    def _backtrack(self, index: int) -> Decision:
        self.losses = []
        self.backtracks += 1
        stop = self.backtracks == self.most_backtracks
        return Decision(index, backtrack=True, stop=stop)

    def _tolerated(self, recent: list[float]) -> float:
        """How far a mean may rise above the best one."""
        if self.window == 1:
            return self.tolerance * self.baseline
        return NOISY_RISE * self.baseline + 3 * stdev(recent) / sqrt(self.window)

    def _steady(self) -> bool:
        """Whether the loss, above the best one, no longer changes."""
        recent = self.losses[-1 - PATIENCE :]
        return len(recent) > PATIENCE and max(recent) - min(recent) < self.tolerance * self.baseline

    def _settled(self) -> bool:
        rounds = PATIENCE * self.window
        if len(self.bests) <= rounds:
            return False
        return self.bests[-1 - rounds] - self.bests[-1] < self.tolerance * self.baseline


async def shared_decision(
    party: Party,
    rule: EarlyStopping | None,
    index: int,
    loss: float | None,
    *,
    announced: bool,
    majorizes: bool,
) -> Decision:
    """The decision of a round: the label party, which has the `rule`, announces it to the others.

    Where decisions are not `announced`, nobody stops, and the label party only notes the loss.

    Raises:
        UnexpectedMessage: a decision that contradicts itself.
    """
    if rule is None:
        if not announced:
            return Decision(index)
        sender, decision = await party.channel.receive([party.label_party], Decision, index)
        if decision.best and (decision.backtrack or decision.stop):
            raise UnexpectedMessage(f"{sender} calls a point the best one and leaves it")
        return decision
    assert loss is not None  # noqa: S101
    if not announced:
        rule.losses.append(loss)
        return Decision(index)
    decision = rule.decide(index, loss, majorizes=majorizes)
    await tell(party.channel, party.feature_parties, decision)
    return decision


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
class SelectedCheckpoint(Message):
    """The label party's choice at the end: all parties take their state after this many rounds."""

    rounds: int


@dataclass(frozen=True)
class SelectedState:
    """Which state became the model, as one party knows it.

    Attributes:
        rounds: done in that state.
        done: rounds of the job.
        seen: what showed the label party that the end is worse; None where nothing did.
        better: rounds after which it was better.
        since: the first round that was clearly worse.
        best: the loss, or the held-out figure, of the better state.
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


def snapshot_rounds(eligible: Sequence[int], numbers: int) -> frozenset[int]:
    """Rounds after which all parties take a snapshot: close together early on, then evenly spaced.

    They are chosen from `eligible` rounds in ascending order: the scored ones, or all. `numbers` is
    the size of the largest party's weights.
    """
    last = len(eligible)
    most = min(MOST_SNAPSHOTS, max(FEWEST_SNAPSHOTS, MOST_NUMBERS // max(numbers, 1)))
    early = most * EARLY // MOST_SNAPSHOTS
    close, even = np.geomspace(1, last, early + 1)[:-1], np.linspace(0, last, most - early + 1)[1:]
    places = np.unique(np.rint(np.hstack([close, even]))).astype(int)
    return frozenset(eligible[place - 1] for place in places)


@dataclass
class TrainingHistory:
    """Losses and scores by which the label party selects a state.

    Attributes:
        baseline: the loss of the best constant prediction.
        window: rounds whose mean counts as one loss.
        chance: standard error of the held-out score of a model that has learned nothing.
        losses: by rounds done before, as exchanged in the next round.
        figures: held-out AUC, or R² of real targets, by rounds done.
    """

    baseline: float
    window: int
    chance: float
    losses: list[float] = field(default_factory=list)
    figures: dict[int, float] = field(default_factory=dict)

    def add_loss(self, loss: float) -> None:
        """Note the loss of a round."""
        self.losses.append(loss if isfinite(loss) else inf)

    def select(self, snapshots: Collection[int], done: int) -> SelectedState:
        """The state to use as the model: that after one of these rounds, or the last."""
        earlier = sorted(each for each in snapshots if each < done)
        return (
            self._by_loss(earlier, done)
            or self._by_score(earlier, done)
            or SelectedState(done, done)
        )

    def learned(self, selected: SelectedState) -> bool:
        """Whether the training loss of a state is below that of the best constant."""
        seen = self.losses[-self.window :]
        if selected.rounds < selected.done:
            seen = self._until(selected.rounds)
        return not seen or fmean(seen) < self.baseline

    def _until(self, rounds: int) -> list[float]:
        return self.losses[max(0, rounds + 1 - self.window) : rounds + 1]

    def _by_loss(self, earlier: list[int], done: int) -> SelectedState | None:
        earlier = [each for each in earlier if self.window <= each + 1 <= len(self.losses)]
        if not earlier:
            return None
        best = min(earlier, key=lambda each: fmean(self._until(each)))
        least, last = self._until(best), self.losses[-self.window :]
        if not self._rises(least, last):
            return None
        # Several states may be equally good by their loss: scores break the tie.
        as_good = [each for each in earlier if not self._rises(least, self._until(each))]
        best = max(as_good, key=lambda each: (self.figures.get(each, 0.0), each == best))
        better = self.figures.get(done, 0.0) > self.figures.get(best, 1.0) + self._fall
        if better and fmean(last) < self.baseline:
            return None
        rounds = range(best + 1, len(self.losses))
        since = next((each for each in rounds if self._rises(least, self._until(each))), done)
        return SelectedState(best, done, "loss", best, since, fmean(least), fmean(last))

    def _rises(self, least: list[float], recent: list[float]) -> bool:
        """Whether one window of losses exceeds another by more than chance."""
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

    def _by_score(self, earlier: list[int], done: int) -> SelectedState | None:
        scored = [each for each in earlier if each in self.figures]
        if not scored or done not in self.figures:
            return None
        best, last = max(scored, key=self.figures.__getitem__), self.figures[done]
        floor = self.figures[best] - self._fall
        if last >= floor:
            return None
        since = min(each for each in self.figures if each > best and self.figures[each] < floor)
        return SelectedState(best, done, "score", best, since, self.figures[best], last)

    def arrays(self) -> dict[str, FloatArray]:
        """Losses and scores, by name."""
        return {
            "losses": np.array(self.losses),
            "scored": np.array(list(self.figures), np.float64),
            "figures": np.array(list(self.figures.values())),
        }

    def restore(self, arrays: Mapping[str, FloatArray]) -> None:
        """Return to a state."""
        self.losses = arrays["losses"].tolist()
        self.figures = dict(
            zip(arrays["scored"].astype(int).tolist(), arrays["figures"], strict=True)
        )


class CheckpointSelection:
    """One party's snapshots, and its side of the selection at the end.

    Only the label party has a `history`. Feature parties learn the choice if it is `announced`.
    """

    def __init__(
        self,
        party: Party,
        model: LocalModel,
        snapshot_rounds: Collection[int],
        *,
        announced: bool,
        history: TrainingHistory | None = None,
    ) -> None:
        self._party, self._model = party, model
        self._rounds, self._announced = snapshot_rounds, announced
        self.history = history
        self.snapshots: dict[int, FloatArray] = {}
        self.lost: int | None = None

    def after(self, rounds: int, scores: Sequence[Score], *, loss: float | None) -> None:
        """Note a round's loss and score, and take a snapshot if one is scheduled.

        `loss` is of the exchanged batch; None where this party did not see it.
        """
        if self.history is not None and loss is not None:
            self.history.add_loss(loss)
        if self.history is not None and scores and scores[-1].rounds == rounds:
            self.history.figures[rounds] = scores[-1].figure
        if rounds in self._rounds:
            self.snapshots[rounds] = self._model.weights

    @contextmanager
    def undoing_divergence(self, rounds: int) -> Iterator[None]:
        """Undo local steps that leave float64; a TrainingDiverged if there is no snapshot."""
        model, start = self._model, self._model.weights
        failure = TrainingDiverged("training diverged: use a smaller learning rate")
        try:
            yield
        except TrainingDiverged as error:
            model.weights, failure = np.full_like(start, inf), error
        weights = model.weights.ravel()
        with np.errstate(over="ignore", invalid="ignore"):
            length = weights @ weights
        if not length < LARGEST_WEIGHT**2:
            model.weights, self.lost = start, rounds
            if not self.snapshots:
                raise failure

    async def finish(self, done: int) -> SelectedState:
        """Announce or receive the choice, and return to the selected state.

        Raises:
            UnexpectedMessage: the label party names a state without a snapshot here.
        """
        selected, party = SelectedState(done, done), self._party
        if self.history is not None:
            selected = self.history.select(self.snapshots, done)
            if not self._announced:
                selected = replace(selected, rounds=done)
            if self._announced:
                choice = SelectedCheckpoint(selected.rounds)
                await tell(party.channel, party.feature_parties, choice)
        elif self._announced:
            sender, choice = await party.channel.receive([party.label_party], SelectedCheckpoint)
            if choice.rounds != done and choice.rounds not in self.snapshots:
                raise UnexpectedMessage(
                    f"{sender} goes back to round {choice.rounds}, of which there is no snapshot"
                )
            selected = SelectedState(choice.rounds, done)
        if selected.rounds != done:
            self._model.weights = self.snapshots[selected.rounds]
        return replace(selected, lost=self.lost)

    def arrays(self) -> dict[str, FloatArray]:
        """Snapshots and history, by name."""
        snapshots = {str(rounds): weights for rounds, weights in self.snapshots.items()}
        return snapshots | ({} if self.history is None else self.history.arrays())

    def restore(self, arrays: Mapping[str, FloatArray]) -> None:
        """Return to a state."""
        self.snapshots = {int(name): each for name, each in arrays.items() if name.isdecimal()}
        if self.history is not None:
            self.history.restore(arrays)
