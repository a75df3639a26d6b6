"""How a party's raw columns become features: the settings, and the fitted recipe.

Learns: no other party learns anything. A party fits its recipe to its own training rows and stores
it in its own model file; no other party sees names of columns or categories.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from securevfl.errors import DataError
from securevfl.lazy import Lazy
from securevfl.shown import counted

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    from numpy.typing import NDArray
else:
    np = Lazy("numpy")
    pl = Lazy("polars")

MISSING = ("", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "?", "-")
_DATE = r"^(\d{4}-\d{2}-\d{2})(?:[T ].*)?$"
OTHER_LEVEL, MISSING_LEVEL = "(other)", "(missing)"
EXACT_INTEGERS = 1 << 53
Direction = Literal["up", "down"]
MOST_BINS = 1000


def _ascending(edges: Sequence[float]) -> tuple[float, ...]:
    if not all(map(math.isfinite, edges)) or list(edges) != sorted({*edges}):
        raise ValueError("expected finite edges in ascending order")
    return tuple(edges)


def _in_one_line(value: object, check: ValidatorFunctionWrapHandler) -> object:
    try:
        return check(value)
    except ValidationError:
        raise ValueError(
            f'expected a number from 2 to {MOST_BINS}, "auto", a list of edges in ascending order, '
            "or a table of numbers and lists by column"
        ) from None


Edges = Annotated[Sequence[float], AfterValidator(_ascending)]
Bins = Annotated[int, Field(ge=2, le=MOST_BINS)] | Annotated[Edges, Field(min_length=1)]
"""A column's bins: how many, or the edges between them."""


