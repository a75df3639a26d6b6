"""Scoring new rows between organizations: connect, meet, align the rows' ids, score, end.

Every party brings a file of rows of its own. Those whose ids all bring are scored with the parts of
the model that a job has left at each, by the same coroutine as in `securevfl predict`.

Learns:
    every party: how many rows each brings, and which of its own all have (`alignment`).
    label party: H of these rows, and of it what `protocols.predicting` says.
Guarantees: whatever is interrupted, the scores are those of an undisturbed run, and count once. The
    ids that a party brings are its own claim: the label party chooses whom it asks about, which
    only the quota and the feature guard bound.
"""

import hmac
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from typing_extensions import override

from securevfl.arrays import FloatArray
from securevfl.data.ids import ids_alike
from securevfl.data.tables import fingerprint, row_digests
from securevfl.errors import ConfigError, DataError, PeerViolation
from securevfl.models.storage import SavedModel, load_model
from securevfl.parties.alignment import align
from securevfl.parties.meeting import ALIGNMENT, SCORING, Meeting, Programs, Score
from securevfl.parties.recovery import Network, Recovering, Seat
from securevfl.protocols.guards.people import Digests
from securevfl.protocols.predicting import ScoringPlace, ScoringPlan, score_rows
from securevfl.scoring.running import trained_in
from securevfl.scoring.sources import RowsToScore

MOST_ALIGNED = 20
"""Times that one command compares ids."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ScoringSeat(Seat):
    """What a party brings to a scoring.

    Attributes:
        model: its part, see `own_part`.
        rows: of its own file.
        count: counts scores by their marks before they are given away, and refuses too many.
    """

    plan: ScoringPlan
    model: SavedModel
    rows: RowsToScore
    count: Callable[[Digests], None] = lambda marks: None


@dataclass(frozen=True, eq=False)
class ScoredRows:
    """A party's own rows that were scored.

    Attributes:
        predictions: H, shape (rows, C), at the label party.
    """

    rows: RowsToScore
    predictions: FloatArray | None


def own_part(folder: Path, plan: ScoringPlan, name: str) -> SavedModel:
    """A party's part of the model of an agreement; a DataError if there is none."""
    path = folder / f"{name}.safetensors"
    if not path.exists():
        raise DataError(f"no model file {path}: securevfl party run makes it")
    model = load_model(path)
    if model.header.party != name or not trained_in(plan, model):
        raise DataError(f"model file {path} is of another job than the agreement")
    return model


async def score(
    seat: ScoringSeat, network: Network, save: Callable[[ScoredRows], None]
) -> ScoredRows:
    """Take a party through a scoring, however often it is interrupted.

    Args:
        seat: what it brings.
        network: connects it with its peers.
        save: keeps its result; called before any peer is told that it has one.

    Raises:
        JobEnded: a peer ended the scoring.
        PeerViolation: a peer broke the protocol, or has another agreement, model or rows.
        SecureVFLError: this party does not take part; its peers are told the error's name alone.
    """
    return await _Scoring(seat, save).until_over(network)


class _Scoring(Recovering[ScoredRows]):
    def __init__(self, seat: ScoringSeat, save: Callable[[ScoredRows], None]) -> None:
        super().__init__(seat, Programs({name: name for name in seat.agreement.names}))
        self._seat: ScoringSeat = seat
        self._save, self._attempts, self._released = save, 0, False

    @override
    async def attempt(self, meeting: Meeting) -> None:
        header = self._seat.model.header
        given = {"model": header.job_hash, "rounds": header.rounds}
        ours = self.first(Score, **given, finished=self.finished is not None)
        meets = await self.greet(meeting, ours)
        for name, theirs in meets.items():
            if (theirs.model, theirs.rounds) != (ours.model, ours.rounds):
                raise PeerViolation(
                    f"{name} has a part of job {theirs.model[:16]} after {theirs.rounds} rounds, "
                    f"here of {ours.model[:16]} after {ours.rounds}"
                )
        if not all(each.finished for each in meets.values()):
            await self._score(meeting, meets)
        await self.end(meeting, header.rounds)

    async def _score(self, meeting: Meeting, meets: dict[str, Score]) -> None:
        self._require_another()
        seat = self._seat
        with seat.runs() as runs:
            aligning, scoring = (
                meeting.channel(stage, seat.name, partial(self.made, runs))
                for stage in (ALIGNMENT, SCORING)
            )
            digest = await self.barrier(meeting, meets)
            seat.told.channel(aligning)
            seat.told.phase("aligning")
            common = await runs.run(
                align(
                    aligning,
                    aligning.costs,
                    names=seat.agreement.names,
                    label_party=seat.agreement.label_party,
                    context=hmac.digest(seat.agreement.hash, b"scoring" + digest, "sha256"),
                    train=[each.encode() for each in seat.rows.ids],
                    limits=seat.limits,
                    progress=seat.told.ids,
                )
            )
            rows = seat.rows.at(common.train)
            people = row_digests(ids_alike(rows.ids))
            self._count(people)
            seat.told.channel(scoring)
            seat.told.phase(f"scoring {len(rows.ids)} rows")
            place = ScoringPlace(
                seat.model,
                rows.features[seat.name],
                bytes.fromhex(fingerprint(rows.ids)),
                seat.records,
                rows.raw.get(seat.name),
                rows.sources[seat.name],
                people,
            )
            predictions = await runs.run(
                score_rows(scoring, scoring.costs, plan=seat.plan, place=place)
            )
        scored = ScoredRows(rows, predictions)
        self._save(scored)
        self.hold(scored)

    def _require_another(self) -> None:
        """Refuse attempts that would tell more than the one that was interrupted."""
        if self._released:
            raise ConfigError(
                "the scoring was interrupted, and noise is released once: the same command scores "
                "again, which is one more release of each row"
            )
        self._attempts += 1
        self._seat.aligns()  # again, too: a peer may bring others than before
        if self._attempts > MOST_ALIGNED:
            raise ConfigError(
                f"interrupted {MOST_ALIGNED} times, and ids are compared anew each time: the same "
                "command scores again"
            )

    def _count(self, people: Digests) -> None:
        """Count what this party gives away: the same row under the same model is the same score."""
        seat = self._seat
        if seat.name == seat.agreement.label_party:
            return
        marks = row_digests(people, seat.model.digest)
        if seat.plan.exchange.adds_noise:
            self._released = True
            marks = np.frombuffer(os.urandom(8 * len(people)), np.uint64)
        seat.count(marks)
