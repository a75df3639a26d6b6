"""`securevfl sweep`: what differential-privacy noise costs, and what it promises."""

import os
import sys
from dataclasses import asdict, replace
from typing import Annotated, Literal

import platformdirs
import typer
from rich.console import Console

from securevfl.benchmarks.journal import Journal
from securevfl.benchmarks.noise import LEVELS, MODELS, Model, NoiseSettings, work_of
from securevfl.benchmarks.noise import sweep as run_sweep
from securevfl.cli import options
from securevfl.errors import ConfigError
from securevfl.reports.page import write_page
from securevfl.reports.results import results, write_results
from securevfl.reports.sweep import NOISE, sweep_notes, sweep_page
from securevfl.reports.tables import table

sweep = typer.Typer(help="Sweeps: what noise costs, and what it promises.", no_args_is_help=True)


@sweep.command()
def noise(
    *,
    dataset: options.Dataset = "a9a",
    noise: Annotated[str, typer.Option(help="Noise multipliers z, by commas; 0 is none.")] = (
        ",".join(f"{level:g}" for level in LEVELS)
    ),
    model: Annotated[str, typer.Option(help="lr, nn, by commas.")] = "lr",
    mechanism: Annotated[
        Literal["gaussian", "laplace"], typer.Option(help="Which noise on predictions.")
    ] = "gaussian",
    clip: Annotated[float, typer.Option(help="C: predictions are clipped to [-C, C].")] = 2.0,
    delta: Annotated[float, typer.Option(help="Of (epsilon, delta).")] = 1e-5,
    gradient_clip: Annotated[
        float | None, typer.Option(help="DP-SGD at the parties: a sample's longest gradient.")
    ] = None,
    gradient_noise: Annotated[
        float | None, typer.Option(help="DP-SGD at the parties: noise multiplier.")
    ] = None,
    algorithm: Annotated[
        Literal["fdml", "fedsgd", "fedbcd-p", "fedbcd-s"], typer.Option(help="Which algorithm.")
    ] = "fdml",
    epochs: Annotated[int, typer.Option(min=1, help="Over the training rows.")] = 10,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows a batch.")] = 100,
    local_steps: Annotated[int, typer.Option(min=1, help="Q, of fedbcd.")] = 5,
    hidden: Annotated[int, typer.Option(min=1, help="Hidden units of nn at each party.")] = 16,
    learning_rate: Annotated[
        float | None, typer.Option(help="Step size; tuned without noise on a validation fifth.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Seeds.")] = 5,
    parties: options.Parties = None,
    label_party: options.LabelParty = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes; one a core if absent.")
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Forget what an interrupted sweep has done.")
    ] = False,
    data_dir: options.DataDir = None,
    seed: options.Seed = 0,
    json: options.Json = None,
    html: options.Html = None,
    quiet: options.Quiet = False,
) -> None:
    """AUC against noise on shared predictions, beside one party alone and one place.

    An interrupted sweep goes on where it was when the same command is given again.
    """
    settings = NoiseSettings(
        noise=options.numbers(noise, "--noise", float),
        models=_models(model),
        algorithm=algorithm,
        mechanism=mechanism,
        clip=clip,
        delta=delta,
        gradient_clip=gradient_clip,
        gradient_noise=gradient_noise,
        epochs=epochs,
        batch_size=batch_size,
        local_steps=local_steps,
        hidden=hidden,
        learning_rate=learning_rate,
        repeats=repeats,
        seed=seed,
        workers=workers or os.cpu_count() or 1,
    )
    data = options.dataset(dataset, parties, data_dir)
    data = replace(data, label_party=label_party or data.label_party)
    directory = platformdirs.user_cache_path("securevfl") / "sweeps"
    journal = Journal(directory, work_of(settings, data))
    if fresh:
        journal.forget()
    earlier = len(journal.done())
    if earlier and not quiet:
        sys.stderr.write(f"going on: {earlier} pieces of work were done before\n")
    with options.progress(quiet) as report:
        rows = run_sweep(settings, data, journal, report)
    kept = {"dataset": data.name, "parties": len(data.parties), **asdict(settings)}
    result = results(command="sweep noise", seed=seed, settings=kept, rows=rows)
    if json is not None:
        write_results(json, **{key: result[key] for key in ("command", "seed", "settings", "rows")})
    if html is not None:
        write_page(html, sweep_page(result))
    if not quiet:
        console = Console()
        title = f"{data.name}, {algorithm}, S = {batch_size}, {epochs} epochs"
        console.print(table(NOISE, rows, title))
        for note in sweep_notes(rows):
            console.print(note, highlight=False)


def _models(text: str) -> tuple[Model, ...]:
    chosen: list[Model] = []
    for name in options.names(text):
        known = next((each for each in MODELS if each == name), None)
        if known is None:
            raise ConfigError(f"--model {name!r}: expected {', '.join(MODELS)}")
        chosen.append(known)
    return tuple(chosen)
