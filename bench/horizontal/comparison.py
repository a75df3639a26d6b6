"""FedBCGD (ACM MM 2024) in small: LeNet-5 on CIFAR-10 from its tables, figures 4, 5, 7 and 8.

Floats to a target accuracy and the final accuracy of every method, learning rates chosen for each
method with the same effort: on a fifth of the training images, other clients and another start. The
test images decide nothing.
"""

import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from math import isfinite
from typing import Any

import numpy as np
import platformdirs

from bench.horizontal.one_run import (
    TUNING_SEED,
    Task,
    Variant,
    federation_of,
    planned_rounds,
    run,
    uncoded,
)
from bench.horizontal.settings import TARGETS, HorizontalSettings
from securevfl import __version__
from securevfl.benchmarks.journal import Journal
from securevfl.benchmarks.progress import Report
from securevfl.errors import ConfigError
from securevfl.models.local_model import require_torch
from securevfl.processes import in_processes
from securevfl.reports.tables import Row

BASELINE = "fedavg"
LAST_SCORINGS = 5
PAPER_CELL = "cifar10", 0.6
PAPER_FLOATS: Mapping[str, tuple[int | None, int | None]] = {
    "fedavg": (133, 498),
    "top-k": (92, None),
    "fedpaq": (121, None),
    "fedbcgd": (65, 249),
    "fedbcgd+": (57, 182),
    "fedbcgd:qsgd": (32, None),
    "fedbcgd+:qsgd": (29, None),
    "fedavgm": (None, 360),
    "fedadam": (None, 860),
    "scaffold": (None, 540),
    "feddc": (None, 280),
}
"""Models to 70 % with a budget of 200, and to 78 %: CIFAR-10, LeNet-5, D = 0.6."""
COSTS = ("rounds", "counted", "uploaded", "downloaded", "gradients")
Cell = tuple[str, float, str, int]
"""A set of images, D, a method and b."""


def horizontal(settings: HorizontalSettings, report: Report) -> Iterator[dict[str, Any]]:
    """Run what was not done before an interrupt; one row for each set, D, method and b.

    Figures to the target are medians, None where fewer than half of the runs reached it;
    `fewer_counted` and `fewer_uploaded` say how many times less that is than FedAvg's, and
    `paper_fewer` what the paper's tables say of its own runs. `final_accuracy` is the median of
    each run's mean over its last scorings.

    Raises:
        ConfigError: a method, a set or numbers that cannot be, or torch is missing.
        DataError: no such images here.
        KeyboardInterrupt: after the rows of the seeds that were run.
    """
    require_torch("the network of bench.horizontal")
    _check(settings)
    journal = journal_of(settings)
    if settings.fresh:
        journal.forget()
    done: dict[str, dict[str, Any]] = journal.done()
    if done:
        report(f"going on: {len(done)} pieces of work were done before")
    cells, work = _cells(settings), partial(_do, settings, journal, report, done)
    rates: dict[Cell, float] = {}
    tasks: list[Task] = []
    try:
        trials = [each for cell in cells for each in _trials(settings, cell)]
        work(list(dict.fromkeys(trials)))
        rates = {cell: _chosen(settings, cell, done) for cell in cells}
        tasks = [
            Task(*cell, rates[cell], seed)
            for seed in range(settings.seed, settings.seed + settings.repeats)
            for cell in cells
        ]
        work(tasks)
    except KeyboardInterrupt:
        report(f"{sum(task.key not in done for task in tasks)} of {len(tasks)} runs")
        yield from _rows(settings, rates, tasks, done)
        raise
    journal.forget()
    yield from _rows(settings, rates, tasks, done)


def journal_of(settings: HorizontalSettings) -> Journal:
    """What was done with such settings, however many processes do it and wherever data lie."""
    work = settings.model_dump(mode="json", exclude={"data_dir", "workers", "fresh"})
    folder = platformdirs.user_cache_path("securevfl") / "horizontal"
    return Journal(folder, {"version": __version__, **work})


def _check(settings: HorizontalSettings) -> None:
    """Refuse what cannot be before any work."""
    for images in settings.images:
        if images not in TARGETS:
            raise ConfigError(f"images: unknown {images!r}; known: {', '.join(TARGETS)}")
    if not all((settings.methods, settings.images, settings.dirichlet, settings.learning_rate)):
        raise ConfigError("methods, images, dirichlet and learning_rate: expected one of each")
    sizes: Mapping[str, int] = {"weight": 7840, "bias": 10}
    if settings.model == "lenet5":
        from bench.horizontal.lenet import lenet5  # noqa: PLC0415
        from securevfl.models.flat_module import FlatModule  # noqa: PLC0415

        sizes = FlatModule(lenet5(3, 32, 10, np.random.default_rng(0))).sizes
    for cell, rate in product(_cells(settings), settings.learning_rate):
        federation_of(settings, Task(*cell, rate, settings.seed), sizes)


def _cells(settings: HorizontalSettings) -> list[Cell]:
    """In the order of rows; a method without blocks has one, whatever b."""
    found = [
        (images, mix, text, blocks if Variant.of(text, settings).method.blockwise else 1)
        for images, mix, text, blocks in product(
            settings.images, settings.dirichlet, settings.methods, settings.blocks
        )
    ]
    return list(dict.fromkeys(found))


