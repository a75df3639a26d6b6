"""What a job will cost, from a dry run: its first rounds, or all with samples of their products.

A dry run is the job itself, with all parties in this process and real keys; its numbers are thrown
away, and no guard counts it, as nobody sees them. So it follows whatever algorithm, exchange and
engine runs. Where rounds cost alike, some tell all; the first visit of a batch prepares it, and is
counted apart. `blind` does most of its work before its rounds, for all of them at once, in sizes
that follow from the job's own. There the whole job is run, with samples of its products
(`sampled_keys`).
"""

import ctypes
import gc
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from securevfl.arrays import FloatArray
from securevfl.data.tables import VerticalDataset
from securevfl.protocols.exchange import TrainsOnShares
from securevfl.protocols.plan import Plan
from securevfl.runtime.channel import Channel, ChannelAround
from securevfl.runtime.costs import SCORING, SETUP, Costs, Stopwatch, job_costs
from securevfl.runtime.simulation import Program
from securevfl.sparse import Matrix
from securevfl.training import Environment, simulated, workplaces
from securevfl.training.sampled_keys import Charges, SampledKeys

FEWEST_ROUNDS, LEAST_SECONDS, MOST_SECONDS = 4, 0.5, 5.0
"""Rounds that are run at least; seconds for them, and where no batch comes twice until then, or
only batches of one size."""
WITHOUT_GUARDS = {"allow_label_leak": True, "allow_feature_leak": True}


@dataclass(frozen=True)
class PartyCosts:
    """One party's own computation, what it sends, and the memory of its process at most.

    `memory_bytes` is None where the system does not tell, which only Linux does.
    """

    name: str
    compute_s: float
    bytes_sent: int
    memory_bytes: int | None


@dataclass(frozen=True)
class Expected:
    """What all rounds of a job are expected to cost; times as in `runtime.costs.JobCosts`.

    Attributes:
        exact_bytes: bytes are exact, if no round is cut short; else scaled up.
        parties: and servers.
    """

    rounds: int
    setup_s: float
    compute_s: float
    communication_s: float
    exact_bytes: bool
    parties: tuple[PartyCosts, ...]

    @property
    def total_s(self) -> float:
        """Seconds of the critical path after the set-up."""
        return self.compute_s + self.communication_s

    @property
    def bytes_sent(self) -> int:
        """Bytes of all parties."""
        return sum(each.bytes_sent for each in self.parties)


def dry_run(plan: Plan, taken: VerticalDataset[Matrix], environment: Environment) -> Expected:
    """Find what a job will cost, from what `training.resolved` gives.

    The environment has no folder and nothing to resume from, and hears of no progress. No guard is
    asked; other errors are those of `training.train` in these rounds.
    """
    plan = replace(plan, job=plan.job.with_settings(**WITHOUT_GUARDS))
    if not isinstance(plan.exchange, TrainsOnShares):
        return _of_rounds(plan, taken, environment)
    charges = Charges(environment.stopwatch or Stopwatch())
    environment = replace(environment, keys=SampledKeys(charges), stopwatch=charges)
    run = _Run(plan, taken, environment, lambda run, done: False)
    return run.expected(run.seconds[-1], run.sent[-1], run.growth, exact=True)


class _Enough(Exception):
    """The dry run has seen what it needs."""


class _Metered(ChannelAround):
    """Notes how this process grows while its party's program runs, in bytes; at most so far."""

    def __init__(self, channel: Channel) -> None:
        super().__init__(channel)
        self._now = self.most = 0
        self._before = self.begin()

    @staticmethod
    def begin() -> int:
        """What this process takes, in bytes; the peak is that from now on."""
        Path("/proc/self/clear_refs").write_text("5")
        return _resident("VmRSS")

    @override
    async def receive(self, *args: Any, **named: Any) -> Any:
        self.most = max(self.most, self._now + _resident("VmHWM") - self._before)
        self._now += _resident("VmRSS") - self._before
        try:
            return await super().receive(*args, **named)
        finally:
            self._before = self.begin()


