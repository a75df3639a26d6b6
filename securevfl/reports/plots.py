"""Curves of result rows as SVG, to stand inside a page whose colours they take, and in words.

Matplotlib is imported when a page is made, since tables need none.
"""

import io
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from securevfl.reports.matrix import figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

SERIES = ("#1b66ab", "#b5520d", "#23774a", "#8139a3", "#b3261e", "#5b6675")
"""Colours of series; in a page the variables `--s0`, `--s1` … stand for them."""
INK, SOFT, GRID = "#1c2430", "#5b6676", "#d9dee5"
VARIABLES = {
    **{colour: f"--s{index}" for index, colour in enumerate(SERIES)},
    INK: "--ink",
    SOFT: "--soft",
    GRID: "--line",
}
MARKERS = "osD^vP"
DASHES = ("--", ":", "-.", (0, (6, 2)))
MOST_MARKERS = 30
MOST_TICKS = 6
MOST_LABELS = 8
DECADE = 10
TWO_DECADES = 100
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
WIDTH, HEIGHT, LINE, FONT_SIZE = 4.5, 2.7, 0.2, 10.5
LEVEL = 0.01
"""A series that moves by less than this of its size counts as constant."""
MOST_DESCRIBED = 5
"""Up to this many curves are described one by one."""
Point = tuple[str, float]
LEGENDS = ((11, 3), (22, 2), (1000, 1))
"""So many columns of a legend where no name is longer."""


