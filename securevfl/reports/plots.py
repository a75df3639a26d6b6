"""Curves of result rows as SVG, to stand inside a page.

Matplotlib is imported when a page is made, since tables need none.
"""

import io
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKERS = "osD^vP"
MOST_MARKERS = 30
WIDTH, HEIGHT = 4.6, 3.0


def curve_svg(curve: Mapping[str, Any]) -> str:
    """One figure: every series over x, levels to compare with as dashed lines.

    Args:
        curve: as `securevfl.auditing.curves.curve` makes it; `bands` are half widths by series,
            `right` is a dotted line with an axis of its own, in logarithms.

    Returns:
        An `<svg>` element without XML header and without references to anything outside.
    """
    from matplotlib import rc_context  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": curve["title"], "font.size": 9}):
        drawing = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
        axes = drawing.add_subplot()
        for index, (name, values) in enumerate(curve["series"].items()):
            points = [(x, y) for x, y in zip(curve["x"], values, strict=True) if _shown(curve, y)]
            if points:
                marker = MARKERS[index % len(MARKERS)] if len(points) <= MOST_MARKERS else ""
                axes.plot(*zip(*points, strict=True), marker=marker, markersize=3, label=name)
                _band(axes, curve, name, values)
        for index, (name, level) in enumerate(curve["lines"].items()):
            axes.axhline(level, linestyle="--", linewidth=1, color=f"C{7 + index % 3}", label=name)
        axes.set(xlabel=curve["x_label"], ylabel=curve["y_label"])
        if curve["log_x"]:
            axes.set_xscale("log")
        if curve["log_y"]:
            axes.set_yscale("log")
        axes.grid(alpha=0.3)
        if "right" in curve:
            _right(axes, curve)
        if len(curve["series"]) + len(curve["lines"]) > 1:
            axes.legend(fontsize=8, frameon=False)
        written = io.StringIO()
        drawing.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    svg = written.getvalue()
    svg = svg[svg.index("<svg") :]
    return re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)


def _band(axes: "Axes", curve: Mapping[str, Any], name: str, values: Sequence[float]) -> None:
    half = curve.get("bands", {}).get(name)
    if half is not None:
        low = [value - width for value, width in zip(values, half, strict=True)]
        high = [value + width for value, width in zip(values, half, strict=True)]
        axes.fill_between(curve["x"], low, high, alpha=0.2)


def _right(axes: "Axes", curve: Mapping[str, Any]) -> None:
    right = axes.twinx()
    points = [
        (x, y) for x, y in zip(curve["x"], curve["right"]["values"], strict=True) if y is not None
    ]
    if points:
        right.plot(*zip(*points, strict=True), linestyle=":", color="0.4")
        right.set_yscale("log")
    right.set_ylabel(curve["right"]["label"] + " ···", color="0.35")


def _shown(curve: Mapping[str, Any], value: float | None) -> bool:
    return value is not None and not (curve["log_y"] and value <= 0)
