"""Files that become shards, once: LIBSVM, Parquet and CSV, whatever their length.

Parquet and CSV have a column of lists of indices, or wide numeric columns, whose 0 is not stored.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.data.csv_files import DETECT, CsvFormat, as_point, detect_format, opened, read_csv
from securevfl.data.ids import IdFormat, normalized_ids
from securevfl.data.labels import label_values
from securevfl.data.libsvm import (
    LARGE,
    SUFFIXES,
    SparseBatch,
    first_rounded,
    in_order,
    libsvm_batches,
)
from securevfl.data.shard_writing import RowIds, ShardWriter
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
"""The id column of LIBSVM: the comment behind this sign."""


@dataclass(frozen=True)
class Conversion:
    """What the user says of files that become a shard.

    Attributes:
        id_column: of Parquet and CSV; "#" of LIBSVM for what stands behind that, else None.
        row_numbers: rows of Parquet and CSV are known by their numbers, from 1, as those of LIBSVM
            are without ids.
        label_column: of Parquet and CSV at the label party.
        labels: whether labels of LIBSVM are kept.
        drop: columns of Parquet and CSV to leave out.
        columns: P; one more than the largest index where not given.
        first_index: the number of the first column in LIBSVM and lists of indices; where not given
            0 if that occurs, and 1 if the smallest is 1.
        index_column: of Parquet, which lists are of indices where two columns have integers.
        force: replace a shard that is there.
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
        """The column of ids of Parquet and CSV; None where rows are known by their numbers."""
        return None if self.row_numbers else self.id_column or "id"

    @property
    def taken(self) -> list[str]:
        """Columns of ids and labels."""
        return [each for each in (self.ids, self.label_column) if each is not None]

    def features(self, there: Sequence[str], where: str) -> list[str]:
        """The others of a file's columns, at least one."""
        if missing := [each for each in (*self.taken, *self.drop) if each not in there]:
            remedy = "; --id-column names that of ids" if missing[0] == self.ids else ""
            few = ", ".join(there[:10]) + (f" and {len(there) - 10} more" if there[10:] else "")
            raise DataError(f"{where}: no column {missing[0]!r}; it has {few}{remedy}")
        features = [each for each in there if each not in {*self.taken, *self.drop}]
        if not features:
            raise DataError(f"{where}: no feature columns, expected at least 1")
        return features


def convert(
    files: Sequence[Path],
    to: Path,
    how: Conversion,
    progress: Callable[[int], None] = lambda _rows: None,
) -> Header:
    """Write the rows of some files of a format, one after another, as one shard in the folder `to`.

    Files are .parquet, .csv, .csv.gz, or LIBSVM (`SUFFIXES`), plain, .gz or .bz2. `progress` is
    told how many rows are done.

    Raises:
        ConfigError: a suffix that is not known, files of several formats, or what does not go
            together.
        DataError: a file cannot be read, lacks columns, or has values missing, not finite or not
            numeric, or whole numbers that would be rounded; an index below 0, twice in a row or
            beyond the columns; a first index that cannot be told; or the shard cannot be written.
    """
    kind = _kind(files)
    _check(kind, how)
    rows, smallest = 0, None
    batches = chain.from_iterable(_batches(path, kind, how) for path in files)
    first = next(batches, None)
    if first is None:
        raise DataError(f"{files[0]} has no rows")
    writer, begin = _writer(to, first, files[0], how)
    with writer:
        for batch in chain([first], batches):
            if batch.names != first.names:
                raise DataError(f"{files[0]} and another file differ in their columns")
            if (low := batch.smallest) is not None:
                smallest = low if smallest is None else min(low, smallest)
                if begin is not None and low < begin:
                    raise DataError(f"index {low}, and --first-index says {begin}")
            ids = batch.ids or list(map(str, range(rows + 1, rows + 1 + len(batch.lengths))))
            numbers = RowIds.of(_compared(ids, how.id_format, str(files[0])))
            indices = batch.indices - (begin or 0)
            writer.append(numbers, batch.lengths, indices, batch.values, batch.labels)
            rows += len(batch.lengths)
            progress(rows)
        if begin is None:
            writer.number_columns(_first_index(smallest), how.columns)
    return read_header(to)


