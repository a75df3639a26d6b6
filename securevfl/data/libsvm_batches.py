"""LIBSVM text, some thousand lines at a time: `label index:value … # comment`."""

import bz2
import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from securevfl.data.sparse_batches import SparseBatch, first_rounded, in_order
from securevfl.errors import DataError

BYTES = 1 << 24
SUFFIXES = (".libsvm", ".svm", ".svmlight", ".txt", ".t")


def libsvm_batches(path: Path, *, labels: bool, ids: bool) -> Iterator[SparseBatch]:
    """The rows of a LIBSVM file; lines that are empty or comments alone are none.

    Args:
        path: plain, .gz or .bz2.
        labels: whether the labels are asked for.
        ids: whether a row's comment is its id.

    Raises:
        DataError: it cannot be read or ends within its compression, or a line is malformed: a label
            or entry that is no number, or a whole one that no float64 is, an index twice or below
            0, or no id.
    """
    line = 1
    try:
        with _opened(path) as file:
            while lines := file.readlines(BYTES):
                yield _parsed(path, lines, line, labels=labels, ids=ids)
                line += len(lines)
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: damaged or truncated ({error})") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error


def _opened(path: Path) -> IO[str]:
    if path.name.endswith(".gz"):
        return gzip.open(path, "rt", encoding="utf-8-sig")
    if path.name.endswith(".bz2"):
        return bz2.open(path, "rt", encoding="utf-8-sig")
    return path.open(encoding="utf-8-sig")


def _parsed(path: Path, lines: list[str], first: int, *, labels: bool, ids: bool) -> SparseBatch:
    import polars as pl  # noqa: PLC0415  # slow to import

    where = f"{path}, line"
    table = pl.DataFrame(
        {"text": lines, "line": np.arange(first, first + len(lines), dtype=np.int64)}
    ).with_columns(
        pl.col("text").str.extract(r"^([^#]*)", 1).str.strip_chars(),
        pl.col("text").str.extract(r"#\s*(.*?)\s*$", 1).alias("comment"),
    )
    table = table.filter(pl.col("text") != "").with_columns(
        pl.col("text").str.replace_all(r"\s+", " ").str.split(" ").alias("tokens")
    )
    number = table["line"].to_numpy()
    table = table.select(
        "comment",
        pl.col("tokens").list.first().alias("label"),
        pl.col("tokens").list.slice(1).alias("entries"),
    )
    lengths = table["entries"].list.len().cast(pl.Int64).to_numpy()
    entries = table["entries"].explode().drop_nulls()
    parts = entries.str.splitn(":", 2).struct.unnest()
    indices = parts["field_0"].cast(pl.Int64, strict=False)
    values = parts["field_1"].cast(pl.Float64, strict=False)

    def entry(place: int) -> str:
        row = int(np.searchsorted(np.cumsum(lengths), place, side="right"))
        return f"{where} {number[row]}: {entries[place]!r}"

    wrong = indices.is_null() | values.is_null()
    if wrong.any():
        raise DataError(f"{entry(int(wrong.arg_max() or 0))} is not index:value")
    if (rounded := first_rounded(parts["field_1"], values)) is not None:
        raise DataError(f"{entry(rounded)} has a whole number that no float64 is")
    numbers = table["label"].cast(pl.Float64, strict=False)
    unusable = numbers.is_null() | ~numbers.is_finite()
    if unusable.any():
        row = int(unusable.arg_max() or 0)
        raise DataError(f"{where} {number[row]}: label {table['label'][row]!r} is no number")
    if labels and (rounded := first_rounded(table["label"], numbers)) is not None:
        told = f"label {table['label'][rounded]!r} is a whole number that no float64 is"
        raise DataError(f"{where} {number[rounded]}: {told}")
    comments = table["comment"].fill_null("")
    if ids and (comments == "").any():
        raise DataError(f"{where} {number[int((comments == '').arg_max() or 0)]}: no id after a #")
    return SparseBatch(
        comments.to_list() if ids else None,
        *in_order(where, number, lengths, indices.to_numpy(), values.to_numpy()),
        numbers.to_numpy() if labels else None,
        smallest=int(indices.min()) if len(indices) else None,  # type: ignore[arg-type]
    )
