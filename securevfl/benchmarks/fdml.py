"""FDML beside training in one place and on one party's columns (Table 2 of Hu et al., KDD 2019).

Seconds an epoch: *virtual* on a network, of parties that work in parallel, and *wall*, all of them
on this machine after each other, from their first message on: no row holds what it takes to scale
columns and draw θ⁰. The machinery is wall time beyond the parties' own computation:
channel, codec, server and ledger, for one iteration of one party.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from securevfl.benchmarks.in_one_place import train_in_one_place
from securevfl.benchmarks.progress import Report, silent
from securevfl.benchmarks.settings.fdml import FdmlBenchSettings, Model
from securevfl.data.tables import VerticalDataset
from securevfl.job import FdmlSettings, Job
from securevfl.protocols.vertical.fdml import SERVER
from securevfl.reports.benchmarks import FdmlRow
from securevfl.runtime.costs import SCORING, SETUP, Stopwatch
from securevfl.training import Environment, TrainingResult, plan_for, train

ONE_PLACE, SUM_IN_ONE_PLACE = "one place", "sum in one place"


def fdml(
    settings: FdmlBenchSettings, dataset: VerticalDataset, report: Report = silent
) -> Iterator[FdmlRow]:
    """For each model a row a party's own columns, one for all in one place, one for fdml.

    Of networks one place trains one network over all columns, as the paper does, and in a row of
    its own the sum of the parties' networks, which fdml at τ = 0 equals by construction.
    """
    chosen = zip(settings.models, settings.learning_rate, settings.l2, strict=True)
    for model, learning_rate, l2 in chosen:
        yield from _rows(
            settings, dataset, model=model, learning_rate=learning_rate, l2=l2, report=report
        )


def _rows(
    settings: FdmlBenchSettings,
    dataset: VerticalDataset,
    *,
    model: Model,
    learning_rate: float,
    l2: float,
    report: Report,
) -> Iterator[FdmlRow]:
    jobs = [
        _job(
            settings,
            model=model,
            learning_rate=learning_rate,
            l2=l2,
            rows=len(dataset.train_labels),
            seed=settings.seed + index,
        )
        for index in range(settings.repeats)
    ]
    plan_for(jobs[0], dataset)

    def row(
        training: str,
        scores: Sequence[tuple[float, float]],
        wall: float,
        virtual: float | None = None,
        machinery: float | None = None,
    ) -> FdmlRow:
        aucs, losses = map(list, zip(*scores, strict=True))
        return {
            "dataset": dataset.name,
            "model": model,
            "training": training,
            "epochs": settings.epochs,
            "batch_size": settings.batch_size,
            "learning_rate": learning_rate,
            "staleness": settings.staleness,
            "batches_per_message": settings.batches_per_message,
            "precision": settings.precision,
            "repeats": settings.repeats,
            "auc": statistics.median(aucs),
            "aucs": aucs,
            "log_loss": statistics.median(losses),
            "log_losses": losses,
            "wall_s_per_epoch": wall / settings.epochs,
            "virtual_s_per_epoch": None if virtual is None else virtual / settings.epochs,
            "machinery_s": machinery,
        }

    places: dict[str, dict[str, Any]] = {
        **{f"{table.name} alone": {"parties": [table.name]} for table in dataset.parties},
        ONE_PLACE: {"one_model": True},
        **({SUM_IN_ONE_PLACE: {}} if model == "nn" else {}),
    }
    one_place = 0.0
    for name, place in places.items():
        report(f"{model}, {name}")
        found = [train_in_one_place(job, dataset, **place) for job in jobs]
        wall = statistics.median(each.training_s for each in found)
        if name == ONE_PLACE:
            one_place = wall
        yield row(name, [(each.auc, each.loss) for each in found], wall)
    report(f"{model}, fdml")
    timed = [timed_rounds(job, dataset) for job in jobs]
    runs = [run for run, _ in timed]
    wall = statistics.median(seconds for _, seconds in timed)
    of_fdml = row(
        "fdml",
        [(run.clear_auc, run.clear_loss) for run in runs],
        wall,
        statistics.median(run.costs().total_s for run in runs),
        statistics.median(_machinery(*each, len(dataset.parties)) for each in timed),
    )
    yield {**of_fdml, "ratio_to_one_place": wall / one_place}


def timed_rounds(
    job: Job, dataset: VerticalDataset[Any], clock: Callable[[], float] = time.perf_counter
) -> tuple[TrainingResult, float]:
    """A job, and the seconds of all of its rounds without what is set up before them.

    Args:
        job: of fdml.
        dataset: the data.
        clock: what seconds are of, virtual ones of computation among them.
    """
    ends: dict[int, float] = {}

    def note(rounds: int) -> None:
        ends[rounds] = clock()

    run = train(job, dataset, Environment(progress=note, stopwatch=Stopwatch(clock)))
    # Those of one message end together, and the first message's beginning is not seen.
    first, last = min(ends), max(ends)
    several = job.section(FdmlSettings, "fdml").batches_per_message
    if last <= several:
        return run, run.wall_s
    seconds = (ends[last] - ends[first]) * last / (last - min(several, last))
    return run, seconds


def _machinery(run: TrainingResult, seconds: float, parties: int) -> float:
    computed = sum(
        seconds
        for name, ledger in run.ledgers.items()
        for phase, seconds in ledger.seconds.items()
        # What the server computes belongs to the machinery.
        if name != SERVER and phase not in {SETUP, SCORING}
    )
    return (seconds - computed) / (run.rounds * parties)


def _job(
    settings: FdmlBenchSettings,
    *,
    model: Model,
    learning_rate: float,
    l2: float,
    rows: int,
    seed: int,
) -> Job:
    described: dict[str, Any] = {
        "name": "fdml",
        "algorithm": "fdml",
        "rounds": settings.epochs * (rows // settings.batch_size),
        "batch_size": settings.batch_size,
        "learning_rate": learning_rate,
        "l2": l2,
        "sampling": "shuffle",
        "seed": seed,
    }
    if model == "lr":
        described |= {"start": "zero"}
    else:
        described |= {"model": "mlp", "hidden": [settings.hidden], "activation": "tanh"}
    own = {
        "staleness": settings.staleness,
        "batches_per_message": settings.batches_per_message,
        "precision": settings.precision,
    }
    return Job.of(job=described, network=settings.network, fdml=own)
