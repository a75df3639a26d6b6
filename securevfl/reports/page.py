"""Results as one self-contained page: no script, no request to anywhere, readable on a phone."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from securevfl.reports.findings import findings
from securevfl.reports.matrix import (
    advice_lines,
    cell_text,
    epsilon_lines,
    exchanges_of,
    figure,
    headline,
    legend,
    lines_of,
)
from securevfl.reports.plots import curve_svg, words
from securevfl.reports.results import marks_of
from securevfl.reports.tables import Column, R, Row

UNSET = "-"


def audit_page(result: Mapping[str, Any]) -> str:
    """The page of an audit, from what its JSON holds."""
    rows: Sequence[Row] = result["rows"]
    figures = [
        {
            "title": curve["title"],
            "of": ", ".join(
                part for part in (row["attack"], row["exchange"], row["detail"]["case"]) if part
            ),
            "curve": curve,
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
        figures=figures,
        headline=headline(rows),
        findings=list(findings(rows)),
    )


def rows_page(
    result: Row,
    columns: Sequence[Column[R]],
    *,
    title: str,
    lead: str,
    figures: Sequence[tuple[str, Row]],
    heading: str,
    notes: Sequence[str],
    not_promised: Sequence[str] = (),
) -> str:
    """The page of a result file whose rows are a table, with curves and their titles above it.

    `lead` says what it is about, `heading` is the table's, `notes` stand below it; `not_promised`
    is what a reader may not take for a promise.
    """
    return render(
        "rows.html",
        result=result,
        title=title,
        lead=lead,
        figures=[{"title": name, "curve": each} for name, each in figures],
        heading=heading,
        headings=[name for name, _ in columns],
        lines=lines(columns, result["rows"]),
        notes=[*marks_of(result), *notes],
        not_promised=not_promised,
    )


def lines(columns: Sequence[Column[R]], rows: Sequence[R]) -> list[list[str]]:
    """The cells of a table, row by row."""
    return [[show(row) for _, show in columns] for row in rows]


def render(template: str, **values: object) -> str:
    """A page from a template of this package; whatever is undefined is an error."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415  # slow to import
    from markupsafe import Markup  # noqa: PLC0415

    environment = Environment(
        loader=PackageLoader("securevfl.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "figure": figure,
        "cell": cell_text,
        "line": shlex.join,
        "made": made,
        "settings": flat,
        "svg": lambda curve: Markup(curve_svg(curve)),  # noqa: S704  # matplotlib's, from numbers
        "words": words,
    }
    environment.globals["UNSET"] = UNSET
    return environment.get_template(template).render(**values)


def made(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a reader needs to make a page again, and to judge its seconds by."""
    machine = result["machine"]
    return [
        ("version", f"securevfl {result['version']}"),
        ("commit", result["commit"] or "none: an installed package"),
        ("date", result["date"]),
        ("seed", str(result["seed"])),
        ("processor", f"{machine['processor']}, {machine['cores']} cores"),
        ("system", f"{machine['system']}, Python {machine['python']}"),
        ("libraries", ", ".join(f"{name} {found}" for name, found in machine["libraries"].items())),
    ]


def flat(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Every setting by its full name; what was not set has a dash."""
    for key, value in settings.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{name}.")
        elif isinstance(value, list | tuple) and any(isinstance(each, Mapping) for each in value):
            for index, each in enumerate(value):
                yield from flat({str(each.get("name", index)): each}, f"{name}.")
        elif isinstance(value, list | tuple):
            yield name, ", ".join(map(str, value)) or UNSET
        else:
            yield name, UNSET if value in (None, {}) else str(value)
