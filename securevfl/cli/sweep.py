"""`securevfl sweep`: what differential-privacy noise costs, and what it promises."""

from dataclasses import dataclass

import typer

from securevfl.benchmarks.settings.noise import NoiseSettings
from securevfl.cli import options
from securevfl.cli.command import command
from securevfl.cli.reporting import finished

sweep = typer.Typer(help="Sweeps: what noise costs, and what it promises.", no_args_is_help=True)


@dataclass(frozen=True)
class Cores:
    """Whose cores the work takes."""

    ray: options.Ray = None


@dataclass(frozen=True)
class SweepData(options.SplitJobData):
    """A data set by name, a9a if nothing is said, or a job's."""

    dataset: options.Dataset = "a9a"


@command(sweep)
def noise(
    settings: NoiseSettings,
    data: SweepData,
    work: options.Journaled,
    cores: Cores,
    output: options.Page,
) -> None:
    """AUC against noise on shared predictions, beside one party alone and one place.

    Of a job file everything but the noise multipliers; its exchange is `dp` here.
    An interrupted sweep goes on where it was when the same command is given again.
    """
    dataset = data.load()
    if settings.quick:
        job = settings.base
        dataset = options.fewer_rows(dataset, job.job.batch_size if job else settings.batch_size)
    from securevfl.benchmarks.noise import sweep as run
    from securevfl.benchmarks.noise import work_of

    journal = work.journal("sweeps", work_of(settings, dataset), quiet=output.quiet)
    levels = f"{len(settings.noise)} levels of noise, seeds: {settings.repeats}"
    with options.progress(output.quiet, f"sweep of {dataset.name}: {levels}") as report:
        rows, missing = finished(lambda: run(settings, dataset, journal, report, ray=cores.ray))
    output.missing.extend(missing)
    from rich.console import Console

    from securevfl.reports import results
    from securevfl.reports.sweep import NOISE, sweep_notes, sweep_page
    from securevfl.reports.tables import table

    results.keep(
        output.json,
        output.html,
        sweep_page,
        command="sweep noise",
        seed=settings.seed,
        settings={
            "dataset": dataset.name,
            "parties": len(dataset.parties),
            "algorithm": settings.algorithm,
            **settings.told(),
        },
        rows=rows,
        missing=missing,
    )
    if output.quiet:
        return
    console = Console()
    title = f"{dataset.name}, {settings.algorithm}, " + (
        f"S = {settings.batch_size}, {settings.epochs} epochs"
        if settings.base is None
        else f"{settings.base.job.rounds} rounds"
    )
    console.print(table(NOISE, rows, title))
    for note in (*results.marks(missing, quick=settings.quick), *sweep_notes(rows)):
        console.print(note, highlight=False)