class Preprocessing(BaseModel):
    """`[preprocess]`: how text and missing values are encoded. A party may have its own section.

    Attributes:
        missing: further markers of a missing value, in addition to empty fields, NA, NaN, null, ?
            and the like.
        categories: numeric columns that are categorical, such as postal codes.
        rare_share: categories with a smaller fraction of the training rows are pooled.
        rare_count: categories with fewer training rows are pooled, and every pool has at least as
            many.
        missing_indicator: add a 0/1 column for missing values to columns of numbers.
        monotone: columns of numbers or dates with which scores may only rise (up) or fall (down),
            as in { income = "down" }; for linear models with exact steps. Missing values may have
            any score.
        bins: of columns of numbers, which are otherwise linear in the model: how many, or by column
            how many or the edges between them, as in { income = 16, age = [30, 45, 60] }. "auto"
            takes up to 8, by the number of rows for each column, and none for few rows. A 0/1
            column for each edge says whether the number is at least so large, and another one
            whether it is missing. Bins with fewer rows than `rare_count` or `rare_share` are joined
            to a neighbour.
        bin_by: bins of about as many training rows each (quantile), or of the same width (width).
        bin_raw: keep the number itself beside its bins. Without it, a column's curve is flat within
            a bin, as in a scorecard.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    missing: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    rare_share: Annotated[float, Field(ge=0, lt=1)] = 0.01
    rare_count: Annotated[int, Field(ge=1)] = 10
    missing_indicator: bool = False
    monotone: Mapping[str, Direction] = {}
    bins: Annotated[
        Bins | Literal["auto"] | Mapping[str, Bins] | None, WrapValidator(_in_one_line)
    ] = None
    bin_by: Literal["quantile", "width"] = "quantile"
    bin_raw: bool = True

    @model_validator(mode="after")
    def _only_with_bins(self) -> Self:
        if self.bins is None and (self.bin_by != "quantile" or not self.bin_raw):
            raise ValueError("bin_by and bin_raw take bins, as in bins = 8")
        return self

    @property
    def binned(self) -> tuple[str, ...]:
        """Names of the columns that have bins of their own."""
        return tuple(self.bins) if isinstance(self.bins, Mapping) else ()

    @property
    def markers(self) -> tuple[str, ...]:
        """All markers of a missing value."""
        return tuple(dict.fromkeys((*MISSING, *self.missing)))


@dataclass(frozen=True)
class ColumnRecipe:
    """How one raw column is encoded.

    Attributes:
        name: of the raw column.
        kind: a number; a date, as days since 1970-01-01; or a category, one 0/1 column per level,
            of two levels only the last.
        fill: replaces a missing number or date: the median of the training rows.
        indicator: add a 0/1 column for missing values.
        edges: add a 0/1 column for each, which is 1 if the number, or else `fill`, is not below it;
            ascending.
        levels: categories with a column of their own, sorted.
        missing_level: missing values have a column of their own.
        other_level: all other categories share a column.
        monotone: the direction in which scores may follow the number or date; None is either.
        raw: whether a number or date is itself a feature, the first one.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    kind: Literal["number", "date", "category"]
    fill: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    indicator: bool = False
    levels: tuple[str, ...] = ()
    missing_level: bool = False
    other_level: bool = False
    monotone: Direction | None = None
    edges: Annotated[tuple[float, ...], AfterValidator(_ascending)] = ()
    raw: bool = True

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of its features."""
        if self.kind != "category":
            missing = (f"{self.name}={MISSING_LEVEL}",) * self.indicator
            raw = (self.name,) * self.raw
            return (*raw, *missing, *(f"{self.name}>={each}" for each in self.shown_edges))
        return tuple(f"{self.name}={level}" for level in self._shown)

    @property
    def numbers(self) -> int:
        """How many of its features, the first ones, are numbers; the others are 0 or 1."""
        return int(self.raw and self.kind != "category")

    @property
    def shown_edges(self) -> tuple[str, ...]:
        """Edges as text: the shortest that is read as the same number, or a date."""
        if self.kind == "date":
            return tuple(str(np.datetime64(math.ceil(edge), "D")) for edge in self.edges)
        return tuple(repr(edge).removesuffix(".0") for edge in self.edges)

    @property
    def _shown(self) -> tuple[str, ...]:
        others = (MISSING_LEVEL,) * self.missing_level + (OTHER_LEVEL,) * self.other_level
        two = len(self.levels) + len(others) == 2  # noqa: PLR2004
        return self.levels[-1:] if two else self.levels + others

    def write(
        self,
        values: "pl.Series",
        missing: tuple[str, ...],
        numbers: "NDArray[Any]",
        zero_ones: "NDArray[Any]",
    ) -> None:
        """Encode S raw values into two arrays; a ValueError for another kind.

        `numbers` has shape (S, self.numbers), and `zero_ones` has the other features.
        """
        if self.kind == "category":
            self._write_levels(text_of(values, missing), zero_ones)
            return
        read = numbers_of(values, missing) if self.kind == "number" else days_of(values, missing)
        numbers[:] = read.fill_null(self.fill).to_numpy()[:, None]  # one column, or none
        zero_ones[:] = self.zero_ones(read)

    def zero_ones(self, read: "pl.Series") -> "NDArray[np.bool_]":
        """The features that are 0 or 1, shape (S, len(columns) - numbers), of nulls if missing."""
        filled = read.fill_null(self.fill).to_numpy()[:, None]
        missing = read.is_null().to_numpy()[:, None][:, : int(self.indicator)]
        return np.hstack([missing, filled >= np.array(self.edges, np.float64)])

    def _write_levels(self, text: "pl.Series", out: "NDArray[Any]") -> None:
        out[:] = 0.0
        place = {level: column for column, level in enumerate(self._shown)}
        known, codes = self._codes(text)
        columns = np.array([place.get(level, -1) for level in self.levels], np.int64)
        target = np.full(len(text), place.get(OTHER_LEVEL, -1))
        target[text.is_null().to_numpy()] = place.get(MISSING_LEVEL, place.get(OTHER_LEVEL, -1))
        target[known] = columns[codes]
        rows = np.flatnonzero(target >= 0)
        out[rows, target[rows]] = 1.0

    def _codes(self, text: "pl.Series") -> "tuple[NDArray[np.bool_], NDArray[np.int64]]":
        """Which rows have a level of their own, and the level's number for these rows."""
        codes = text.cast(pl.Enum(self.levels), strict=False).to_physical()
        return codes.is_not_null().to_numpy(), codes.drop_nulls().cast(pl.Int64).to_numpy()

    def raw_numbers(self, values: "pl.Series", missing: tuple[str, ...]) -> "NDArray[np.float64]":
        """A raw column as numbers that do not depend on the fit, shape (S,), NaN where missing.

        A category is 52 bits of its SHA-256. Refuses what `write` refuses.
        """
        if self.kind != "category":
            of = numbers_of if self.kind == "number" else days_of
            return np.asarray(of(values, missing).cast(pl.Float64).fill_null(np.nan), np.float64)
        text = text_of(values, missing)
        levels = text.drop_nulls().unique()
        digests = (hashlib.sha256(level.encode()).hexdigest()[:13] for level in levels)
        numbers = pl.Series([float(int(digest, 16)) for digest in digests], dtype=pl.Float64)
        known = text.replace_strict(levels, numbers, default=None, return_dtype=pl.Float64)
        return np.asarray(known.fill_null(np.nan), np.float64)

    def unknown(self, values: "pl.Series", missing: tuple[str, ...]) -> int:
        """How many values have no level of their own, not counting missing ones."""
        if self.kind != "category":
            return 0
        text = text_of(values, missing)
        return len(text) - text.null_count() - int(self._codes(text)[0].sum())


