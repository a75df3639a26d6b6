"""`securevfl model`: what saved models hold."""

from pathlib import Path
from typing import Annotated

import typer

from securevfl.cli import options

model = typer.Typer(help="Saved models: what they hold.", no_args_is_help=True)


@model.command("show")
def show(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="One party's part, or several.")
    ],
    *,
    json: options.Json = None,
    quiet: options.Quiet = False,
) -> None:
    """Say what a saved part holds: coefficients by name, scaling, classes, architecture.

    Several parts of one model are shown together, the largest coefficients first.
    """
    from rich.console import Console

    from securevfl.models.storage import load_model
    from securevfl.reports.model import coefficient_table, model_lines
    from securevfl.reports.results import keep
    from securevfl.scoring.description import model_row

    parts = [load_model(path, describe_only=True) for path in files]
    unit = next((each.header.target_scale for each in parts if each.header.target_scale), None)
    rows = [model_row(each, unit) for each in parts]
    settings = {"files": [str(path) for path in files]}
    keep(json, command="model show", seed=0, settings=settings, rows=rows)
    if quiet:
        return
    console = Console()
    for row in rows:
        for line in model_lines(row):
            console.print(line, highlight=False, markup=False)
    if (table := coefficient_table(rows)) is not None:
        console.print(table)
        console.print(
            "per deviation: of a column that is standardized as training had it; per unit: of the "
            "column as it is",
            highlight=False,
        )
