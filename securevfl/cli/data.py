"""`securevfl data`: which data sets there are, where they lie, and how to get them."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from securevfl.cli import options
from securevfl.reports.results import keep

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

    from securevfl.data.catalog import Listing

data = typer.Typer(help="Data sets: list, find, download, convert.", no_args_is_help=True)

Force = Annotated[bool, typer.Option("--force", help="Replace existing shards.")]
Name = Annotated[str, typer.Argument(help="Name of a data set.")]


@data.command("list")
def list_sets(
    *, data_dir: options.DataDir = None, json: options.Json = None, quiet: options.Quiet = False
) -> None:
    """List the data sets, and whether each is here."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from securevfl.data.catalog import listing

    found = listing(data_dir=data_dir)
    keep(json, command="data list", seed=0, settings={}, rows=[_row(each) for each in found])
    if quiet:
        return
    table = Table(box=box.SIMPLE, pad_edge=False)
    for heading in ("name", "train", "test", "columns", "classes", "parties", "here"):
        table.add_column(heading, justify="left" if heading in {"name", "parties"} else "right")
    for each in found:
        entry = each.entry
        table.add_row(
            entry.name,
            *map(str, (*entry.rows, entry.columns)),
            f"{entry.classes or 'real'}",
            " | ".join(entry.parties),
            "yes" if each.present else "no",
        )
    Console().print(table)


@data.command("where")
def where(
    name: Name,
    *,
    data_dir: options.DataDir = None,
    json: options.Json = None,
) -> None:
    """Show where a data set is, or where it was searched for."""
    from securevfl.data.catalog import where as locate

    found = locate(name, data_dir=data_dir)
    keep(json, command="data where", seed=0, settings={}, rows=[_row(found)])
    if found.present:
        sys.stdout.write(f"{found.location}\n")
        return
    places = ", ".join(str(place) for place in found.looked_in)
    sys.stdout.write(f"not found; searched {places}\nget it: securevfl data get {name}\n")


@data.command("get")
def get(
    name: Name,
    *,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder to put it in; the per-user cache by default.")
    ] = None,
    json: options.Json = None,
    quiet: options.Quiet = False,
) -> None:
    """Download a data set from its publisher and verify its content."""
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn

    from securevfl.data.catalog import get as download

    columns = (TextColumn(name), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with _bar(quiet, *columns) as bar:
        task = bar.add_task(name, total=None)
        paths = download(
            name,
            data_dir=data_dir,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    rows = [{"path": str(path)} for path in paths]
    keep(json, command="data get", seed=0, settings={"name": name}, rows=rows)
    if not quiet:
        for path in paths:
            sys.stdout.write(f"{path}\n")


@data.command("convert")
def convert(
    files: Annotated[
        list[Path],
        typer.Argument(help="LIBSVM, Parquet or CSV files, concatenated in this order."),
    ],
    *,
    to: Annotated[Path, typer.Option(help="The folder to write.")],
    id_column: Annotated[
        str | None,
        typer.Option(
            help="Column of ids that joins the parties' rows; for LIBSVM '#', the comment."
        ),
    ] = None,
    row_numbers: Annotated[
        bool, typer.Option("--row-numbers", help="Use row numbers as ids.")
    ] = False,
    id_format: Annotated[
        Literal["text", "number", "folded"], typer.Option(help="How ids are compared.")
    ] = "text",
    label_column: Annotated[
        str | None, typer.Option(help="Column of labels, at the label party.")
    ] = None,
    labels: Annotated[
        bool, typer.Option(help="Keep LIBSVM's labels, or leave them out for a feature party.")
    ] = True,
    drop: Annotated[list[str] | None, typer.Option(help="A column to leave out.")] = None,
    index_column: Annotated[
        str | None, typer.Option(help="The column of index lists, if both columns have integers.")
    ] = None,
    columns: Annotated[
        int | None,
        typer.Option(min=1, help="Number of columns P, if the indices may not reach it."),
    ] = None,
    first_index: Annotated[
        int | None, typer.Option(min=0, max=1, help="Whether indices start at 0 or 1.")
    ] = None,
    force: Force = False,
    quiet: options.Quiet = False,
) -> None:
    """Convert sparse data once into a shard, for `[[party]] data`.

    LIBSVM (.libsvm, .svm, .svmlight, .txt, .t), Parquet (a column of lists of indices, or numbers)
    or CSV of numbers, in the memory of a part of it. A shard is a folder of arrays that training
    maps and does not read as a whole.
    """
    from rich.progress import TextColumn

    from securevfl.data.convert import Conversion
    from securevfl.data.convert import convert as converted

    how = Conversion(
        id_column,
        row_numbers,
        label_column,
        labels,
        tuple(drop or ()),
        columns,
        None if first_index is None else 1 if first_index else 0,
        id_format,
        force,
        index_column,
    )
    with _bar(quiet, TextColumn("{task.completed} rows")) as bar:
        task = bar.add_task("", total=None)
        header = converted(files, to, how, lambda rows: bar.update(task, completed=rows))
    if not quiet:
        sys.stdout.write(f"{to}: {header.line}\n")


@data.command("make")
def make(
    name: Annotated[Literal["planted-sparse"], typer.Argument(help="Of the set.")],
    *,
    to: Annotated[Path, typer.Option(help="The folder to write.")],
    rows: Annotated[int, typer.Option(help="In all; a tenth is held out.")] = 100_000,
    seed: Annotated[int, typer.Option(help="Of everything.")] = 0,
    columns: Annotated[int, typer.Option(help="Of all parties, by their parts.")] = 8700,
    force: Force = False,
    quiet: options.Quiet = False,
) -> None:
    """Make a sparse set by a seed: three shards and a job file.

    planted-sparse has 8,700 columns of ones (7,000, 1,000 and 700), 50 to 100 a row, and labels of
    a planted model; 5,000,000 rows are the size of FDML's paper.
    """
    from securevfl.data.planted_sparse import make_planted_sparse

    with _bar(quiet) as bar:
        task = bar.add_task(name, total=rows)
        make_planted_sparse(
            to,
            rows,
            seed,
            columns=columns,
            force=force,
            progress=lambda done: bar.update(task, completed=done),
        )
    if not quiet:
        sys.stdout.write(f"{to / 'job.toml'}\n")


def _bar(quiet: bool, *columns: "ProgressColumn") -> "Progress":
    """A bar on standard error, shown where that is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    hidden = quiet or not console.is_terminal
    return Progress(*columns, console=console, transient=True, disable=hidden)


def _row(found: "Listing") -> dict[str, Any]:
    entry = found.entry
    return {
        "name": entry.name,
        "train_rows": entry.rows[0],
        "test_rows": entry.rows[1],
        "columns": entry.columns,
        "classes": entry.classes,
        "parties": list(entry.parties),
        "licence": entry.licence,
        "source": entry.source,
        "present": found.present,
        "location": found.location,
        "looked_in": [str(place) for place in found.looked_in],
    }
