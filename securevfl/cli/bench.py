"""`securevfl bench`: what encryption costs and what theory promises, measured."""

from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer.core import TyperGroup
from typing_extensions import override

from securevfl.benchmarks.settings.blind import BlindSettings, OfflineSettings
from securevfl.benchmarks.settings.defaults import DefaultsSettings
from securevfl.benchmarks.settings.horizontal import HorizontalSettings
from securevfl.benchmarks.settings.scale import ScaleSettings
from securevfl.cli import options
from securevfl.cli.command import command, typed
from securevfl.cli.job_keys import JobKeysAreOptions, Vary, varied
from securevfl.cli.reporting import finished, keep, leave_if_cut, measured, say, show
from securevfl.errors import ConfigError
from securevfl.job import Job, NetworkSettings
from securevfl.job.keys import SCHEME, STEPS
from securevfl.reports import benchmarks as bench_tables
from securevfl.reports import blind as blind_tables
from securevfl.reports import tables
from securevfl.reports.defaults import DEFAULTS, NOTES
from securevfl.reports.results import marks

if TYPE_CHECKING:
    import click

    from securevfl.data.tables import VerticalDataset

MOVED = {
    "cost-law": "cost_law",
    "fdml": "fdml",
    "joint": "joint",
    "l1": "l1",
    "label-guard": "label_guard",
    "networks": "networks",
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


@command(bench)
def defaults(settings: DefaultsSettings, data: options.Place, output: options.Output) -> None:
    """A job with nothing set beside tuning by hand in one place, and each party alone."""
    datasets = [options.dataset(name, None, data.data_dir) for name in settings.datasets]
    from securevfl.benchmarks.defaults import defaults as run

    rows = measured(output, lambda report: run(settings, datasets, report))
    keep(output, "bench defaults", settings, rows)
    show(output, DEFAULTS, rows, f"nothing set; medians of {settings.repeats}")
    say(output, *NOTES)


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
        int, typer.Option(min=1, help="Rounds of the job that noise flooding has to cover.")
    ] = 1000,
    network: Annotated[
        str, typer.Option(help="lan, wan, intercontinental, or LATENCY_MS:MBIT_PER_S.")
    ] = "20:1000",  # fast, and long enough to hide what is made offline
    workers: Annotated[
        int, typer.Option(min=1, help="Measure paillier fast in so many processes as well.")
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
    )
    rows = measured(output, lambda report: run(settings, report))
    keep(output, "bench crypto", settings, rows)
    show(output, bench_tables.CRYPTO, rows, "masked product: encrypt, multiply, decrypt")
    if any(row["extrapolated"] for row in rows):
        say(output, "~ timed on a part of the work and scaled up; the JSON says which")
    leave_if_cut(output.missing)


@command(bench)
def blind(settings: BlindSettings, data: options.SplitData, output: options.Output) -> None:
    """Training that shows nobody anything beside plain and bfv, with what it does ahead."""
    dataset = data.load()
    from securevfl.benchmarks.blind import blind as run

    rows = measured(output, lambda report: run(settings, dataset, report))
    parties = len(dataset.parties)
    keep(output, "bench blind", settings, rows, dataset=dataset.name, parties=parties)
    what = f"{dataset.name}, {parties} parties, {typed(settings.network)}"
    title = f"{what}; medians of {settings.repeats}"
    for target in dict.fromkeys(row["target_auc"] for row in rows):
        own = [row for row in rows if row["target_auc"] == target]
        to = "" if target is None else f", to AUC {target:g}"
        show(output, blind_tables.BLIND, own, f"{title}{to}")
    say(output, *blind_tables.BLIND_NOTES)
    last = [row for row in rows if row["target_auc"] == rows[-1]["target_auc"]]
    show(output, blind_tables.BLIND_ROUND, blind_tables.by_round(last), f"{title}, a round")
    say(output, *blind_tables.ROUND_NOTES)


@command(bench)
def offline(settings: OfflineSettings, data: options.SplitData, output: options.Output) -> None:
    """Where the offline work of blind rounds spends its time."""
    dataset = data.load()
    from securevfl.benchmarks.offline import offline as run

    rows = measured(output, lambda report: run(settings, dataset, report))
    keep(output, "bench offline", settings, rows, dataset=dataset.name)
    title = f"{dataset.name}, {settings.steps}, {settings.loss}, {settings.rounds} rounds, profiled"
    show(output, blind_tables.PLACES, rows, title)


@command(bench)
def horizontal(
    settings: HorizontalSettings, data: options.Place, work: options.Journaled, output: options.Page
) -> None:
    """FedBCGD beside FedAvg and others: floats to an accuracy.

    An interrupted benchmark goes on where it was when the same command is given again.
    """
    from securevfl.models.local_model import require_torch

    require_torch("the network of bench horizontal")
    from securevfl.benchmarks.horizontal import horizontal as run
    from securevfl.benchmarks.horizontal import work_of

    journal = work.journal("horizontal", work_of(settings), quiet=output.quiet)
    sets, methods = ", ".join(settings.images), len(settings.methods)
    todo = f"horizontal on {sets}: {methods} methods, seeds: {settings.repeats}"
    with options.progress(output.quiet, todo, by_piece=True) as report:
        rows, missing = finished(lambda: run(settings, data.data_dir, journal, report))
    output.missing.extend(missing)
    from securevfl.reports.horizontal import HORIZONTAL, HORIZONTAL_NOTES, horizontal_page

    keep(output, "bench horizontal", settings, rows, page=horizontal_page)
    for name, mix in dict.fromkeys((row["dataset"], row["dirichlet"]) for row in rows):
        own = [row for row in rows if (row["dataset"], row["dirichlet"]) == (name, mix)]
        target = 100 * own[0]["target_accuracy"]
        title = f"{name}, D = {mix:g}, to {target:g} %; medians of {settings.repeats}"
        show(output, HORIZONTAL, own, title)
    say(output, *marks((), quick=settings.quick), *HORIZONTAL_NOTES)


@command(bench, "fdml-scale")
def fdml_scale(settings: ScaleSettings, output: options.Page) -> None:
    """FDML beside one place on shards of many sparse rows: seconds, AUC and memory."""
    from securevfl.benchmarks.scale import fdml_scale as run
    from securevfl.reports.scale import (
        PHASES,
        RATIOS,
        SCALE,
        SCALE_NOTES,
        laws,
        of_fdml,
        phases_of,
        scale_page,
    )

    rows = measured(output, lambda report: run(settings, report))
    dataset = rows[0]["dataset"]
    keep(output, "bench fdml-scale", settings, rows, page=scale_page, dataset=dataset)
    title = f"{dataset}, {settings.model}, {settings.epochs} epochs, {typed(settings.network)}"
    show(output, SCALE, rows, title)
    show(output, RATIOS, of_fdml(rows), "fdml, to one place")
    if phases := phases_of(rows):
        show(output, PHASES, phases, "fdml by phase, under a profiler; CPU of all parties")
    say(output, *SCALE_NOTES, *laws(rows))
