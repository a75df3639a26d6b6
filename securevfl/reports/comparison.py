"""The joint model of a job beside each party's own."""

from collections.abc import Callable, Mapping
from typing import Any

from securevfl.reports.tables import Column, share

Row = Mapping[str, Any]
SCORES = {
    "auc": "AUC",
    "accuracy": "accuracy",
    "brier": "Brier score",
    "log_loss": "log loss",
    "r2": "R²",
    "rmse": "RMSE",
    "mae": "MAE",
}
LENT = " *"


def compared(row: Row) -> tuple[list[Column[Row]], list[Row]]:
    """The joint model and each party's own, with the scores that all of them have."""
    models: list[Row] = [{**row, "model": "joint"}]
    for party, own in row.get("alone", {}).items():
        models.append({**own, "model": f"{party} alone{LENT if own['labels_lent'] else ''}"})
    columns: list[Column[Row]] = [("model", lambda each: str(each["model"]))]
    columns += [
        (heading, _score(key))
        for key, heading in SCORES.items()
        if all(each.get(key) is not None for each in models)
    ]
    return columns, models


def comparison_notes(row: Row) -> list[str]:
    """What marks in the table of models mean, and how good the joint one's probabilities are."""
    notes = []
    if any(own["labels_lent"] for own in row.get("alone", {}).values()):
        notes.append("* with the labels, lent for this figure: no real party has both")
    if row.get("brier") is not None:
        notes.append(f"Brier score {row['brier']:.4f}, log loss {row['log_loss']:.4f} (joint)")
    return notes


def _score(key: str) -> Callable[[Row], str]:
    return lambda row: ("≈" if row.get("binormal") else "") + share(row.get(key))
