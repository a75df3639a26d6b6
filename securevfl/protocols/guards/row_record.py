"""What jobs have shown of each of a party's rows: how many columns of predictions H = X·θ.

A row is known by its values and by its id, and has the larger count of the two. Rounds and scorings
are counted apart. A job is recorded before it starts, so a killed job counts.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict
from safetensors.numpy import save

from securevfl.arrays import IntArray
from securevfl.errors import DataError
from securevfl.files import only_one, read_arrays, reading, replace_file
from securevfl.protocols.guards.people import (
    CountedJob,
    Digests,
    Population,
    mixed,
    population_of,
)

RECORD, HEADER = "feature guard record", "header"
PER_DIGEST = ("digests", "of", "trained", "scored", "revealed")
ARRAYS = (*PER_DIGEST, "models")
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
class RowRecord:
    """All rows of all jobs so far.

    Attributes:
        digests: of values and ids, sorted, shape (M,).
        of: the population of each, shape (M,).
        trained: columns that rounds may have shown, shape (M,).
        scored: columns that scorings showed, shape (M,).
        revealed: 1 where one job alone has revealed these values, shape (M,).
        models: digests of rows under models that have scored them, sorted.
        attempts: by job, or by job and data where these would show the same numbers again.
    """

    digests: Digests = field(default_factory=lambda: np.zeros(0, np.uint64))
    of: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    trained: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    scored: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    revealed: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    models: Digests = field(default_factory=lambda: np.zeros(0, np.uint64))
    populations: list[Population] = field(default_factory=list)
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
        if not len(self.digests):
            return np.zeros(len(rows.digests), np.int64)
        places = np.minimum(np.searchsorted(self.digests, rows.digests), len(self.digests) - 1)
        counts = self._counts(kind)[places] * (self.digests[places] == rows.digests)
        return np.asarray(counts.max(axis=1))

    def _counts(self, kind: Kind) -> IntArray:
        counts: IntArray = getattr(self, kind)
        return counts

    def note(self, kind: Kind, rows: NamedRows, columns: IntArray) -> None:
        """Set the columns shown of each row, shape (rows,)."""
        everything = np.union1d(self.digests, rows.digests)
        places = np.searchsorted(everything, self.digests)
        for name in PER_DIGEST[1:]:
            wider = np.zeros(len(everything), np.int64)
            wider[places] = getattr(self, name)
            setattr(self, name, wider)
        new = np.isin(everything, self.digests, invert=True)
        self.digests, self.of[new] = everything, rows.population
        places, counts = np.searchsorted(everything, rows.digests), self._counts(kind)
        counts[places] = 0
        for names in places.T:  # equal rows have the largest count of theirs
            np.maximum.at(counts, names, columns)

    def note_models(self, marks: Digests) -> None:
        """Note rows under a model, see `NamedRows.under`."""
        self.models = np.union1d(self.models, marks)

    def note_job(self, rows: NamedRows, columns: tuple[str, ...], job: CountedJob) -> None:
        """Note a job of a population, and of others that some of its rows are in."""
        for number in self._populations(rows):
            each = self.populations[number]
            if number == rows.population:
                each.note(job, columns, len(rows.digests))
            else:
                each.note(job, tuple(each.columns), 0)

    def _populations(self, rows: NamedRows) -> list[int]:
        """The populations of some rows, that with the most first."""
        found = np.bincount(self.of[np.isin(self.digests, rows.digests)])
        there = [int(number) for number in np.argsort(-found, kind="stable") if found[number]]
        return list(dict.fromkeys([*there, rows.population]))

    def last(self, rows: NamedRows) -> str:
        """The last job of these rows, in whichever population they are."""
        return self.populations[self._populations(rows)[0]].last

    def only(self, job: CountedJob, rows: NamedRows) -> bool:
        """Whether no other job has counted any of these rows, as far as the record knows."""
        populations = (self.populations[number] for number in self._populations(rows))
        return all(other.hash == job.hash for each in populations for other in each.jobs)

    def forget(self, name: str) -> int:
        """Drop the rows of a population; returns how many digests these had."""
        staying = np.array([each.name != name for each in self.populations], bool)
        kept = staying[self.of]
        for each in PER_DIGEST:
            setattr(self, each, getattr(self, each)[kept])
        self.of = (np.cumsum(staying) - 1)[self.of]
        self.populations = [each for each in self.populations if each.name != name]
        self.attempts.clear()
        return int(np.count_nonzero(~kept))

    def save(self, path: Path) -> None:
        """Replace the file in one step; if that fails the job must not run."""
        arrays: dict[str, NDArray[np.generic]] = {name: getattr(self, name) for name in ARRAYS}
        header = _Header(populations=self.populations, attempts=self.attempts)
        replace_file(path, save(arrays, {HEADER: header.model_dump_json()}), RECORD)

    @classmethod
    @contextmanager
    def changed(cls, path: Path) -> "Iterator[RowRecord]":
        """A record that is written when it was changed, while nobody else may."""
        with only_one(path, RECORD):
            record = cls.load(path)
            yield record
            record.save(path)

    @classmethod
    def load(cls, path: Path) -> "RowRecord":
        """Read a record; a missing file is empty, an unreadable or older one a DataError."""
        if not path.exists():
            if (old := path.with_name("held-out.json")).exists():
                raise DataError(
                    f"{RECORD} {old} is of an earlier version, which knew rows by other names: "
                    "remove it if what it counts may be forgotten"
                )
            return cls()
        with reading(f"{RECORD} {path}"):
            texts, arrays = read_arrays(path)
            header = _Header.model_validate_json(texts[HEADER])
            record = cls(populations=header.populations, attempts=header.attempts)
            for name in ARRAYS:
                setattr(record, name, arrays[name])
        if not record._sound():
            raise DataError(f"{RECORD} {path} is damaged")
        return record

    def _sound(self) -> bool:
        counts = [getattr(self, name) for name in PER_DIGEST[1:]]
        return (
            all(each.dtype == np.int64 and each.shape == self.digests.shape for each in counts)
            and all((each >= 0).all() for each in counts)
            and bool((self.of < len(self.populations)).all())
            and all(_ascending(each) for each in (self.digests, self.models))
        )


def _ascending(digests: Digests) -> bool:
    return digests.dtype == np.uint64 and bool((digests[1:] > digests[:-1]).all())
