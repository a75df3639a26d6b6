"""`securevfl bench`: what encryption costs and what theory promises, measured."""

from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING

import typer
from typer.core import TyperCommand, TyperGroup
from typing_extensions import override

from securevfl.benchmarks.settings.crypto import CryptoSettings
from securevfl.benchmarks.settings.tradeoff import (
    SCHEME,
    STEPS,
    TradeoffSettings,
    full_key,
    is_key,
    job_keys,
    parted,
    values_of,
)
from securevfl.cli import options
from securevfl.cli.command import command, typed
from securevfl.cli.reporting import keep, measured, say, show
from securevfl.errors import ConfigError
from securevfl.job import Job
from securevfl.reports import benchmarks as bench_tables
from securevfl.reports import tables
from securevfl.reports.results import marks

if TYPE_CHECKING:
    import click

    from securevfl.data.tables import VerticalDataset

MOVED = {
    "ahead": "offline",
    "blind": "blind",
    "cost-law": "cost_law",
    "defaults": "defaults",
    "fdml": "fdml",
    "fdml-scale": "scale",
    "horizontal": "horizontal",
    "joint": "joint",
    "l1": "l1",
    "label-guard": "label_guard",
    "networks": "networks",
    "offline": "offline",
    "overhead": "overhead",
    "overlap": "overlap",
    "rounds": "rounds",
    "staleness": "staleness",
    "theorem1": "theorem1",
    "theorem2": "theorem2",
    "transfer": "transfer",
}
"""Commands of version 0.1 that are experiments now, in folders of these names."""


class Benchmarks(TyperGroup):
    """The benchmarks; of an experiment that moved it says where it is."""

    @override
    def get_command(self, ctx: "click.Context", cmd_name: str) -> "click.Command | None":
        if cmd_name in MOVED:
            raise ConfigError(
                f"bench {cmd_name}: now `python -m bench.{MOVED[cmd_name]}`, in a checkout"
            )
        return super().get_command(ctx, cmd_name)


bench = typer.Typer(help="Benchmarks: what protection costs.", no_args_is_help=True, cls=Benchmarks)


MORE_EXCHANGES = ("plain", "paillier", "ckks", "bfv")
MAIN_JOB = {"rounds": 200, "batch_size": 64, "schedule": "constant", "target_auc": 0.99}


class JobKeysAreOptions(TyperCommand):
    """Takes `--local-steps 1,5`, and so every key of a job file, as `--vary local_steps=1,5`."""

    @override
    def parse_args(self, ctx: "click.Context", args: list[str]) -> list[str]:
        own = {option for parameter in self.get_params(ctx) for option in parameter.opts}
        given, words = iter(args), []
        for word in given:
            option, equals, value = word.partition("=")
            key = option.removeprefix("--").replace("-", "_")
            if option == word[:2] or option in own or not option.startswith("--"):
                words.append(word)
            elif not is_key(key):
                near = get_close_matches(option, (*own, *map(_option, job_keys())), n=1, cutoff=0)
                raise ConfigError(f"no such option {option}: the nearest is {near[0]}")
            else:
                value = value if equals else next(given, "")
                if not value or value.startswith("--"):
                    raise ConfigError(f"{option}: expected values, as in {option} VALUE,VALUE")
                words += ["--vary", f"{key}={value}"]
        return super().parse_args(ctx, words)


def _option(key: str) -> str:
    return f"--{key.replace('_', '-')}"


@command(bench, kind=JobKeysAreOptions)
def tradeoff(settings: TradeoffSettings, data: options.SplitJobData, output: options.Page) -> None:
    """Training to a target AUC over a grid of settings, and what each part costs.

    Of a job file everything but what is varied: by default its exchange with `plain`, at its own Q,
    to its target; to 0.005 below what it reaches in clear where it has none. Without a job file,
    four exchanges at four Q. Every key of a job file is an option, too: `--local-steps 1,5` is
    `--vary local_steps=1,5`.
    """
    vary = {full_key(key): values_of(text) for key, text in map(parted, settings.vary or ())}
    job = data.base
    if job is None:
        job = Job.of(job={"name": "tradeoff", "eval_every": 1, **MAIN_JOB})
        vary = {SCHEME: MORE_EXCHANGES, STEPS: (1, 5, 10, "exact"), **vary}
    else:
        vary = {SCHEME: tuple(dict.fromkeys(("plain", job.exchange.scheme))), **vary}
    if settings.seed is not None:
        job = job.with_settings(seed=settings.seed)
    tuned = data.base is None and "job.learning_rate" not in vary
    tuning = settings.tuning or ("shared" if tuned else "none")

    @cache
    def load(name: str | None, parties: int | None) -> "VerticalDataset":
        chosen = replace(data, dataset=name or data.dataset)
        found = chosen.load(parties)
        rows = vary.get("job.batch_size", (job.job.batch_size,))
        most = max((each for each in rows if isinstance(each, int)), default=None)
        return options.fewer_rows(found, most) if settings.quick else found

    from securevfl.benchmarks.grid import Grid
    from securevfl.benchmarks.tradeoff import tradeoff as run

    cells = Grid(job, vary, lambda each: load(each.job.dataset, each.job.parties), tuning)
    repeats = settings.repeats or 1
    exchanges = ", ".join(dict.fromkeys(each.exchange for each in cells.cells))
    rows = measured(
        output,
        lambda report: run(cells, settings.target_aucs, repeats, report),
        f"tradeoff: exchanges: {exchanges}, runs of each: {repeats} at any Q",
    )
    told = {
        "vary": {key: list(values) for key, values in vary.items()},
        "job": job.model_dump(mode="json"),
        "target_aucs": settings.target_aucs,
        "tuning": tuning,
        "repeats": repeats,
        "quick": settings.quick,
        "dataset": ", ".join(dict.fromkeys(row["dataset"] for row in rows)),
    }
    from securevfl.reports.trained import tradeoff_page

    keep(output, "bench tradeoff", {**told, "seed": job.job.seed}, rows, page=tradeoff_page)
    networks = "/".join(map(typed, vary.get("network", (job.network,))))
    models = "/".join(map(str, vary.get("job.model", (job.job.model,))))
    for own in tables.grouped(rows, "dataset", "target_auc").values():
        sizes = "/".join(dict.fromkeys(str(row["batch_size"]) for row in own))
        title = (
            f"{own[0]['dataset']}, {own[0]['parties']} parties, {models}, S = {sizes}, "
            f"{networks}, to AUC {own[0]['target_auc']:g}"
        )
        show(output, tables.varied(rows), own, title)
    say(output, *marks((), quick=settings.quick), *tables.tradeoff_notes(rows))


@command(bench)
def crypto(settings: CryptoSettings, output: options.Output) -> None:
    """Engines on the encrypted product, beside phe and NumPy."""
    from securevfl.benchmarks.crypto import crypto as run

    rows = measured(output, lambda report: run(settings, report))
    keep(output, "bench crypto", settings, rows)
    show(output, bench_tables.CRYPTO, rows, "masked product: encrypt, multiply, decrypt")
    if any(row["extrapolated"] for row in rows):
        say(output, "~ timed on a part of the work and scaled up; the JSON says which")
