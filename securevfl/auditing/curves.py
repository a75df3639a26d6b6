"""A figure over something, as reports draw it."""

from collections.abc import Mapping, Sequence
from typing import Any


def curve(
    title: str,
    x_label: str,
    y_label: str,
    x: Sequence[float],
    series: Mapping[str, Sequence[float | None]],
    *,
    lines: Mapping[str, float] | None = None,
    log_x: bool = False,
    log_y: bool = False,
) -> dict[str, Any]:
    """A figure over something, as reports draw it; `lines` are levels to compare with."""
    return {
        "title": title,
        "x_label": x_label,
        "y_label": y_label,
        "x": list(x),
        "series": {name: list(values) for name, values in series.items()},
        "lines": dict(lines or {}),
        "log_x": log_x,
        "log_y": log_y,
    }
