"""`bench horizontal` as a page: accuracy over uploads and over rounds, beside the table."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from securevfl.auditing.curves import curve
from securevfl.reports.horizontal import HORIZONTAL_NOTES, WITH_PAPERS, HorizontalRow
from securevfl.reports.marks import marks_of
from securevfl.reports.page import render

Over = Literal["uploaded", "rounds"]
LABELS: Mapping[Over, str] = {"uploaded": "models uploaded a client", "rounds": "rounds"}


def accuracy_curve(rows: Sequence[HorizontalRow], over: Over) -> dict[str, Any]:
    """Test accuracy of every row's first run, over rounds or over models uploaded."""
    runs = {_name(row, rows): row["runs"][0] for row in rows}
    at = {name: dict(zip(run[over], run["accuracies"], strict=True)) for name, run in runs.items()}
    places = sorted({place for found in at.values() for place in found})
    return curve(
        f"{rows[0]['dataset']}, D = {rows[0]['dirichlet']:g}",
        LABELS[over],
        "test accuracy",
        places,
        {name: [found.get(each) for each in places] for name, found in at.items()},
        lines={"target": rows[0]["target_accuracy"]},
    )


def horizontal_page(result: Mapping[str, Any]) -> str:
    """The page of a run of `bench horizontal`, from what its JSON holds."""
    rows: Sequence[HorizontalRow] = result["rows"]
    cells = dict.fromkeys((row["dataset"], row["dirichlet"]) for row in rows)
    of_cells = {
        cell: [row for row in rows if (row["dataset"], row["dirichlet"]) == cell] for cell in cells
    }
    return render(
        "rows.html",
        result=result,
        title="FedBCGD and others",
        lead=f"Medians of {rows[0]['repeats']} seeds. Curves are of the run with seed "
        f"{result['seed']}.",
        figures=[
            {"title": f"{name}, D = {mix:g}: {LABELS[over]}", "curve": accuracy_curve(own, over)}
            for (name, mix), own in of_cells.items()
            for over in LABELS
        ],
        heading="Every method",
        headings=[heading for heading, _ in WITH_PAPERS],
        lines=[[show(row) for _, show in WITH_PAPERS] for row in rows],
        notes=[*marks_of(result), *HORIZONTAL_NOTES],
        not_promised=(),
    )


def _name(row: HorizontalRow, rows: Sequence[HorizontalRow]) -> str:
    """What tells it apart from the others."""
    several = len({other["blocks"] for other in rows if other["method"] == row["method"]}) > 1
    return f"{row['method']}, b = {row['blocks']}" if several else row["method"]
