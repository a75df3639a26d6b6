"""Results as one self-contained page: no script, no request to anywhere, readable on a phone."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from securevfl.files import replace_file
from securevfl.reports.marks import marks_of
from securevfl.reports.matrix import (
    advice_lines,
    cell_text,
    epsilon_lines,
    exchanges_of,
    figure,
    legend,
    lines_of,
)
from securevfl.reports.plots import curve_svg

Row = Mapping[str, Any]


def audit_page(result: Mapping[str, Any]) -> str:
    """The page of an audit, from what its JSON holds."""
    rows: Sequence[Row] = result["rows"]
    curves = [
        {
            "attack": row["attack"],
            "exchange": row["exchange"],
            "case": row["detail"]["case"],
            "title": curve["title"],
            "svg": Markup(curve_svg(curve)),  # noqa: S704  # made by matplotlib from numbers
        }
        for row in rows
        for curve in row["detail"].get("curves", ())
    ]
    return render(
        "audit.html",
        result=result,
        exchanges=exchanges_of(rows),
        lines=lines_of(rows),
        legend=[*marks_of(result), *legend(rows), *epsilon_lines(rows)],
        advice=advice_lines(rows),
        curves=curves,
        attacks=[
            row
            for row in rows
            if row["value"] is not None
            and not (row["detail"]["control"] or row["detail"]["what_if"])
        ],
    )


def write_page(path: Path, page: str) -> None:
    """Write a page in one step.

    Raises:
        DataError: it cannot be written.
    """
    replace_file(path, page.encode(), "page")


def render(template: str, **values: object) -> str:
    """A page from a template of this package; whatever is undefined is an error."""
    environment = Environment(
        loader=PackageLoader("securevfl.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["figure"] = figure
    environment.filters["cell"] = cell_text
    return environment.get_template(template).render(**values)
