"""`securevfl bench`: what encryption costs and what theory promises, measured."""

from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer.core import TyperGroup
from typing_extensions import override

from securevfl.cli import options
from securevfl.cli.job_keys import JobKeysAreOptions, Vary, varied
from securevfl.cli.reporting import keep, leave_if_cut, measured, say, show
from securevfl.errors import ConfigError
from securevfl.job import Job, NetworkSettings
from securevfl.job.keys import SCHEME, STEPS
from securevfl.reports import benchmarks as bench_tables
from securevfl.reports import tables
from securevfl.reports.results import marks

if TYPE_CHECKING:
    import click

    from securevfl.data.tables import VerticalDataset

MOVED = (
    *("blind", "cost-law", "defaults", "fdml", "horizontal", "joint", "l1", "label-guard"),
    *("networks", "offline", "overhead", "overlap", "rounds", "staleness", "theorem1"),
    *("theorem2", "transfer"),
)
RENAMED = {"ahead": "offline", "fdml-scale": "scale"}
"""Commands of version 0.1 that are experiments now, and those that have another name as such."""


class Benchmarks(TyperGroup):
    """The benchmarks; of an experiment that moved it says where it is."""

    @override
    def get_command(self, ctx: "click.Context", cmd_name: str) -> "click.Command | None":
        if (name := RENAMED.get(cmd_name, cmd_name)) in MOVED or name != cmd_name:
            folder = name.replace("-", "_")
            raise ConfigError(f"bench {cmd_name}: now `python -m bench.{folder}`, in a checkout")
        return super().get_command(ctx, cmd_name)


bench = typer.Typer(help="Benchmarks: what protection costs.", no_args_is_help=True, cls=Benchmarks)


MORE_EXCHANGES = ("plain", "paillier", "ckks", "bfv")
MAIN_JOB = {"rounds": 200, "batch_size": 64, "schedule": "constant", "target_auc": 0.99}


@bench.command(cls=JobKeysAreOptions)
def tradeoff(
    job: options.JobFile = None,
    *,
    vary: Vary = None,
    target_auc: Annotated[
        str | None, typer.Option(help="Held-out AUCs to reach, by commas; a row each.")
    ] = None,
    tuning: Annotated[
        Literal["none", "shared", "per-q"] | None,
        typer.Option(
            help="Tune one step size at the largest Q for all, one for each Q, or none; shared "
            "where neither a job file nor an option has a learning rate."
        ),
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Runs with seeds of their own; medians. 1 if absent.")
    ] = None,
    seed: options.Seed = None,
    quick: options.Quick = False,
    dataset: Annotated[
        str | None, typer.Option(help="Data set by name; breast_cancer where no job is given.")
    ] = None,
    label_party: options.LabelParty = None,
    data_dir: options.DataDir = None,
    parties: options.Parties = None,
    json: options.Json = None,
    html: options.Html = None,
    quiet: options.Quiet = False,
) -> None:
    """Training to a target AUC over a grid of settings, and what each part costs.

    Of a job file everything but what is varied: by default its exchange with `plain`, at its own Q,
    to its target; to 0.005 below what it reaches in clear where it has none. Without a job file,
    four exchanges at four Q. Every key of a job file is an option, too: `--local-steps 1,5` is
    `--vary local_steps=1,5`.
    """
    runs = options.runs(repeats, 1, quick=quick)
    targets = () if target_auc is None else options.numbers("--target-auc", target_auc)
    output, cells = options.Output(json, quiet, html), varied(vary)
    described = options.read(
        job, {"--dataset": dataset, "--label-party": label_party, "--parties": parties}
    )
    if described is None:
        data = {"dataset": dataset or "breast_cancer", "parties": parties}
        described = Job.of(job={"name": "tradeoff", **data, "eval_every": 1, **MAIN_JOB})
        cells = {SCHEME: MORE_EXCHANGES, STEPS: (1, 5, 10, "exact"), **cells}
    else:
        cells = {SCHEME: tuple(dict.fromkeys(("plain", described.exchange.scheme))), **cells}
    if seed is not None:
        described = described.with_settings(seed=seed)
    tuned = job is None and "job.learning_rate" not in cells
    loaded: dict[str, VerticalDataset] = {}

    def load(cell: Job) -> "VerticalDataset":
        own = described.with_settings(dataset=cell.job.dataset, parties=cell.job.parties)
        own = own.model_copy(update={"preprocess": cell.preprocess})
        key = repr((own.job.dataset, own.job.parties, own.preprocess))
        if key not in loaded:
            data = options.class_data(own, job, label_party, data_dir)
            sizes = cells.get("job.batch_size", (described.job.batch_size,))
            most = max((each for each in sizes if isinstance(each, int)), default=None)
            loaded[key] = options.fewer_rows(data, most) if quick else data
        return loaded[key]

    from securevfl.benchmarks.grid import Grid
    from securevfl.benchmarks.tradeoff import tradeoff as run

    grid = Grid(described, cells, load, tuning or ("shared" if tuned else "none"))
    exchanges = ", ".join(dict.fromkeys(each.exchange for each in grid.cells))
    rows = measured(
        output,
        lambda report: run(grid, targets, runs, report),
        f"tradeoff: exchanges: {exchanges}, runs of each: {runs} at any Q",
    )
    told = {
        "vary": {key: list(values) for key, values in cells.items()},
        "job": described.model_dump(mode="json"),
        "target_aucs": targets,
        "tuning": grid.tuning,
        "repeats": runs,
        "quick": quick,
        "dataset": ", ".join(dict.fromkeys(row["dataset"] for row in rows)),
    }
    from securevfl.reports.trained import tradeoff_page

    keep(output, "bench tradeoff", {**told, "seed": described.job.seed}, rows, page=tradeoff_page)
    networks = "/".join(map(str, cells.get("network", (described.network,))))
    models = "/".join(map(str, cells.get("job.model", (described.job.model,))))
    for own in tables.grouped(rows, "dataset", "target_auc").values():
        sizes = "/".join(dict.fromkeys(str(row["batch_size"]) for row in own))
        title = (
            f"{own[0]['dataset']}, {own[0]['parties']} parties, {models}, S = {sizes}, "
            f"{networks}, to AUC {own[0]['target_auc']:g}"
        )
        show(output, tables.varied(rows), own, title)
    say(output, *marks((), quick=quick), *tables.tradeoff_notes(rows))
    leave_if_cut(output.missing)


