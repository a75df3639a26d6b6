"""A grid over a job: the job under every combination of values of some of its settings.

Keys are those of a job file, as in "exchange.scheme" or "local_steps", which stands in [job]. A
cell is one combination. Under exchanges that have no homomorphic encryption, keys that only belong
to it are left out; whatever else does not fit a cell is refused before anything runs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any, Literal

from typing_extensions import override

from securevfl.benchmarks.progress import Report
from securevfl.benchmarks.tuning import GRID, LocalSteps, Tuned, at_steps, chosen
from securevfl.crypto.schemes import SCHEMES, Scheme
from securevfl.data.tables import VerticalDataset
from securevfl.errors import ConfigError
from securevfl.job import Job
from securevfl.job.keys import PER_STEP, SCHEME, STEPS, full_key, set_keys, with_keys
from securevfl.protocols import catalogue
from securevfl.protocols.catalogue import ALGORITHMS, EXCHANGES
from securevfl.training import plan_for

Tuning = Literal["none", "shared", "per-q"]
Load = Callable[[Job], VerticalDataset]

HOMOMORPHIC_KEYS = (
    *("hide", "key_bits", "engine", "round_trips"),
    *("value_fraction_bits", "feature_fraction_bits", "he_per_step"),
)


@dataclass(frozen=True)
class Cell:
    """One combination: a value for each key that the grid varies."""

    values: Mapping[str, Any]
    exchange: str
    local_steps: LocalSteps

    @override
    def __str__(self) -> str:
        others = [
            f", {key.removeprefix('job.')} = {value}"
            for key, value in self.values.items()
            if key not in {SCHEME, STEPS}
        ]
        return f"{self.exchange}, Q = {self.local_steps}{''.join(others)}"

    @property
    def apart_from_exchange(self) -> tuple[object, ...]:
        """What decides how many rounds it takes to a target."""
        ours = {key: value for key, value in self.values.items() if key.startswith("job.")}
        return (self.local_steps, *(f"{key} = {value}" for key, value in ours.items()))


@dataclass(frozen=True)
class Grid:
    """A job and what is varied.

    Attributes:
        base: the job that each cell changes.
        vary: the values of each key.
        load: from a cell's job to its data.
        tuning: of step sizes: `none` takes the job's own, `shared` tunes one at the largest Q for
            all, `per-q` one for each Q. See `tuning.tune`.
    """

    base: Job
    vary: Mapping[str, Sequence[Any]]
    load: Load
    tuning: Tuning = "none"
    _rates: dict[tuple[str, bytes], Tuned] = field(default_factory=dict)

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """All combinations, each once, the last key's values fastest.

        Raises:
            ConfigError: a name or a value that is not known.
        """
        vary = {full_key(key): values for key, values in self.vary.items()}
        found: dict[str, Cell] = {}
        for combination in product(*vary.values()):
            values = dict(zip(vary, combination, strict=True))
            exchange = values.get(SCHEME, self.base.exchange.scheme)
            algorithm = values.get("job.algorithm", self.base.job.algorithm)
            catalogue.require(exchange, EXCHANGES, "exchange")
            catalogue.require(algorithm, ALGORITHMS, "algorithm")
            steps = values.get(STEPS)
            if ALGORITHMS[algorithm].one_step:  # whatever Q
                steps = 1
            elif steps is None:
                job = self._in_clear(values)
                steps = plan_for(job, self.load(job)).local_steps
            if values.get(PER_STEP) and (exchange not in SCHEMES or steps == "exact"):
                continue  # there is no homomorphic work to repeat
            cell = Cell(values, exchange, steps)
            found.setdefault(str(cell), cell)
        if any(values for key, values in vary.items() if key == PER_STEP and True in values) and (
            not any(cell.values[PER_STEP] for cell in found.values())
        ):
            raise ConfigError("--vary he_per_step=true: no cell has homomorphic work to repeat")
        return tuple(found.values())

    def job_of(self, cell: Cell, tuned: Tuned | None = None) -> Job:
        """A cell's job.

        Raises:
            ConfigError: values that do not fit each other or the data.
        """
        job = self._in_clear(cell.values)
        if tuned is not None and tuned.learning_rate is not None:
            job = job.with_settings(learning_rate=tuned.learning_rate)
        job = at_steps(job, self.load(job), cell.local_steps)
        noisy = EXCHANGES[cell.exchange].adds_noise
        changed = {"exchange": self._exchange(cell), "privacy": job.privacy if noisy else {}}
        return Job.of(**{**dict(job), **changed})

    def tuned(self, cell: Cell, report: Report) -> Tuned:
        """The step size of a cell, which all exchanges share.

        Raises:
            TrainingDiverged: at every step size that was tried.
        """
        job = self._in_clear(cell.values)
        steps = cell.local_steps
        if self.tuning == "shared" and steps != "exact":
            steps = max(each.local_steps for each in self.cells if each.local_steps != "exact")
        data = self.load(job)
        job = at_steps(job, data, steps)
        key = (data.name, job.hash())
        if key not in self._rates:
            rate = job.job.learning_rate
            given = None if self.tuning != "none" or rate == "auto" else rate
            self._rates[key] = chosen(job, data, given, report)
        return self._rates[key]

    def _in_clear(self, values: Mapping[str, Any]) -> Job:
        """The base job with a cell's values, but for its exchange."""
        until_tuned = {} if self.tuning == "none" else {"job.learning_rate": GRID[0]}
        ours = {key: value for key, value in values.items() if not key.startswith("exchange.")}
        return with_keys(self.base, {**until_tuned, **ours})

    def _exchange(self, cell: Cell) -> dict[str, Any]:
        """The [exchange] section of a cell, with the homomorphic keys that its scheme has."""
        own = self.base.exchange
        schemes = [SCHEMES[each.exchange] for each in self.cells if each.exchange in SCHEMES]
        wanted = set_keys(own)
        if cell.exchange != own.scheme:
            wanted = {key: each for key, each in wanted.items() if key in HOMOMORPHIC_KEYS}
        for key, value in cell.values.items():
            if key.startswith("exchange."):
                wanted[key.removeprefix("exchange.")] = value
        wanted["scheme"] = cell.exchange
        if schemes:
            left_out = _belongs_to_others(cell.exchange, wanted.get("engine"), schemes)
            wanted = {key: each for key, each in wanted.items() if key not in left_out}
        return wanted

    def datasets(self) -> Iterator[tuple[Job, VerticalDataset]]:
        """The jobs in clear on each of the data sets, one each, with the data."""
        seen: set[str] = set()
        for cell in self.cells:
            job = self._in_clear(cell.values)
            data = self.load(job)
            if data.fingerprint not in seen:
                seen.add(data.fingerprint)
                yield job, data


def _belongs_to_others(exchange: str, engine: object, schemes: Sequence[Scheme]) -> set[str]:
    """The homomorphic keys that an exchange has not, and one of these schemes has."""
    if exchange not in SCHEMES:
        return set(HOMOMORPHIC_KEYS)
    own, found = SCHEMES[exchange], set()
    if not own.key_sizes and any(each.key_sizes for each in schemes):
        found.add("key_bits")
    if engine not in own.engines and any(engine in each.engines for each in schemes):
        found.add("engine")
    if own.seconds is None and any(each.seconds for each in schemes):
        found.add("round_trips")
    return found