def _trials(settings: HorizontalSettings, cell: Cell) -> list[Task]:
    """None where there is no choice; a coding of uploads has its method's rate."""
    if len(settings.learning_rate) == 1:
        return []
    images, mix, text, blocks = cell
    seed = settings.seed + TUNING_SEED
    return [
        Task(images, mix, uncoded(text), blocks, each, seed, tuning=True)
        for each in settings.learning_rate
    ]


def _chosen(settings: HorizontalSettings, cell: Cell, done: Mapping[str, Row]) -> float:
    """The rate whose trial ended best; one that diverged is worst."""
    trials = _trials(settings, cell)
    if not trials:
        return settings.learning_rate[0]
    return max(trials, key=lambda trial: _final(done[trial.key])).learning_rate


def _do(
    settings: HorizontalSettings,
    journal: Journal,
    report: Report,
    done: dict[str, dict[str, Any]],
    tasks: Sequence[Task],
) -> None:
    """Do tasks that are not done yet, and note what they gave."""
    left = [task for task in tasks if task.key not in done]
    before = len(tasks) - len(left)

    def told(place: int, what: str, part: float) -> None:
        report(left[place].says, before + part * len(left), len(tasks))

    workers = min(settings.workers or os.cpu_count() or 1, max(len(left), 1))
    costs = [float(planned_rounds(settings, task)) for task in left]
    work = partial(run, settings)
    with in_processes(work, left, workers, "bench", progress=told, costs=costs) as results:
        for place, result in results:
            done[left[place].key] = result
            journal.add(left[place].key, result)


def _final(result: Row) -> float:
    """The mean of the last scorings; 0 of what diverged."""
    if result["diverged"]:
        return 0.0
    return statistics.fmean(result["accuracies"][-LAST_SCORINGS:])


def _rows(
    settings: HorizontalSettings,
    rates: Mapping[Cell, float],
    tasks: Sequence[Task],
    done: Mapping[str, Row],
) -> list[dict[str, Any]]:
    """One a cell of which a seed was run."""
    found: list[dict[str, Any]] = []
    for cell in _cells(settings):
        runs = [
            done[task.key]
            for task in tasks
            if (task.images, task.dirichlet, task.method, task.blocks) == cell and task.key in done
        ]
        if runs:
            found.append(_row(settings, cell, rates[cell], runs, found))
    return found


def _row(
    settings: HorizontalSettings,
    cell: Cell,
    learning_rate: float,
    runs: Sequence[Row],
    before: Sequence[Row],
) -> dict[str, Any]:
    images, mix, text, blocks = cell
    target = settings.target(images, mix)
    finals = [_final(each) for each in runs]
    at = [_place(each, target) for each in runs]
    row = {
        "dataset": images,
        "dirichlet": mix,
        "method": text,
        "blocks": blocks,
        "cut": settings.cut,
        "parameters": runs[0]["parameters"],
        "shared_share": runs[0]["shared_parameters"] / runs[0]["parameters"],
        "learning_rate": learning_rate,
        "learning_rate_chosen": _how(settings),
        "target_accuracy": target,
        "reached": sum(each is not None for each in at),
        **{f"{name}_to_target": _median_at(runs, at, name) for name in COSTS},
        "paper_fewer": _paper_fewer(text) if (images, mix) == PAPER_CELL else None,
        "final_accuracy": statistics.median(finals),
        "final_spread": (max(finals) - min(finals)) / 2,
        "rounds": max(max(each["rounds"], default=0) for each in runs),
        "counted": max(max(each["counted"], default=0.0) for each in runs),
        "uploaded": max(max(each["uploaded"], default=0.0) for each in runs),
        "repeats": len(runs),
        "runs": runs,
    }
    base = {(each["method"], each["dataset"], each["dirichlet"]): each for each in (row, *before)}
    of_base = base.get((BASELINE, images, mix), {})
    for name in ("counted", "uploaded"):
        theirs, own = of_base.get(f"{name}_to_target"), row[f"{name}_to_target"]
        row[f"fewer_{name}"] = None if theirs is None or own is None else theirs / own
    return row


def _how(settings: HorizontalSettings) -> str:
    if len(settings.learning_rate) == 1:
        return "given"
    rates = ", ".join(f"{each:g}" for each in settings.learning_rate)
    trial = f"{settings.tuning_rounds} rounds" if settings.tuning_rounds else "as many rounds"
    where = "validation images" if settings.model == "lenet5" else "other clients"
    return f"of {rates}: best after {trial} on {where}"


def _place(result: Row, target: float) -> int | None:
    """Of the first scoring at the target."""
    reached = (at for at, accuracy in enumerate(result["accuracies"]) if accuracy >= target)
    return next(reached, None)


def _median_at(runs: Sequence[Row], at: Sequence[int | None], name: str) -> float | None:
    """The median over runs, those that did not reach the target having taken longest."""
    values = sorted(
        float("inf") if place is None else float(each[name][place])
        for each, place in zip(runs, at, strict=True)
    )
    median = statistics.median(values)
    return median if isfinite(median) else None


def _paper_fewer(text: str) -> float | None:
    """How many times fewer floats than FedAvg a method takes in the paper."""
    for column in range(2):
        base, own = PAPER_FLOATS[BASELINE][column], PAPER_FLOATS.get(text, (None, None))[column]
        if base is not None and own is not None:
            return base / own
    return None