@bench.command()
def crypto(
    *,
    samples: Annotated[str, typer.Option(help="Batch sizes S, by commas.")] = "64,256,4096",
    features: Annotated[str, typer.Option(help="Columns P, one for each S.")] = "15,64,128",
    scheme: Annotated[
        str, typer.Option(help="Homomorphic schemes, by commas.")
    ] = "paillier,ckks,bfv",
    zero_one: Annotated[
        bool, typer.Option("--zero-one", help="X of 0 and 1, which is exact without fraction bits.")
    ] = False,
    key_bits: Annotated[str, typer.Option(help="Paillier moduli, by commas.")] = "2048,3072",
    rounds: Annotated[
        int, typer.Option(min=1, help="Rounds of the job, which primes are sized for.")
    ] = 1000,
    network: Annotated[
        str, typer.Option(help="lan, wan, intercontinental, or LATENCY_MS:MBIT_PER_S.")
    ] = "20:1000",  # fast, and long enough to hide what is made offline
    engine: Annotated[str, typer.Option(help="By commas; native,seal compares those of bfv.")] = "",
    workers: Annotated[
        int, typer.Option(min=1, help="Measure on so many cores as well, where engines spread.")
    ] = 1,
    repeats: Annotated[int, typer.Option(min=1, help="Runs with seeds of their own; medians.")] = 5,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of batches and starts (never of keys).")
    ] = 0,
    json: options.Json = None,
    quiet: options.Quiet = False,
) -> None:
    """Engines on the encrypted product, beside phe and NumPy."""
    output = options.Output(json, quiet)
    from securevfl.benchmarks.crypto import CryptoSettings
    from securevfl.benchmarks.crypto import crypto as run

    def sizes(option: str, text: str) -> tuple[int, ...]:
        return options.by_commas(option, text, options.count, "whole numbers from 1 on")

    settings = CryptoSettings(
        samples=sizes("--samples", samples),
        features=sizes("--features", features),
        schemes=options.by_commas("--scheme", scheme, options.word, "names"),
        paillier_bits=sizes("--key-bits", key_bits),
        zero_one=zero_one,
        rounds=rounds,
        network=NetworkSettings.of(network),
        workers=workers,
        repeats=repeats,
        seed=seed,
        engines=options.by_commas("--engine", engine, options.word, "names") if engine else (),
    )
    rows = measured(output, lambda report: run(settings, report))
    keep(output, "bench crypto", settings, rows)
    show(output, bench_tables.CRYPTO, rows, "masked product: encrypt, multiply, decrypt")
    if any(row["extrapolated"] for row in rows):
        say(output, "~ timed on a part of the work and scaled up; the JSON says which")
    leave_if_cut(output.missing)
