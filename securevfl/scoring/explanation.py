"""Why a row has its score: what each raw column of a linear part adds to H.

A column's contribution is the sum of θ·(x − mean)/deviation over its features, at the training mean
0. A column's features are its own alone, so these are the exact Shapley values of H_k against the
part's training means; with the intercept they sum to H.
Learns: each party computes those of its own columns from its own part, and nothing is sent. They
    are as sensitive as the columns: a bin or a category can be read from them.
Source: Lundberg and Lee, NeurIPS (2017), corollary 1.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from typing_extensions import TypedDict

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

BASE = "(base)"


class Importance(TypedDict):
    """The mean absolute contribution of a column over rows, with 95 % of it over resamples."""

    party: str
    column: str
    mean: float
    interval: Interval | None


def require_explained(plan: ScoringPlan, parts: Mapping[str, SavedModel]) -> None:
    """Refuse models without contributions, and scores that they would not sum to."""
    if plan.exchange.adds_noise:
        raise ConfigError(
            f"--explain: scores under scheme = {plan.job.exchange.scheme!r} have noise, and "
            "contributions do not sum to them"
        )
    for each in parts.values():
        standardized(each)


def term(model: SavedModel, place: slice, features: FloatArray) -> FloatArray:
    """What adjacent features, unscaled, shape (S, their number), add to H, shape (S, C)."""
    theta, _ = standardized(model)
    bounds = None if model.bounds is None else model.bounds[:, place]
    scaled = sparse.standardized(features, model.mean[place], model.scale[place], bounds)
    return scaled @ theta[place]


def contributions(
    parts: Mapping[str, SavedModel], features: Mapping[str, sparse.Matrix]
) -> dict[tuple[str, str], FloatArray]:
    """By party and raw column what it adds to H of every row, shape (S, C).

    Real targets are in their own units, if the label party's part is there, else in deviations.

    Args:
        parts: of some parties, or all.
        features: by party, unscaled, shape (S, P).

    Raises:
        ConfigError: a network, or sparse rows.
    """
    units = [each.header.target_scale for each in parts.values() if each.header.target_scale]
    unit = units[0] if units else 1.0
    found = {}
    for name, model in parts.items():
        recipe = model.header.recipe or read_as_numbers(model.header.columns)
        for part, place in recipe.places():
            numbers = range(place.start, place.stop)
            own = np.column_stack([sparse.column_of(features[name], each) for each in numbers])
            found[name, part.name] = unit * term(model, place, own)
    return found


def explanation_columns(
    parts: Mapping[str, SavedModel], found: Mapping[tuple[str, str], FloatArray], rows: RowsToScore
) -> Columns:
    """The columns of a file: the id, what every row begins with, and the contributions to it.

    The base is the label party's, which alone knows the names of classes.

    Raises:
        ConfigError: two columns have the same name.
    """
    each: list[tuple[str, FloatArray]] = []
    classes: Sequence[str] | None = None
    for model in parts.values():
        if model.header.holds_labels:
            base = model.in_target_units(standardized(model)[1])
            each.append((BASE, np.tile(base, (len(rows.ids), 1))))
            classes = model.header.class_names
    each += [(f"{party}.{column}", values[rows.order]) for (party, column), values in found.items()]
    columns: Columns = {rows.id_column: [rows.written[row] for row in rows.order]}
    for name, values in each:
        for output, own in enumerate(values.T):
            of_class = f"[{classes[output] if classes else output}]" if len(values.T) > 1 else ""
            if name + of_class in columns:
                raise ConfigError(f"--explain: two columns would have the name {name + of_class!r}")
            columns[name + of_class] = own
    return columns


def importances(found: Mapping[tuple[str, str], FloatArray]) -> list[Importance]:
    """The columns by their mean absolute contribution, the largest first."""
    sizes = np.column_stack([np.abs(values).mean(axis=1) for values in found.values()])
    rows = len(sizes)
    means = sizes.mean(axis=0).tolist()
    drawn: Iterable[Interval | None] = [None] * len(means)
    if rows >= FEWEST_ROWS:
        drawn = map(interval, resampled(lambda counts: counts[0] @ sizes / rows, [rows]).T)
    each = [
        Importance(party=party, column=column, mean=mean, interval=within)
        for (party, column), mean, within in zip(found, means, drawn, strict=True)
    ]
    return sorted(each, key=lambda one: -one["mean"])
