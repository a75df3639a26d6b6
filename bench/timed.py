"""Seconds of FDML's rounds, the first one's among them, and of the set-up before them."""

import time
from typing import Any, NamedTuple

from typing_extensions import override

from securevfl.data.tables import VerticalDataset
from securevfl.job import Job
from securevfl.runtime.costs import SCORING, Stopwatch
from securevfl.training import Environment, TrainingResult, train


class Timed(NamedTuple):
    """A training, with the seconds of this process that all its rounds took, and its set-up.

    Attributes:
        result: its virtual time counts CPU seconds.
        cpu_s: of the rounds.
        wall_s: of the rounds.
        setup_s: CPU seconds of all that came before.
    """

    result: TrainingResult
    cpu_s: float
    wall_s: float
    setup_s: float


class _OfRounds(Stopwatch):
    """Notes when the first computation of a round began and when the last one ended."""

    def __init__(self) -> None:
        super().__init__(time.process_time)
        self.begin = self.end = self.scored = (0.0, 0.0)

    @override
    def charge(self, phase: str, elapsed: float) -> float:
        now = time.process_time(), time.perf_counter()
        if phase == SCORING:  # a party scores while others are in their last round
            self.scored = self.scored[0] + elapsed, self.scored[1] + elapsed
        elif phase == "local":
            self.end = now[0] - self.scored[0], now[1] - self.scored[1]
            if not any(self.begin):
                self.begin = now[0] - elapsed, now[1] - elapsed
        return elapsed


def timed_rounds(job: Job, dataset: VerticalDataset[Any]) -> Timed:
    """Train by fdml, which scores at its end only."""
    watch, started = _OfRounds(), time.process_time()
    result = train(job, dataset, Environment(stopwatch=watch))
    cpu, wall = (end - begin for begin, end in zip(watch.begin, watch.end, strict=True))
    return Timed(result, cpu, wall, watch.begin[0] - started)
