"""Why a row has its score: what each raw column of a linear part adds to H.

A column's contribution is the sum of θ·(x − mean)/deviation over its features, at the training mean
0. A column's features are its own alone, so these are the exact Shapley values of H_k against the
part's training means; with the intercept they sum to H.
Learns: each party computes those of its own columns from its own part, and nothing is sent. They
    are as sensitive as the columns: a bin or a category can be read from them.
Source: Lundberg and Lee, NeurIPS (2017), corollary 1.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

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


def term(model: SavedModel, place: slice, features: FloatArray) -> FloatArray:
    """What adjacent features, unscaled, shape (S, their number), add to H, shape (S, C)."""
    theta, _ = standardized(model)
    bounds = None if model.bounds is None else model.bounds[:, place]
    scaled = sparse.standardized(features, model.mean[place], model.scale[place], bounds)
    return scaled @ theta[place]


@dataclass(frozen=True, eq=False)
class Explanation:
    """Why some rows have their scores.

    Attributes:
        contributions: by party and raw column what it adds to H, or to real targets, shape (S, C).
        columns: of a file: id, base at the label party, and contributions, in its rows' order.
    """

    contributions: Mapping[tuple[str, str], FloatArray]
    columns: Columns

    @property
    def importances(self) -> list[Importance]:
        """The columns by their mean absolute contribution, the largest first."""
        sizes = [np.abs(values).mean(axis=1) for values in self.contributions.values()]
        each, rows = np.column_stack(sizes), len(sizes[0])
        drawn: Iterable[Interval | None] = [None] * len(sizes)
        if rows >= FEWEST_ROWS:
            drawn = map(interval, resampled(lambda counts: counts[0] @ each / rows, [rows]).T)
        found = [
            Importance(party=party, column=column, mean=mean, interval=within)
            for (party, column), mean, within in zip(
                self.contributions, each.mean(axis=0).tolist(), drawn, strict=True
            )
        ]
        return sorted(found, key=lambda one: -one["mean"])


def explain(plan: ScoringPlan, parts: Mapping[str, SavedModel], rows: RowsToScore) -> Explanation:
    """The contributions of these parties' columns, of all parties or one.

    Real targets are in their own units, without the label party's part in deviations.

    Raises:
        ConfigError: a network, sparse rows, noise that no contributions sum to, or two columns of
            the same name in a file.
    """
    if plan.exchange.adds_noise:
        raise ConfigError(
            f"--explain: scores under scheme = {plan.job.exchange.scheme!r} have noise, and "
            "contributions do not sum to them"
        )
    unit = max(each.header.target_scale or 0.0 for each in parts.values()) or 1.0
    found: dict[tuple[str, str], FloatArray] = {}
    named: list[tuple[str, FloatArray]] = []
    classes: Sequence[str] | None = None
    for name, model in parts.items():
        _, intercept = standardized(model)
        features = sparse.require_dense(rows.features[name], f"--explain of party {name!r}")
        if model.header.holds_labels:
            base = np.tile(model.in_target_units(intercept), (len(rows.ids), 1))
            named.insert(0, (BASE, base))
            classes = model.header.class_names
        recipe = model.header.recipe or read_as_numbers(model.header.columns)
        for part, place in recipe.places():
            found[name, part.name] = unit * term(model, place, features[:, place])
            named.append((f"{name}.{part.name}", found[name, part.name]))
    return Explanation(found, _columns(named, classes, rows))


def _columns(
    named: Sequence[tuple[str, FloatArray]], classes: Sequence[str] | None, rows: RowsToScore
) -> Columns:
    columns: Columns = {rows.id_column: [rows.written[row] for row in rows.order]}
    for name, values in named:
        for output, own in enumerate(values[rows.order].T):
            several = values.shape[1] > 1
            full = f"{name}[{classes[output] if classes else output}]" if several else name
            if full in columns:
                raise ConfigError(f"--explain: two columns would have the name {full!r}")
            columns[full] = own
    return columns
