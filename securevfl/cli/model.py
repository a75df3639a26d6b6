"""`securevfl model`: what saved models hold."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from securevfl.cli import options
from securevfl.errors import ConfigError
from securevfl.reports.results import keep
from securevfl.shown import counted

if TYPE_CHECKING:
    from rich.table import Table

    from securevfl.scoring.description import ModelRow

MOST_CLASSES_NAMED = 12
Entry = tuple[str, str, int, tuple[float, ...]]
"""Party, column, number of the output, and figures."""

model = typer.Typer(help="Saved models: what they hold.", no_args_is_help=True)


@model.command("show")
def show(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="One party's part, or several.")
    ],
    *,
    scorecard: Annotated[bool, typer.Option("--scorecard", help="Show points instead.")] = False,
    base: Annotated[float, typer.Option(help="Points at the odds of --odds.")] = 600,
    odds: Annotated[float, typer.Option(help="Good people to a bad one, at --base.")] = 50,
    pdo: Annotated[float, typer.Option(help="Points that double the odds.")] = 20,
    good: Annotated[str | None, typer.Option(help="Class that points are for; the first.")] = None,
    json: options.Json = None,
    html: options.Html = None,
    csv: Annotated[Path | None, typer.Option(help="Write points to this file.")] = None,
    quiet: options.Quiet = False,
) -> None:
    """Say what a saved part holds: coefficients by name, scaling, classes, architecture.

    Several parts of one model are shown together, the largest coefficients first. Points, as on a
    scorecard, are of linear models of two classes; --html and --csv are theirs.
    """
    from rich.console import Console

    from securevfl.models.storage import load_model

    parts = [load_model(path, describe_only=True) for path in files]
    console = Console(quiet=quiet)
    settings: dict[str, object] = {"files": [str(path) for path in files]}
    if scorecard:
        from securevfl.files import replace_file
        from securevfl.reports import scorecard as reports
        from securevfl.reports.predictions import scores_as
        from securevfl.reports.tables import grouped, table
        from securevfl.scoring.scorecard import scorecard as points_of

        good, points = points_of(parts, base=base, odds=odds, pdo=pdo, good=good)
        settings |= {"base": base, "odds": odds, "pdo": pdo, "good": good}
        page = reports.scorecard_page
        keep(json, html, page, command="model show", seed=0, settings=settings, rows=points)
        if csv is not None:
            columns = {key: [row[key] for row in points] for key in points[0]}
            replace_file(csv, scores_as(".csv", columns), "scorecard")
        console.print(reports.meaning(settings), highlight=False, markup=False)
        for name, own in grouped(points, "party").items():
            first = ("column", lambda row: str(row["column"]))
            console.print(table([first, *reports.columns_of(own)], own, name))
        return
    if (html, csv, good, base, odds, pdo) != (None, None, None, 600, 50, 20):
        raise ConfigError("--html, --csv, --base, --odds, --pdo and --good: only with --scorecard")
    from securevfl.scoring.description import model_row

    unit = next((each.header.target_scale for each in parts if each.header.target_scale), None)
    rows = [model_row(each, unit) for each in parts]
    keep(json, command="model show", seed=0, settings=settings, rows=rows)
    for row in rows:
        for line in model_lines(row):
            console.print(line, highlight=False, markup=False)
    if (found := coefficient_table(rows)) is not None:
        console.print(found)
        console.print(
            "per deviation: of a column that is standardized as training had it; per unit: of the "
            "column as it is",
            highlight=False,
        )


def model_lines(row: "ModelRow") -> Iterator[str]:
    """What a part is, a line each."""
    role = "label party" if row["holds_labels"] else "feature party"
    yield f"{row['party']} ({role}): its part of a model with {row['loss']} loss"
    trained = f"job {row['job_hash'][:16]}, {counted(row['rounds'], 'round')}"
    if row["training_rows"] is not None:
        trained += f", {row['training_rows']:,} training rows"
    yield trained
    names = row["class_names"]
    if names is not None:
        more = ", ..." if len(names) > MOST_CLASSES_NAMED else ""
        yield f"{len(names)} classes: {', '.join(names[:MOST_CLASSES_NAMED])}{more}"
    if row["target_mean"] is not None:
        yield f"real targets: {row['target_mean']:.6g} + {row['target_scale']:.6g}·H"
    for raw in row["recipe"] or ():
        if raw["kind"] != "number":
            yield f"{raw['name']} ({raw['kind']}): {', '.join(raw['columns'])}"
    if row["network"] is not None:
        yield _network(row)
    if row["representation"] is not None:
        what = f"gives {row['representation']} numbers a row to the label party's head"
        yield f"holds the head over {', '.join(row['head'])}" if row["head"] else what


def coefficient_table(rows: Sequence["ModelRow"]) -> "Table | None":
    """The coefficients of all linear parts, of several parts the largest first.

    Of standardized columns, which can be compared, and per unit of raw ones.
    """
    from rich.text import Text

    from securevfl.reports.tables import empty_table

    linear = [row for row in rows if row["intercept"] is not None]
    if not linear:
        return None
    outputs = next((row["outputs"] for row in linear if row["holds_labels"]), linear[0]["outputs"])
    lead = {"party": len(rows) > 1, "column": True, "class": len(outputs) > 1}
    table = empty_table(padding=(0, 1))
    for heading, shown in lead.items():
        if shown:
            table.add_column(heading, overflow="fold")
    for heading in ("per deviation", "per unit", "mean", "deviation"):
        table.add_column(heading, justify="right", no_wrap=True)
    entries = [entry for row in linear for entry in _coefficients(row)]
    if len(rows) > 1:
        entries.sort(key=lambda entry: -abs(entry[3][0]))
    constants = [entry for row in linear for entry in _constants(row)]
    for party, column, output, numbers in (*entries, *constants):
        words = zip((party, column, outputs[output]), lead.values(), strict=True)
        told = [f"{number:.4g}" for number in numbers]
        # As text: a string's brackets would be taken for markup.
        table.add_row(*(Text(word) for word, shown in words if shown), *told)
    return table


def _coefficients(row: "ModelRow") -> Iterator[Entry]:
    for each in row["columns"]:
        both = zip(each["standardized"], each["per_unit"], strict=True)
        for output, pair in enumerate(both):
            yield row["party"], each["column"], output, (*pair, each["mean"], each["scale"])


def _constants(row: "ModelRow") -> Iterator[Entry]:
    both = zip(row["intercept"] or (), row["constant"] or (), strict=True)
    for output, pair in enumerate(both):
        yield row["party"], "(constant)", output, pair


def _network(row: "ModelRow") -> str:
    network = row["network"] or {}
    told = [counted(len(row["columns"]), "column")]
    if network["channels"]:
        told.append(f"3 x 3 convolutions of {', '.join(map(str, network['channels']))}")
    if network["hidden"]:
        told.append(f"hidden units {', '.join(map(str, network['hidden']))}")
    if network["kind"] != "custom":
        told.append(network["activation"])
    told.append(f"{row['parameters']:,} parameters in {network['precision']} precision")
    return f"network ({network['kind']}): {'; '.join(told)}"
