"""Tables and the page of plots: what FDML costs beside one place, and how it grows."""

import math
from collections.abc import Mapping, Sequence
from statistics import linear_regression
from typing import Any, Literal

from bench.tables import or_dash
from securevfl.reports.page import rows_page
from securevfl.reports.tables import Column, Row, seconds
from securevfl.shown import curve

MIB = 1 << 20
BITS = {"double": 64, "single": 32}
Size = Literal["rows", "columns"]
SIZES: tuple[Size, Size] = ("rows", "columns")


def _mib(size: float) -> str:
    return f"{size / MIB:,.0f} MiB"


_times = "{:.2f} x".format


SCALE: tuple[Column[Row], ...] = (
    ("rows", lambda row: f"{row['rows']:,}"),
    ("S", lambda row: f"{row['batch_size']:,}"),
    ("n", lambda row: str(row["batches_per_message"])),
    ("training", lambda row: row["training"]),
    ("AUC", lambda row: f"{row['auc']:.4f}"),
    ("CPU/epoch", lambda row: seconds(row["cpu_s_per_epoch"])),
    ("stored", lambda row: or_dash(row["stored_bytes"], _mib)),
    ("peak", lambda row: or_dash(row["peak_bytes"], _mib)),
)
COLUMNS: Column[Row] = ("columns", lambda row: f"{row['columns']:,}")
RATIOS: tuple[Column[Row], ...] = (
    *SCALE[:3],
    ("bits", lambda row: str(BITS[row["precision"]])),
    ("CPU", lambda row: or_dash(row["ratio_to_one_place"], _times)),
    ("wall", lambda row: or_dash(row.get("wall_ratio"), _times)),
    ("virtual", lambda row: or_dash(row["virtual_s_per_epoch"], seconds)),
    ("network", lambda row: or_dash(row["network_s_per_epoch"], seconds)),
    ("ratio", lambda row: or_dash(row["virtual_ratio"], _times)),
    ("apart", lambda row: or_dash(row["processes_s_per_epoch"], seconds)),
    ("ratio", lambda row: or_dash(row["processes_ratio"], _times)),
    ("peak", lambda row: or_dash(row["process_peak_bytes"], _mib)),
    ("set-up", lambda row: or_dash(row.get("setup_s"), seconds)),
)
NOTES = (
    "n: batches a message, with tau = n - 1; bits: of the numbers in a message",
    "CPU, wall: of this process, all parties after each other; ratio, x: to one place",
    "virtual: parties and server at the same time, CPU seconds and the network's",
    "apart: of the wall, each party and the server a process; peak: the largest one's",
    "stored: training rows; peak: the process's memory, mapped files in it",
)


PHASES: tuple[Column[Row], ...] = (
    ("rows", lambda row: f"{row['rows']:,}"),
    ("S", lambda row: f"{row['batch_size']:,}"),
    ("phase", lambda row: row["phase"]),
    ("an iteration", lambda row: seconds(row["seconds"])),
    ("share", lambda row: f"{row['share']:.0%}"),
)


def phases_of(rows: Sequence[Row]) -> list[Row]:
    """Seconds of an iteration of all parties by phase, for every profile, the longest first."""
    return [
        {
            "rows": row["rows"],
            "batch_size": row["batch_size"],
            "phase": phase,
            "seconds": spent,
            "share": spent / sum(row["phases_s"].values()),
        }
        for row in rows
        if row["phases_s"]
        for phase, spent in sorted(row["phases_s"].items(), key=lambda each: -each[1])
    ]


LAWS = (
    ("CPU", "cpu_s_per_epoch"),
    ("virtual", "virtual_s_per_epoch"),
    ("processes", "processes_s_per_epoch"),
    ("a party's peak", "process_peak_bytes"),
)


def exponent(rows: Sequence[Row], field: str, size: Size = "rows") -> float | None:
    """The power of rows or columns that figures grow with, by least squares of logarithms.

    None of fewer than two sizes.
    """
    found = [(row[size], value) for row in rows if (value := row[field]) is not None]
    if len({size for size, _ in found}) < 2:  # noqa: PLR2004
        return None
    sizes, values = zip(*((math.log(size), math.log(value)) for size, value in found), strict=True)
    return linear_regression(sizes, values).slope


def sizes_of(rows: Sequence[Row]) -> list[Size]:
    """What sets differ in."""
    return [size for size in SIZES if len(_sizes(rows, size)) > 1]


def _sizes(rows: Sequence[Row], size: Size) -> set[int]:
    """A set's rows, or the columns of all its parties."""
    return {row[size] for row in rows if row["training"] == "fdml"}


def trainings(rows: Sequence[Row], size: Size = "rows") -> dict[str, list[Row]]:
    """Those of each training at each S and n that differ in one size alone, by name."""
    other = SIZES[1 - SIZES.index(size)]
    several = len(_sizes(rows, other)) > 1
    named: dict[str, list[Row]] = {}
    for row in rows:
        name = f"{row['training']}, S = {row['batch_size']:,}"
        if row["training"] == "fdml" and row["batches_per_message"] > 1:
            name += f", n = {row['batches_per_message']}"
        told = f"{name}, {row[other]:,} {other}" if several else name
        named.setdefault(told, []).append(row)
    return named


def laws(rows: Sequence[Row]) -> list[str]:
    """How figures grow with rows and with columns, a line a training."""
    lines = []
    for size in sizes_of(rows):
        for name, own in trainings(rows, size).items():
            grown = [(what, exponent(own, field, size)) for what, field in LAWS]
            told = ", ".join(f"{what} {power:.2f}" for what, power in grown if power is not None)
            if told:
                lines.append(f"{name} grows as {size} to the power of: {told}")
    return lines


def notes(rows: Sequence[Row]) -> list[str]:
    """What the columns mean, and how figures grow."""
    return [*NOTES, *laws(rows)]


IN_FULL: tuple[Column[Row], ...] = (
    ("model", lambda row: row["model"]),
    SCALE[0],
    COLUMNS,
    *SCALE[1:],
    *RATIOS[3:],
)


def of_fdml(rows: Sequence[Row]) -> list[Row]:
    """Those of fdml itself."""
    return [row for row in rows if row["training"] == "fdml"]


def growth(rows: Sequence[Row], what: str, field: str, size: Size = "rows") -> dict[str, Any]:
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
    """The page of a run, from what its result file holds."""
    rows: Sequence[Row] = result["rows"]
    figures = [
        (f"{what} over {size}", growth(rows, what, field, size))
        for size in sizes_of(rows) or SIZES[:1]
        for what, field in LAWS
    ]
    return rows_page(
        result,
        IN_FULL,
        title="FDML at scale",
        lead=f"{rows[0]['dataset']}, {rows[0]['model']}, {result['settings']['epochs']} epochs.",
        figures=[each for each in figures if each[1]["series"]],
        heading="Every training",
        notes=notes(rows),
    )
