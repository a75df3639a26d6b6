"""A scorecard as a table, and as a page with the curve of each column."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from securevfl.reports.page import lines, render
from securevfl.reports.tables import Column, Row, grouped
from securevfl.shown import curve

YEAR, FIRST_YEAR = 365.2425, 1970
COLUMNS: tuple[Column[Row], ...] = (
    ("values", lambda row: row["bin"]),
    ("points", lambda row: f"{row['rounded']}"),
    ("exact", lambda row: f"{row['points']:.3f}"),
    ("per unit", lambda row: f"{row['per_unit']:.4g}" if row["per_unit"] else ""),
)


def columns_of(rows: Sequence[Row]) -> tuple[Column[Row], ...]:
    """The columns of a table of bins; slopes only where there are any."""
    return COLUMNS if any(row["per_unit"] for row in rows) else COLUMNS[:3]


def meaning(settings: Row) -> str:
    """What a point is, in a sentence."""
    return (
        f"{settings['base']:g} points at odds of {settings['odds']:g} : 1 for class "
        f"{settings['good']!r}; the odds double every {settings['pdo']:g} points"
    )


def effect(bins: Sequence[Row]) -> dict[str, Any] | None:
    """A column's points over its numbers; None of categories, which a table shows as well."""
    numbers = [row for row in bins if row["at"] is not None]
    if not numbers:
        return None
    inner = [row["low"] for row in numbers[1:]]
    gaps = [b - a for a, b in pairwise(inner)] or [abs(numbers[0]["at"]) / 2 or 1.0]
    if numbers[0]["deviation"] is not None:
        gaps = [2 * numbers[0]["deviation"]]
    ends = [numbers[0]["at"] - gaps[0], *inner, numbers[-1]["at"] + gaps[-1]]
    x = [end for pair in pairwise(ends) for end in pair]
    twice = [row for row in numbers for _ in range(2)]
    y = [r["points"] + r["per_unit"] * (end - r["at"]) for r, end in zip(twice, x, strict=True)]
    if bins[0]["kind"] == "date":
        x = [FIRST_YEAR + end / YEAR for end in x]
    return {**curve(bins[0]["column"], "", "points", x, {"points": y}), "markers": False}


def scorecard_page(result: Mapping[str, Any]) -> str:
    """The page of `model show --scorecard`, from what its JSON holds."""
    rows: Sequence[Row] = result["rows"]
    every = {row["party"]: row for row in rows if not row["kind"]}
    parties: dict[str, list[dict[str, Any]]] = {}
    of_columns = grouped([row for row in rows if row["kind"]], "party", "column")
    for (party, name), bins in of_columns.items():
        figure, shown = effect(bins), columns_of(bins)
        points = figure["series"]["points"] if figure else [row["points"] for row in bins]
        own = {"name": name, "curve": figure, "spread": max(points) - min(points)}
        own |= {"headings": [heading for heading, _ in shown], "lines": lines(shown, bins)}
        parties.setdefault(party, []).append(own)
    for columns in parties.values():
        columns.sort(key=lambda each: -each["spread"])
    said = meaning(result["settings"])
    return render("scorecard.html", result=result, meaning=said, every=every, parties=parties)
