"""A scorecard's parts as a table, a page with a curve for each column, and a file of rows."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from securevfl.reports.page import lines, render
from securevfl.reports.tables import Column, Row
from securevfl.shown import curve

if TYPE_CHECKING:
    from securevfl.scoring.scorecard import Card, CardColumn

EVERY_ROW = "(every row)"
MOST_DRAWN = 40
"""Of a party's columns, those that move points most; drawing takes a tenth of a second each."""
YEAR, FIRST_YEAR = 365.2425, 1970
POINTS: tuple[Column[Row], ...] = (
    ("points", lambda row: f"{row['rounded']}"),
    ("exact", lambda row: f"{row['points']:.3f}"),
)
SLOPED: tuple[Column[Row], ...] = (
    ("at", lambda row: f"{row['at']:.10g}" if row["per_unit"] else ""),
    ("per unit", lambda row: f"{row['per_unit']:.4g}" if row["per_unit"] else ""),
)


def columns_of(rows: Sequence[Row]) -> tuple[Column[Row], ...]:
    """The columns of a table of bins; slopes only where there are any."""
    slopes = SLOPED if any(row["per_unit"] for row in rows) else ()
    return (("values", lambda row: row["bin"]), *POINTS, *slopes)


def card_lines(card: "Card") -> Iterator[str]:
    """What a part's points are of, a line each."""
    yield (
        f"{card['party']}: {card['base']:g} points at odds of {card['odds']:g} : 1 for class "
        f"{card['good']!r}, doubled by {card['pdo']:g} points more"
    )
    if card["constant"] is not None:
        yield (
            f"{EVERY_ROW}: {card['constant']:.3f} points, of them offset {card['offset']:.3f}; the "
            "sum is rounded last, or column by column"
        )


def card_rows(cards: Sequence["Card"]) -> list[dict[str, Any]]:
    """All points, a row each: with party and column, and the constant of the label party first."""
    rows = []
    for card in cards:
        if (own := card["constant"]) is not None:
            every = dict.fromkeys(("low", "high", "at")) | {"points": own, "rounded": round(own)}
            rows.append(
                {"party": card["party"], "column": EVERY_ROW, "bin": "", **every, "per_unit": 0.0}
            )
        for column in card["columns"]:
            given = {"party": card["party"], "column": column["column"]}
            rows += [{**given, **each} for each in column["bins"]]
    return rows


def effect(column: "CardColumn") -> dict[str, Any]:
    """The points of a column's values as a curve: numbers in their bins, categories by points."""
    name = column["column"]
    if not column["drawn"]:
        bins = sorted(column["bins"], key=lambda each: -each["points"])
        places, points = list(range(len(bins))), [each["points"] for each in bins]
        found = curve(name, name, "points", places, {"points": points})
        return {**found, "ticks": [each["bin"] for each in bins], "shape": "dots"}
    x, y = [], []
    start, stop = column["drawn"]
    for each in column["bins"]:
        if each["at"] is None:
            continue
        low, high = each["low"], each["high"]
        for place in (start if low is None else low, stop if high is None else high):
            x.append(place)
            y.append(each["points"] + each["per_unit"] * (place - each["at"]))
    label = name
    if column["kind"] == "date":
        x, label = [FIRST_YEAR + place / YEAR for place in x], f"{name}, in years"
    return {**curve(name, label, "points", x, {"points": y}), "shape": "line"}


def scorecard_page(result: Mapping[str, Any]) -> str:
    """The page of `model show --scorecard`, from what its JSON holds."""
    parties = []
    for card in result["rows"]:
        columns = []
        for column in card["columns"]:
            figure = effect(column)
            points = figure["series"]["points"]
            shown = columns_of(column["bins"])
            columns.append(
                {
                    "spread": max(points) - min(points),
                    "name": column["column"],
                    "headings": [heading for heading, _ in shown],
                    "lines": lines(shown, column["bins"]),
                    "curve": figure,
                }
            )
        columns.sort(key=lambda each: -each["spread"])
        for each in columns[MOST_DRAWN:]:
            each["curve"] = None
        parties.append({"name": card["party"], "said": list(card_lines(card)), "columns": columns})
    return render("scorecard.html", result=result, parties=parties)
