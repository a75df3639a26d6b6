"""A saved part of a model and its coefficients, as rows for people and JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from typing_extensions import TypedDict

from securevfl.arrays import FloatArray
from securevfl.errors import ConfigError
from securevfl.models.storage import SavedModel


def standardized(model: SavedModel) -> tuple[FloatArray, FloatArray]:
    """θ_k per deviation of each column, (P, C), and the intercept, (C,); linear parts only."""
    header, weights = model.header, model.weights
    if header.network is not None or header.representation is not None:
        kind = f"a network ({header.network.kind})" if header.network else "linear"
        into = f" into {header.representation} numbers a row" if header.representation else ""
        raise ConfigError(
            f"the part of {header.party!r} is {kind}{into}, which has no coefficients"
        )
    if header.intercept:
        return weights[:-1], weights[-1]
    return weights, np.zeros(weights.shape[1])


def in_original_units(
    model: SavedModel, target_scale: float = 1.0
) -> tuple[FloatArray, FloatArray]:
    """θ_k per unit of each column, shape (P, C), and the corresponding constant, shape (C,).

    The label party's part holds the intercept of the model and knows the scale of real targets.
    """
    weights, intercept = standardized(model)
    per_unit = target_scale * weights / model.scale[:, None]
    constant = target_scale * intercept - model.mean @ per_unit
    return per_unit, constant + (model.header.target_mean or 0.0)


class ColumnRow(TypedDict):
    """One column of a linear part: its coefficient for each output, and its scaling."""

    column: str
    standardized: Sequence[float]
    per_unit: Sequence[float]
    mean: float
    scale: float


class RawColumn(TypedDict):
    """One raw column and its features; `fill` replaces missing values, `edges` part its bins."""

    name: str
    kind: str
    columns: Sequence[str]
    fill: float | None
    edges: Sequence[float]


class ModelRow(TypedDict):
    """One party's part.

    `intercept` belongs to standardized columns and `constant` to raw ones, one number per output;
    for a network both are null, and `columns` have their scaling only. `recipe` says how features
    are derived from raw columns, if they are not plain numbers.
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
    recipe: Sequence[RawColumn] | None
    intercept: Sequence[float] | None
    constant: Sequence[float] | None


def model_row(model: SavedModel, target_scale: float | None = None) -> ModelRow:
    """A description of a part; `target_scale` may come from the label party's part."""
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
        "recipe": None
        if header.recipe is None
        else [
            {
                "name": part.name,
                "kind": part.kind,
                "columns": part.columns,
                "fill": None if part.kind == "category" else part.fill,
                "edges": part.edges,
            }
            for part in header.recipe.parts
        ],
        "intercept": intercept.tolist() if linear else None,
        "constant": constant.tolist() if linear else None,
    }
