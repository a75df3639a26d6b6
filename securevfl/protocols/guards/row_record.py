"""What jobs have shown of each of a party's rows: how many columns of predictions H = X·θ.

A row is known by its values and by its id, and has the larger count of the two. Rounds and scorings
are counted apart. A job is recorded before it starts, so a killed job counts.
"""

from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict
from safetensors.numpy import save
from typing_extensions import override

from securevfl.arrays import IntArray
from securevfl.errors import DataError
from securevfl.files import read_arrays, reading, replace_file
from securevfl.protocols.guards.people import (
    CountedJob,
    Digests,
    Population,
    Record,
    find,
    mixed,
    population_of,
    united,
)

HEADER = "header"
Kind = Literal["trained", "scored", "revealed"]


class Attempt(BaseModel):
    """The last attempt at a job: how many rounds it may have taken, and whether it ended."""

    model_config = ConfigDict(extra="forbid", strict=True)

    at_most: int
    ended: bool = False


class _Header(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    populations: list[Population]
    attempts: dict[str, Attempt]


@dataclass(frozen=True, eq=False)
class NamedRows:
    """Rows as a record knows them.

    Attributes:
        digests: of the values and, where there are ids, of these, shape (rows, 1 or 2).
        population: its number.
    """

    digests: Digests
    population: int

    @property
    def by_values(self) -> "NamedRows":
        """The same rows, known by their values alone."""
        return NamedRows(self.digests[:, :1], self.population)

    def under(self, model: str) -> Digests:
        """Digests of the rows' values under a model, shape (rows,)."""
        return mixed(self.digests[:, 0] ^ np.uint64(int(model[:16], 16)))


@dataclass(eq=False)
class RowRecord(Record):
    """All rows of all jobs so far.

    Attributes:
        digests: of values and ids, sorted, shape (M,).
        trained: columns that rounds may have shown, shape (M,).
        scored: columns that scorings showed, shape (M,).
        revealed: a digest of the parties to whom one job alone has revealed these values, 0 for
            none, shape (M,).
        models: digests of rows under models that have scored them, sorted.
        attempts: by job, or by job and data where these would show the same numbers again.
    """

    NAME: ClassVar[str] = "feature guard record"
    ARRAYS: ClassVar[tuple[str, ...]] = ("digests", "of", "trained", "scored", "revealed")

    digests: Digests = field(default_factory=lambda: np.zeros(0, np.uint64))
    trained: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    scored: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    revealed: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    models: Digests = field(default_factory=lambda: np.zeros(0, np.uint64))
    attempts: dict[str, Attempt] = field(default_factory=dict)

    def rows(
        self, values: Digests, ids: Digests | None, population: str, columns: tuple[str, ...]
    ) -> NamedRows:
        """Rows by digests of their values and, in a population, of their ids, shape (rows,) each.

        Without a population, as arrays have none, ids say nothing.
        """
        number = population_of(self.populations, population, columns)
        names = [values]
        if ids is not None and population:
            names.append(self.populations[number].ids(ids))
        return NamedRows(np.stack(names, axis=1), number)

    def shown(self, kind: Kind, rows: NamedRows) -> IntArray:
        """Columns shown of each row, shape (rows,)."""
        places, there = find(self.digests, rows.digests)
        counts = np.zeros(there.shape, np.int64)
        counts[there] = self._counts(kind)[places[there]]
        return np.asarray(counts.max(axis=1))

    def _counts(self, kind: Kind) -> IntArray:
        counts: IntArray = getattr(self, kind)
        return counts

    def note(self, kind: Kind, rows: NamedRows, columns: IntArray) -> None:
        """Set the columns shown of each row, shape (rows,)."""
        new = ~find(self.digests, rows.digests)[1]
        places = self.welcome(rows.digests)
        self.of[places[new]] = rows.population
        counts = self._counts(kind)
        counts[places] = 0
        for names in places.T:  # equal rows have the largest count of theirs
            np.maximum.at(counts, names, columns)

    def note_models(self, marks: Digests) -> None:
        """Note rows under a model, see `NamedRows.under`."""
        self.models = united(self.models, marks)

    def note_job(self, rows: NamedRows, columns: tuple[str, ...], job: CountedJob) -> None:
        """Note a job of a population, and of others that some of its rows are in."""
        own = self.populations[rows.population]
        own.note(job, own.name, columns, len(rows.digests))
        for number in self._populations(rows):
            each = self.populations[number]
            each.note(job, own.name, tuple(each.columns), 0)

    def _populations(self, rows: NamedRows) -> list[int]:
        """The populations of some rows, that with the most first."""
        places, there = find(self.digests, rows.digests)
        rows_in = np.bincount(self.of[places[there]])
        found = [int(number) for number in np.argsort(-rows_in, kind="stable") if rows_in[number]]
        return list(dict.fromkeys([*found, rows.population]))

    def last(self, rows: NamedRows) -> str:
        """The last job of these rows, in whichever population they are."""
        number = self._populations(rows)[0]
        name, last = self.populations[number].name, self.populations[number].last
        return last if number == rows.population else f"{last}, known as {name!r}"

    def only(self, job: CountedJob, rows: NamedRows) -> bool:
        """Whether no other job has counted any of these rows, as far as the record knows."""
        populations = (self.populations[number] for number in self._populations(rows))
        return all(other.hash == job.hash for each in populations for other in each.jobs)

    @override
    def forget(self, name: str) -> int:
        self.attempts.clear()
        return super().forget(name)

    @override
    def save(self, path: Path) -> None:
        arrays: dict[str, NDArray[np.generic]] = {name: getattr(self, name) for name in self._saved}
        header = _Header(populations=self.populations, attempts=self.attempts)
        replace_file(path, save(arrays, {HEADER: header.model_dump_json()}), self.NAME)

    @classmethod
    @override
    def load(cls, path: Path) -> "RowRecord":
        if not path.exists():
            found = (path.parent.glob(f"*/{name}") for name in ("held-out.json", path.name))
            for old in chain.from_iterable(found):
                raise DataError(
                    f"{cls.NAME} {old} is of an earlier version, which knew rows by other names: "
                    "remove it if what it counts may be forgotten"
                )
            return cls()
        with reading(f"{cls.NAME} {path}"):
            texts, arrays = read_arrays(path)
            header = _Header.model_validate_json(texts[HEADER])
            record = cls(populations=header.populations, attempts=header.attempts)
            for name in record._saved:
                setattr(record, name, arrays[name])
        if not record._sound():
            raise DataError(f"{cls.NAME} {path} is damaged")
        return record

    @property
    def _saved(self) -> tuple[str, ...]:
        return (*self.ARRAYS, "models")

    def _sound(self) -> bool:
        counts = [getattr(self, name) for name in self.ARRAYS[1:]]
        return (
            all(each.dtype == np.int64 and each.shape == self.digests.shape for each in counts)
            and all((each >= 0).all() for each in counts)
            and bool((self.of < len(self.populations)).all())
            and all(_ascending(each) for each in (self.digests, self.models))
        )


def _ascending(digests: Digests) -> bool:
    return digests.dtype == np.uint64 and bool((digests[1:] > digests[:-1]).all())
