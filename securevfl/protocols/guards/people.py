"""Whose rows a guard counts: people, known by id or by values, within a population.

Many tables have row numbers as ids, so an id says who somebody is within a *population* only: the
people that one table is about, or several tables of one `population`. A row is also known by its
values, rounded to six digits, so that neither a new pseudonym nor a change of 1e-9 makes a new row.
"""

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from securevfl.arrays import IntArray
from securevfl.blocks import block_rows
from securevfl.data.tables import PartyTable, row_digests
from securevfl.files import only_one
from securevfl.job import Job, PartySettings
from securevfl.protocols.plan import Plan
from securevfl.sparse import Matrix, SparseRows, dense
from securevfl.threads import by_block

Digests = NDArray[np.uint64]
NOTHING = np.uint64(0)
ODD = np.uint64(0x9E3779B97F4A7C15)
DECIMALS = 5
_CELLS = 1 << 14  # within the cache, and loops are long
# NumPy's power: on some CPUs 10⁻⁵ has another last bit, and recorded digests are of those numbers.
_GRIDS = 10.0 ** (np.arange(309.0) - DECIMALS)
KEPT_COLUMNS = 256
SHARED_COLUMNS = 0.5
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


class CountedJob(BaseModel):
    """A job of a record: its name, its hash and the day on which it was counted."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    hash: str
    day: str

    @classmethod
    def of(cls, job: Job, agreed: bytes) -> "CountedJob":
        """A job of today, by its settings and hash."""
        day = datetime.now(UTC).date().isoformat()
        return cls(name=job.job.name, hash=agreed.hex()[:16], day=day)


class Population(BaseModel):
    """People that jobs have been about.

    Attributes:
        name: the party's `population`, or else the table's path or data set.
        also: other names under which some of them have come since.
        columns: of the table in the last job, the first 256.
        jobs: in their order.
        people: how many rows the largest of them had.
        variance: of the labels in the last job with gradients, see `label_variance`.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    also: list[str] = []
    columns: list[str]
    jobs: list[CountedJob] = []
    people: int = 0
    variance: float | None = None

    def note(self, job: CountedJob, name: str, columns: tuple[str, ...], people: int) -> None:
        """Note a job, and the name, the columns and the rows that the table had in it."""
        self.columns, self.people = list(columns[:KEPT_COLUMNS]), max(self.people, people)
        if name not in (self.name, *self.also):
            self.also.append(name)
        if job not in self.jobs:
            self.jobs.append(job)

    @property
    def last(self) -> str:
        """The last job, for messages."""
        if not self.jobs:
            return "no job"
        job, earlier = self.jobs[-1], len(self.jobs) - 1
        others = f" and {earlier} before it" if earlier else ""
        return f"job {job.name!r} of {job.day} ({job.hash}){others}"

    def ids(self, digests: Digests) -> Digests:
        """Digests of ids within this population."""
        return mixed(digests ^ row_digests([self.name], "population")[0])


@dataclass(eq=False)
class Record:
    """A file of numbers for each of many digests, which belong to populations.

    Attributes:
        of: the number of each digest's population, shape (M,).
    """

    NAME: ClassVar[str]
    ARRAYS: ClassVar[tuple[str, ...]]  # the first are the digests, sorted, shape (M,)

    of: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    populations: list[Population] = field(default_factory=list)

    @abstractmethod
    def save(self, path: Path) -> None:
        """Replace the file in one step; if that fails the job must not run."""

    @classmethod
    @abstractmethod
    def load(cls, path: Path) -> Self:
        """Read a record; a missing file is empty, an unreadable or older one a DataError."""

    @classmethod
    @contextmanager
    def changed(cls, path: Path) -> Iterator[Self]:
        """A record that is written when it was changed, while nobody else may."""
        with only_one(path, cls.NAME):
            record = cls.load(path)
            yield record
            record.save(path)

    def welcome(self, digests: Digests) -> IntArray:
        """Make room for digests; returns their positions, in their shape."""
        before = getattr(self, self.ARRAYS[0])
        everything = united(before, digests)
        places = np.searchsorted(everything, before)

        def spread(values: NDArray[Any]) -> NDArray[Any]:
            wider = np.zeros((len(everything), *values.shape[1:]), values.dtype)
            wider[places] = values
            return wider

        self._replace(spread)
        setattr(self, self.ARRAYS[0], everything)
        return find(everything, digests)[0]

    def forget(self, name: str) -> int:
        """Drop a population; returns how many digests it had."""
        staying = np.array([each.name != name for each in self.populations], bool)
        kept = staying[self.of]
        self._replace(lambda values: values[kept])
        self.of = (np.cumsum(staying) - 1)[self.of]
        self.populations = [each for each in self.populations if each.name != name]
        return int(np.count_nonzero(~kept))

    def _replace(self, change: Callable[[NDArray[Any]], NDArray[Any]]) -> None:
        """Change the numbers of all digests."""
        for name in self.ARRAYS:
            setattr(self, name, change(getattr(self, name)))


