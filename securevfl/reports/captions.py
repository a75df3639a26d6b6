"""What a figure shows, in words with figures: its caption, and what is read out in its place."""

from collections.abc import Mapping, Sequence
from typing import Any

from securevfl.reports.matrix import figure
from securevfl.reports.plots import logarithmic

LEVEL = 0.01
"""A series that moves by less than this of its size is said to stay."""
MOST_TOLD = 5
"""Curves that are told one by one."""
Point = tuple[str, float]


def words(curve: Mapping[str, Any]) -> str:
    """Where every series begins and ends, and turns; the levels that it is compared with.

    Args:
        curve: as `securevfl.auditing.curves.curve` makes it; see `plots.curve_svg`.
    """
    places = [str(each).splitlines()[0] for each in curve.get("ticks", curve["x"])]
    courses = {
        name: [(x, y) for x, y in zip(places, values, strict=True) if y is not None]
        for name, values in curve["series"].items()
    }
    told = _each(courses) if len(courses) <= MOST_TOLD else _span(courses)
    told += [f"{name} is at {figure(level)}" for name, level in curve["lines"].items()]
    label = curve["y_label"][0].upper() + curve["y_label"][1:]
    text = f"{label} over {curve['x_label'].splitlines()[0]}: {'; '.join(told)}."
    if logarithmic(curve, "y"):
        left_out = sum(y is not None and y <= 0 for each in curve["series"].values() for y in each)
        text += f" Values of 0 are not drawn: {left_out}." if left_out else ""
    return text


def _each(courses: Mapping[str, Sequence[Point]]) -> list[str]:
    return [
        f"{name} {_course(points)}" if points else f"{name} has no values"
        for name, points in courses.items()
    ]


def _span(courses: Mapping[str, Sequence[Point]]) -> list[str]:
    """Of many only the lowest and the highest end; a table has the others."""
    ends = sorted(
        (points[-1][1], points[-1][0], name) for name, points in courses.items() if points
    )
    (low, at_low, lowest), (high, at_high, highest) = ends[0], ends[-1]
    return [
        f"{len(courses)} curves, which end between {figure(low)} at {at_low} ({lowest}) and "
        f"{figure(high)} at {at_high} ({highest})"
    ]


def _course(points: Sequence[Point]) -> str:
    (start, first), (end, last) = points[0], points[-1]
    if len(points) == 1:
        return f"is {figure(first)} at {start}"
    values = [y for _, y in points]
    low, high = min(values), max(values)
    if high - low <= LEVEL * max(abs(low), abs(high)):
        return f"stays at {figure(last)} from {start} to {end}"
    verb = "goes" if figure(first) == figure(last) else "rises" if last > first else "falls"
    said = f"{verb} from {figure(first)} at {start} to {figure(last)} at {end}"
    for what, extreme in (("lowest", low), ("highest", high)):
        if figure(extreme) not in {figure(first), figure(last)}:
            place = next(x for x, y in points if y == extreme)
            said += f", {what} {figure(extreme)} at {place}"
    return said
