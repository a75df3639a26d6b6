"""Seconds of FDML's rounds, without what is set up before them."""

import time
from collections.abc import Callable
from typing import Any

from securevfl.data.tables import VerticalDataset
from securevfl.job import FdmlSettings, Job
from securevfl.runtime.costs import Stopwatch
from securevfl.training import Environment, TrainingResult, train


def timed_rounds(
    job: Job, dataset: VerticalDataset[Any], clock: Callable[[], float] = time.perf_counter
) -> tuple[TrainingResult, float]:
    """A training by fdml, and the seconds of all its rounds by a clock.

    The clock measures computation in virtual time, too.
    """
    ends: dict[int, float] = {}

    def note(rounds: int) -> None:
        ends[rounds] = clock()

    run = train(job, dataset, Environment(progress=note, stopwatch=Stopwatch(clock)))
    # Rounds of one message end together, and the beginning of the first message is not seen.
    first, last = min(ends), max(ends)
    several = job.section(FdmlSettings, "fdml").batches_per_message
    if last <= several:
        return run, run.wall_s
    seconds = (ends[last] - ends[first]) * last / (last - min(several, last))
    return run, seconds
