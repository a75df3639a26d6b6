"""`bench fdml-scale` as a page: seconds and memory over rows and columns, beside the table."""

from collections.abc import Mapping, Sequence
from typing import Any

from securevfl.auditing.curves import curve
from securevfl.reports.marks import marks_of
from securevfl.reports.page import render
from securevfl.reports.scale import (
    LAWS,
    MIB,
    SCALE_IN_FULL,
    SCALE_NOTES,
    SIZES,
    ScaleField,
    ScaleRow,
    Size,
    laws,
    sizes_of,
    trainings,
)


def growth(
    rows: Sequence[ScaleRow], what: str, field: ScaleField, size: Size = "rows"
) -> dict[str, Any]:
    """A figure of every training over rows or columns, on logarithmic axes."""
    unit = MIB if field.endswith("bytes") else 1
    at = {
        name: {row[size]: value / unit for row in own if (value := row[field]) is not None}
        for name, own in trainings(rows, size).items()
    }
    sizes = sorted({row[size] for row in rows})
    return curve(
        what,
        size,
        f"{what}, MiB" if unit == MIB else f"{what}, seconds an epoch",
        sizes,
        {name: [found.get(each) for each in sizes] for name, found in at.items() if found},
        log_x=True,
        log_y=True,
    )


def scale_page(result: Mapping[str, Any]) -> str:
    """The page of a run of `bench fdml-scale`, from what its JSON holds."""
    rows: Sequence[ScaleRow] = result["rows"]
    figures = [
        (f"{what} over {size}", growth(rows, what, field, size))
        for size in sizes_of(rows) or SIZES[:1]
        for what, field in LAWS
    ]
    return render(
        "rows.html",
        result=result,
        title="FDML at scale",
        lead=f"{rows[0]['dataset']}, {rows[0]['model']}, {rows[0]['epochs']} epochs.",
        figures=[{"title": what, "curve": each} for what, each in figures if each["series"]],
        heading="Every training",
        headings=[heading for heading, _ in SCALE_IN_FULL],
        lines=[[show(row) for _, show in SCALE_IN_FULL] for row in rows],
        notes=[*marks_of(result), *SCALE_NOTES, *laws(rows)],
        not_promised=(),
    )
