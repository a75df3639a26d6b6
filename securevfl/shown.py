"""How results show themselves: a line or a few, a small table in a notebook, a figure's data."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from typing_extensions import override

ONE_LINE = 100


class Shown:
    """Says what it is in a few facts, whatever its arrays hold.

    It is abstract by `shown`, and no ABC: `isinstance` of rows, which every round asks, would take
    several times as long.
    """

    def shown(self) -> Mapping[str, object]:
        """What to show, by name."""
        raise NotImplementedError

    @override
    def __repr__(self) -> str:
        name = type(self).__name__
        facts = [f"{fact}: {value}" for fact, value in self.shown().items()]
        line = f"{name}({', '.join(facts)})"
        return line if len(line) <= ONE_LINE else "\n  ".join([name, *facts])

    @override
    def __str__(self) -> str:
        return repr(self)

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<tr><th scope="row" style="text-align: left">{escape(fact)}</th>'
            f'<td style="text-align: left">{escape(str(value))}</td></tr>'
            for fact, value in self.shown().items()
        )
        return f"<table><caption>{escape(type(self).__name__)}</caption>{rows}</table>"


def first_line(error: Exception) -> str:
    """What an error says in one line; its kind where it says nothing."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__


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
