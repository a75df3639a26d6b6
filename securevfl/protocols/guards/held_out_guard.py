"""The held-out guard: how much scoring can reveal to the label party about a feature party's rows.

A scoring shows the label party H_test = X_test·θ, alone or in a sum: C columns in the column space
of X_test. Once it has as many columns as X_test has rank, as many known rows reveal the features of
all other rows exactly (`attacks.held_out`). The guard allows fewer columns than the rank where
rounds show every H_k of training rows anyway. Elsewhere it allows `LIMIT` of the rank: at that
limit an attacker that knew four times as many rows as the rank reduced its error by less than a
tenth. One scoring, at the end, is always allowed.

The feature party counts, since only it knows its rank and its rows are at stake. It counts per row
and over all jobs: every other θ adds a column. A row is recognized by its columns in the party's
file, before preprocessing that depends on training rows. A party that chooses other columns starts
a new count.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from pydantic import PositiveInt, TypeAdapter, ValidationError

from securevfl.arrays import FloatArray
from securevfl.errors import DataError, HeldOutLeakRefused
from securevfl.files import only_one, replace_file
from securevfl.models.storage import SavedModel
from securevfl.protocols.guards.label_guard import least
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.gathering import Party
from securevfl.protocols.session.workplace import Workplace
from securevfl.sparse import Matrix, SparseRows, dense

LIMIT = 1 / 32
RANKED_VALUES = 1 << 22

Shown = dict[str, int]
_SHOWN = TypeAdapter(dict[str, PositiveInt])
_SCORED = TypeAdapter(list[str])
RECORD = "held-out guard record"
NAMED_ROWS = 256
T = TypeVar("T")


def names_of_rows(features: Matrix) -> list[str]:
    """Names of rows by their unscaled columns, shape (rows, P); equal rows have equal names."""
    names = []
    for first in range(0, len(features), NAMED_ROWS):
        block = dense(features[first : first + NAMED_ROWS])
        rows = np.ascontiguousarray(block + 0.0, dtype="<f8")  # -0.0 becomes 0.0
        names += [hashlib.sha256(row.tobytes()).hexdigest()[:24] for row in rows]
    return names


def names_under_model(rows: Sequence[str], digest: str) -> list[str]:
    """Names of rows under a model: scoring them again shows nothing new."""
    return [hashlib.sha256(f"{row} under {digest}".encode()).hexdigest()[:24] for row in rows]


@dataclass(frozen=True)
class HeldOutCount:
    """What a job's scorings would show.

    Attributes:
        scorings: the most that this job takes.
        outputs: C, columns per scoring.
        rank: of the party's scaled held-out columns.
        rounds_show: whether rounds show the same of training rows.
    """

    scorings: int
    outputs: int
    rank: int
    rounds_show: bool = False

    @property
    def allowed(self) -> int:
        """Columns that may be shown: `LIMIT` of the rank or rank − 1, at least one scoring's."""
        most = self.rank - 1 if self.rounds_show else int(LIMIT * self.rank)
        return max(self.outputs, most)

    def planned(self, earlier: Shown, rows: Sequence[str], *, resumes: bool) -> Shown:
        """Columns shown of each of these rows after the job.

        `earlier` counts all rows of earlier jobs; a job that resumes is among these.
        """
        own = self.scorings * self.outputs
        shown = {row: earlier.get(row, 0) for row in rows}
        return {row: max(own, n) if resumes else n + own for row, n in shown.items()}

    def require_below_limit(self, columns: int, remedy: str = "score less often") -> None:
        """Refuse more columns of a row's predictions than are allowed."""
        if columns <= self.allowed:
            return
        before = columns - self.scorings * self.outputs
        earlier = f" after {before} of earlier jobs" if before > 0 else ""
        raise HeldOutLeakRefused(
            f"held-out guard: {self.scorings} scorings x {self.outputs} outputs{earlier} show "
            f"{columns} columns of held-out predictions, at most {self.allowed} expected for "
            f"features of rank {self.rank}: as many as the rank reveal every row to a party that "
            f"knows some; "
            f"{remedy}, hold out other rows, or set allow_feature_leak = true"
        )


