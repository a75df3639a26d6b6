"""What a saved part of a model is, as rows for people and JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from typing_extensions import TypedDict

from securevfl.models.storage import SavedModel
from securevfl.scoring.coefficients import in_original_units, standardized


class ColumnRow(TypedDict):
    """One column of a linear part: its coefficient of each output, and its scaling."""

    column: str
    standardized: Sequence[float]
    per_unit: Sequence[float]
    mean: float
    scale: float


class ModelRow(TypedDict):
    """One party's part.

    `intercept` belongs to standardized columns and `constant` to raw ones, one number an output;
    of a network both are null, and `columns` have their scaling alone.
    """

    party: str
    holds_labels: bool
    loss: str
    classes: int
    class_names: Sequence[str] | None
    target_mean: float | None
    target_scale: float | None
    outputs: Sequence[str]
    job_hash: str
    rounds: int
    training_rows: int | None
    network: dict[str, Any] | None
    parameters: int
    representation: int | None
    head: Sequence[str] | None
    columns: Sequence[ColumnRow]
    intercept: Sequence[float] | None
    constant: Sequence[float] | None


def model_row(model: SavedModel, target_scale: float | None = None) -> ModelRow:
    """What a part is.

    Args:
        model: the part.
        target_scale: of real targets, where another part that is at hand knows it.
    """
    header = model.header
    linear = header.network is None and header.representation is None
    unit = target_scale or header.target_scale or 1.0
    empty = np.zeros((len(header.columns), 0))
    theta, intercept = standardized(model) if linear else (empty, empty[0])
    per_unit, constant = in_original_units(model, unit) if linear else (empty, empty[0])
    numbered = tuple(map(str, range(header.classes)))
    names = header.class_names or numbered or ("", "target")
    return {
        "party": header.party,
        "holds_labels": header.holds_labels,
        "loss": header.loss,
        "classes": header.classes,
        "class_names": header.class_names,
        "target_mean": header.target_mean,
        "target_scale": header.target_scale,
        "outputs": names[1:] if header.outputs == 1 else names,
        "job_hash": header.job_hash,
        "rounds": header.rounds,
        "training_rows": header.rows,
        "network": None if header.network is None else asdict(header.network),
        "parameters": model.weights.size + (0 if model.head is None else model.head.size),
        "representation": header.representation,
        "head": header.head,
        "columns": [
            {
                "column": column,
                "standardized": theta[index].tolist(),
                "per_unit": per_unit[index].tolist(),
                "mean": float(model.mean[index]),
                "scale": float(model.scale[index]),
            }
            for index, column in enumerate(header.columns)
        ],
        "intercept": intercept.tolist() if linear else None,
        "constant": constant.tolist() if linear else None,
    }
