"""Files that become shards, once: LIBSVM, Parquet and CSV, whatever their length."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from securevfl.data.id_matching import IdFormat, as_ids
from securevfl.data.libsvm_batches import SUFFIXES, libsvm_batches
from securevfl.data.shard_writing import RowIds, ShardWriter
from securevfl.data.shards import Header, read_header
from securevfl.data.sparse_batches import SparseBatch
from securevfl.data.table_batches import TableColumns, csv_batches, parquet_batches
from securevfl.errors import ConfigError, DataError

COMMENT = "#"
"""As an id column of LIBSVM: what stands behind it."""


@dataclass(frozen=True)
class Conversion:
    """What is said of files that become a shard.

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
        id_format: how ids are compared.
        force: replace a shard that is there.
        index_column: of Parquet, which lists are of indices where two columns have integers.
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


def convert(
    files: Sequence[Path],
    to: Path,
    how: Conversion,
    progress: Callable[[int], None] = lambda _rows: None,
) -> Header:
    """Write the rows of some files of a format, one after another, as one shard.

    Args:
        files: .parquet, .csv, .csv.gz, or LIBSVM: .libsvm, .svm, .svmlight, .txt or .t, plain, .gz
            or .bz2.
        to: the shard's folder.
        how: what is said of them.
        progress: told how many rows are done.

    Raises:
        ConfigError: a suffix that is not known, files of several formats, or what does not go
            together.
        DataError: see the formats' modules; a first index that cannot be told, indices beyond the
            columns, or the shard cannot be written.
    """
    kind = _kind(files)
    _check(kind, how)
    rows, smallest, batches = 0, None, _batches(files, kind, how)
    try:
        first = next(batches)
    except StopIteration:
        raise DataError(f"{files[0]} has no rows") from None
    named = first.names is not None
    if first.names is not None:
        _check_named(files[0], len(first.names), how)
    begin = 0 if named else how.first_index
    writer = ShardWriter(
        to,
        columns=len(first.names or ()) if named else None if begin is None else how.columns,
        names=first.names,
        first=begin if begin is not None and not named else 1,
        id_format=how.id_format,
        force=how.force,
    )
    with writer:
        batch: SparseBatch | None = first
        while batch is not None:
            if batch.names != first.names:
                raise DataError(f"{files[0]} and another file differ in their columns")
            ids = batch.ids or list(map(str, range(rows + 1, rows + 1 + len(batch.lengths))))
            if (low := batch.smallest) is not None:
                smallest = low if smallest is None else min(low, smallest)
                if begin is not None and low < begin:
                    raise DataError(f"index {low}, and --first-index says {begin}")
            indices = batch.indices - (begin or 0)
            compared = _compared(ids, how.id_format, str(files[0]))
            writer.append(RowIds.of(compared), batch.lengths, indices, batch.values, batch.labels)
            rows += len(batch.lengths)
            progress(rows)
            batch = next(batches, None)
        if begin is None:
            writer.number_columns(_first_index(smallest), how.columns)
    return read_header(to)


def _first_index(smallest: int | None) -> Literal[0, 1]:
    if smallest == 0:
        return 0
    if smallest in (1, None):
        return 1
    raise DataError(
        f"the smallest index is {smallest}: --first-index 0 or 1 says whether columns count from 0 "
        "or 1"
    )


def _compared(ids: list[str], id_format: IdFormat, where: str) -> list[str]:
    if id_format == "text":
        return ids
    import polars as pl  # noqa: PLC0415  # slow to import

    compared: list[str] = as_ids(pl.Series(ids, dtype=pl.String), id_format, where).to_list()
    return compared


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
    elif not how.labels and how.label_column is not None:
        raise ConfigError("--label-column or --no-labels: give one of them")


def _check_named(path: Path, columns: int, how: Conversion) -> None:
    if how.columns not in (None, columns):
        raise ConfigError(f"--columns: {path} has {columns} columns")
    if how.first_index is not None:
        raise ConfigError(f"--first-index is for indices, and columns of {path} have names")


def _batches(files: Sequence[Path], kind: str, how: Conversion) -> Iterator[SparseBatch]:
    if kind == "libsvm":
        for path in files:
            yield from libsvm_batches(path, labels=how.labels, ids=how.id_column == COMMENT)
        return
    id_column = None if how.row_numbers else how.id_column or "id"
    columns = TableColumns(id_column, how.label_column, how.drop, how.index_column)
    for path in files:
        yield from (parquet_batches if kind == "parquet" else csv_batches)(path, columns)
