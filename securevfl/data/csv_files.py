"""Reading CSV into typed columns, without ever holding a file's numbers as text."""

import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from securevfl.data.csv_format import CsvFormat

if TYPE_CHECKING:
    import polars as pl

SAMPLED = 1000


def read_csv(
    found: CsvFormat, columns: Sequence[str], text: Collection[str], missing: Sequence[str]
) -> "pl.DataFrame":
    """Some columns of a CSV file: float64 where all that is there are numbers, else text.

    Args:
        found: how it is written.
        columns: which.
        text: of them, those that stay text as it stands.
        missing: what stands for a missing number.

    Raises:
        polars.exceptions.PolarsError: it is malformed.
    """
    lazy = _scan(found)
    if found.has_empty_lines:
        import polars as pl  # noqa: PLC0415  # slow to import, and needed only for files

        lazy = lazy.filter(pl.any_horizontal(pl.all().str.strip_chars().fill_null("") != ""))
    lazy = lazy.select(columns)
    free = [name for name in columns if name not in text]
    sample = lazy.select(_number(name, found, missing) for name in free).head(SAMPLED).collect()
    numbers = [name for name in free if not sample[name].is_nan().any()]
    frame = lazy.with_columns(_number(name, found, missing) for name in numbers).collect(
        engine="streaming"
    )
    # Numbers but for a row that the sample has not.
    if late := [name for name in numbers if frame[name].is_nan().any()]:
        frame = frame.with_columns(lazy.select(late).collect(engine="streaming"))
    return frame


def as_point(values: "pl.Series", found: CsvFormat) -> "pl.Series":
    """Text with its numbers written with a point; null where something else stands."""
    import polars as pl  # noqa: PLC0415

    pointed = values.alias("value").to_frame().select(_pointed(pl.col("value"), found))
    read = pointed["value"].alias(values.name)
    return read.set(read.cast(pl.Float64, strict=False).is_null(), None)


def _scan(found: CsvFormat) -> "pl.LazyFrame":
    import polars as pl  # noqa: PLC0415

    return pl.scan_csv(
        found.content,
        separator=found.separator,
        skip_rows=found.skipped,
        infer_schema=False,
        glob=False,
    )


def _number(name: str, found: CsvFormat, missing: Sequence[str]) -> "pl.Expr":
    """The column as numbers: null where missing, NaN where something else stands."""
    import polars as pl  # noqa: PLC0415

    text = pl.col(name).str.strip_chars()
    absent = text.is_null() | text.is_in(list(missing))
    number = _pointed(text, found).cast(pl.Float64, strict=False)
    return pl.when(~absent).then(number.fill_null(float("nan"))).alias(name)


def _pointed(text: "pl.Expr", found: CsvFormat) -> "pl.Expr":
    """Numbers with a point and without marks between thousands; null where they break the rule."""
    import polars as pl  # noqa: PLC0415

    text = text.str.strip_chars()
    if found.thousands:
        mark, decimal = re.escape(found.thousands), re.escape(found.decimal)
        grouped = text.str.contains(rf"^[+-]?\d{{1,3}}({mark}\d{{3}})+({decimal}\d*)?$")
        bare = text.str.replace_all(found.thousands, "", literal=True)
        text = pl.when(grouped).then(bare).otherwise(text)
        text = pl.when(~text.str.contains(found.thousands, literal=True)).then(text)
    if found.decimal == ",":
        text = pl.when(~text.str.contains(".", literal=True)).then(text)
        text = text.str.replace(",", ".", literal=True)
    return text
