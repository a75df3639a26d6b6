"""`securevfl bench fdml`, `fdml-scale` and `staleness`: FDML beside training in one place."""

from dataclasses import dataclass, replace
from typing import Annotated

import typer

from securevfl.benchmarks.settings.fdml import FdmlSettings
from securevfl.benchmarks.settings.scale import ScaleSettings
from securevfl.benchmarks.settings.staleness import StalenessSettings
from securevfl.cli import options
from securevfl.cli.command import command, typed
from securevfl.cli.reporting import keep, measured, say, show
from securevfl.reports import tables
from securevfl.reports.scale import PHASES, RATIOS, SCALE, SCALE_NOTES, laws, of_fdml, phases_of

fdml_bench = typer.Typer()


@command(fdml_bench)
def staleness(settings: StalenessSettings, data: options.A9a, output: options.Output) -> None:
    """FDML at each party's own speed: time to an AUC, and regret."""
    dataset = data.load()
    from securevfl.benchmarks.staleness import staleness as run

    rows = measured(output, lambda report: run(settings, dataset, report))
    keep(output, "bench staleness", settings, rows, dataset=dataset.name)
    title = (
        f"{dataset.name}, fdml, S = {settings.batch_size}, "
        f"virtual time to AUC {settings.target_auc:g}"
    )
    show(output, tables.STALENESS, rows, title)
    if not all(row["reached_target"] for row in rows):
        say(output, "* target not reached")


@dataclass(frozen=True)
class FdmlData(options.A9a):
    """The paper's split: with the constant column, its second party has 57 of a9a's columns."""

    label_party: Annotated[
        str | None, typer.Option(help="Give the labels to this party; the second if absent.")
    ] = None


@command(fdml_bench)
def fdml(settings: FdmlSettings, data: FdmlData, output: options.Output) -> None:
    """FDML beside training in one place and by each party alone."""
    dataset = data.load()
    from securevfl.benchmarks.fdml import fdml as run

    if data.label_party is None:
        dataset = replace(dataset, label_party=dataset.parties[1].name)
    rows = measured(output, lambda report: run(settings, dataset, report))
    keep(output, "bench fdml", settings, rows, dataset=dataset.name)
    title = (
        f"{dataset.name}, S = {settings.batch_size}, {settings.epochs} epochs, "
        f"{typed(settings.network)}; seconds an epoch, medians of {settings.repeats}"
    )
    show(output, tables.FDML, rows, title)
    for row in of_fdml(rows):
        say(
            output,
            f"{row['model']}, fdml: {row['ratio_to_one_place']:.1f} x one place on the wall clock",
        )


@command(fdml_bench, "fdml-scale")
def fdml_scale(settings: ScaleSettings, output: options.Page) -> None:
    """FDML beside one place on shards of many sparse rows: seconds, AUC and memory."""
    from securevfl.benchmarks.scale import fdml_scale as run
    from securevfl.reports.scale_page import scale_page

    rows = measured(output, lambda report: run(settings, report))
    dataset = rows[0]["dataset"]
    keep(output, "bench fdml-scale", settings, rows, page=scale_page, dataset=dataset)
    title = f"{dataset}, {settings.model}, {settings.epochs} epochs, {typed(settings.network)}"
    show(output, SCALE, rows, title)
    show(output, RATIOS, [row for row in rows if row["training"] == "fdml"], "fdml, to one place")
    if phases := phases_of(rows):
        show(output, PHASES, phases, "fdml by phase, under a profiler; CPU of all parties")
    say(output, *SCALE_NOTES, *laws(rows))
