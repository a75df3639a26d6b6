"""What is left of a party's part of a job."""

from dataclasses import dataclass
from typing import Literal

from typing_extensions import override

from securevfl.arrays import FloatArray
from securevfl.models.storage import SavedModel
from securevfl.protocols.session.keeping import Kept
from securevfl.protocols.session.leakage import LeakageCount
from securevfl.protocols.session.privacy_account import Promise
from securevfl.protocols.session.scoring import Score
from securevfl.shown import Shown

Ending = Literal["rounds", "target", "settled", "no way down"]
"""What ends training: all rounds are done, the held-out target is reached, or the label party's
loss has settled, or rises whichever way it is tried."""


@dataclass(frozen=True, eq=False)
class PathPoint:
    """One λ₁ of a regularization path.

    Attributes:
        l1: λ₁.
        rounds: done when training at it ended.
        settled: whether it ended because it was good enough.
        model: this party's part of the model at its end.
        objective: of all parties' models, at the label party, before weights that were about to
            become 0 are set to it.
        gap: bound on how far that was above the least one, as a part of it, at the label party.
    """

    l1: float
    rounds: int
    settled: bool
    model: SavedModel
    objective: float | None = None
    gap: float | None = None


@dataclass(frozen=True, eq=False, repr=False)
class PartyOutcome(Shown):
    """What one party's program returns.

    Attributes:
        model: its trained part.
        rounds: rounds done.
        scores: held-out scores, at the label party.
        key_fingerprint: of its own homomorphic key, if any.
        key_bits: of that key, if its scheme has a choice.
        leakage: what the gradients it decrypted reveal.
        held_out: its own exact predictions of the held-out rows after the last round.
        ended: what ended them.
        learned: at the label party, whether the training loss has ended below that of the best
            constant, as far as it could see.
        privacy: what the job's noise promises; None where there is none.
        kept: which state the model is, and what this party saw of it.
        path: by λ₁, of algorithms that have an L1 path.
        losses: of fedsgd and fedbcd at the label party, of the batch of every round of this run as
            it was exchanged, in the targets' units; empty where it sees none without noise.
        failure: bound on the probability that a truncation of its went wrong, and the job with it.
    """

    model: SavedModel
    rounds: int
    scores: list[Score]
    key_fingerprint: str | None
    key_bits: int | None
    leakage: LeakageCount
    held_out: FloatArray
    ended: Ending
    learned: bool
    privacy: Promise | None
    kept: Kept
    path: tuple[PathPoint, ...] = ()
    losses: tuple[float, ...] = ()
    failure: float = 0.0

    @override
    def shown(self) -> dict[str, object]:
        """Whose it is, and how it ended."""
        return {"party": self.model.header.party, "rounds": self.rounds, "ended": self.ended}
