"""What aggregated gradients have told about each person's label, over all jobs of a key owner.

A gradient of a set of S persons is P equations in their S labels. What they explain of the labels
grows with P/(S·v), v = π(1 − π) the variance of the labels: where one class is rare, few equations
tell much; so do they where few real targets are far from all others (`label_variance`). Two sums
are kept for every person, peers together, since peers may pool what they see:

- *model*: equations on the first whole population that the person was trained in. Xᵀy of it is what
  the best model of the peer's own columns is fitted to, so any training tells as much.
- *others*: equations on every other set: minibatches, the same rows without some, other rows.

Sets that differ by few persons single these out: the difference of two gradients is of them alone.
So those who have been in the same sets must be as many as a batch must have. Nothing counts as seen
before unless the peer has committed to the same columns of the same rows. The limits:
docs/decisions/0016-label-guard-by-person.md.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict
from safetensors.numpy import save

from securevfl.arrays import FloatArray, IntArray, Labels, is_real
from securevfl.errors import DataError, LabelLeakRefused
from securevfl.files import read_arrays, reading, replace_file

MODEL_LIMIT = 1 / 2
OTHERS_LIMIT = 1 / 200
LEAST_ROWS = 200
STANDING_OUT = 0.01

PEOPLE, HISTORY, POPULATION, HEADER = "people", "history", "population", "seen"
MODEL, OTHERS = "model.", "others."
Digests = NDArray[np.uint64]
_T = TypeVar("_T", np.float64, np.uint64)
_ODD = np.uint64(0x9E3779B97F4A7C15)


class _RecordHeader(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    sets: list[str]
    seen: dict[str, list[str]]


def label_variance(labels: Labels) -> float:
    """Of the rarest class: v = π(1 − π).

    Of real targets that of a class that stands out from all others as far as the 1 % do that stand
    out most, or all that differ from the commonest value where they are fewer: in units of the
    deviation a rare class is √((1 − π)/π) from the mean, so t from it are π = 1/(1 + t²).
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
    """One gradient, or all of the same equations.

    Attributes:
        peer: who learns it.
        values: P.
        rows: of the job, shape (S,).
        name: of these equations, for this record.
        model: whether they are of a whole population, by a linear model.
        may_repeat: whether the name says that they are the same as before.
    """

    peer: str
    values: int
    rows: IntArray
    name: str
    model: bool
    may_repeat: bool = True


