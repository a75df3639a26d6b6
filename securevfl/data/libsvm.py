"""Reading LIBSVM text, `label index:value … # comment`, as batches of sparse rows."""

import bz2
import gzip
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import FloatArray, IntArray
from securevfl.errors import DataError
from securevfl.lazy import Lazy

if TYPE_CHECKING:
    import polars as pl
else:
    pl = Lazy("polars")

BYTES = 1 << 24
SUFFIXES = (".libsvm", ".svm", ".svmlight", ".txt", ".t")
LARGE = 2.0**53
"""From here on, float64 rounds some integers."""
_WHOLE = re.compile(r"[+-]?0*([0-9]+)")


@dataclass(frozen=True, eq=False)
class SparseBatch:
    """N rows of a file.

    Attributes:
        ids: as they are written; None if rows are identified by their numbers.
        lengths: number of entries of each row, shape (N,).
        indices: columns of the entries, row by row, as they are numbered in the file.
        values: of the entries; None if all are 1.
        labels: numbers or text; None if not requested.
        names: of the columns, if they have names.
        smallest: the smallest index, including entries of 0; None without entries.
    """

    ids: list[str] | None
    lengths: IntArray
    indices: IntArray
    values: FloatArray | None
    labels: FloatArray | list[str] | None
    names: tuple[str, ...] | None = None
    smallest: int | None = None


def in_order(
    where: str, lines: IntArray, lengths: IntArray, indices: IntArray, values: FloatArray | None
) -> tuple[IntArray, IntArray, FloatArray | None]:
    """Sort each row's entries by index and drop entries of 0; returns lengths, indices and values.

    Errors name a row by `where` (the file and what its rows are called) and its number in `lines`.

    Raises:
        DataError: an index below 0 or repeated in a row, or values that are not finite.
    """
    row = np.repeat(np.arange(len(lengths)), lengths)

    def refuse(wrong: NDArray[np.bool_], what: str) -> None:
        if wrong.any():
            first = int(wrong.argmax())
            at = f"{indices[first]}" + ("" if values is None else f":{values[first]:g}")
            raise DataError(f"{where} {lines[row[first]]}: {what.format(at=at)}")

    refuse(indices < 0, "index {at} is below 0")
    if values is not None:
        refuse(~np.isfinite(values), "{at} is not finite")
    same_row = row[1:] == row[:-1]
    if (same_row & (indices[1:] <= indices[:-1])).any():
        order = np.lexsort((indices, row))
        indices = indices[order]
        values = None if values is None else values[order]
    refuse(
        np.concatenate([[False], same_row & (indices[1:] == indices[:-1])]),
        "index {at} is repeated",
    )
    if values is not None and not values.all():
        kept = values != 0
        lengths = np.bincount(row[kept], minlength=len(lengths))
        indices, values = indices[kept], values[kept]
    return lengths, indices, values


def first_rounded(written: "pl.Series", numbers: "pl.Series") -> int | None:
    """The position of the first integer in text that float64 rounds, if any."""
    for place in (numbers.is_finite() & (numbers.abs() >= LARGE)).arg_true():
        whole = _WHOLE.fullmatch(written[place].strip())
        if whole is not None and int(whole[1]) != abs(int(numbers[place])):
            return int(place)
    return None


def libsvm_batches(path: Path, *, labels: bool, ids: bool) -> Iterator[SparseBatch]:
    """The rows of a LIBSVM file, plain, .gz or .bz2; empty lines and comment lines are skipped.

    Labels are read only on request, and so are comments, as ids.

    Raises:
        DataError: a file that cannot be read, is damaged or truncated, or has a malformed line: a
            label or entry that is not a number, an integer that float64 would round, an index below
            0 or repeated, or a missing id.
    """
    line = 1
    try:
        with _opened(path) as file:
            while lines := file.readlines(BYTES):
                yield parse_libsvm(path, lines, line, labels=labels, ids=ids)
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


def parse_libsvm(
    path: Path, lines: list[str], first: int = 1, *, labels: bool = True, ids: bool = False
) -> SparseBatch:
    """The rows of these lines, numbered from `first`; see `libsvm_batches`."""
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
        raise DataError(f"{entry(rounded)} has an integer that float64 would round")
    numbers = table["label"].cast(pl.Float64, strict=False)
    unusable = numbers.is_null() | ~numbers.is_finite()
    if unusable.any():
        row = int(unusable.arg_max() or 0)
        raise DataError(f"{where} {number[row]}: label {table['label'][row]!r} is not a number")
    if labels and (rounded := first_rounded(table["label"], numbers)) is not None:
        label = table["label"][rounded]
        raise DataError(f"{where} {number[rounded]}: float64 would round label {label!r}")
    comments = table["comment"].fill_null("")
    if ids and (comments == "").any():
        raise DataError(f"{where} {number[int((comments == '').arg_max() or 0)]}: no id after #")
    return SparseBatch(
        comments.to_list() if ids else None,
        *in_order(where, number, lengths, indices.to_numpy(), values.to_numpy()),
        numbers.to_numpy() if labels else None,
        smallest=int(indices.min()) if len(indices) else None,  # type: ignore[arg-type]
    )
