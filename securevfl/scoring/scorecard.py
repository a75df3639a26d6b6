"""Linear parts as a scorecard: the points of each bin, category or unit of their columns.

Points are a scale of the good class's log odds: offset + factor·ln(odds), with factor = pdo/ln 2,
so that odds double every `pdo` points, and offset = base − factor·ln(odds at base). ln(odds) is H,
or −H where the good class is the first. So what a column adds to H, times the factor, is its
points; the offset and the intercept are the label party's.
Source: Siddiqi, Credit Risk Scorecards (2006), chapter 6.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from math import floor, inf, log, log10, nextafter
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from securevfl.arrays import FloatArray
from securevfl.errors import ConfigError
from securevfl.models.losses import Logistic
from securevfl.models.storage import SavedModel
from securevfl.recipe import MISSING_LEVEL, OTHER_LEVEL, ColumnRecipe, Recipe, read_as_numbers
from securevfl.scoring.description import standardized
from securevfl.scoring.explanation import term
from securevfl.scoring.joint_model import require_together

MOST = float(np.finfo(np.float64).max)


class Bin(NamedTuple):
    """Values of a column: in words, from `low` to below `high`; `at` is where its points are.

    `per_unit` is the slope of H; `deviation` is a number's without bins. A category has only its
    name.
    """

    bin: str
    low: float | None = None
    high: float | None = None
    at: float | None = None
    per_unit: float = 0.0
    deviation: float | None = None


def scorecard(
    parts: Sequence[SavedModel], *, base: float, odds: float, pdo: float, good: str | None
) -> tuple[str, list[dict[str, Any]]]:
    """The good class, by default the first one, and the points of one party's part, or of all.

    A row for each bin: a value has points + per_unit·(value − at), which `rounded` are rounded.
    Dates are days since 1970-01-01.

    Raises:
        ConfigError: a part without log odds or coefficients, which is named, or no such class.
        DataError: several parts that are not those of one model.
    """
    for name, value, least in (("base", base, -inf), ("odds", odds, 0.0), ("pdo", pdo, 0.0)):
        if not least < value < inf:
            raise ConfigError(f"--{name} {value:g}: expected a number above {least:g}")
    names = _classes(parts)
    good = names[0] if good is None else good
    if good not in names:
        raise ConfigError(f"--good {good}: expected one of {', '.join(names)}")
    offset, factor = base - pdo / log(2) * log(odds), pdo / log(2) * (1 if good == names[1] else -1)
    return good, [row for each in parts for row in _rows(each, offset, factor)]


def _rows(model: SavedModel, offset: float, factor: float) -> Iterator[dict[str, Any]]:
    header, (_, intercept) = model.header, standardized(model)
    found: list[tuple[str, str, list[Bin], FloatArray]] = []
    if header.holds_labels:
        found = [("(every row)", "", [Bin("offset and intercept")], offset + factor * intercept)]
    recipe = header.recipe or read_as_numbers(header.columns)
    for part, place in recipe.places():
        made = _levels(part, recipe) if part.kind == "category" else _bins(part, place, model)
        found.append((part.name, part.kind, made[0], factor * term(model, place, made[1])[:, 0]))
    for column, kind, bins, points in found:
        row = {"party": header.party, "column": column, "kind": kind}
        for each, own in zip(bins, points.tolist(), strict=True):
            slope = factor * each.per_unit + 0.0  # no -0.0
            yield row | each._asdict() | {"per_unit": slope, "points": own, "rounded": round(own)}


def _classes(parts: Sequence[SavedModel]) -> Sequence[str]:
    """Names of the two classes of parts that have log odds; a feature party knows their numbers."""
    if len(parts) > 1:
        require_together({each.header.party: each for each in parts})
    for model in parts:
        header, _ = model.header, standardized(model)  # whatever its loss, a network is named first
        if (header.classes, header.loss) != (2, Logistic.name):
            raise ConfigError(
                f"--scorecard needs two classes and logistic loss; {header.party!r} has "
                f"{header.classes or 'no'} classes and {header.loss} loss"
            )
    return next((each.header.class_names for each in parts if each.header.class_names), ("0", "1"))


def _levels(part: ColumnRecipe, recipe: Recipe) -> tuple[list[Bin], FloatArray]:
    names = [*part.levels, OTHER_LEVEL, MISSING_LEVEL]
    features = np.empty((len(names), len(part.columns)))
    # No category of its own has the name of the others.
    values = pl.Series([*names[:-1], None], dtype=pl.String)
    part.write(values, recipe.missing, features[:, :0], features)
    return [*map(Bin, names)], features


def _bins(part: ColumnRecipe, place: slice, model: SavedModel) -> tuple[list[Bin], FloatArray]:
    mean, scale = float(model.mean[place.start]), float(model.scale[place.start])
    low, high = -MOST, MOST
    if part.raw and model.bounds is not None:
        low, high = model.bounds[:, place.start].tolist()
    cuts = sorted({*part.edges, *(each for each in (low, high) if abs(each) < MOST)})
    shown = replace(part, edges=tuple(cuts)).shown_edges
    missing = [] if model.header.recipe is None else [Bin(MISSING_LEVEL)]  # else they are refused
    if cuts:
        first = nextafter(cuts[0], -inf)
        inner = [f"from {a} to < {b}" for a, b in pairwise(shown)]
        names = [f"below {shown[0]}", *inner, f"from {shown[-1]}"]
    else:  # at about the mean
        first = round(mean, 1 - floor(log10(scale))) + 0.0
        names = [f"at {first:.15g}" if part.raw else "any number"]
    slope = float(model.weights[place.start, 0]) / scale if part.raw else 0.0
    slopes = [slope * (low <= each < high) for each in (first, *cuts)]
    at, deviations = [*(cuts[:1] or [first]), *cuts], [None if cuts else scale] * len(names)
    bins = [*map(Bin, names, [None, *cuts], [*cuts, None], at, slopes, deviations)]
    read = pl.Series([first, *cuts, *(None for _ in missing)], dtype=pl.Float64)
    numbers = read.fill_null(part.fill).to_numpy()[:, None][:, : part.numbers]
    return bins + missing, np.hstack([numbers, part.zero_ones(read)])
