"""What of a result row's figures was made ahead of the rounds of its job."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

AheadFigure = Literal[
    "ahead_compute_s",
    "ahead_communication_s",
    "ahead_bytes",
    "ahead_ciphertext_bytes",
    "ahead_messages",
]


def made_ahead(row: Mapping[str, Any], figure: AheadFigure) -> float:
    """A figure of what a row's job made ahead of its rounds.

    Rows of result files from before there was such work lack it, and rows of what knows no rounds:
    nothing was made ahead there.
    """
    return float(row.get(figure, 0))


def ahead_s(row: Mapping[str, Any]) -> float:
    """Seconds of a row's total that were spent ahead of its rounds."""
    return made_ahead(row, "ahead_compute_s") + made_ahead(row, "ahead_communication_s")


def any_ahead(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether something was made ahead in any of the rows."""
    return any(made_ahead(row, figure) for row in rows for figure in get_args(AheadFigure))