@dataclass(frozen=True)
class Recipe:
    """A party's recipe, one part per raw column, fitted to its own training rows; data, no code."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    parts: tuple[ColumnRecipe, ...]
    missing: tuple[str, ...] = MISSING

    @property
    def raw_columns(self) -> tuple[str, ...]:
        """Names of the raw columns."""
        return tuple(part.name for part in self.parts)

    @property
    def text_columns(self) -> frozenset[str]:
        """Names of the raw columns that are read as text, even if they look like numbers."""
        return frozenset(part.name for part in self.parts if part.kind != "number")

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the P features, such as "city=Berlin"."""
        return tuple(name for part in self.parts for name in part.columns)

    @property
    def signs(self) -> tuple[int, ...]:
        """-1 or 1 for each of the P features whose weight must not have the other sign, else 0."""
        ways = {"up": 1, "down": -1, None: 0}
        # All features but that of missing values rise with the raw column.
        return tuple(
            ways[part.monotone] * (name != f"{part.name}={MISSING_LEVEL}")
            for part in self.parts
            for name in part.columns
        )

    def apply(self, frame: "pl.DataFrame") -> "NDArray[np.float64]":
        """The features of raw rows, shape (N, P), finite.

        Raises:
            DataError: missing columns, or values of another kind; all are named.
        """
        if absent := [name for name in self.raw_columns if name not in frame.columns]:
            raise DataError(f"columns missing: {', '.join(map(repr, absent))}")
        out = np.empty((frame.height, len(self.columns)))
        wrong = []
        for part, place in self.places():
            try:
                numbers, zero_ones = np.split(out[:, place], [part.numbers], axis=1)
                part.write(frame[part.name], self.missing, numbers, zero_ones)
            except ValueError as error:
                wrong.append(f"column {part.name!r} {error}")
        if wrong:
            raise DataError("; ".join(wrong))
        return out

    def raw_numbers(self, frame: "pl.DataFrame") -> "NDArray[np.float64]":
        """Raw rows as numbers that do not depend on the fit, shape (N, raw columns)."""
        columns = [part.raw_numbers(frame[part.name], self.missing) for part in self.parts]
        return np.column_stack(columns)

    def places(self) -> Iterator[tuple[ColumnRecipe, slice]]:
        """Each part, and the slice of features that it fills."""
        start = 0
        for part in self.parts:
            yield part, slice(start, start + len(part.columns))
            start += len(part.columns)

    def unknown(self, frame: "pl.DataFrame") -> dict[str, int]:
        """By raw column, the number of values without a category of their own, if any."""
        counts = {part.name: part.unknown(frame[part.name], self.missing) for part in self.parts}
        return {name: count for name, count in counts.items() if count}


def read_as_numbers(columns: Sequence[str]) -> Recipe:
    """The recipe of columns that are plain numbers."""
    return Recipe(tuple(ColumnRecipe(name, "number") for name in columns))


def frame_of(rows: "NDArray[np.float64]", columns: Sequence[str]) -> "pl.DataFrame":
    """Rows of numbers, shape (N, P), as a frame of raw columns."""
    return pl.DataFrame(rows, [*columns], orient="row")


def text_of(values: "pl.Series", missing: tuple[str, ...]) -> "pl.Series":
    """A raw column as categories, null where missing; whole numbers without a decimal point."""
    if values.dtype.is_float():
        whole = values.cast(pl.Int64, strict=False)
        same = (whole.cast(values.dtype) == values).fill_null(False)
        values = values.fill_nan(None).cast(pl.String).zip_with(~same, whole.cast(pl.String))
    text = values.cast(pl.String).str.strip_chars()
    return text.set(text.is_in(list(missing)).fill_null(False), None)


def numbers_of(values: "pl.Series", missing: tuple[str, ...]) -> "pl.Series":
    """A raw column as numbers, null where missing; a ValueError for text or infinities."""
    rounded = values.cast(pl.Float64).abs() >= EXACT_INTEGERS if values.dtype.is_integer() else None
    if rounded is not None and rounded.any():
        count = int(rounded.sum())
        raise ValueError(
            f"has {counted(count, 'integer')} of 2^53 or more, which float64 would round"
        )
    if values.dtype.is_numeric() or values.dtype == pl.Boolean:
        numbers = values.cast(pl.Float64)
        codes = [float(code) for code in missing if _is_number(code)]
        if codes:
            numbers = numbers.set(numbers.is_in(codes).fill_null(False), None)
    elif values.dtype in (pl.String, pl.Null):
        text = text_of(values, missing)
        numbers = text.cast(pl.Float64, strict=False)
        _refuse(text, numbers, "that are not numbers")
    else:
        raise ValueError(f"is {values.dtype}, expected numbers")
    numbers = numbers.fill_nan(None)
    if infinite := int(numbers.is_infinite().sum()):
        raise ValueError(f"has {counted(infinite, 'infinite value')}")
    return numbers


def days_of(values: "pl.Series", missing: tuple[str, ...]) -> "pl.Series":
    """A raw column as days since 1970-01-01, null where missing; a ValueError if not dates."""
    text = None
    if values.dtype in (pl.String, pl.Null):
        text = text_of(values, missing)
        values = text.str.extract(_DATE, 1).str.to_date("%Y-%m-%d", strict=False)
    elif not values.dtype.is_temporal() or values.dtype in (pl.Time, pl.Duration):
        raise ValueError(f"is {values.dtype}, expected dates")
    days = values.cast(pl.Date).cast(pl.Int32).cast(pl.Float64)
    if text is not None:
        _refuse(text, days, "that are not dates like 2026-01-31")
    return days


def _refuse(text: "pl.Series", read: "pl.Series", what: str) -> None:
    wrong = text.filter(text.is_not_null() & read.is_null())
    if len(wrong):
        raise ValueError(f"has {len(wrong)} values {what}, such as {wrong[0]!r}")


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