class HeldOutRecord:
    """On disk: columns of held-out predictions shown by earlier jobs, by row.

    A job is recorded before it starts, so a killed job counts. A second file has the rows that each
    model scored.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / "held-out.json"
        self._models_path = directory / "scored.json"

    def load(self) -> Shown:
        """Columns shown so far; DataError if the record cannot be read."""
        return _read(self.path, _SHOWN, {})

    def save(self, shown: Callable[[], Shown]) -> None:
        """Replace the record atomically by a count made under its lock.

        Raises:
            DataError: it cannot be written; then the job must not run.
        """
        with only_one(self.path, RECORD):
            replace_file(self.path, json.dumps(shown()).encode(), RECORD)

    def load_scored(self) -> set[str]:
        """The rows scored under each model, see `names_under_model`."""
        names: list[str] = _read(self._models_path, _SCORED, [])
        return set(names)

    def note_scored(self, names: Sequence[str]) -> None:
        """Record rows as scored under a model; `save` counts them."""
        with only_one(self._models_path, RECORD):
            scored = sorted(self.load_scored() | set(names))
            replace_file(self._models_path, json.dumps(scored).encode(), RECORD)


def _read(path: Path, kind: TypeAdapter[T], empty: T) -> T:
    try:
        return kind.validate_json(path.read_bytes(), strict=True)
    except FileNotFoundError:
        return empty
    except OSError as error:
        raise DataError(f"{RECORD} {path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise DataError(f"{RECORD} {path} is damaged: {error.errors()[0]['msg']}") from error


def require_held_out_guard(
    party: Party, plan: Plan, place: Workplace, held_out: Matrix
) -> Callable[[], None]:
    """Refuse a job whose scorings would show too much of this party's held-out rows.

    Nothing is counted at the label party, where scoring shows no single rows, or where rounds show
    as much of training rows anyway (`Exchange.counts_held_out`).

    Returns:
        A function that checks again and records the job. Call it before the first round, once no
            other party can refuse: a job that never ran must not use up the allowance.

    Raises:
        HeldOutLeakRefused: it would show too much.
        DataError: the record of earlier jobs cannot be read.
    """
    record = _record(party, plan, place)
    if record is None:
        return lambda: None
    rank = rank_of(held_out)
    rounds_show = plan.learns.predictions == "singly"
    scorings = plan.timetable.times(plan.rounds)
    count = HeldOutCount(scorings, plan.loss.outputs, rank, rounds_show)
    names = names_of_rows(place.data.table.held_out_rows)

    def counted() -> dict[str, int]:
        earlier = record.load()
        after = count.planned(earlier, names, resumes=place.resume is not None)
        columns = max(after.values())
        if not plan.job.job.allow_feature_leak:
            remedy = ""
            if columns > count.allowed:
                remedy = _remedy(plan, (count.allowed - columns) // count.outputs + scorings)
            count.require_below_limit(columns, remedy)
        return earlier | after

    counted()
    return lambda: record.save(counted)


def rank_of(held_out: Matrix) -> int:
    """The rank of held-out columns; for sparse rows of as many rows as fit in memory.

    All rows may have a higher rank, so this never allows too much.
    """
    rows = len(held_out)
    if isinstance(held_out, SparseRows):
        rows = max(1, RANKED_VALUES // held_out.shape[1])
    return int(np.linalg.matrix_rank(dense(held_out[:rows])))


def _remedy(plan: Plan, most: int) -> str:
    """What a refused job can change, if it may score `most` times."""
    if most < 1 and plan.exchange.shares_parameters:
        return "take scores = 'sums', which show no row, or do not score (eval_every = 'never')"
    if most < 1:
        return "do not score (eval_every = 'never', where a job can do without)"

    def passes(every: int) -> bool:
        return replace(plan.timetable, every=every).times(plan.rounds) <= most

    now = plan.timetable.every
    every = least(1 if now == "doubling" else now, plan.rounds, passes)
    once = "" if every < plan.rounds else " or 0"
    return f"score at most {most} times: eval_every = {every}{once} passes, and less often"


def note_last_scoring(party: Party, plan: Plan, place: Workplace, model: SavedModel) -> None:
    """Record that a trained model has scored the held-out rows, so that it may again."""
    record = _record(party, plan, place)
    if record is not None:
        rows = names_of_rows(place.data.table.held_out_rows)
        record.note_scored(names_under_model(rows, model.digest))


def _record(party: Party, plan: Plan, place: Workplace) -> HeldOutRecord | None:
    """The record of a party's scorings; None where nothing is counted."""
    scorings = plan.timetable.times(plan.rounds)
    hidden = plan.algorithm.held_out(plan) == "hidden"
    shows = scorings > 0 and not (party.holds_labels or hidden)
    if place.guard_directory is None or not (shows and plan.exchange.counts_held_out(plan.job)):
        return None
    return HeldOutRecord(place.guard_directory / party.name)


def require_scoring_guard(
    directory: Path,
    model: SavedModel,
    features: FloatArray,
    rows: FloatArray,
    *,
    rounds_show: bool,
    allowed: bool,
) -> Callable[[], None]:
    """Refuse to score new rows of which other models have shown too much.

    A row counts once per model, as scoring it again shows the same numbers. Noisy releases are not
    counted here, nor added up across runs (docs/decisions/0028-scoring-new-rows.md).

    Args:
        directory: of the feature party's records.
        model: its part.
        features: of the rows, unscaled, shape (rows, P).
        rows: what identifies them: the features, or the rows before a recipe.
        rounds_show: whether rounds of the job show the same of training rows.
        allowed: whether the job allows any number of scorings; rows still count.

    Returns:
        A function that checks again and records the rows. Call it once no other party can refuse.

    Raises:
        HeldOutLeakRefused: they would be shown too often.
        DataError: the record of earlier jobs cannot be read.
    """
    record = HeldOutRecord(directory)
    names = names_of_rows(rows)
    marks = names_under_model(names, model.digest)
    # With fewer rows than columns the rank of the columns is unknown.
    columns = features.shape[1]
    centred = features - features.mean(axis=0)
    rank = columns if len(features) < columns else int(np.linalg.matrix_rank(centred))
    count = HeldOutCount(1, model.header.outputs, rank, rounds_show)

    def counted() -> dict[str, int]:
        earlier, scored = record.load(), record.load_scored()
        fresh = [name for name, mark in zip(names, marks, strict=True) if mark not in scored]
        after = count.planned(earlier, fresh, resumes=False)
        if not allowed:
            count.require_below_limit(
                max(after.values(), default=0), "the model that scored these rows before may again"
            )
        return earlier | after

    def write_down() -> None:
        record.save(counted)
        record.note_scored(marks)

    counted()
    return write_down
