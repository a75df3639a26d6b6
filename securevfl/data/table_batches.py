"""Parquet and CSV, some rows at a time: a column of lists of indices, or wide numeric columns."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.data.csv_files import as_point, read_csv
from securevfl.data.csv_format import CsvFormat, find_format
from securevfl.data.labels import label_values
from securevfl.data.own_files import FOUND_OUT
from securevfl.data.sparse_batches import LARGE, SparseBatch, first_rounded, in_order
from securevfl.errors import ConfigError, DataError

if TYPE_CHECKING:
    import polars as pl

CELLS = 1 << 22
"""Of wide columns, which are looked at together."""
LISTS = 1 << 17
CSV_BYTES = 1 << 24


@dataclass(frozen=True)
class TableColumns:
    """Which columns are what.

    Attributes:
        id: None where rows are known by their numbers.
        label: None where labels are not asked for.
        drop: columns to leave out.
        index: of two columns of lists of integers, that of indices.
    """

    id: str | None
    label: str | None
    drop: Sequence[str] = ()
    index: str | None = None

    def __post_init__(self) -> None:
        """Refuse one column as both, with a `ConfigError`."""
        if self.label is not None and self.label == self.id:
            raise ConfigError(f"--label-column {self.label}: is that of ids")

    @property
    def taken(self) -> list[str]:
        """Id and label."""
        return [each for each in (self.id, self.label) if each is not None]

    def features(self, there: Sequence[str], where: str) -> list[str]:
        """The others of a file's columns.

        Raises:
            DataError: columns that are named are not there, or no other is.
        """
        if missing := [each for each in (*self.taken, *self.drop) if each not in there]:
            remedy = "; --id-column names that of ids" if missing[0] == self.id else ""
            raise DataError(f"{where}: no column {missing[0]!r}; it has {_few(there)}{remedy}")
        features = [each for each in there if each not in {*self.taken, *self.drop}]
        if not features:
            raise DataError(f"{where}: no feature columns, expected at least 1")
        return features


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")  # noqa: PLR2004


def parquet_batches(path: Path, columns: TableColumns) -> Iterator[SparseBatch]:
    """The rows of a Parquet file.

    One feature column of lists of integers is of indices, a second one of lists of as many numbers
    their values; else all are numbers, of which 0 is not stored.

    Raises:
        ConfigError: both lists are of integers and `columns` does not say which are indices, or
            says it of another column.
        DataError: it cannot be read, lacks columns, or has values missing, not finite or not
            numeric, or an index below 0 or twice in a row.
    """
    import polars as pl  # noqa: PLC0415  # slow to import

    try:
        schema = pl.read_parquet_schema(path)
        features = columns.features(tuple(schema), str(path))
        place = _index_column(path, schema, features, columns.index)
        rows = max(1, CELLS // len(features)) if place is None else LISTS
        lazy = pl.scan_parquet(path, glob=False).select(*columns.taken, *features)
        start = 0
        while not (frame := lazy.slice(start, rows).collect()).is_empty():
            if place is None:
                yield _from_wide(str(path), frame, features, columns, start + 1)
            else:
                yield _from_lists(str(path), frame, place, columns, start + 1)
            start += len(frame)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _malformed(path, error) from error


def _index_column(
    path: Path, schema: "Mapping[str, pl.DataType]", features: list[str], said: str | None
) -> str | None:
    """Which column has the lists of indices; None where there are no lists."""
    import polars as pl  # noqa: PLC0415

    kinds = {name: schema[name] for name in features}
    lists = {name: kind.inner for name, kind in kinds.items() if isinstance(kind, pl.List)}
    whole = [name for name, kind in lists.items() if kind.is_integer()]
    if said is not None and said not in whole:
        raise ConfigError(f"{path}: --index-column {said!r}: no lists of integers there")
    if not lists:
        return None
    if len(lists) < len(features):
        other = next(name for name in features if name not in lists)
        raise DataError(f"{path}: column {other!r} beside lists of indices; --drop leaves it")
    if len(lists) > 2 or not whole:  # noqa: PLR2004
        told = ", ".join(f"{name!r} of {kind}" for name, kind in lists.items())
        raise DataError(f"{path}: lists {told}; expected one of integers, and one of their values")
    if len(whole) > 1 and said is None:
        raise ConfigError(
            f"{path}: lists of {whole[0]!r} and {whole[1]!r} are both of integers; "
            "--index-column names those that are indices"
        )
    return said or whole[0]


def csv_batches(path: Path, columns: TableColumns) -> Iterator[SparseBatch]:
    """The rows of a CSV file with a header and numbers, of which 0 is not stored.

    Raises:
        DataError: as of Parquet, or its format cannot be found out.
    """
    import polars as pl  # noqa: PLC0415  # slow to import

    known = () if columns.id is None else (columns.id,)
    found = find_format(path, FOUND_OUT, known, str(path))
    features = columns.features(found.header, str(path))
    row = 1
    try:
        for part in _csv_parts(found):
            frame = read_csv(part, [*columns.taken, *features], columns.taken, ("",))
            if frame.is_empty():
                continue
            _require_exact_text(str(path), part, frame.select(features))
            yield _from_wide(str(path), frame, features, columns, row)
            row += len(frame)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _malformed(path, error) from error


def _csv_parts(found: CsvFormat) -> Iterator[CsvFormat]:
    """The file in pieces, each with its header; a quoted field is not cut."""
    with (
        found.content.open("rb")
        if isinstance(found.content, Path)
        else BytesIO(found.content) as file
    ):
        head = b"".join(file.readline() for _ in range(found.skipped + 1))
        while lines := file.readlines(CSV_BYTES):
            text = b"".join(lines)
            while text.count(b'"') % 2 and (more := file.readline()):
                text += more
            yield replace(found, content=head + text)


def _malformed(path: Path, error: Exception) -> DataError:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return DataError(f"{path}: empty, malformed or truncated ({reason})")


def _from_wide(
    where: str, frame: "pl.DataFrame", features: list[str], columns: TableColumns, first: int
) -> SparseBatch:
    import polars as pl  # noqa: PLC0415

    for name in features:
        column = frame[name]
        if not (column.dtype.is_numeric() or column.dtype == pl.Boolean):
            raise DataError(
                f"{where}: column {name!r} is {column.dtype}, expected numbers; --drop leaves it"
            )
        if column.null_count():
            missing = first + int(column.is_null().arg_max() or 0)
            raise DataError(f"{where}, row {missing}: no value in column {name!r}")
        _require_exact(where, column)
    dense = frame.select(pl.col(features).cast(pl.Float64)).to_numpy()
    rows, indices = np.nonzero(dense)
    numbers = np.arange(first, first + len(frame))
    lengths = np.bincount(rows, minlength=len(frame))
    entries = in_order(f"{where}, row", numbers, lengths, indices, dense[rows, indices])
    return SparseBatch(
        _ids(where, frame, columns, first),
        *entries,
        _labels(where, frame, columns),
        tuple(features),
    )


def _from_lists(
    where: str, frame: "pl.DataFrame", place: str, columns: TableColumns, first: int
) -> SparseBatch:
    import polars as pl  # noqa: PLC0415

    numbers = np.arange(first, first + len(frame))
    lengths = frame[place].list.len().fill_null(0).cast(pl.Int64).to_numpy()
    indices = _entries(where, frame[place])
    values: FloatArray | None = None
    for other in frame.columns:
        if other not in (place, *columns.taken):
            if not np.array_equal(frame[other].list.len().fill_null(0).to_numpy(), lengths):
                raise DataError(f"{where}: lists of {other!r} and {place!r} differ in length")
            numbers_of = _entries(where, frame[other])
            _require_exact(where, numbers_of)
            values = numbers_of.cast(pl.Float64).to_numpy()
    places = indices.cast(pl.Int64).to_numpy()
    return SparseBatch(
        _ids(where, frame, columns, first),
        *in_order(f"{where}, row", numbers, lengths, places, values),
        _labels(where, frame, columns),
        smallest=int(places.min()) if len(places) else None,
    )


def _require_exact(where: str, column: "pl.Series") -> None:
    """Refuse whole numbers beyond 2^53 that would be rounded."""
    import polars as pl  # noqa: PLC0415

    if not column.dtype.is_integer():
        return
    # Rounded, the largest are too large to be cast back.
    if not column.eq_missing(column.cast(pl.Float64).cast(column.dtype, strict=False)).all():
        raise _rounded(where, column.name)


def _require_exact_text(where: str, part: CsvFormat, frame: "pl.DataFrame") -> None:
    """The same of numbers in text, which is looked at only where they are large."""
    import polars as pl  # noqa: PLC0415

    numbers = frame.select(pl.col(pl.Float64))
    large = [each.name for each in numbers.iter_columns() if (each.abs() >= LARGE).any()]
    if not large:
        return
    for written in read_csv(part, large, large, ("",)).iter_columns():
        text = as_point(written.str.strip_chars(), part)
        if first_rounded(text, frame[written.name]) is not None:
            raise _rounded(where, written.name)


def _rounded(where: str, name: str) -> DataError:
    return DataError(f"{where}: column {name!r} has whole numbers that no float64 is")


def _entries(where: str, lists: "pl.Series") -> "pl.Series":
    if lists.null_count():
        raise DataError(
            f"{where}: column {lists.name!r} has {lists.null_count()} rows without list"
        )
    entries = lists.filter(lists.list.len() > 0).explode()
    if entries.null_count():
        raise DataError(f"{where}: lists of {lists.name!r} have {entries.null_count()} gaps")
    return entries


def _ids(where: str, frame: "pl.DataFrame", columns: TableColumns, first: int) -> list[str] | None:
    import polars as pl  # noqa: PLC0415

    if columns.id is None:
        return None
    column = frame[columns.id]
    if not (column.dtype == pl.String or column.dtype.is_integer()):
        raise ConfigError(
            f"{where}: ids in {columns.id!r} are {column.dtype}, expected text or integers"
        )
    text = column.cast(pl.String).fill_null("")
    if (text == "").any():
        row = first + int((text == "").arg_max() or 0)
        raise DataError(f"{where}, row {row}: no id in column {columns.id!r}")
    ids: list[str] = text.to_list()
    return ids


def _labels(
    where: str, frame: "pl.DataFrame", columns: TableColumns
) -> FloatArray | list[str] | None:
    import polars as pl  # noqa: PLC0415

    if columns.label is None:
        return None
    text = frame[columns.label].cast(pl.String).str.strip_chars()
    if missing := int((text.is_null() | (text == "").fill_null(True)).sum()):
        raise DataError(f"{where}: column {columns.label!r} has {missing} missing labels")
    names: list[str] = text.to_list()
    values = label_values(names)
    if values.dtype.kind != "f":
        return names
    if first_rounded(text, pl.Series(values)) is not None:
        raise _rounded(where, columns.label)
    return values.astype(np.float64)
