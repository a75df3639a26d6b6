"""How results are displayed: as text, as a small table in a notebook, and as a figure's data."""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from typing_extensions import override

ONE_LINE = 100
MOST_LISTED = 20
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Shown:
    """Base of results that display a few facts about themselves.

    Abstract by `shown`, but not an ABC: `isinstance` of sparse rows, which every round calls, would
    take several times as long.
    """

    def shown(self) -> Mapping[str, object]:
        """The facts to display, by name."""
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


def listed(names: Sequence[str], most: int = MOST_LISTED) -> str:
    """Names separated by commas: the first ones, and how many more there are."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question at the end of an error about a name that is not known; empty if none is near."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def counted(count: int, what: str) -> str:
    """A count and its noun, which takes an s unless there is one: "1 column", "2 columns"."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def controls(names: Sequence[str]) -> str | None:
    """The first name with control characters, which could steer a terminal; line breaks pass."""
    if CONTROL.search("".join(names)) is None:  # quick for millions
        return None
    return next(each for each in names if CONTROL.search(each))


def first_line(error: Exception) -> str:
    """The first line of an error's message, or its type if it has none."""
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
    """The data of a figure, as reports draw it; `lines` are reference levels."""
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


def seeds_of(rows: Iterable[Mapping[str, Any]]) -> str:
    """The number of seeds of an audit's rows, in words."""
    seeds = max((len(row["detail"].get("values", ())) for row in rows), default=0)
    return counted(seeds, "seed")
