"""What `predict` says of rows that were scored, and how a table shows it."""

from collections.abc import Mapping, Sequence
from typing import Any

from securevfl.reports.rows import CostFigures
from securevfl.reports.tables import Column, seconds, size


class PredictRow(CostFigures):
    """Rows that were scored; `shown`: how the label party saw the others' predictions.

    Metrics are of the `labelled` rows, whose label the label party's file has: AUC, accuracy and
    calibration of classes, R², RMSE and MAE of real targets, in their units. The job hash is of the
    job that the model was trained in, `same_job` whether it is this one.
    """

    exchange: str
    hide: str | None
    shown: str
    parties: int
    rows: int
    classes: int
    origin: str
    trained_on: int
    dropped_rows: Mapping[str, int]
    unused_columns: Mapping[str, Sequence[str]]
    labelled: int
    auc: float | None
    accuracy: float | None
    brier: float | None
    log_loss: float | None
    calibration_error: float | None
    reliability: Sequence[Mapping[str, float]] | None
    r2: float | None
    rmse: float | None
    mae: float | None
    release: Mapping[str, Any] | None
    job_hash: str
    same_job: bool | None
    model_rounds: int
    out: str
    wall_s: float


def _figure(value: float | None, digits: str = ".4g") -> str:
    return "-" if value is None else f"{value:{digits}}"


SCORED: tuple[Column[PredictRow], ...] = (
    ("exchange", lambda row: f"{row['exchange']} both" if row["hide"] else row["exchange"]),
    ("K", lambda row: str(row["parties"])),
    ("rows", lambda row: f"{row['rows']:,}"),
)
COSTS: tuple[Column[PredictRow], ...] = (
    ("compute", lambda row: seconds(row["compute_s"])),
    ("network", lambda row: seconds(row["communication_s"])),
    ("total", lambda row: seconds(row["total_s"])),
    ("sent", lambda row: size(row["bytes_sent"])),
)

CLASSES: tuple[Column[PredictRow], ...] = (
    ("AUC", lambda row: _figure(row["auc"], ".4f")),
    ("accuracy", lambda row: _figure(row["accuracy"], ".4f")),
    ("Brier", lambda row: _figure(row["brier"], ".4f")),
)
TARGETS: tuple[Column[PredictRow], ...] = (
    ("R²", lambda row: _figure(row["r2"], ".4f")),
    ("RMSE", lambda row: _figure(row["rmse"])),
    ("MAE", lambda row: _figure(row["mae"])),
)


def columns_of(row: PredictRow) -> tuple[Column[PredictRow], ...]:
    """The columns of a table of one scoring; metrics only where rows have labels."""
    if not row["labelled"]:
        return (*SCORED, *COSTS)
    return (*SCORED, *(CLASSES if row["classes"] else TARGETS), *COSTS)
