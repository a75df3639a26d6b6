"""A user's own CSV and Parquet files."""

import csv
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from securevfl.data.formats import decode_text, read_content
from securevfl.errors import ConfigError, DataError

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class FileSource:
    """One party's file.

    Attributes:
        name: The party.
        path: .csv, .csv.gz or .parquet; CSV has a header and commas.
        id_column: Joins the parties' rows; compared as text, so "07" is not "7".
        label_column: At exactly one party.
        features: Columns to use; None for all but the id and the label.
        test_path: A second file of test rows, at every party or at none.
    """

    name: str
    path: Path
    id_column: str
    label_column: str | None = None
    features: Sequence[str] | None = None
    test_path: Path | None = None


@dataclass(frozen=True, eq=False)
class PartyRows:
    """What one party's file holds, rows sorted by id.

    Attributes:
        ids: N different ids.
        columns: P feature names.
        features: Shape (N, P), finite.
        labels: N labels as text, or None.
    """

    ids: tuple[str, ...]
    columns: tuple[str, ...]
    features: NDArray[np.float64]
    labels: tuple[str, ...] | None


def read_party(source: FileSource, *, test: bool = False) -> PartyRows:
    """Read one party's own file, or its test file, without looking at any other party's.

    Raises:
        ConfigError: A suffix that is not known, or a column used twice.
        DataError: Missing, empty or malformed, ids missing or double, features not finite numbers.
    """
    path = source.test_path if test else source.path
    if path is None:
        raise ConfigError(f"test_path: party {source.name!r} has none")
    frame = _read_frame(source.name, Path(path))
    columns = _feature_columns(source, frame)
    ids = _ids(source, frame)
    labels = None
    if source.label_column is not None:
        labels = _as_text(source.name, frame[source.label_column])
    order = sorted(range(len(ids)), key=ids.__getitem__)
    features = np.column_stack([_numbers(source.name, frame[column]) for column in columns])
    return PartyRows(
        tuple(ids[row] for row in order),
        columns,
        features[order],
        None if labels is None else tuple(labels[row] for row in order),
    )


def columns_of(source: FileSource) -> tuple[str, ...]:
    """The columns of a party's file.

    Raises:
        ConfigError: A suffix that is not known.
        DataError: Missing, empty or malformed.
    """
    return tuple(_read_frame(source.name, Path(source.path)).columns)


def _read_frame(party: str, path: Path) -> "pl.DataFrame":
    content = read_content(path)
    import polars as pl  # noqa: PLC0415  # slow to import, and needed only for files

    suffix = path.name.lower().removesuffix(".gz").rpartition(".")[2]
    try:
        if suffix == "parquet":
            frame = pl.read_parquet(io.BytesIO(content))
        elif suffix == "csv":
            header = next(csv.reader(io.StringIO(decode_text(content, path), newline="")), [])
            if len(set(header)) < len(header):
                double = next(column for column in header if header.count(column) > 1)
                raise DataError(f"party {party!r}: column {double!r} stands twice in {path}")
            frame = pl.read_csv(content, infer_schema=False)
        else:
            raise ConfigError(
                f"path: {path} of party {party!r}, expected .csv, .csv.gz or .parquet"
            )
    except (pl.exceptions.PolarsError, csv.Error, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"party {party!r}: {path} is empty or malformed ({reason})") from error
    if frame.is_empty():
        raise DataError(f"party {party!r}: {path} has no rows")
    return frame


def _feature_columns(source: FileSource, frame: "pl.DataFrame") -> tuple[str, ...]:
    taken = [column for column in (source.id_column, source.label_column) if column is not None]
    if source.features is None:
        columns = tuple(column for column in frame.columns if column not in taken)
    else:
        columns = tuple(source.features)
    used = [*taken, *columns]
    if len(set(used)) < len(used):
        double = next(column for column in used if used.count(column) > 1)
        raise ConfigError(f"features: column {double!r} of party {source.name!r} is used twice")
    missing = [column for column in used if column not in frame.columns]
    if missing:
        raise DataError(
            f"party {source.name!r}: {len(missing)} columns missing, the first is "
            f"{missing[0]!r}; the file has {', '.join(frame.columns)}"
        )
    if not columns:
        raise DataError(f"party {source.name!r}: no feature columns, expected at least 1")
    return columns


def _ids(source: FileSource, frame: "pl.DataFrame") -> list[str]:
    import polars as pl  # noqa: PLC0415

    column = frame[source.id_column]
    if not (column.dtype == pl.String or column.dtype.is_integer()):
        raise DataError(
            f"party {source.name!r}: ids in {source.id_column!r} are {column.dtype}, expected "
            f"text or integers"
        )
    ids = _as_text(source.name, column)
    if double := len(ids) - len(set(ids)):
        first = next(row_id for row_id, count in Counter(ids).items() if count > 1)
        raise DataError(
            f"party {source.name!r}: {double} duplicate ids in {source.id_column!r}, the first "
            f"is {first!r}"
        )
    return ids


def _as_text(party: str, column: "pl.Series") -> list[str]:
    import polars as pl  # noqa: PLC0415

    text = column.cast(pl.String)
    if missing := int((text.is_null() | (text == "").fill_null(False)).sum()):
        raise DataError(f"party {party!r}: column {column.name!r} has {missing} missing values")
    values: list[str] = text.to_list()
    return values


def _numbers(party: str, column: "pl.Series") -> NDArray[np.float64]:
    import polars as pl  # noqa: PLC0415

    where = f"party {party!r}: column {column.name!r}"
    if not (column.dtype.is_numeric() or column.dtype in (pl.String, pl.Boolean)):
        raise DataError(f"{where} is {column.dtype}, expected numbers")
    if missing := column.null_count():
        raise DataError(f"{where} has {missing} missing values, expected finite numbers")
    numbers = column.cast(pl.Float64, strict=False)
    if wrong := numbers.null_count():
        raise DataError(f"{where} has {wrong} values that are not numbers")
    if unusable := int((~numbers.is_finite()).sum()):
        raise DataError(f"{where} has {unusable} NaN or infinite values, expected finite numbers")
    return numbers.to_numpy()