@dataclass(frozen=True, eq=False)
class OwnTable:
    """A party's rows of a job, as its records know them.

    Attributes:
        ids: digests of the ids, shape (N,).
        values: digests of the rounded values, shape (N,).
        population: what its settings name, or else the table's source.
        named: whether the settings name it.
        columns: names of the columns.
    """

    ids: Digests
    values: Digests
    population: str
    named: bool
    columns: tuple[str, ...]


def own_table(plan: Plan, table: PartyTable[Matrix]) -> OwnTable:
    """A party's training rows."""
    name = named_population(plan.job.party, table.name)
    ids = plan.facts.row_digests if table.people is None else table.people[0]
    values = digests_of_values(table.train, table.columns)
    return OwnTable(ids, values, name or table.source, name is not None, table.columns)


def population_of(
    known: list[Population], name: str, columns: tuple[str, ...], denied: Collection[str] = ()
) -> int:
    """The number of the population of a table with this name and columns; a new one if need be.

    A table in the same place of which more than half of the columns are others is about others.
    Populations that are `denied` are other people.
    """
    stem, number, columns = name, 1, columns[:KEPT_COLUMNS]
    while True:
        for place, each in enumerate(known):
            if each.name == name and name not in denied:
                shared = len(set(each.columns) & set(columns))
                if shared >= SHARED_COLUMNS * min(len(each.columns), len(columns)):
                    return place
        if name not in {each.name for each in known}:
            known.append(Population(name=name, columns=list(columns)))
            return len(known) - 1
        number += 1
        name = f"{stem} ({number})"


def named_population(parties: Iterable[PartySettings], name: str) -> str | None:
    """The population that a party's settings name."""
    return next((each.population for each in parties if each.name == name), None)


def united(known: Digests, digests: Digests) -> Digests:
    """All of them, sorted, each once; `np.union1d` takes thirty times as long."""
    both = np.sort(np.concatenate([known, digests.ravel()]))
    return np.asarray(both[np.append(True, both[1:] != both[:-1])[: len(both)]])


def find(known: Digests, digests: Digests) -> tuple[IntArray, NDArray[np.bool_]]:
    """Positions among known, sorted digests, and which are there; both in the digests' shape.

    A search for sorted digests finds each near the one before, which takes a fifth of the time.
    """
    order = np.argsort(digests, axis=None)
    wanted, places = digests.ravel()[order], np.empty(digests.size, np.int64)
    found = np.minimum(np.searchsorted(known, wanted), max(len(known) - 1, 0))
    there = np.empty(digests.size, np.bool_)
    places[order], there[order] = found, known[found] == wanted if len(known) else False
    return places.reshape(digests.shape), there.reshape(digests.shape)


def mixed(values: Digests) -> Digests:
    """A bijection of 64 bits that spreads each of them (SplitMix64's finalizer)."""
    for shift, factor in _MIX:
        values = (values ^ (values >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray(values ^ (values >> np.uint64(31)))


def digests_of_values(rows: Matrix, names: Iterable[str]) -> Digests:
    """64 bits of each row's values, rounded, shape (N,); a value near 0 counts as none.

    `names` tell the P columns apart, so their order does not matter.
    """
    with np.errstate(over="ignore"):
        columns = row_digests((name.strip().casefold() for name in names), "column")
        if isinstance(rows, SparseRows):
            values = np.ones(rows.nnz) if rows.values is None else rows.values
            cells = _cells(values.astype(np.float64), columns[rows.indices])
            sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(cells, dtype=np.uint64)])
            return mixed(sums[rows.pointers[1:]] - sums[rows.pointers[:-1]]) | np.uint64(1)
        total = np.zeros(len(rows), np.uint64)

        def add(some: slice) -> None:
            across, together = dense(rows[some]).T, max(1, _CELLS // (some.stop - some.start))
            for first in range(0, len(columns), together):
                part = slice(first, first + together)
                cells = _cells(np.ascontiguousarray(across[part]), columns[part, None])
                total[some] += cells.sum(axis=0, dtype=np.uint64)

        by_block(add, len(rows), block_rows(len(columns)))
        return mixed(total) | np.uint64(1)


def _cells(values: NDArray[np.float64], columns: Digests | np.uint64) -> Digests:
    """A digest of each value in its column, 0 for a value that is rounded to 0."""
    sizes, grid = np.abs(values), np.full(values.shape, _GRIDS[0])
    large = np.nonzero((sizes >= 10.0) & np.isfinite(sizes))  # noqa: PLR2004
    grid[large] = _GRIDS[np.log10(sizes[large]).astype(np.int64)]
    rounded = np.nan_to_num((np.rint(values / grid) * grid).astype("<f4"), nan=np.inf) + 0.0
    bits = rounded.astype("<f4").view("<u4").astype(np.uint64)
    return np.where(bits == 0, NOTHING, mixed((bits * ODD) ^ columns))