def _writer(
    to: Path, first: SparseBatch, file: Path, how: Conversion
) -> tuple[ShardWriter, Literal[0, 1] | None]:
    """What writes rows like these, and the number of the first column, None if not known yet."""
    begin, columns, shown = how.first_index, how.columns, how.first_index
    if first.names is not None:
        columns, begin, shown = len(first.names), 0, 1
        if how.columns not in (None, columns):
            raise ConfigError(f"--columns: {file} has {columns} columns")
        if how.first_index is not None:
            raise ConfigError(f"--first-index is for indices, and columns of {file} have names")
    writer = ShardWriter(
        to,
        columns=None if begin is None else columns,
        names=first.names,
        first=1 if shown is None else shown,
        id_format=how.id_format,
        force=how.force,
    )
    return writer, begin


def _compared(ids: list[str], id_format: IdFormat, where: str) -> list[str]:
    if id_format == "text":
        return ids
    compared: list[str] = normalized_ids(
        pl.Series(ids, dtype=pl.String), id_format, where
    ).to_list()
    return compared


def _first_index(smallest: int | None) -> Literal[0, 1]:
    if smallest == 0:
        return 0
    if smallest in (1, None):
        return 1
    raise DataError(
        f"the smallest index is {smallest}: --first-index 0 or 1 says whether columns count from 0 "
        "or 1"
    )


def _kind(files: Sequence[Path]) -> str:
    kinds = []
    for path in files:
        name = path.name.lower()
        plain = name.removesuffix(".gz").removesuffix(".bz2")
        if name.endswith(".parquet"):
            kinds.append("parquet")
        elif name.endswith((".csv", ".csv.gz")):
            kinds.append("csv")
        elif plain.endswith(SUFFIXES):
            kinds.append("libsvm")
        else:
            raise ConfigError(
                f"{path}: expected .parquet, .csv, .csv.gz, or LIBSVM as {', '.join(SUFFIXES)}, "
                "plain, .gz or .bz2"
            )
    if len(set(kinds)) != 1:
        raise ConfigError(f"files of {len(set(kinds))} formats, expected one")
    return kinds[0]


def _check(kind: str, how: Conversion) -> None:
    if how.id_column is not None and how.row_numbers:
        raise ConfigError("--id-column or --row-numbers: give one of them")
    if how.index_column is not None and kind != "parquet":
        raise ConfigError("--index-column is for lists in Parquet")
    if kind == "libsvm":
        if how.id_column not in (None, COMMENT):
            raise ConfigError(
                f"--id-column {how.id_column}: of LIBSVM only '#', the comment, is one"
            )
        if how.label_column is not None or how.drop:
            raise ConfigError("--label-column and --drop are for files whose columns have names")
        return
    if not how.labels and how.label_column is not None:
        raise ConfigError("--label-column or --no-labels: give one of them")
    if how.label_column is not None and how.label_column == how.ids:
        raise ConfigError(f"--label-column {how.label_column}: is that of ids")


def _batches(path: Path, kind: str, how: Conversion) -> Iterator[SparseBatch]:
    if kind == "libsvm":
        return libsvm_batches(path, labels=how.labels, ids=how.id_column == COMMENT)
    return _table_batches(path, _parquet_frames if kind == "parquet" else _csv_frames, how)


_Frames = Iterator[tuple["pl.DataFrame", list[str], str | None]]
"""Some rows of a file at a time, its features, and which of them has lists of indices."""


def _table_batches(
    path: Path, frames: Callable[[Path, Conversion], _Frames], how: Conversion
) -> Iterator[SparseBatch]:
    row = 1
    try:
        for frame, features, place in frames(path, how):
            if place is None:
                yield _from_wide(str(path), frame, features, how, row)
            else:
                yield _from_lists(str(path), frame, place, how, row)
            row += len(frame)
    except (pl.exceptions.PolarsError, OSError) as error:
        told = first_line(error)
        raise DataError(f"{path}: empty, malformed or truncated ({told})") from error


