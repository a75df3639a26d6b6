"""One party's part of a job whose parameters stay in shares."""

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray
from typing_extensions import override

from securevfl.arrays import FloatArray
from securevfl.protocols.blind.offline import Offline
from securevfl.protocols.blind.rounds import BlindRounds, SharedWeights, Shares, require_range
from securevfl.protocols.blind.schedule import BlindJob
from securevfl.protocols.blind.scoring import establish_scoring
from securevfl.protocols.session.agreement import Agreement
from securevfl.protocols.session.leakage import LeakageCount
from securevfl.protocols.session.scoring import Scoring
from securevfl.protocols.vertical.runner import Part, Seen, Training
from securevfl.runtime.costs import SETUP


class BlindPart(Part):
    """Everything is made ahead, all rounds are taken in shares, and the end reveals θ.

    Its shares are in a basis of its own, which what all agree on depends on: a session that goes on
    needs it first.
    """

    restores_first = True

    def __init__(self, training: Training) -> None:
        super().__init__(training)
        self._shares = Shares.of(training)

    @override
    async def agree(self) -> Agreement:
        """Say what its columns are in their basis."""
        resumes = self.training.workplace.resume is not None
        self._blind = await BlindJob.of(self.training, self._shares.whitening if resumes else None)
        self.failure = self._blind.failure
        return self._blind.agreement

    @override
    async def establish(self, agreement: Agreement, leakage: LeakageCount) -> Scoring:
        """Make everything ahead, or take what was made."""
        training, shares, blind = self.training, self._shares, self._blind
        scoring = await establish_scoring(training, agreement)
        state = training.workplace.resume
        first = 0 if state is None else state.rounds
        self._offline = offline = await Offline.of(blind, first, shares.held)
        async with training.party.costs.compute(SETUP):
            offline.prepare()
        self._start = start = training.part.model.weights[:, 0]
        self._seen = offline.whitening[1] @ start
        self._own = SharedWeights(self._seen, blind.widths, offline.scales)
        if state is not None:
            self._own.go_on(shares.own)
        self._rounds = BlindRounds(blind, self._own, offline)
        return scoring

    @override
    def begin(self) -> None:
        """Keep the shares that owners begin with."""
        self._shares.begin(self._own, self._offline.whitening)

    @override
    async def round(self, index: int) -> Seen:
        """Take one round in shares; the last one reveals every owner's parameters."""
        each = self._blind.schedule.rounds[index]
        await self._rounds.take(each, self._blind.batches[index].labels)
        self._shares.after(each.index, self._own, self._offline.pads)
        await self._offline.after(each)
        if each.index == self.training.plan.rounds - 1:
            moved = await self._rounds.reveal() - self._seen
            await self._reveal(self._start + self._offline.whitening[0] @ moved)
        return Seen()

    async def _reveal(self, weights: FloatArray) -> None:
        """Make what was revealed this party's model, if it is of any use.

        Raises:
            RangeExceeded: predictions left what logistic residuals were computed for.
            PeerError: a peer failed.
        """
        part, series = self.training.part, self._blind.series
        part.model.weights = weights[:, None]
        if series is not None:
            await require_range(self.training.party, part.inputs @ weights, series)

    @override
    def arrays(self) -> Mapping[str, NDArray[Any]]:
        """Its shares."""
        return self._shares.arrays()

    @override
    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Put them back."""
        self._shares.restore(arrays)
