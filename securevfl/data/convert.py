"""Conversion of files into shards: LIBSVM, Parquet and CSV of any length.

Parquet and CSV files have wide numeric columns, whose zeros are not stored; Parquet may instead
have a column of lists of indices.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from securevfl.arrays import FloatArray, IntArray
from securevfl.data.csv_files import DETECT, CsvFormat, as_point, detect_format, opened, read_csv
from securevfl.data.ids import IdFormat, gapless_text, id_text, normalized_ids
from securevfl.data.labels import label_values
from securevfl.data.libsvm import (
    LARGE,
    SUFFIXES,
    SparseBatch,
    first_rounded,
    in_order,
    libsvm_batches,
)
from securevfl.data.shard_writing import RowIds, write_shard
from securevfl.data.shards import Header, read_header
from securevfl.errors import ConfigError, DataError
from securevfl.lazy import Lazy
from securevfl.shown import first_line

if TYPE_CHECKING:
    import polars as pl
else:
    pl = Lazy("polars")

CELLS = 1 << 22
"""Cells of wide columns that are read at a time."""
LISTS = 1 << 17
CSV_BYTES = 1 << 24
COMMENT = "#"
"""As the id column of LIBSVM: ids are the comments after this sign."""


@dataclass(frozen=True)
class Conversion:
    """How files become a shard.

    Attributes:
        id_column: id column of Parquet and CSV; "#" for LIBSVM whose ids are comments.
        row_numbers: rows of Parquet and CSV are identified by their numbers, from 1, as rows of
            LIBSVM without ids are.
        label_column: label column of Parquet and CSV, at the label party.
        labels: keep the labels of LIBSVM.
        drop: columns of Parquet and CSV to leave out.
        columns: P; by default the largest index plus one.
        first_index: number of the first column in LIBSVM and lists of indices; by default 0 if it
            occurs and 1 if the smallest is 1.
        id_format: how ids are compared.
        force: replace an existing shard.
        index_column: of Parquet, which lists are indices if two columns have lists of integers.
    """

    id_column: str | None = None
    row_numbers: bool = False
    label_column: str | None = None
    labels: bool = True
    drop: tuple[str, ...] = ()
    columns: int | None = None
    first_index: Literal[0, 1] | None = None
    id_format: IdFormat = "text"
    force: bool = False
    index_column: str | None = None

    @property
    def ids(self) -> str | None:
        """The id column of Parquet and CSV; None if rows are identified by their numbers."""
        return None if self.row_numbers else self.id_column or "id"

    @property
    def ids_and_labels(self) -> list[str]:
        """The id column and the label column, if any."""
        return [each for each in (self.ids, self.label_column) if each is not None]

    def features(self, columns: Sequence[str], where: str) -> list[str]:
        """The other columns of a file, at least one."""
        if missing := [each for each in (*self.ids_and_labels, *self.drop) if each not in columns]:
            remedy = "; --id-column names the id column" if missing[0] == self.ids else ""
            few = ", ".join(columns[:10])
            few += f" and {len(columns) - 10} more" if columns[10:] else ""
            raise DataError(f"{where}: no column {missing[0]!r}; it has {few}{remedy}")
        features = [each for each in columns if each not in {*self.ids_and_labels, *self.drop}]
        if not features:
            raise DataError(f"{where}: no feature columns, expected at least 1")
        return features


def convert(
    files: Sequence[Path],
    to: Path,
    how: Conversion,
    progress: Callable[[int], None] = lambda _rows: None,
) -> Header:
    """Write the rows of files of the same format, one file after another, as the shard `to`.

    Files are .parquet, .csv, .csv.gz, or LIBSVM (`SUFFIXES`), plain, .gz or .bz2. `progress` is
    called with the number of rows done.

    Raises:
        ConfigError: an unknown suffix, files of several formats, or contradictory settings.
        DataError: a file that cannot be read or lacks columns; values that are missing, not finite,
            not numeric, or integers that float64 would round; an index below 0, repeated in a row
            or out of range; an ambiguous first index; or the shard cannot be written.
    """
    kind = _kind(files)
    _check(kind, how)
    batches = chain.from_iterable(_batches(path, kind, how) for path in files)
    first = next(batches, None)
    if first is None:
        raise DataError(f"{files[0]} has no rows")
    rows, smallest, begin = 0, None, how.first_index if first.names is None else 0
    shard = write_shard(
        to,
        columns=_columns(first.names, files[0], how),
        names=first.names,
        first=1 if how.first_index is None else how.first_index,
        id_format=how.id_format,
        force=how.force,
    )
    with shard as writer:
        for batch in chain([first], batches):
            if batch.names != first.names:
                raise DataError(f"{files[0]} and another file differ in their columns")
            if (low := batch.smallest) is not None:
                smallest = low if smallest is None else min(low, smallest)
                if begin is not None and low < begin:
                    raise DataError(f"index {low}, and --first-index says {begin}")
            ids = batch.ids or list(map(str, range(rows + 1, rows + 1 + len(batch.lengths))))
            if how.id_format != "text":
                text = pl.Series(ids, dtype=pl.String)
                ids = normalized_ids(text, how.id_format, str(files[0])).to_list()
            indices = batch.indices - (begin or 0)
            writer.append(RowIds.of(ids), batch.lengths, indices, batch.values, batch.labels)
            rows += len(batch.lengths)
            progress(rows)
        if begin is None:
            writer.number_columns(_first_index(smallest), how.columns)
    return read_header(to)


def _columns(names: tuple[str, ...] | None, file: Path, how: Conversion) -> int | None:
    """P; None if it is not known before all rows are read."""
    if names is None:
        return None if how.first_index is None else how.columns
    if how.columns not in (None, len(names)):
        raise ConfigError(f"--columns: {file} has {len(names)} columns")
    if how.first_index is not None:
        raise ConfigError(f"--first-index is for indices, and columns of {file} have names")
    return len(names)


def _first_index(smallest: int | None) -> Literal[0, 1]:
    if smallest not in (0, 1, None):
        raise DataError(
            f"the smallest index is {smallest}: --first-index 0 or 1 says whether columns count "
            "from 0 or 1"
        )
    return 0 if smallest == 0 else 1


def _kind(files: Sequence[Path]) -> str:
    kinds = set()
    for path in files:
        name = path.name.lower()
        if name.endswith(".parquet"):
            kinds.add("parquet")
        elif name.endswith((".csv", ".csv.gz")):
            kinds.add("csv")
        elif name.removesuffix(".gz").removesuffix(".bz2").endswith(SUFFIXES):
            kinds.add("libsvm")
        else:
            raise ConfigError(
                f"{path}: expected .parquet, .csv, .csv.gz, or LIBSVM as {', '.join(SUFFIXES)}, "
                "plain, .gz or .bz2"
            )
    if len(kinds) != 1:
        raise ConfigError(f"files of {len(kinds)} formats, expected one")
    return kinds.pop()


def _check(kind: str, how: Conversion) -> None:
    if how.id_column is not None and how.row_numbers:
        raise ConfigError("--id-column or --row-numbers: give one of them")
    if how.index_column is not None and kind != "parquet":
        raise ConfigError("--index-column is for lists in Parquet")
    if kind == "libsvm":
        if how.id_column not in (None, COMMENT):
            raise ConfigError(
                f"--id-column {how.id_column}: ids of LIBSVM are comments, so only '#' is possible"
            )
        if how.label_column is not None or how.drop:
            raise ConfigError("--label-column and --drop are for files whose columns have names")
        return
    if not how.labels and how.label_column is not None:
        raise ConfigError("--label-column or --no-labels: give one of them")
    if how.label_column is not None and how.label_column == how.ids:
        raise ConfigError(f"--label-column {how.label_column}: is the id column")


def _batches(path: Path, kind: str, how: Conversion) -> Iterator[SparseBatch]:
    if kind == "libsvm":
        yield from libsvm_batches(path, labels=how.labels, ids=how.id_column == COMMENT)
        return
    frames = _parquet_frames(path, how) if kind == "parquet" else _csv_frames(path, how)
    row = 1
    try:
        for frame, features, lists in frames:
            if lists is None:
                entries = _wide_entries(str(path), frame, features, row)
            else:
                entries = _list_entries(str(path), frame, lists, how)
            indices, numbers = entries[1], np.arange(row, row + len(frame))
            ids: list[str] | None = None
            if how.ids is not None:
                ids = id_text(frame[how.ids], str(path), first=row).to_list()
            yield SparseBatch(
                ids,
                *in_order(f"{path}, row", numbers, *entries),
                _labels(str(path), frame, how, row),
                tuple(features) if lists is None else None,
                int(indices.min()) if lists and len(indices) else None,
            )
            row += len(frame)
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = first_line(error)
        raise DataError(f"{path}: empty, malformed or truncated ({reason})") from error


_Entries = tuple[IntArray, IntArray, FloatArray | None]
"""Lengths of rows, indices, and values unless all are 1."""
_Frames = Iterator[tuple["pl.DataFrame", list[str], str | None]]
"""Some rows of a file at a time, its feature columns, and the column of lists of indices if any."""


def _parquet_frames(path: Path, how: Conversion) -> _Frames:
    schema = pl.read_parquet_schema(path)
    features = how.features(tuple(schema), str(path))
    lists = _index_column(path, schema, features, how.index_column)
    rows = max(1, CELLS // len(features)) if lists is None else LISTS
    lazy = pl.scan_parquet(path, glob=False).select(*how.ids_and_labels, *features)
    start = 0
    while not (frame := lazy.slice(start, rows).collect()).is_empty():
        yield frame, features, lists
        start += len(frame)


def _index_column(
    path: Path, schema: "Mapping[str, pl.DataType]", features: list[str], given: str | None
) -> str | None:
    """The column of lists of indices; None if there are no lists."""
    kinds = {name: schema[name] for name in features}
    lists = {name: kind.inner for name, kind in kinds.items() if isinstance(kind, pl.List)}
    whole = [name for name, kind in lists.items() if kind.is_integer()]
    if given is not None and given not in whole:
        raise ConfigError(f"{path}: --index-column {given!r}: no lists of integers there")
    if not lists:
        return None
    if len(lists) < len(features):
        other = next(name for name in features if name not in lists)
        raise DataError(f"{path}: column {other!r} beside lists of indices; --drop leaves it out")
    if len(lists) > 2 or not whole:  # noqa: PLR2004
        found = ", ".join(f"{name!r} of {kind}" for name, kind in lists.items())
        raise DataError(f"{path}: lists {found}; expected one of integers, and one of their values")
    if len(whole) > 1 and given is None:
        raise ConfigError(
            f"{path}: lists of {whole[0]!r} and {whole[1]!r} are both of integers; "
            "--index-column names those that are indices"
        )
    return given or whole[0]


def _csv_frames(path: Path, how: Conversion) -> _Frames:
    found = detect_format(path, DETECT, () if how.ids is None else (how.ids,), str(path))
    features = how.features(found.header, str(path))
    for part in _csv_parts(found):
        frame = read_csv(part, [*how.ids_and_labels, *features], how.ids_and_labels, ("",))
        _require_exact_text(str(path), part, frame.select(features))
        if not frame.is_empty():
            yield frame, features, None


def _csv_parts(found: CsvFormat) -> Iterator[CsvFormat]:
    """The file in pieces, each with the header, never cut within a quoted field."""
    with opened(found.content) as file:
        head = b"".join(file.readline() for _ in range(found.skipped + 1))
        while lines := file.readlines(CSV_BYTES):
            text = b"".join(lines)
            while text.count(b'"') % 2 and (more := file.readline()):
                text += more
            yield replace(found, content=head + text)


def _wide_entries(where: str, frame: "pl.DataFrame", features: list[str], first: int) -> _Entries:
    for name in features:
        column = frame[name]
        if not (column.dtype.is_numeric() or column.dtype == pl.Boolean):
            raise DataError(
                f"{where}: column {name!r} is {column.dtype}, expected numbers; "
                "--drop leaves it out"
            )
        if column.null_count():
            missing = first + int(column.is_null().arg_max() or 0)
            raise DataError(f"{where}, row {missing}: no value in column {name!r}")
        _require_exact(where, column)
    dense = frame.select(pl.col(features).cast(pl.Float64)).to_numpy()
    rows, indices = np.nonzero(dense)
    return np.bincount(rows, minlength=len(frame)), indices, dense[rows, indices]


def _list_entries(where: str, frame: "pl.DataFrame", lists: str, how: Conversion) -> _Entries:
    lengths = frame[lists].list.len().fill_null(0).cast(pl.Int64).to_numpy()
    indices = _entries(where, frame[lists])
    values: FloatArray | None = None
    for other in frame.columns:
        if other not in (lists, *how.ids_and_labels):
            if not np.array_equal(frame[other].list.len().fill_null(0).to_numpy(), lengths):
                raise DataError(f"{where}: lists of {other!r} and {lists!r} differ in length")
            numbers = _entries(where, frame[other])
            _require_exact(where, numbers)
            values = numbers.cast(pl.Float64).to_numpy()
    return lengths, indices.cast(pl.Int64).to_numpy(), values


def _require_exact(where: str, column: "pl.Series") -> None:
    """Refuse integers beyond 2^53 that float64 would round."""
    if not column.dtype.is_integer():
        return
    # Rounded, the largest are too large to be cast back.
    if not column.eq_missing(column.cast(pl.Float64).cast(column.dtype, strict=False)).all():
        raise _rounded(where, column.name)


def _require_exact_text(where: str, part: CsvFormat, frame: "pl.DataFrame") -> None:
    """The same for numbers in text, which is read again only if some are large."""
    numbers = frame.select(pl.col(pl.Float64))
    large = [each.name for each in numbers.iter_columns() if (each.abs() >= LARGE).any()]
    if not large:
        return
    for written in read_csv(part, large, large, ("",)).iter_columns():
        text = as_point(written.str.strip_chars(), part)
        if first_rounded(text, frame[written.name]) is not None:
            raise _rounded(where, written.name)


def _rounded(where: str, name: str) -> DataError:
    return DataError(f"{where}: column {name!r} has integers that float64 would round")


def _entries(where: str, lists: "pl.Series") -> "pl.Series":
    if lists.null_count():
        raise DataError(
            f"{where}: column {lists.name!r} has {lists.null_count()} rows without a list"
        )
    entries = lists.filter(lists.list.len() > 0).explode()
    if entries.null_count():
        raise DataError(
            f"{where}: lists of {lists.name!r} have {entries.null_count()} missing entries"
        )
    return entries


def _labels(
    where: str, frame: "pl.DataFrame", how: Conversion, first: int
) -> FloatArray | list[str] | None:
    if how.label_column is None:
        return None
    column = frame[how.label_column].cast(pl.String).str.strip_chars()
    text = gapless_text(column, where, first=first)
    names: list[str] = text.to_list()
    values = label_values(names)
    if values.dtype.kind != "f":
        return names
    if first_rounded(text, pl.Series(values)) is not None:
        raise _rounded(where, how.label_column)
    return values.astype(np.float64)