@dataclass(eq=False)
class PersonRecord:
    """Every person of every job so far; see the module.

    Attributes:
        people: digests, sorted, shape (M,).
        history: what sets each has been in, as one number, shape (M,).
        population: the first whole population of each, 0 for none, shape (M,).
        model: by peer, Σ P/S, shape (M,).
        others: the same.
        sets: names of the sets that anything was told of.
        seen: by peer, the names of what it has been told.
    """

    people: Digests = field(default_factory=lambda: np.zeros(0, np.uint64))
    history: Digests = field(default_factory=lambda: np.zeros(0, np.uint64))
    population: Digests = field(default_factory=lambda: np.zeros(0, np.uint64))
    model: dict[str, FloatArray] = field(default_factory=dict)
    others: dict[str, FloatArray] = field(default_factory=dict)
    sets: set[str] = field(default_factory=set)
    seen: dict[str, set[str]] = field(default_factory=dict)

    def welcome(self, people: Digests) -> IntArray:
        """Make room for a job's rows; their places, shape (N,)."""
        everyone = np.union1d(self.people, people)
        places = np.searchsorted(everyone, self.people)

        def spread(values: NDArray[_T]) -> NDArray[_T]:
            wider = np.zeros(len(everyone), values.dtype)
            wider[places] = values
            return wider

        self.people = everyone
        self.history, self.population = spread(self.history), spread(self.population)
        self.model = {peer: spread(each) for peer, each in self.model.items()}
        self.others = {peer: spread(each) for peer, each in self.others.items()}
        return np.searchsorted(everyone, people).astype(np.int64)

    def add(self, gradients: Iterable[Revealing], places: IntArray) -> None:
        """Count what a job tells; `places` are of its rows, as `welcome` gave them."""
        names: dict[bytes, bytes] = {}
        for each in gradients:
            rows, key = places[each.rows], each.rows.tobytes()
            if key not in names:
                people = np.sort(self.people[rows]).astype("<u8")
                names[key] = hashlib.sha256(people.tobytes()).digest()[:16]
            name, number = names[key].hex(), np.frombuffer(names[key][:8], "<u8")[0]
            if name not in self.sets:
                self.sets.add(name)
                self.history[rows] = (self.history[rows] ^ number) * _ODD
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

    def require_within_limits(self, places: IntArray, variance: float, remedy: str) -> None:
        """Check every person of a job, whose labels have the variance v; `remedy` would tell less.

        Raises:
            LabelLeakRefused: too much would be told of somebody.
        """
        if len(places) < LEAST_ROWS:
            raise LabelLeakRefused(
                f"label guard: {len(places)} rows, fewer than {LEAST_ROWS}: a gradient of so few "
                "tells their labels; take more rows, or set allow_label_leak = true"
            )
        model, others = self.revealed(places, variance)
        for share, limit, of in (
            (others, OTHERS_LIMIT, "gradients of batches, networks or other rows than before"),
            (model, MODEL_LIMIT, "gradients of all rows, those of earlier jobs among them,"),
        ):
            if share > limit:
                raise LabelLeakRefused(
                    f"label guard: {of} would be {share:.3g} equations for every unit of the "
                    f"labels' variance, above {limit:g}; {remedy}, or set allow_label_leak = true"
                )

    def require_company(self, before: Digests, columns: int, variance: float) -> None:
        """Check that nobody is told apart with few others by what a job adds.

        Args:
            before: the history without the job, shape (M,).
            columns: P of all peers of the job together.
            variance: v of the labels.

        Raises:
            LabelLeakRefused: somebody is.
        """
        least = ceil(columns / (OTHERS_LIMIT * variance))
        now, then = _company(self.history), _company(before)
        touched = self.history != before
        if (before[touched] != 0).any():
            then[before == 0] = len(before)  # newcomers are told apart by who was there before
        alone = now[(now < then) & (self.history != 0)].min(initial=least)
        if alone < least:
            raise LabelLeakRefused(
                f"label guard: {alone} rows would be trained on in other company than all others, "
                f"fewer than {least}: the difference of two gradients would tell their labels; "
                "train on the same rows as before, change more of them at once, or set "
                "allow_label_leak = true"
            )

    def revealed(self, places: IntArray, variance: float) -> tuple[float, float]:
        """Σ P/(S·v) of the person that most is told of: by models, and otherwise."""
        sums = [
            np.sum([each[places] for each in shares.values()] or [np.zeros(1)], axis=0)
            for shares in (self.model, self.others)
        ]
        model, others = (float(each.max(initial=0.0)) / variance for each in sums)
        return model, others

    def save(self, path: Path) -> None:
        """Replace the file, in one step; where it cannot be written the job must not run."""
        arrays: dict[str, NDArray[Any]] = {
            PEOPLE: self.people,
            HISTORY: self.history,
            POPULATION: self.population,
        }
        for start, shares in ((MODEL, self.model), (OTHERS, self.others)):
            arrays |= {start + peer: each for peer, each in shares.items()}
        seen = {peer: sorted(names) for peer, names in self.seen.items()}
        header = _RecordHeader(sets=sorted(self.sets), seen=seen).model_dump_json()
        replace_file(path, save(arrays, {HEADER: header}), "label guard record")

    @classmethod
    def load(cls, path: Path) -> "PersonRecord":
        """What a file says; nothing where there is none.

        Raises:
            DataError: the record is there and cannot be read; it is never taken as empty.
        """
        if not path.exists():
            return cls()
        with reading(f"label guard record {path}"):
            texts, arrays = read_arrays(path)
            header = _RecordHeader.model_validate_json(texts[HEADER])
            record = cls(arrays[PEOPLE], arrays[HISTORY], arrays[POPULATION])
        record.sets = set(header.sets)
        record.seen = {peer: set(names) for peer, names in header.seen.items()}
        for name, values in arrays.items():
            for start, shares in ((MODEL, record.model), (OTHERS, record.others)):
                if name.startswith(start):
                    shares[name.removeprefix(start)] = values
        record.require_sound(path)
        return record

    def require_sound(self, path: Path) -> None:
        """Check that all arrays are of the same people and hold what they should."""
        numbers = (self.people, self.history, self.population)
        shares = (*self.model.values(), *self.others.values())
        sound = (
            all(each.dtype == np.uint64 and each.shape == self.people.shape for each in numbers)
            and all(each.dtype == np.float64 and each.shape == self.people.shape for each in shares)
            and all(np.isfinite(each).all() and (each >= 0).all() for each in shares)
            and bool((self.people[1:] > self.people[:-1]).all())
        )
        if not sound:
            raise DataError(f"label guard record {path} is damaged")


def _company(history: Digests) -> IntArray:
    """How many have been in the same sets as each, shape (M,)."""
    _, places, counts = np.unique(history, return_inverse=True, return_counts=True)
    return np.asarray(counts[places], np.int64)
