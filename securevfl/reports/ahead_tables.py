"""What was made ahead of rounds, in tables: columns that stand only where there is some."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from securevfl.reports.ahead import AheadFigure, ahead_s, any_ahead, made_ahead
from securevfl.reports.tables import Column, R, Row, seconds, size, table

if TYPE_CHECKING:
    from rich.table import Table


def _time(row: Row, figure: AheadFigure) -> str:
    value = made_ahead(row, figure)
    return seconds(value) if value else "-"


AHEAD: tuple[Column[Any], ...] = (
    ("compute ahead", lambda row: _time(row, "ahead_compute_s")),
    ("network ahead", lambda row: _time(row, "ahead_communication_s")),
    ("ahead", lambda row: seconds(ahead_s(row)) if ahead_s(row) else "-"),
    ("sent ahead", lambda row: size(made_ahead(row, "ahead_bytes")) if any_ahead([row]) else "-"),
)


def with_ahead(columns: Sequence[Column[R]], rows: Sequence[Row]) -> tuple[Column[R], ...]:
    """The columns, and where a row made something ahead those that say what it took."""
    return (*columns, *AHEAD) if any_ahead(rows) else tuple(columns)


def ahead_table(columns: Sequence[Column[Any]], rows: Sequence[Row]) -> "Table | None":
    """What those rows took that made something ahead; None where none did.

    A table of its own: a terminal has no room for more columns.

    Args:
        columns: what names a row.
        rows: those of the table above it.
    """
    chosen = [row for row in rows if any_ahead([row])]
    title = "made ahead of rounds, part of the totals above"
    return table((*columns, *AHEAD), chosen, title) if chosen else None
