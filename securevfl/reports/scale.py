"""Tables of FDML: what its messages hold, and how it grows."""

from collections.abc import Sequence
from typing import Any

from securevfl.reports.rows import FdmlRow, ScaleRow
from securevfl.reports.tables import Column, seconds

MIB = 1 << 20


def _mib(size: int | None) -> str:
    return "-" if size is None else f"{size / MIB:,.0f} MiB"


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f} x"


SCALE: tuple[Column[ScaleRow], ...] = (
    ("rows", lambda row: f"{row['rows']:,}"),
    ("S", lambda row: f"{row['batch_size']:,}"),
    ("training", lambda row: row["training"]),
    ("AUC", lambda row: f"{row['auc']:.4f}"),
    ("CPU/epoch", lambda row: seconds(row["cpu_s_per_epoch"])),
    ("ratio", lambda row: _times(row["ratio_to_one_place"])),
    ("stored", lambda row: _mib(row["stored_bytes"])),
    ("peak", lambda row: _mib(row["peak_bytes"])),
)
SCALE_NOTES = (
    "CPU/epoch: of this process, all parties after each other; ratio: to one place",
    "stored: training rows; peak: the process's memory, mapped files in it",
)
SCALE_IN_FULL: tuple[Column[ScaleRow], ...] = (
    ("model", lambda row: row["model"]),
    *SCALE[:2],
    ("a message", lambda row: str(row["batches_a_message"])),
    *SCALE[2:],
)
MESSAGES: tuple[Column[FdmlRow], ...] = (
    ("a message", lambda row: str(row.get("batches_a_message", 1))),
    ("AUC", lambda row: f"{row['auc']:.4f}"),
    ("log loss", lambda row: f"{row['log_loss']:.4f}"),
    ("wall, an epoch", lambda row: seconds(row["wall_s_per_epoch"])),
    ("to one place", lambda row: _times(row.get("ratio_to_one_place"))),
    ("virtual, an epoch", lambda row: seconds(row["virtual_s_per_epoch"] or 0.0)),
    ("machinery", lambda row: seconds(row["machinery_s"] or 0.0)),
)


def of_fdml(rows: Sequence[Any]) -> list[FdmlRow]:
    """Those of fdml itself."""
    return [row for row in rows if row["training"] == "fdml"]