def curve_svg(curve: Mapping[str, Any]) -> str:
    """One figure as an `<svg>` element: every series over x, levels as broken lines.

    A curve is as `securevfl.shown.curve` makes it; its `bands` are half widths by series,
    its `ticks` texts that name every x, which then stand evenly; `markers` are false for a line
    alone. The element has no XML header and refers to nothing outside. Its colours are the page's,
    or their own where it stands alone.
    """
    from matplotlib import rc_context  # noqa: PLC0415

    written = io.StringIO()
    with rc_context(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": curve["title"],
            "text.parse_math": False,
            "text.color": INK,
            "axes.labelcolor": INK,
            "axes.titlecolor": INK,
            "axes.edgecolor": SOFT,
            "xtick.color": SOFT,
            "ytick.color": SOFT,
            "font.size": FONT_SIZE,
        }
    ):
        drawing(curve).savefig(
            written, format="svg", transparent=True, metadata={"Date": None, "Creator": None}
        )
    svg = written.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    # The page's own font, and nothing that reaches beyond this figure: no rule, no name used twice.
    svg = re.sub(r" font-family: [^;]*;", "", svg)
    svg = re.sub(r"<defs>\s*<style.*?</defs>", "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    for colour, variable in VARIABLES.items():
        svg = svg.replace(f": {colour}", f": var({variable}, {colour})")
    return svg


def drawing(curve: Mapping[str, Any]) -> "Figure":
    """The figure before it is written, its texts laid out so that none covers another."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    named = [*curve["series"], *curve["lines"]]
    named = named if len(named) > 1 else []
    columns = next(
        count for longest, count in LEGENDS if all(len(each) <= longest for each in named)
    )
    height = HEIGHT + LINE * -(-len(named) // columns)
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.add_subplot()
    x = range(len(curve["x"])) if "ticks" in curve else curve["x"]
    log_x, log_y = logarithmic(curve, "x"), logarithmic(curve, "y")
    marked = curve.get("markers", len(x) <= MOST_MARKERS)
    for index, (name, values) in enumerate(curve["series"].items()):
        points = [
            (place, y)
            for place, y in zip(x, values, strict=True)
            if y is not None and not (log_y and y <= 0)
        ]
        if points:
            again, place = divmod(index, len(SERIES))
            colour = SERIES[place]
            axes.plot(
                *zip(*points, strict=True),
                marker=MARKERS[place] if marked else "",
                markersize=4,
                linestyle="--" if again else "-",
                label=name,
                color=colour,
            )
            _band(axes, x, curve.get("bands", {}).get(name, ()), values, colour)
    for index, (name, level) in enumerate(curve["lines"].items()):
        dashes = DASHES[index % len(DASHES)]
        axes.axhline(level, linestyle=dashes, linewidth=1.2, color=SOFT, label=name)
    axes.set_xlabel(curve["x_label"])
    # Above the axis and not beside it: a long one has room, and is read without a turned head.
    axes.set_title(curve["y_label"], loc="left", fontsize=FONT_SIZE)
    if log_x:
        axes.set_xscale("log")
    if log_y:
        axes.set_yscale("log")
    _ticks(axes.xaxis, log_x, curve["x"])
    _ticks(axes.yaxis, log_y, _values(curve))
    if "ticks" in curve:
        step = -(-len(x) // MOST_LABELS)
        axes.set_xticks(list(x)[::step], curve["ticks"][::step])
    axes.grid(color=GRID, linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    if named:
        figure.legend(
            loc="outside upper left", ncols=columns, frameon=False, fontsize=FONT_SIZE - 0.5
        )
    return figure


def logarithmic(curve: Mapping[str, Any], axis: str) -> bool:
    """Whether an axis is: asked for, and worth it, as its values span a decade."""
    if not curve[f"log_{axis}"]:
        return False
    positive = [each for each in (curve["x"] if axis == "x" else _values(curve)) if each > 0]
    return bool(positive) and max(positive) >= DECADE * min(positive)


def _values(curve: Mapping[str, Any]) -> list[float]:
    return [y for values in curve["series"].values() for y in values if y is not None]


def _ticks(axis: "Axis", log: bool, values: Sequence[float]) -> None:
    """Few ticks, whole numbers where all values are, powers of ten written short."""
    from matplotlib.ticker import (  # noqa: PLC0415
        FuncFormatter,
        LogLocator,
        MaxNLocator,
        NullFormatter,
    )

    if not log:
        whole = all(float(each).is_integer() for each in values)
        axis.set_major_locator(MaxNLocator(MOST_TICKS, steps=(1, 2, 2.5, 5, 10), integer=whole))
        return
    positive = [each for each in values if each > 0]
    narrow = max(positive) < TWO_DECADES * min(positive)
    subs = (1.0, 2.0, 5.0) if narrow else (1.0,)
    axis.set_major_locator(LogLocator(subs=subs, numticks=MOST_TICKS))
    axis.set_major_formatter(FuncFormatter(lambda value, _: power_of_ten(value)))
    axis.set_minor_formatter(NullFormatter())


def power_of_ten(value: float) -> str:
    """A tick of a logarithmic axis: 0.05, 200, 10⁻¹²."""
    if 1e-3 <= value < 1e5:  # noqa: PLR2004
        return f"{value:g}"
    factor, exponent = f"{value:.0e}".split("e")
    power = "10" + str(int(exponent)).translate(SUPERSCRIPTS)
    return power if factor == "1" else f"{factor}·{power}"


def _band(
    axes: "Axes", x: Sequence[float], half: Sequence[float], values: Sequence[float], colour: str
) -> None:
    if half:
        low = [value - width for value, width in zip(values, half, strict=True)]
        high = [value + width for value, width in zip(values, half, strict=True)]
        axes.fill_between(x, low, high, alpha=0.2, color=colour, linewidth=0)


def words(curve: Mapping[str, Any]) -> str:
    """Where every series begins, ends and turns, and the reference levels, as a sentence."""
    ticks = curve.get("ticks", [f"{x:.10g}" for x in curve["x"]])
    places = [each.splitlines()[0] for each in ticks]
    lines = {
        name: [(x, y) for x, y in zip(places, values, strict=True) if y is not None]
        for name, values in curve["series"].items()
    }
    if len(lines) <= MOST_DESCRIBED:
        parts = [
            f"{name} {_line_in_words(points)}" if points else f"{name} has no values"
            for name, points in lines.items()
        ]
    else:
        parts = [_span(lines)]
    parts += [f"{name} is at {figure(level)}" for name, level in curve["lines"].items()]
    label = curve["y_label"][0].upper() + curve["y_label"][1:]
    text = f"{label} over {curve['x_label'].splitlines()[0]}: {'; '.join(parts)}."
    if logarithmic(curve, "y"):
        left_out = sum(y is not None and y <= 0 for each in curve["series"].values() for y in each)
        text += f" Values of 0 are not drawn: {left_out}." if left_out else ""
    return text


def _span(lines: Mapping[str, Sequence[Point]]) -> str:
    """Only the lowest and the highest end of many curves; a table has the others."""
    ends = sorted((points[-1][1], points[-1][0], name) for name, points in lines.items() if points)
    (low, at_low, lowest), (high, at_high, highest) = ends[0], ends[-1]
    return (
        f"{len(lines)} curves, which end between {figure(low)} at {at_low} ({lowest}) and "
        f"{figure(high)} at {at_high} ({highest})"
    )


def _line_in_words(points: Sequence[Point]) -> str:
    (start, first), (end, last) = points[0], points[-1]
    if len(points) == 1:
        return f"is {figure(first)} at {start}"
    values = [y for _, y in points]
    low, high = min(values), max(values)
    if high - low <= LEVEL * max(abs(low), abs(high)):
        return f"stays at {figure(last)} from {start} to {end}"
    verb = "goes" if figure(first) == figure(last) else "rises" if last > first else "falls"
    text = f"{verb} from {figure(first)} at {start} to {figure(last)} at {end}"
    for what, extreme in (("lowest", low), ("highest", high)):
        if figure(extreme) not in {figure(first), figure(last)}:
            place = next(x for x, y in points if y == extreme)
            text += f", {what} {figure(extreme)} at {place}"
    return text
