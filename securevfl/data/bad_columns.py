"""Columns that cannot be used as they stand, all of them at once and with what mends them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from securevfl.data.csv_files import as_point
from securevfl.data.csv_format import CsvFormat
from securevfl.errors import DataError
from securevfl.recipe import Preprocessing, days_of, numbers_of, text_of

if TYPE_CHECKING:
    import polars as pl

SHOWN = 10
MOSTLY = 0.5


@dataclass(frozen=True)
class BadColumn:
    """A column that cannot be used.

    Attributes:
        party: whose.
        column: which.
        problem: in words, with a count and an example.
        mended: whether `[preprocess]` is all that it takes.
        remedy: what else it takes.
    """

    party: str
    column: str
    problem: str
    mended: bool = False
    remedy: str = ""

    @property
    def line(self) -> str:
        """One part of a line."""
        remedy = f" ({self.remedy})" if self.remedy else ""
        return f"party {self.party!r}: column {self.column!r} {self.problem}{remedy}"


def kind_of(values: "pl.Series", settings: Preprocessing) -> Literal["number", "date", "category"]:
    """What a raw column is read as."""
    import polars as pl  # noqa: PLC0415  # slow to import, and needed only for files

    if values.name in settings.categories:
        return "category"
    if values.dtype.is_numeric() or values.dtype == pl.Null:
        return "number"
    if values.dtype.is_temporal():
        return "date"
    if values.dtype != pl.String:
        return "category"
    for kind, read in (("number", numbers_of), ("date", days_of)):
        try:
            read(values, settings.markers)
        except ValueError:
            continue
        return kind  # type: ignore[return-value]  # one of them
    return "category"


def bad_columns(
    party: str,
    frame: "pl.DataFrame",
    settings: Preprocessing | None,
    found: CsvFormat | None = None,
) -> list[BadColumn]:
    """What of a party's raw columns cannot be used.

    Args:
        party: whose.
        frame: its raw rows, of the columns to use.
        settings: of `[preprocess]`; None where the job has none.
        found: how numbers are written, in a CSV.
    """
    problems = (_problem(party, values, settings, found) for values in frame.iter_columns())
    return [problem for problem in problems if problem is not None]


def _problem(
    party: str, values: "pl.Series", settings: Preprocessing | None, found: CsvFormat | None
) -> BadColumn | None:
    import polars as pl  # noqa: PLC0415

    name, kind = values.name, values.dtype
    if isinstance(kind, pl.List) and kind.inner.is_integer():
        remedy = "`securevfl data convert` makes lists of indices a shard, which data may name"
        return BadColumn(party, name, f"is {kind}, expected numbers or text", remedy=remedy)
    if kind.is_nested() or kind in (pl.Binary, pl.Object, pl.Time, pl.Duration):
        return BadColumn(party, name, f"is {kind}, expected numbers or text")
    if settings is not None and (name in settings.categories or kind.is_temporal()):
        return None
    if kind.is_temporal():
        return BadColumn(party, name, f"is {kind}, expected numbers", mended=True)
    if kind.is_numeric() or kind in (pl.Boolean, pl.Null):
        return _number_problem(party, values, settings)
    text = text_of(values, (settings or Preprocessing()).markers)
    numbers = text if found is None else as_point(text, found)
    return _text_problem(party, text, numbers.cast(pl.Float64, strict=False), settings)


def _number_problem(
    party: str, values: "pl.Series", settings: Preprocessing | None
) -> BadColumn | None:
    try:
        numbers = numbers_of(values, (settings or Preprocessing()).markers)
    except ValueError as error:
        remedy = '`missing = ["inf", "-inf"]` in [preprocess] takes them for missing'
        return BadColumn(party, values.name, str(error), remedy=remedy)
    if settings is None and numbers.null_count():
        told = f"has {numbers.null_count()} missing values"
        return BadColumn(party, values.name, told, mended=True)
    return None


def _text_problem(
    party: str, text: "pl.Series", numbers: "pl.Series", settings: Preprocessing | None
) -> BadColumn | None:
    name = text.name
    wrong = text.filter(text.is_not_null() & numbers.is_null())
    missing = f" and {text.null_count()} missing values" if text.null_count() else ""
    if not len(wrong):
        return _number_problem(party, numbers.alias(name), settings)
    told = f"has {len(wrong)} values that are not numbers, as {wrong[0]!r}{missing}"
    values = text.n_unique() - bool(text.null_count())
    if values - wrong.n_unique() > MOSTLY * values:
        first = wrong[0]
        remedy = f'`missing = [{first!r}]` or `categories = ["{name}"]` in [preprocess] settles it'
        return BadColumn(party, name, f"{told}, among numbers", remedy=remedy)
    return None if settings is not None else BadColumn(party, name, told, mended=True)


def require_none(problems: Sequence[BadColumn]) -> None:
    """Refuse the columns, in one line.

    Raises:
        DataError: there are some.
    """
    if not problems:
        return
    shown = "; ".join(problem.line for problem in problems[:SHOWN])
    if len(problems) > SHOWN:
        shown += f"; and {len(problems) - SHOWN} more"
    columns = "1 column" if len(problems) == 1 else f"{len(problems)} columns"
    raise DataError(f"{columns} cannot be used: {shown}{_remedy(problems)}")


def _remedy(problems: Iterable[BadColumn]) -> str:
    mended = [problem for problem in problems if problem.mended]
    if not mended:
        return ""
    parties = sorted({problem.party for problem in mended})
    return (
        "; the line [preprocess] in the job file makes categories of text and the median of "
        f"missing numbers, and `drop = [...]` at party {' or '.join(map(repr, parties))} leaves "
        "columns out"
    )
