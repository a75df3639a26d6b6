"""What gradients have revealed about each person's label, over all jobs of a key owner.

A gradient over S persons gives P equations in their S labels. The share of the labels that they
explain grows with P/(S·v), where v = π(1 − π) is the variance of the labels. So few equations
reveal much where one class is rare, or where few real targets lie far from all others
(`label_variance`). The record has two sums per person, over all peers, as peers may collude:

- *model*: equations on the first whole population that included the person. Any training reveals
  Xᵀy of it, to which the best model on the peer's own columns is fitted.
- *others*: equations on every other set: minibatches, subsets, other rows.

The difference of two gradients on sets that differ by few persons concerns these alone. So as many
persons as a batch must have need to share the same history of sets. Equations count as seen before
only if the peer has committed to the same columns of the same rows. Jobs whose labels differ are
such a difference as well: it concerns the people whose labels changed.
Limits: docs/decisions/0016-label-guard-by-person.md.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil, inf
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict
from safetensors.numpy import save
from typing_extensions import override

from securevfl.arrays import FloatArray, IntArray, Labels, is_real
from securevfl.errors import ConfigError, DataError, LabelLeakRefused
from securevfl.files import read_arrays, reading, replace_file
from securevfl.protocols.guards.people import (
    NOTHING,
    ODD,
    CountedJob,
    Digests,
    OwnTable,
    Population,
    Record,
    find,
    population_of,
)

MODEL_LIMIT = 1 / 2
OTHERS_LIMIT = 1 / 200
LEAST_ROWS = 200
STANDING_OUT = 0.01
CHANGED_FOR_EACH_COLUMN = 8
ROUNDING = 1e-6
# Of final models of the same unknowns: together they tell their numbers to log₂(RUNS) bits more.
RUNS = 256

FEWEST_SHARE = 0.01
HEADER, MODEL, OTHERS, ENDS, VISITS = "seen", "model.", "others.", "ends", "visits"
Agrees = Callable[[NDArray[np.bool_], Digests, Population], float | None]


class _RecordHeader(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    sets: list[str]
    seen: dict[str, list[str]]
    columns: dict[str, dict[str, int]] = {}
    steady: int = 0
    populations: list[Population] = []
    answers: list[str] = []
    told: dict[str, dict[str, int]] = {}
    visited: dict[str, bool] = {}


def label_variance(labels: Labels) -> float:
    """The variance v = π(1 − π) of the rarest class.

    Real targets count as a rare class that lies t standard deviations from the mean, so that
    π = 1/(1 + t²); t is that of the most distant 1 % of the targets, or of all that differ from the
    commonest value if these are fewer.
    """
    if is_real(labels):
        return _target_variance(labels.astype(np.float64))
    shares = np.unique(labels, return_counts=True)[1] / len(labels)
    return float(np.min(shares * (1 - shares)))


def _target_variance(targets: FloatArray) -> float:
    rows = len(targets)
    uncommon = rows - int(np.unique(targets, return_counts=True)[1].max())
    count = max(min(int(STANDING_OUT * rows), uncommon), 1)
    distances = np.abs(targets - targets.mean()) / targets.std()
    share = 1 / (1 + np.mean(np.sort(distances)[-count:]) ** 2)
    return float(share * (1 - share))


@dataclass(frozen=True)
class Revealing:
    """A gradient that a peer learns.

    Attributes:
        peer: that learns it.
        values: P.
        rows: of the job, shape (S,).
        name: identifies the equations in this record.
        model: whether it is of a whole population and a linear model.
        may_repeat: whether an equal name means equal equations, which count once.
    """

    peer: str
    values: int
    rows: IntArray
    name: str
    model: bool
    may_repeat: bool = True


@dataclass(eq=False)
class PersonRecord(Record):
    """All persons of all jobs so far.

    Attributes:
        people: digests, sorted, shape (M,).
        values: digests of each person's row in the last job, shape (M,), see `digests_of_values`.
        history: hash of the sets that each person has been in, shape (M,).
        population: each person's first whole population, 0 for none, shape (M,).
        labels: two keyed digests of each of a person's labels in all jobs, each label once, a row
            per person; 0 for none.
        current: which of them it is in the last job, from 1 on, 0 for none, shape (M,).
        changes: hash of which it was whenever a label changed, shape (M,).
        steady: that of a person whose label never changed.
        model: by peer, Σ P/S of each person, shape (M,).
        others: likewise.
        ends: Σ P/S of each person over final models, of all peers together, shape (M,).
        told: by people, labels and columns of such models, how often each job told of them.
        visited: all sets of rows on which jobs were trained, and whether one told a final model.
        visits: who was in each of them, a bit each, shape (people, bytes).
        sets: names of all sets with a gradient.
        seen: by peer, the names of the equations that it has.
        columns: by peer, how many columns it had, by a name of these.
        answers: jobs on data that would show the same numbers again.
    """

    NAME: ClassVar[str] = "label guard record"
    ARRAYS: ClassVar[tuple[str, ...]] = (
        "people",
        "of",
        "values",
        "history",
        "population",
        "labels",
        "current",
        "changes",
    )

    people: Digests = field(default_factory=lambda: np.zeros(0, np.uint64))
    history: Digests = field(default_factory=lambda: np.zeros(0, np.uint64))
    population: Digests = field(default_factory=lambda: np.zeros(0, np.uint64))
    labels: Digests = field(default_factory=lambda: np.zeros((0, 1, 2), np.uint64))
    current: Digests = field(default_factory=lambda: np.zeros(0, np.uint64))
    changes: Digests = field(default_factory=lambda: np.zeros(0, np.uint64))
    steady: np.uint64 = NOTHING
    model: dict[str, FloatArray] = field(default_factory=dict)
    others: dict[str, FloatArray] = field(default_factory=dict)
    ends: FloatArray = field(default_factory=lambda: np.zeros(0))
    told: dict[str, dict[str, int]] = field(default_factory=dict)
    visited: dict[str, bool] = field(default_factory=dict)
    visits: NDArray[np.uint8] = field(default_factory=lambda: np.zeros((0, 0), np.uint8))
    sets: set[str] = field(default_factory=set)
    seen: dict[str, set[str]] = field(default_factory=dict)
    columns: dict[str, dict[str, int]] = field(default_factory=dict)
    values: Digests = field(default_factory=lambda: np.zeros(0, np.uint64))
    answers: set[str] = field(default_factory=set)

    def identify(self, own: OwnTable, agrees: Agrees) -> tuple[Digests, int]:
        """The person of each row, shape (N,), and the number of their population.

        They are a population that the record knows if a hundredth of them are in it and `agrees`
        does not deny it, or else the one of their table. Several may agree, as when branches come
        together: the rows are of the one that agrees most, and people of the others keep what is
        recorded of them.

        Args:
            own: the table.
            agrees: how well what is known of some rows' persons fits, from 0 to 1, by a mask of
                shape (N,), the persons, shape (N,), and their population; None where it says
                nothing. 0 denies that they are the same people.

        Raises:
            ConfigError: a population that the party names is denied.
        """
        fits, most = list[tuple[float, int, int]](), FEWEST_SHARE * len(own.ids)
        denied: set[str] = set()
        for number, population in enumerate(self.populations):
            persons = self._persons(own, number)
            known = find(self.people, persons)[1]
            by_id = find(self.people, population.ids(own.ids))[1]
            said, found = agrees(known, persons, population), int(known.sum())
            if said is None and 2 * found < len(persons):  # a few values may be alike by chance
                found = int(by_id.sum())
            if said == 0.0:
                denied.add(population.name)
            elif found >= most and found > 0:
                fits.append((said or 0.0, found, number))
        if not fits:
            if own.population in denied and own.named:
                named = next(each for each in self.populations if each.name == own.population)
                raise ConfigError(
                    f"population = {own.population!r}: labels or values of these people are not "
                    f"those of the record ({named.last}): give other people, or another target of "
                    "the same people, a population of its own"
                )
            best = population_of(self.populations, own.population, own.columns, denied)
            return self._persons(own, best), best
        best, *others = (number for *_, number in sorted(fits, reverse=True))
        persons = self._persons(own, best)
        for number in others:
            theirs = self._persons(own, number)
            known = find(self.people, theirs)[1] & ~find(self.people, persons)[1]
            persons[known] = theirs[known]
        return persons, best

    def _persons(self, own: OwnTable, number: int) -> Digests:
        """The rows' persons if they are of a population: by id, or else by values of their own."""
        persons = self.populations[number].ids(own.ids)
        if not len(self.people):
            return persons
        there = (self.of == number) & (self.values != NOTHING)
        theirs, at, counts = np.unique(self.values[there], return_index=True, return_counts=True)
        alone, rows, alike = np.unique(own.values, return_index=True, return_counts=True)
        _, left, right = np.intersect1d(theirs[counts == 1], alone[alike == 1], return_indices=True)
        found = self.people[there][at[counts == 1][left]]
        rows = rows[alike == 1][right]
        new = ~find(self.people, persons[rows])[1] & ~find(np.sort(persons), found)[1]
        persons[rows[new]] = found[new]
        return persons

    def note(self, places: IntArray, own: OwnTable, number: int, job: CountedJob) -> None:
        """Note a job's rows, whose positions `welcome` returns, and the job itself."""
        new = places[self.values[places] == NOTHING]
        self.of[new], self.values[places] = number, own.values
        self.populations[number].note(job, own.population, own.columns, len(places))

    @override
    def forget(self, name: str) -> int:
        self.answers.clear()
        self.told.clear()  # of others: what they are told again counts again
        return super().forget(name)

    @override
    def _replace(self, change: Callable[[NDArray[Any]], NDArray[Any]]) -> None:
        super()._replace(change)
        self.model = {peer: change(each) for peer, each in self.model.items()}
        self.others = {peer: change(each) for peer, each in self.others.items()}
        self.ends, self.visits = change(self.ends), change(self.visits)

    def relabel(
        self,
        places: IntArray,
        labels: Digests,
        columns: Mapping[str, tuple[str, int]],
        batches: Iterable[IntArray],
        *,
        allowed: bool = False,
    ) -> None:
        """Note the labels of a job's rows, and check that no small group's changed alone.

        Everybody's label is compared with those of all earlier jobs; who is not in a job keeps the
        last one. Columns of all jobs count, since each tells something of the same changes.

        Args:
            places: positions of the rows, see `welcome`.
            labels: two keyed digests of (person, label), shape (N, 2); either makes it the same.
            columns: by peer, a name of its columns in the job, which ends with a blank and the
                population, and P.
            batches: rows of the job that have a gradient together.
            allowed: whether to note them without a check.

        Raises:
            LabelLeakRefused: the difference of two jobs would reveal whose labels changed.
        """
        for peer, (name, count) in columns.items():
            own = self.columns.setdefault(peer, {})
            own[name] = max(own.get(name, 0), count)
        before = self.current[places]
        self.changes[places[before == 0]] = self.steady
        self.current[places] = self._versions(places, labels)
        if ((before != 0) & (before != self.current[places])).any():
            self.changes = _with_set(self.changes, self.current)
            (self.steady,) = _with_set(np.array([self.steady]), np.uint64(1))
        if allowed:
            return
        of = {name.partition(" ")[2] for name, _ in columns.values()}
        ever = [item for own in self.columns.values() for item in own.items()]
        counted = [n for name, n in ever if name.partition(" ")[2] in of]
        least = CHANGED_FOR_EACH_COLUMN * sum(counted)
        changes = self.changes[places]
        for rows in batches:
            alone = int(_company(changes[rows]).min(initial=least))
            if alone < min(least, len(rows)):
                raise LabelLeakRefused(
                    "label guard: people whose labels differ over jobs: "
                    f"{np.count_nonzero(changes != self.steady)}; smallest group in a batch that "
                    f"changed alike: {alone}, expected at least {least}: the difference of two "
                    "jobs would reveal whose labels changed, and how; train on the earlier labels "
                    "of these people until enough have changed, or set allow_label_leak = true"
                )

    def _versions(self, places: IntArray, labels: Digests) -> Digests:
        """The number of each label among its person's, counted from 1 by first appearance."""
        earlier = self.labels[places]
        same = (earlier == labels[:, None]).any(axis=2)
        known = same.any(axis=1)
        numbers = np.where(known, same.argmax(axis=1), np.count_nonzero(earlier[:, :, 0], axis=1))
        wider = int(numbers.max(initial=0)) + 1 - self.labels.shape[1]
        if wider > 0:
            self.labels = np.pad(self.labels, ((0, 0), (0, wider), (0, 0)))
        self.labels[places[~known], numbers[~known]] = labels[~known]
        return np.asarray(numbers + 1, np.uint64)

    def add(self, gradients: Iterable[Revealing], places: IntArray) -> None:
        """Count a job's gradients; `places` are the positions of its rows, see `welcome`."""
        names: dict[bytes, bytes] = {}
        for each in gradients:
            rows, key = places[each.rows], each.rows.tobytes()
            if key not in names:
                names[key] = _set_name(self.people[rows])
            name, number = names[key].hex(), _number(names[key])
            if name not in self.sets:
                self.sets.add(name)
                self.history[rows] = _with_set(self.history[rows], number)
            seen, equations = self.seen.setdefault(each.peer, set()), f"{name} {each.name}"
            if each.may_repeat and equations in seen:
                continue
            seen.add(equations)
            is_model = np.zeros(len(rows), bool)
            if each.model:
                self.population[rows[self.population[rows] == 0]] = number
                is_model = self.population[rows] == number
            for shares, counted in ((self.model, is_model), (self.others, ~is_model)):
                share = shares.setdefault(each.peer, np.zeros(len(self.people)))
                share[rows[counted]] += each.values / len(rows)

    def apart(self, places: IntArray, *, ended: bool) -> float:
        """By how many people at least these rows differ from the rows of earlier jobs, ∞ if none.

        Of jobs on some of the same people, or with `ended` of those that told a final model. Rows
        of the very same people do not count.
        """
        inside, nearest = self._inside(places), inf
        for number, told in enumerate(self.visited.values()):
            members = self.visits[:, number // 8] >> np.uint8(number % 8) & np.uint8(1)
            apart = int(np.count_nonzero(members != inside))
            if apart and (told or not ended) and members[places].any():
                nearest = min(nearest, apart)
        return nearest

    def visit(self, places: IntArray, *, ends: bool) -> None:
        """Note the rows of a job, and whether it tells a final model."""
        name = _set_name(self.people[places]).hex()
        if name not in self.visited and len(self.visited) % 8 == 0:
            self.visits = np.pad(self.visits, ((0, 0), (0, 1)))
        self.visited[name] = self.visited.get(name, False) or ends
        number = list(self.visited).index(name)
        self.visits[:, number // 8] |= self._inside(places) << np.uint8(number % 8)

    def _inside(self, places: IntArray) -> NDArray[np.uint8]:
        inside = np.zeros(len(self.people), np.uint8)
        inside[places] = 1
        return inside

    def add_end(
        self, places: IntArray, unknowns: str, job: str, columns: int, most: float, *,
        same: str, resumes: bool,
    ) -> None:  # fmt: skip
        """Count a final model.

        Args:
            places: positions of the rows that the job visits.
            unknowns: a name of what the model is a function of.
            job: its hash.
            columns: P of all peers together.
            most: how many numbers all models of these unknowns tell.
            same: a name of all runs of the job that tell the same, but for rounding; empty if no
                other run does.
            resumes: whether the job goes on, and counts only if no run of it did.
        """
        name = f"{_set_name(self.people[places]).hex()} {unknowns}"
        runs = self.told.setdefault(name, {})
        if resumes and any(each.startswith(job) for each in runs):
            return

        def numbers() -> float:
            return min(len(runs) * columns, most) + sum(runs.values()) // RUNS * columns

        before, run = numbers(), same or f"{job} {len(runs)}"
        runs[run] = runs.get(run, 0) + 1
        self.ends[places] += (numbers() - before) / len(places)

    def require_within_limits(self, places: IntArray, variance: float, remedy: str) -> None:
        """Refuse a job that would reveal too much about a person's label of this variance."""
        if len(places) < LEAST_ROWS:
            raise LabelLeakRefused(
                f"label guard: {len(places)} rows, fewer than {LEAST_ROWS}: a gradient of so few "
                "reveals their labels; take more rows, or set allow_label_leak = true"
            )
        model, others = self.revealed(places, variance)
        for share, limit, of in (
            (others, OTHERS_LIMIT, "batches, networks, hinges or other rows than before"),
            (model, MODEL_LIMIT, "all rows, those of earlier jobs among them,"),
        ):
            if share > limit:
                raise LabelLeakRefused(
                    f"label guard: gradients of {of} would be {share:.3g} equations for every "
                    f"unit of the labels' variance, above {limit:g}; {remedy}, or set "
                    "allow_label_leak = true"
                )

    def columns_of_sets(self, batches: Iterable[IntArray]) -> int:
        """Columns that peers have had of sets beside the first population, over all jobs.

        Args:
            batches: positions of the rows of each.
        """
        most = 0.0
        for rows in batches:
            shares = sum((each[rows] for each in self.others.values()), np.zeros(len(rows)))
            elsewhere = self.population[rows] != _number(_set_name(self.people[rows]))
            most = max(most, float(shares[elsewhere].max(initial=0.0)) * len(rows))
        return ceil(most - ROUNDING)

    def require_company(
        self, before: Digests, columns: int, variance: float, known_to: IntArray | None = None
    ) -> None:
        """Check that a job does not single out a small group of persons.

        Args:
            before: the history without the job, shape (M,).
            columns: P of all peers together, of all jobs on such sets.
            known_to: positions of the job's rows, if earlier jobs had other columns of these sets:
                each column adds to what tells apart who was told apart before.
            variance: v of the labels.

        Raises:
            LabelLeakRefused: it does.
        """
        least = ceil(columns / (OTHERS_LIMIT * variance))
        now, then = _company(self.history), _company(before)
        touched = self.history != before
        if (before[touched] != 0).any():
            then[before == 0] = len(before)  # earlier persons single newcomers out
        told_apart = now < then
        if known_to is not None:
            told_apart |= np.isin(self.population, np.unique(self.population[known_to]))
        alone = now[told_apart & (self.history != 0)].min(initial=least)
        if alone < least:
            raise LabelLeakRefused(
                f"label guard: {alone} rows would be in other sets than all others, fewer than "
                f"{least}: the difference of two gradients would reveal their labels; "
                "train on the same rows as before, change more of them at once, or set "
                "allow_label_leak = true"
            )

    def revealed(self, places: IntArray, variance: float) -> tuple[float, float]:
        """The largest Σ P/(S·v) of a person: by models, and otherwise."""
        sums = [
            np.sum([each[places] for each in shares.values()] or [np.zeros(1)], axis=0)
            for shares in (self.model, self.others)
        ]
        model, others = (float(each.max(initial=0.0)) / variance for each in sums)
        return model, others

    @override
    def save(self, path: Path) -> None:
        arrays: dict[str, NDArray[Any]] = {name: getattr(self, name) for name in self.ARRAYS}
        for start, shares in ((MODEL, self.model), (OTHERS, self.others)):
            arrays |= {start + peer: each for peer, each in shares.items()}
        arrays |= {ENDS: self.ends, VISITS: self.visits}
        seen = {peer: sorted(names) for peer, names in self.seen.items()}
        header = _RecordHeader(
            sets=sorted(self.sets),
            seen=seen,
            columns=self.columns,
            steady=int(self.steady),
            populations=self.populations,
            answers=sorted(self.answers),
            told=self.told,
            visited=self.visited,
        ).model_dump_json()
        replace_file(path, save(arrays, {HEADER: header}), self.NAME)

    @classmethod
    @override
    def load(cls, path: Path) -> "PersonRecord":
        if not path.exists():
            return cls()
        with reading(f"{cls.NAME} {path}"):
            texts, arrays = read_arrays(path)
            header = _RecordHeader.model_validate_json(texts[HEADER])
            if not header.populations and len(arrays["people"]):
                raise DataError(
                    f"{cls.NAME} {path} is of an earlier version, which knew people by ids "
                    "alone: remove it if what it counts may be forgotten"
                )
            record = cls(
                populations=header.populations,
                answers=set(header.answers),
                steady=np.uint64(header.steady),
            )
            for name in cls.ARRAYS:
                setattr(record, name, arrays[name])
        record.sets, record.columns = set(header.sets), header.columns
        record.ends = arrays.get(ENDS, np.zeros(len(record.people)))  # older ones have none
        record.told, record.visited = header.told, header.visited
        record.visits = arrays.get(VISITS, np.zeros((len(record.people), 0), np.uint8))
        record.seen = {peer: set(names) for peer, names in header.seen.items()}
        for name, values in arrays.items():
            for start, shares in ((MODEL, record.model), (OTHERS, record.others)):
                if name.startswith(start):
                    shares[name.removeprefix(start)] = values
        record.require_sound(path)
        return record

    def require_sound(self, path: Path) -> None:
        """Check shapes, types and values of all arrays."""
        numbers = [getattr(self, name) for name in self.ARRAYS if name not in ("labels", "of")]
        shares = (*self.model.values(), *self.others.values(), self.ends)
        sound = (
            all(each.dtype == np.uint64 and each.shape == self.people.shape for each in numbers)
            and all(each.dtype == np.float64 and each.shape == self.people.shape for each in shares)
            and all(np.isfinite(each).all() and (each >= 0).all() for each in shares)
            and self.of.dtype == np.int64
            and self.of.shape == self.people.shape
            and bool(((self.of >= 0) & (self.of < len(self.populations))).all())
            and self.visits.dtype == np.uint8
            and self.visits.shape == (len(self.people), -(-len(self.visited) // 8))
            and self.labels.dtype == np.uint64
            and (*self.labels.shape[:1], *self.labels.shape[2:]) == (*self.people.shape, 2)
            and bool((self.people[1:] > self.people[:-1]).all())
        )
        if not sound:
            raise DataError(f"{self.NAME} {path} is damaged")


def _set_name(people: Digests) -> bytes:
    """The name of a set of persons, whatever their order."""
    return hashlib.sha256(np.sort(people).astype("<u8").tobytes()).digest()[:16]


def _number(name: bytes) -> np.uint64:
    return np.uint64(int.from_bytes(name[:8], "little"))


def _with_set(history: Digests, number: np.uint64 | Digests) -> Digests:
    """The histories of persons who have been in one more set, of this number each."""
    return (history ^ number) * ODD


def _company(history: Digests) -> IntArray:
    """How many persons share each person's history, shape (M,)."""
    _, places, counts = np.unique(history, return_inverse=True, return_counts=True)
    return np.asarray(counts[places], np.int64)