class _Run:
    """A job's programs, until so many rounds of this run are `enough`, or to the end.

    Attributes:
        ledgers: by party, and server.
        at_once: rounds that end together.
    """

    def __init__(
        self,
        plan: Plan,
        dataset: VerticalDataset[Matrix],
        environment: Environment,
        enough: "Callable[[_Run, int], bool]",
    ) -> None:
        self._plan, tables = plan, dataset.parties
        import_module("scipy.optimize")  # a party loads it at the end, where models are compared
        gc.collect()
        self._tables = {each.name: each.train.nbytes + each.test.nbytes for each in tables}
        self._tells_memory = _tells_memory()
        if self._tells_memory:
            # glibc keeps freed memory, in which nothing seems to grow.
            with suppress(AttributeError):
                ctypes.CDLL(None).malloc_trim(0)
            self._base = _resident("VmRSS") - sum(self._tables.values())
        self._channels: dict[str, _Metered] = {}
        self.ledgers: dict[str, Costs] = {}
        self._own: list[list[float]] = []

        def progress(done: int) -> None:
            self._own.append([_own_seconds(each) for each in self.ledgers.values()])
            if enough(self, done):
                raise _Enough

        environment = replace(environment, progress=progress)
        programs = plan.algorithm.programs(plan, workplaces(plan, dataset, environment))
        with suppress(_Enough):
            simulated(plan, {n: self._metered(each) for n, each in programs.items()}, environment)

    def _metered(self, program: Program[Any]) -> Program[Any]:
        async def run(channel: Channel, costs: Costs) -> Any:  # noqa: ANN401
            self.ledgers[channel.name] = costs
            if self._tells_memory:
                self._channels[channel.name] = channel = _Metered(channel)
            return await program(channel, costs)

        return run

    @property
    def at_once(self) -> int:
        snapshots = next(iter(self.ledgers.values())).snapshots
        return max(sum(each is snapshots[0] for each in snapshots), 1)

    @property
    def rounds(self) -> int:
        """How many rounds all have ended."""
        done = min(len(self._own), *(len(each.snapshots) for each in self.ledgers.values()))
        return done - done % self.at_once

    @property
    def seconds(self) -> FloatArray:
        """Computation and communication, and each party's computation, after 0, 1, … rounds."""
        found = [[0.0] * (2 + len(self.ledgers))]
        for done, own in enumerate(self._own[: self.rounds], 1):
            costs = job_costs(self.ledgers, done)
            found.append([costs.compute_s, costs.communication_s, *own])
        return np.array(found)

    @property
    def sent(self) -> NDArray[np.int64]:
        """Bytes that each party has sent after 0, 1, … rounds."""
        done, ledgers = self.rounds, self.ledgers.values()
        return np.array(
            [[0, *(s.traffic.bytes_sent for s in e.snapshots[:done])] for e in ledgers]
        ).T

    @property
    def growth(self) -> NDArray[np.int64]:
        """By how many bytes each party's program made this process grow at most, if it is told."""
        return np.array([each.most for each in self._channels.values()])

    def expected(
        self, seconds: FloatArray, sent: NDArray[Any], growth: NDArray[Any], *, exact: bool
    ) -> Expected:
        """The figures of all rounds."""
        compute, communication, *own = map(float, seconds)
        memory: list[int | None] = [None] * len(own)
        if self._tells_memory:
            before = [self._base + self._tables.get(name, 0) for name in self.ledgers]
            memory = [int(each) for each in growth + before]
        parties = tuple(map(PartyCosts, self.ledgers, own, map(int, sent), memory))
        setup = max(each.path.get(SETUP, 0.0) for each in self.ledgers.values())
        return Expected(self._plan.rounds, setup, compute, communication, exact, parties)


def _of_rounds(plan: Plan, dataset: VerticalDataset[Matrix], environment: Environment) -> Expected:
    keys = np.array([plan.schedule.batch_key(each) for each in range(plan.rounds)])
    again = np.ones(plan.rounds, bool)
    again[np.unique(keys, return_index=True)[1]] = False
    rows = np.array([plan.schedule.size(each) for each in range(plan.rounds)])
    began = time.perf_counter()

    def enough(run: _Run, done: int) -> bool:
        ready = again[:done].any() or not plan.schedule.repeats
        # The label party is one step ahead of the others, and the first round counts for itself.
        told = rows[1 : done - run.at_once]
        ready = ready and (len(np.unique(told)) > 1 or bool(np.all(rows == rows[0])))
        longest = LEAST_SECONDS if ready else MOST_SECONDS
        return done >= FEWEST_ROUNDS * run.at_once and time.perf_counter() - began > longest

    run = _Run(plan, dataset, environment, enough)
    size = run.at_once
    steps = np.repeat(np.diff(run.seconds[::size], axis=0) / size, size, axis=0)
    sent, exact = _all_bytes(rows, run.sent, size)
    return run.expected(all_seconds(steps, again), sent, run.growth, exact=exact)


def all_seconds(steps: FloatArray, again: NDArray[np.bool_]) -> FloatArray:
    """Seconds of all rounds, from the first ones' `steps`, shape (rounds, n).

    A round whose batch comes `again` costs what others like it do, and a first visit likewise. The
    first round has more to do, and is taken for others only where there is no other.
    """
    done = len(steps)
    seconds: FloatArray = steps.sum(axis=0)
    for repeated in (False, True):
        like = np.flatnonzero(again[1:done] == repeated) + 1
        like = like if len(like) else np.arange(min(1, done - 1), done)
        seconds += np.count_nonzero(again[done:] == repeated) * steps[like].mean(axis=0)
    return seconds


def _all_bytes(
    rows: NDArray[np.int64], sent: NDArray[np.int64], at_once: int
) -> tuple[NDArray[Any], bool]:
    """Bytes of all rounds by party, from those after 0, 1, … rounds; whether exactly.

    `rows` are those of each round's batch.

    Exactly where each party sends so many bytes in a round, and so many for each row of the batch.
    A round in which a step is taken back has fewer, and counts as one of the others.
    """
    done, steps = len(sent) - 1, np.diff(sent, axis=0)
    if done in (1, len(rows)):  # after one round the job may have reached its target
        return sent[-1] * (len(rows) // done), done == len(rows)
    later, ends = rows[1:done], (rows[1:done].min(), rows[1:done].max())
    least, most = (steps[1:][later == each].max(axis=0) for each in ends)
    by_row = (most - least) // max(ends[1] - ends[0], 1)
    of_rounds = least + np.outer(rows - ends[0], by_row)
    known = ends[1] > ends[0] or bool(np.all(rows == ends[0]))
    usual = np.all(steps == of_rounds[:done], axis=1)
    if known and np.all(steps <= of_rounds[:done]) and 2 * np.count_nonzero(usual) > done:
        return of_rounds.sum(axis=0), True
    before = min(at_once, done - 1)
    a_round = (sent[-1] - sent[before]) / (done - before)
    return sent[-1] + (len(rows) - done) * a_round, False


def _own_seconds(costs: Costs) -> float:
    return sum(s for phase, s in costs.seconds.items() if phase not in (SETUP, SCORING))


def _tells_memory() -> bool:
    try:
        _Metered.begin()
        _resident("VmHWM")
    except (OSError, StopIteration):
        return False
    return True


def _resident(what: str) -> int:
    """Memory that this process takes, VmRSS, or took at most, VmHWM, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(each.split()[1]) * 1024 for each in lines if each.startswith(what))
