"""How much scoring can tell the label party about a feature party's held-out rows.

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from pydantic import PositiveInt, TypeAdapter, ValidationError

from securevfl.errors import DataError, HeldOutLeakRefused
from securevfl.files import only_one, replace_file
from securevfl.sparse import Matrix, dense

LIMIT = 1 / 32

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
    """Names rows as a model scores them: what the same model shows again is nothing new.

    Args:
        rows: their names.
        digest: of the party's part of the model.
    """
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

        Args:
            earlier: what jobs before showed of rows, of these and of others.
            rows: the job's.
            resumes: it is in `earlier` already, as one that goes on.
        """
        own = self.scorings * self.outputs
        shown = {row: earlier.get(row, 0) for row in rows}
        return {row: max(own, n) if resumes else n + own for row, n in shown.items()}

    def require_below_limit(self, columns: int, remedy: str = "score less often") -> None:
        """Check how many columns of a row's predictions there would be after the job.

        Args:
            columns: so many.
            remedy: what would show fewer.

        Raises:
            HeldOutLeakRefused: more than may be shown.
        """
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
        self._path = directory / "held-out.json"
        self._models_path = directory / "scored.json"

    @property
    def path(self) -> Path:
        """Where it is kept."""
        return self._path

    def load(self) -> Shown:
        """What was shown so far.

        Raises:
            DataError: the record is there and cannot be read; it is never taken as empty.
        """
        return _read(self._path, _SHOWN, {})

    def save(self, shown: Mapping[str, int]) -> None:
        """Replace the record, in one step.

        Raises:
            DataError: it cannot be written; then the job must not run.
        """
        replace_file(self._path, json.dumps(dict(shown)).encode(), RECORD)

    def load_scored(self) -> set[str]:
        """Which rows were scored under which model, see `names_under_model`.

        Raises:
            DataError: as `load`.
        """
        names: list[str] = _read(self._models_path, _SCORED, [])
        return set(names)

    def note_scored(self, names: Sequence[str]) -> None:
        """Remember rows under a model, which are counted in `load` already.

        Raises:
            DataError: it cannot be written.
        """
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
