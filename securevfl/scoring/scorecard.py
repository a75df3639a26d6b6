"""A linear part as a scorecard: the points of each bin, category or unit of its columns.

Points are a scale of the good class's log odds: points = offset + factor·ln(odds), with factor =
pdo/ln 2, so that odds double every `pdo` points, and offset = base − factor·ln(odds at the base).
ln(odds) is H, the sum of all columns' terms and the intercept, with the other sign if the good
class is the first. So a column's term times the factor is its points, and every other party's
points stay with it; the offset and the intercept's are the label party's. A term is 0 at the
column's training mean: points say how far a row is from the average one.
Source: Siddiqi, Credit Risk Scorecards (2006), chapter 6.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import floor, inf, log, log10
from typing import TYPE_CHECKING

import numpy as np
from typing_extensions import TypedDict

from securevfl.arrays import FloatArray
from securevfl.errors import ConfigError
from securevfl.lazy import Lazy
from securevfl.models.losses import Logistic
from securevfl.models.storage import SavedModel
from securevfl.recipe import MISSING_LEVEL, OTHER_LEVEL, ColumnRecipe, read_as_numbers
from securevfl.scoring.description import standardized
from securevfl.scoring.explanation import term
from securevfl.scoring.joint_model import require_together

if TYPE_CHECKING:
    import polars as pl
else:
    pl = Lazy("polars")

MOST = float(np.finfo(np.float64).max)


@dataclass(frozen=True)
class Points:
    """How points follow from log odds.

    Attributes:
        base: points at odds of good to bad of `odds` : 1.
        pdo: points that double the odds.
        good: the class that more points speak for; None for the first one.
    """

    base: float = 600.0
    odds: float = 50.0
    pdo: float = 20.0
    good: str | None = None

    def __post_init__(self) -> None:
        for name, value, low in (
            ("base", self.base, -inf),
            ("odds", self.odds, 0),
            ("pdo", self.pdo, 0),
        ):
            if not low < value < inf:
                raise ConfigError(
                    f"--{name} {value:g}: expected a number{' above 0' if low == 0 else ''}"
                )

    @property
    def offset(self) -> float:
        """Points at odds of 1 : 1."""
        return self.base - self.pdo / log(2) * log(self.odds)

    def of(self, classes: Sequence[str]) -> tuple[str, float]:
        """The good class, and points per unit of H; a ConfigError if there is no such class."""
        good = classes[0] if self.good is None else self.good
        if good not in classes:
            raise ConfigError(f"--good {good}: the parts given know classes {', '.join(classes)}")
        return good, self.pdo / log(2) * (1 if good == classes[1] else -1)


class Bin(TypedDict):
    """Points of some values of a column: points + per_unit·(value − at).

    Attributes:
        bin: in words; a category by its name.
        low: the lowest of these numbers, and `high` the first that is too high; None without one
            and for categories. Dates are days since 1970-01-01.
        at: the number that has these points; None for categories and missing values.
        points: exact, and `rounded`.
        per_unit: 0 where all these values have the same points.
    """

    bin: str
    low: float | None
    high: float | None
    at: float | None
    points: float
    rounded: int
    per_unit: float


class CardColumn(TypedDict):
    """A raw column; `drawn` is the range of numbers in which a figure shows it."""

    column: str
    kind: str
    drawn: Sequence[float]
    bins: Sequence[Bin]


class Card(TypedDict):
    """One party's part of a scorecard.

    Attributes:
        good: the class that more points speak for; a feature party knows classes by number.
        factor: points per unit of H, below 0 where more points speak for the first class.
        constant: points of every row, of offset and intercept, at the label party alone.
    """

    party: str
    job_hash: str
    good: str
    base: float
    odds: float
    pdo: float
    factor: float
    offset: float
    constant: float | None
    columns: Sequence[CardColumn]


def scorecards(parts: Sequence[SavedModel], points: Points) -> list[Card]:
    """The points of one part of a model, or of all parts.

    Raises:
        ConfigError: a part without log odds or without coefficients; its party is named.
        DataError: several parts that are not those of one model.
    """
    if len(parts) > 1:
        require_together({each.header.party: each for each in parts})
    known = (each.header.class_names for each in parts if each.header.class_names)
    names = next(known, ("0", "1"))  # a feature party knows classes by number
    return [_card(each, points, names) for each in parts]


def _card(model: SavedModel, points: Points, names: Sequence[str]) -> Card:
    header = model.header
    _, intercept = standardized(model)
    if (header.classes, header.loss) != (2, Logistic.name):
        what = f"{header.classes} classes" if header.classes else "real targets"
        raise ConfigError(
            "--scorecard needs two classes and logistic loss; the part of "
            f"{header.party!r} has {what} and {header.loss} loss"
        )
    good, factor = points.of(names)
    recipe = header.recipe or read_as_numbers(header.columns)
    columns: list[CardColumn] = []
    for part, place in recipe.places():
        if part.kind == "category":
            bins, features, drawn = _of_category(part, recipe.missing)
        else:
            bins, features, drawn = _of_number(part, model, place)
        for each, own in zip(bins, factor * term(model, place, features)[:, 0], strict=True):
            each["points"], each["rounded"] = float(own), round(float(own))
            each["per_unit"] = factor * each["per_unit"] + 0.0  # no -0.0
        columns.append({"column": part.name, "kind": part.kind, "drawn": drawn, "bins": bins})
    constant = points.offset + factor * float(intercept[0]) if header.holds_labels else None
    return {
        "party": header.party,
        "job_hash": header.job_hash,
        "good": good,
        "base": points.base,
        "odds": points.odds,
        "pdo": points.pdo,
        "factor": factor,
        "offset": points.offset,
        "constant": constant,
        "columns": columns,
    }


Made = tuple[list[Bin], FloatArray, Sequence[float]]
"""Bins without their points, a row of features for each, and from where to where to draw them."""


def _bin(
    name: str, low: float | None = None, high: float | None = None, at: float | None = None
) -> Bin:
    return Bin(bin=name, low=low, high=high, at=at, points=0.0, rounded=0, per_unit=0.0)


def _of_category(part: ColumnRecipe, missing: tuple[str, ...]) -> Made:
    names = [*part.levels, OTHER_LEVEL, MISSING_LEVEL]
    features = np.empty((len(names), len(part.columns)))
    # No category of its own has the name of the others.
    part.write(pl.Series([*names[:-1], None], dtype=pl.String), missing, features[:, :0], features)
    return [_bin(name) for name in names], features, ()


def _of_number(part: ColumnRecipe, model: SavedModel, place: slice) -> Made:
    mean, scale = float(model.mean[place.start]), float(model.scale[place.start])
    low, high = -MOST, MOST
    if part.raw and model.bounds is not None:
        low, high = model.bounds[:, place.start].tolist()
    cuts = sorted({*part.edges, *(each for each in (low, high) if abs(each) < MOST)})
    shown = replace(part, edges=tuple(cuts)).shown_edges
    # A column without bins has its points at about its mean.
    at = cuts[0] if cuts else round(mean, 1 - floor(log10(scale))) + 0.0
    names = [f"from {a} to < {b}" for a, b in pairwise(shown)]
    names = [f"below {shown[0]}", *names, f"from {shown[-1]}"] if cuts else ["any number"]
    ends = zip(names, [None, *cuts], [*cuts, None], [at, *cuts], strict=True)
    bins = [*(_bin(*each) for each in ends), _bin(MISSING_LEVEL)]
    for each, begin in zip(bins, [-MOST, *cuts], strict=False):
        if part.raw and low <= begin < high:
            each["per_unit"] = float(model.weights[place.start, 0]) / scale
    zero_ones = part.zero_ones(pl.Series([-MOST, *cuts, None], dtype=pl.Float64))
    numbers = np.array([at, *cuts, part.fill])[:, None][:, : part.numbers]
    drawn = [mean - 2 * scale, mean + 2 * scale]
    if cuts:
        gaps = np.diff(cuts) if len(cuts) > 1 else [abs(at) / 2 or 1.0]
        drawn = [cuts[0] - float(gaps[0]), cuts[-1] + float(gaps[-1])]
    made = bins, np.hstack([numbers, zero_ones]), drawn
    return made if model.header.recipe is not None else (bins[:-1], made[1][:-1], drawn)
