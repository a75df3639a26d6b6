"""Where an iteration of FDML goes, by phase: a training under Python's profiler.

Seconds are of the process's CPU, all parties and the server together, in the second half of the
iterations and the one before: with each party's next order of rows, where epochs are even. The
profiler makes many small calls dearer than they are: shares say where to look, and not what a run
takes without it.
"""

import cProfile
import pstats
import time
from typing import Any

from securevfl.data.tables import VerticalDataset
from securevfl.job import Job
from securevfl.training import Environment, train

REST = "the rest: messages, steps, labels, ledgers"
PHASES: dict[str, frozenset[tuple[str, str]]] = {
    "rows gathered": frozenset({("sparse.py", "_copied"), ("sparse.py", "reordered")}),
    "made ready for kernels": frozenset({("sparse.py", "stored")}),
    "products, there and back": frozenset({("sparse.py", "__matmul__")}),
    "server: predictions summed": frozenset({("fdml.py", "_sum_of_others")}),
    "rows parted afresh": frozenset({("partition.py", "_shuffled")}),
    "residuals and loss": frozenset({("losses.py", "residuals"), ("losses.py", "value")}),
}
"""Files and names of functions whose calls, with all that they call, are a phase."""


def profiled(job: Job, dataset: VerticalDataset[Any]) -> dict[str, float]:
    """Seconds of an iteration by phase.

    Args:
        job: of fdml, two iterations at least.
        dataset: of sparse rows, so that gathering and products can be told apart.
    """
    profiler = cProfile.Profile(time.process_time)
    # Others may begin a round before the party that notes the end of the one before.
    last, first = job.job.rounds, max(job.job.rounds // 2 - 1, 1)

    def note(rounds: int) -> None:
        if rounds == first:
            profiler.enable()
        if rounds == last:
            profiler.disable()

    train(job, dataset, Environment(progress=note))
    return _by_phase(pstats.Stats(profiler), last - first)


def _by_phase(stats: pstats.Stats, iterations: int) -> dict[str, float]:
    found: dict[str, float] = dict.fromkeys(PHASES, 0.0)
    timings: Any = stats.stats  # type: ignore[attr-defined]  # absent from its types
    phase_of = {name: phase for phase, names in PHASES.items() for name in names}
    for (path, _, function), (_, _, _, cumulative, callers) in timings.items():
        phase = phase_of.get((path.rpartition("/")[2], function))
        if phase is None:
            continue
        found[phase] += cumulative
        for (caller_path, _, caller), (_, _, _, within) in callers.items():
            around = phase_of.get((caller_path.rpartition("/")[2], caller))
            if around is not None:
                found[around] -= within
    total = sum(own for _, _, own, _, _ in timings.values())
    found[REST] = total - sum(found.values())
    return {phase: seconds / iterations for phase, seconds in found.items()}
