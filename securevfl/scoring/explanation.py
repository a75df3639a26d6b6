"""Why a row has its score: what each raw column of a linear part adds to H.

A column's contribution is Σ θ·(x − mean)/deviation over its features, none of which is another
column's: the exact Shapley values of H_k against the part's training means. With the intercept,
which is the label party's, they sum to H.
Learns: nobody anything, as each party computes those of its own columns. They are as sensitive as
    these: a bin or a category can be read from them.
Source: Lundberg and Lee, A Unified Approach to Interpreting Model Predictions, NeurIPS (2017).
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from securevfl import sparse
from securevfl.arrays import FloatArray
from securevfl.errors import ConfigError
from securevfl.models.ranking import FEWEST_ROWS, Interval, interval, resampled
from securevfl.models.storage import SavedModel
from securevfl.protocols.predicting import ScoringPlan
from securevfl.recipe import read_as_numbers
from securevfl.scoring.description import standardized
from securevfl.scoring.outputs import Columns
from securevfl.scoring.sources import RowsToScore


def term(model: SavedModel, place: slice, features: FloatArray) -> FloatArray:
    """What adjacent features, unscaled, shape (S, their number), add to H, shape (S, C)."""
    theta, _ = standardized(model)
    bounds = None if model.bounds is None else model.bounds[:, place]
    scaled = sparse.standardized(features, model.mean[place], model.scale[place], bounds)
    return scaled @ theta[place]


def importances(sizes: Mapping[str, FloatArray]) -> list[dict[str, Any]]:
    """By column the mean of absolute contributions, shape (S,), and 95 % of it over resamples.

    The largest come first. There is no interval of fewer than ten rows, or of rows all alike.
    """
    each = np.column_stack([*sizes.values()])
    drawn: Iterable[Interval | None] = [None] * len(sizes)
    if len(each) >= FEWEST_ROWS:
        drawn = map(interval, resampled(lambda counts: counts[0] @ each, [len(each)]).T / len(each))
    found = zip(sizes, each.mean(axis=0).tolist(), drawn, strict=True)
    every = [{"column": name, "mean": mean, "interval": own} for name, mean, own in found]
    return sorted(every, key=lambda one: -one["mean"])


def explained(
    plan: ScoringPlan, parts: Mapping[str, SavedModel], rows: RowsToScore
) -> tuple[Columns, dict[str, FloatArray]]:
    """What the columns of one party, or of all, add to scores.

    Returns:
        The columns of a file: the id, "(base)" at the label party, and "party.column" of each
        column, in real targets' units if the label party's part is there, else in deviations; for
        each of several classes. And by column absolute contributions to rows, shape (S,).

    Raises:
        ConfigError: a network, sparse rows, noise that no contributions sum to, or two columns of
            the same name in a file.
    """
    if plan.exchange.adds_noise:
        raise ConfigError("--explain: scores have noise, and no contributions would sum to them")
    unit = max(each.header.target_scale or 0.0 for each in parts.values()) or 1.0
    classes = next((e.header.class_names for e in parts.values() if e.header.class_names), None)
    named: list[tuple[str, FloatArray]] = []
    for name, model in parts.items():
        _, intercept = standardized(model)
        features = sparse.require_dense(rows.features[name], f"--explain of party {name!r}")
        if model.header.holds_labels:
            base = np.tile(model.in_target_units(intercept), (len(features), 1))
            named.insert(0, ("(base)", base))
        recipe = model.header.recipe or read_as_numbers(model.header.columns)
        for part, place in recipe.places():
            added = unit * term(model, place, features[:, place])
            named.append((f"{name}.{part.name}", added[rows.order]))
    columns: Columns = {rows.id_column: [rows.written[row] for row in rows.order]}
    for name, values in named:
        for output, own in enumerate(values.T):
            of_class = f"[{classes[output] if classes else output}]" if len(values.T) > 1 else ""
            if name + of_class in columns:
                raise ConfigError(f"--explain: two columns would have the name {name + of_class!r}")
            columns[name + of_class] = own
    sizes = {name: np.abs(values).mean(axis=1) for name, values in named if name != "(base)"}
    return columns, sizes
