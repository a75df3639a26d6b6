"""Where the offline phase of `blind` spends its time: what native code would have to do.

cProfile runs in the compute sections of that phase alone, of all parties. Functions of SEAL stand
for themselves; the others' time, and that of compiled functions they call, is their module's.
"""

import cProfile
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any, Literal

from pydantic import PositiveFloat, PositiveInt
from typing_extensions import override

import securevfl
from bench.blind.__main__ import BlindSettings, Loss, job_of
from bench.experiment import DataSettings, Experiment, Run, main
from securevfl.benchmarks.progress import Report
from securevfl.reports.tables import seconds
from securevfl.runtime.costs import CORRELATED_RANDOMNESS, Stopwatch
from securevfl.training import Environment, train

PACKAGE = Path(securevfl.__file__).parent
SEAL = "<built-in method _sealapi_cpp."
OTHERS = "others"


@dataclass
class SpentOffline:
    """Seconds somewhere in the code, without those elsewhere that it called for."""

    calls: int = 0
    seconds: float = 0.0


class ProfilingStopwatch(Stopwatch):
    """Measures compute sections, and where in the code those of some phases spend their time.

    Attributes:
        spent: by place.
    """

    def __init__(self, phases: Collection[str]) -> None:
        super().__init__()
        self.spent: defaultdict[str, SpentOffline] = defaultdict(SpentOffline)
        self._phases = phases
        self._profile = cProfile.Profile()

    @override
    def start(self) -> None:
        super().start()
        self._profile = cProfile.Profile()
        self._profile.enable()

    @override
    def stop(self, phase: str) -> float:
        self._profile.disable()
        if phase in self._phases:
            self._take_note()
        return super().stop(phase)

    def _take_note(self) -> None:
        for entry in self._profile.getstats():
            if isinstance(entry.code, str):
                if entry.code.startswith(SEAL):
                    self._add(place_of(entry.code), entry.callcount, entry.inlinetime)
                continue
            compiled = (
                each.inlinetime
                for each in entry.calls or ()
                if isinstance(each.code, str) and not each.code.startswith(SEAL)
            )
            seconds = sum(compiled, entry.inlinetime)
            self._add(place_of(entry.code), entry.callcount, seconds)

    def _add(self, place: str, calls: int, seconds: float) -> None:
        spent = self.spent[place]
        spent.calls += calls
        spent.seconds += seconds


def place_of(code: CodeType | str) -> str:
    """A function of SEAL, a module of this package by its path, another package, or Python."""
    if isinstance(code, str):
        return f"SEAL {code.removeprefix(SEAL).rstrip('>')}"
    path = Path(code.co_filename)
    if path.is_relative_to(PACKAGE):
        return path.relative_to(PACKAGE).as_posix()
    _, installed, below = path.as_posix().rpartition("/site-packages/")
    return below.split("/")[0] if installed else "Python"


class OfflineSettings(DataSettings):
    """One job under `blind`.

    Attributes:
        rounds: to be ready for.
        learning_rate: of a counted Q.
        places: to show, those that take longest; the others together.
    """

    local_steps: PositiveInt | Literal["exact"] = "exact"
    batch_size: PositiveInt | Literal["full"] = "full"
    loss: Loss = "logistic"
    rounds: PositiveInt = 20
    learning_rate: PositiveFloat = 0.3
    places: PositiveInt = 15


def offline(settings: OfflineSettings, report: Report) -> Iterator[dict[str, Any]]:
    """Train once; yields places, those that take longest first, and then the others together.

    `share` is of `total_s`, the time of all parties, which the profiler makes longer.
    """
    dataset = settings.load()
    steps = f"{settings.local_steps}:{settings.batch_size}"
    values = settings.model_dump(include={"rounds", "learning_rate", "seed"})
    job = job_of(BlindSettings(**values), steps, settings.loss, "blind")
    stopwatch = ProfilingStopwatch((CORRELATED_RANDOMNESS,))
    report("the job")
    result = train(job, dataset, Environment(stopwatch=stopwatch))
    plan, total = result.plan, sum(each.seconds for each in stopwatch.spent.values())
    by_time = sorted(stopwatch.spent.items(), key=lambda each: -each[1].seconds)
    shown, rest = by_time[: settings.places], [spent for _, spent in by_time[settings.places :]]
    others = SpentOffline(sum(each.calls for each in rest), sum(each.seconds for each in rest))
    for place, spent in (*shown, (OTHERS, others)):
        yield {
            "place": place,
            "calls": spent.calls,
            "seconds": spent.seconds,
            "share": spent.seconds / total,
            "total_s": total,
            "dataset": dataset.name,
            "local_steps": plan.local_steps,
            "batch_size": plan.batch_size,
            "loss": plan.loss.name,
            "columns": [len(table.columns) for table in dataset.parties],
            "rounds": result.rounds,
        }


EXPERIMENT = Experiment(
    name="offline",
    about=__doc__ or "",
    runs={
        "exact-full": Run(35, {"dataset": "a9a", "rounds": 6}),
        "5-256": Run(12, {"dataset": "a9a", "local_steps": 5, "batch_size": 256}),
    },
    quick={"dataset": "breast_cancer", "rounds": 2},
    settings=OfflineSettings,
    measure=offline,
    columns=(
        ("place", lambda row: str(row["place"])),
        ("calls", lambda row: f"{row['calls']:,}"),
        ("seconds", lambda row: seconds(row["seconds"])),
        ("a call", lambda row: seconds(row["seconds"] / max(row["calls"], 1))),
        ("share", lambda row: f"{100 * row['share']:.1f} %"),
    ),
)

if __name__ == "__main__":
    main(EXPERIMENT)
