"""`securevfl sweep`: what differential-privacy noise costs, and what it promises."""

from typing import Annotated

import typer

from securevfl.cli import options
from securevfl.cli.job_keys import JobKeysAreOptions, Vary, varied
from securevfl.cli.reporting import finished, keep, leave_if_cut, say, show
from securevfl.reports.results import marks
from securevfl.reports.tables import wrapped

sweep = typer.Typer(help="Sweeps: what noise costs, and what it promises.", no_args_is_help=True)

LEVELS = "0,0.25,0.5,1,1.5,2,3,4,6,10,15,20"
QUICK_LEVELS = "0,1,4"
SEEDS = 5


@sweep.command(cls=JobKeysAreOptions)
def noise(
    job: options.JobFile = None,
    *,
    noise: Annotated[
        str | None,
        typer.Option(help=f"Noise multipliers z, by commas; 0 clips only. {LEVELS} if absent."),
    ] = None,
    vary: Vary = None,
    epochs: Annotated[
        int | None,
        typer.Option(min=1, help="Over the training rows; 10 where nothing says how many rounds."),
    ] = None,
    repeats: Annotated[int | None, typer.Option(min=1, help="Seeds; 5 if absent.")] = None,
    seed: options.Seed = None,
    quick: options.Quick = False,
    dataset: Annotated[
        str | None, typer.Option(help="Data set by name; a9a where no job is given.")
    ] = None,
    label_party: options.LabelParty = None,
    data_dir: options.DataDir = None,
    parties: options.Parties = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Number of processes; one per core by default.")
    ] = None,
    ray: options.Ray = None,
    fresh: options.Fresh = False,
    json: options.Json = None,
    html: options.Html = None,
    quiet: options.Quiet = False,
) -> None:
    """AUC against noise on shared predictions, beside one party alone and one place.

    A job file is swept as it is, under `dp` whatever its exchange. Without one, fdml runs on
    batches of 100 rows, with a step size tuned without noise on a validation fifth. Every key of a
    job file is an option, too: `--clip 1`, `--mechanism laplace`, `--algorithm fedbcd-p`. Two of
    them take several values: `--model lr,nn`, where nn is a network at each party, and
    `--own-prediction exact,noisy`, which is what a party of fdml adds to the others' noisy sum: its
    exact prediction, or its noisy one as in the paper.

    An interrupted sweep goes on where it was when the same command is given again.
    """
    output, keys = options.Output(json, quiet, html), varied(vary)
    default = QUICK_LEVELS if quick else LEVELS
    levels = options.numbers("--noise", default if noise is None else noise)
    described = options.read(
        job, {"--dataset": dataset, "--label-party": label_party, "--parties": parties}
    )
    if described is None:
        keys = {"job.dataset": (dataset or "a9a",), "job.parties": (parties,), **keys}
    from securevfl.benchmarks.noise import sweep as run
    from securevfl.benchmarks.noise import work_of
    from securevfl.benchmarks.noise_jobs import NoiseSettings

    settings = NoiseSettings.of(
        *(described, keys, levels, epochs),
        repeats=options.runs(repeats, SEEDS, quick=quick),
        seed=seed,
        workers=workers,
    )
    first = next(iter(settings.jobs.values()))
    data = options.class_data(first, job, label_party, data_dir)
    if quick:
        data = options.fewer_rows(data, first.job.batch_size)
    journal = options.journal("sweeps", work_of(settings, data), fresh=fresh, quiet=quiet)
    todo = f"{len(levels)} levels of noise, seeds: {settings.repeats}"
    with options.progress(quiet, f"sweep of {data.name}: {todo}") as report:
        rows, missing = finished(lambda: run(settings, data, journal, report, ray=ray))
    output.missing.extend(missing)
    from securevfl.reports.sweep import NOISE, sweep_notes, sweep_page

    told = {
        "dataset": data.name,
        "parties": len(data.parties),
        **settings.described(data),
        "quick": quick,
    }
    keep(output, "sweep noise", {**told, "seed": settings.seed}, rows, page=sweep_page)
    steps = settings.in_epochs(first, data).job
    how_long = (
        f"{steps.rounds} rounds"
        if settings.epochs is None
        else f"S = {steps.batch_size}, {settings.epochs} epochs"
    )
    show(output, NOISE, rows, f"{data.name}, {told['algorithm']}, {how_long}")
    notes = [line for note in sweep_notes(rows) for line in wrapped(note)]
    say(output, *marks((), quick=quick), *notes)
    leave_if_cut(missing)
