"""The held-out guard: how much scoring can tell the label party about a feature party's rows.

A scoring shows it H_test = X_test·θ, by itself or in a sum: C columns of the space that the columns
of X_test span. As many as X_test has rank span it, and then as many known rows as that give all
others' features exactly (`attacks.held_out`). Fewer are allowed where rounds show every H_k of
training rows anyway: held-out rows are then no worse off. Where they do not, known rows still tell
what goes with the predictions: up to `LIMIT` of the rank, four times as many known rows as rank
took less than a tenth off the error that the label party's own columns leave. One scoring, at the
end, is always allowed.

The feature party counts, as it alone knows its rank and its rows are at stake. It counts by row
and for ever: another θ adds a column, whatever the job. A row is known by its columns as they are
in the party's file, before anything fitted on training rows fills or pools them, so that rows more
or fewer change nothing; a party that chooses other columns of its own starts afresh, and has to
know that.
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
    """Names rows by their columns, unscaled, shape (rows, P); equal rows have one name."""
    names = []
    for first in range(0, len(features), NAMED_ROWS):
        block = dense(features[first : first + NAMED_ROWS])
        rows = np.ascontiguousarray(block + 0.0, dtype="<f8")  # one zero, not two
        names += [hashlib.sha256(row.tobytes()).hexdigest()[:24] for row in rows]
    return names


def names_under_model(rows: Sequence[str], digest: str) -> list[str]:
    """Names rows as a party's part of a model scores them: shown again, they are nothing new."""
    return [hashlib.sha256(f"{row} under {digest}".encode()).hexdigest()[:24] for row in rows]


@dataclass(frozen=True)
class HeldOutCount:
    """What a job's scorings would show.

    Attributes:
        scorings: at most, of this job.
        outputs: C, columns a scoring.
        rank: of the party's held-out columns as they are scored.
        rounds_show: whether rounds show the same of training rows.
    """

    scorings: int
    outputs: int
    rank: int
    rounds_show: bool = False

    @property
    def allowed(self) -> int:
        """Columns that may be shown: one scoring's; `LIMIT` of the rank, or all but one of it."""
        most = self.rank - 1 if self.rounds_show else int(LIMIT * self.rank)
        return max(self.outputs, most)

    def planned(self, earlier: Shown, rows: Sequence[str], *, resumes: bool) -> Shown:
        """What these rows would have shown after the job, by row.

        `earlier` is what jobs before showed of rows, of these and of others, and of a job that
        resumes itself.
        """
        own = self.scorings * self.outputs
        shown = {row: earlier.get(row, 0) for row in rows}
        return {row: max(own, n) if resumes else n + own for row, n in shown.items()}

    def require_below_limit(self, columns: int, remedy: str = "score less often") -> None:
        """Refuse so many columns of a row's predictions where they are more than may be shown."""
        if columns <= self.allowed:
            return
        before = columns - self.scorings * self.outputs
        earlier = f" after {before} of earlier jobs" if before > 0 else ""
        raise HeldOutLeakRefused(
            f"held-out guard: {self.scorings} scorings x {self.outputs} outputs{earlier} show "
            f"{columns} columns of held-out predictions, at most {self.allowed} expected for "
            f"features of rank {self.rank}: as many as the rank tell every row to who knows some; "
            f"{remedy}, hold out other rows, or set allow_feature_leak = true"
        )


class HeldOutRecord:
    """Columns of held-out predictions shown by earlier jobs, by row, kept across restarts.

    A job is written down as planned before it starts: a killed job cannot be forgotten. Beside it
    stands which rows were scored by which model.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / "held-out.json"
        self._models_path = directory / "scored.json"

    def load(self) -> Shown:
        """What was shown so far; a record that cannot be read is never taken as empty."""
        return _read(self.path, _SHOWN, {})

    def save(self, shown: Callable[[], Shown]) -> None:
        """Replace the record in one step by what is counted now, while nobody else may write.

        Raises:
            DataError: it cannot be written; then the job must not run.
        """
        with only_one(self.path, RECORD):
            replace_file(self.path, json.dumps(shown()).encode(), RECORD)

    def load_scored(self) -> set[str]:
        """Which rows were scored under which model, see `names_under_model`."""
        names: list[str] = _read(self._models_path, _SCORED, [])
        return set(names)

    def note_scored(self, names: Sequence[str]) -> None:
        """Remember rows under a model, which are counted in `load` already."""
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
    """Refuse a job that would show too much of this party's held-out rows, as they are scored.

    The label party shows nothing, and nothing is counted where scoring shows no row, or where
    rounds show as much of training rows anyway (`Exchange.counts_held_out`).

    Returns:
        Checks again and writes the job down; to be called before its first round, once no other
            party can refuse it: a job that never ran would use up what is left.

    Raises:
        HeldOutLeakRefused: it would.
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
    """The rank of held-out columns; of sparse ones that of as many rows as memory is for.

    More rows may have a higher one, and then more would be allowed.
    """
    rows = len(held_out)
    if isinstance(held_out, SparseRows):
        rows = max(1, RANKED_VALUES // held_out.shape[1])
    return int(np.linalg.matrix_rank(dense(held_out[:rows])))


def _remedy(plan: Plan, most: int) -> str:
    """How often a job that is refused may score, if it may `most` times."""
    if most < 1 and plan.exchange.shares_parameters:
        return "take scores = 'sums', which opens no row's, or do not score (eval_every = 'never')"
    if most < 1:
        return "do not score (eval_every = 'never', where a job can do without)"

    def passes(every: int) -> bool:
        return replace(plan.timetable, every=every).times(plan.rounds) <= most

    now = plan.timetable.every
    every = least(1 if now == "doubling" else now, plan.rounds, passes)
    once = "" if every < plan.rounds else " or 0"
    return f"score at most {most} times: eval_every = {every}{once} passes, and less often"


def note_last_scoring(party: Party, plan: Plan, place: Workplace, model: SavedModel) -> None:
    """Remember that a trained model has scored the held-out rows, so that it may again."""
    record = _record(party, plan, place)
    if record is not None:
        rows = names_of_rows(place.data.table.held_out_rows)
        record.note_scored(names_under_model(rows, model.digest))


def _record(party: Party, plan: Plan, place: Workplace) -> HeldOutRecord | None:
    """Where a party counts scorings; None where they show none of its rows, or nobody counts."""
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
    """Refuse to score new rows that other models have shown too much of.

    A row under a model is counted once: scoring it again shows the same numbers again. Under noise
    nothing is counted here: each scoring is a release of its own, and these are not added up across
    runs (docs/decisions/0028-scoring-new-rows.md). Where the job says that rows may be shown all
    the same (`allowed`), they are still counted.

    Args:
        directory: where the feature party remembers.
        model: its part.
        features: of the rows, unscaled, shape (rows, P).
        rows: what they are known by: the same, or what they were before a recipe.
        rounds_show: whether rounds of the job show the same of training rows.
        allowed: see above.

    Returns:
        Checks again and writes the rows down; to be called once no other party can refuse.

    Raises:
        HeldOutLeakRefused: they would be shown too often.
        DataError: the record of earlier jobs cannot be read.
    """
    record = HeldOutRecord(directory)
    names = names_of_rows(rows)
    marks = names_under_model(names, model.digest)
    # Fewer rows than columns do not tell the rank that columns have.
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