def _parquet_frames(path: Path, how: Conversion) -> _Frames:
    """Numbers, or lists of integers: indices, and lists beside them as long are their values."""
    schema = pl.read_parquet_schema(path)
    features = how.features(tuple(schema), str(path))
    place = _index_column(path, schema, features, how.index_column)
    rows = max(1, CELLS // len(features)) if place is None else LISTS
    lazy = pl.scan_parquet(path, glob=False).select(*how.taken, *features)
    start = 0
    while not (frame := lazy.slice(start, rows).collect()).is_empty():
        yield frame, features, place
        start += len(frame)


def _index_column(
    path: Path, schema: "Mapping[str, pl.DataType]", features: list[str], said: str | None
) -> str | None:
    """Which column has the lists of indices; None where there are no lists."""
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


def _csv_frames(path: Path, how: Conversion) -> _Frames:
    found = detect_format(path, DETECT, () if how.ids is None else (how.ids,), str(path))
    features = how.features(found.header, str(path))
    for part in _csv_parts(found):
        frame = read_csv(part, [*how.taken, *features], how.taken, ("",))
        _require_exact_text(str(path), part, frame.select(features))
        if not frame.is_empty():
            yield frame, features, None


def _csv_parts(found: CsvFormat) -> Iterator[CsvFormat]:
    """The file in pieces, each with its header; a quoted field is not cut."""
    with opened(found.content) as file:
        head = b"".join(file.readline() for _ in range(found.skipped + 1))
        while lines := file.readlines(CSV_BYTES):
            text = b"".join(lines)
            while text.count(b'"') % 2 and (more := file.readline()):
                text += more
            yield replace(found, content=head + text)


def _from_wide(
    where: str, frame: "pl.DataFrame", features: list[str], how: Conversion, first: int
) -> SparseBatch:
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
        _ids(where, frame, how, first), *entries, _labels(where, frame, how), tuple(features)
    )


def _from_lists(
    where: str, frame: "pl.DataFrame", place: str, how: Conversion, first: int
) -> SparseBatch:
    numbers = np.arange(first, first + len(frame))
    lengths = frame[place].list.len().fill_null(0).cast(pl.Int64).to_numpy()
    indices = _entries(where, frame[place])
    values: FloatArray | None = None
    for other in frame.columns:
        if other not in (place, *how.taken):
            if not np.array_equal(frame[other].list.len().fill_null(0).to_numpy(), lengths):
                raise DataError(f"{where}: lists of {other!r} and {place!r} differ in length")
            numbers_of = _entries(where, frame[other])
            _require_exact(where, numbers_of)
            values = numbers_of.cast(pl.Float64).to_numpy()
    places = indices.cast(pl.Int64).to_numpy()
    return SparseBatch(
        _ids(where, frame, how, first),
        *in_order(f"{where}, row", numbers, lengths, places, values),
        _labels(where, frame, how),
        smallest=int(places.min()) if len(places) else None,
    )


def _require_exact(where: str, column: "pl.Series") -> None:
    """Refuse whole numbers beyond 2^53 that would be rounded."""
    if not column.dtype.is_integer():
        return
    # Rounded, the largest are too large to be cast back.
    if not column.eq_missing(column.cast(pl.Float64).cast(column.dtype, strict=False)).all():
        raise _rounded(where, column.name)


def _require_exact_text(where: str, part: CsvFormat, frame: "pl.DataFrame") -> None:
    """The same of numbers in text, which is looked at only where they are large."""
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


def _ids(where: str, frame: "pl.DataFrame", how: Conversion, first: int) -> list[str] | None:
    if how.ids is None:
        return None
    column = frame[how.ids]
    if not (column.dtype == pl.String or column.dtype.is_integer()):
        raise ConfigError(
            f"{where}: ids in {how.ids!r} are {column.dtype}, expected text or integers"
        )
    text = column.cast(pl.String).fill_null("")
    if (text == "").any():
        row = first + int((text == "").arg_max() or 0)
        raise DataError(f"{where}, row {row}: no id in column {how.ids!r}")
    ids: list[str] = text.to_list()
    return ids


def _labels(where: str, frame: "pl.DataFrame", how: Conversion) -> FloatArray | list[str] | None:
    if how.label_column is None:
        return None
    text = frame[how.label_column].cast(pl.String).str.strip_chars()
    if missing := int((text.is_null() | (text == "").fill_null(True)).sum()):
        raise DataError(f"{where}: column {how.label_column!r} has {missing} missing labels")
    names: list[str] = text.to_list()
    values = label_values(names)
    if values.dtype.kind != "f":
        return names
    if first_rounded(text, pl.Series(values)) is not None:
        raise _rounded(where, how.label_column)
    return values.astype(np.float64)
