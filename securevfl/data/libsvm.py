"""LIBSVM text, `label index:value … # comment`, and batches of sparse rows as files give them."""

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
"""From here on not every whole number is a float64."""
_WHOLE = re.compile(r"[+-]?0*([0-9]+)")


@dataclass(frozen=True, eq=False)
class SparseBatch:
    """N rows, as the readers of formats give them.

    Attributes:
        ids: as they stand; None where rows are known by their numbers.
        lengths: entries of each row, shape (N,).
        indices: columns of the entries, row by row, as they are numbered in the file.
        values: of the entries; None where all are 1.
        labels: numbers, or text; None where none are asked for.
        names: of the columns, where they have names.
        smallest: of the indices, those of entries of 0 among them; None without entries.
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
    """Rows' lengths, indices and values with indices ascending, and entries of 0 left out.

    Messages name a row by `where`, the file and what its rows are called, and its number there.

    Raises:
        DataError: an index below 0 or twice in a row, or values that are not finite.
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
        "index {at} is there twice",
    )
    if values is not None and not values.all():
        kept = values != 0
        lengths = np.bincount(row[kept], minlength=len(lengths))
        indices, values = indices[kept], values[kept]
    return lengths, indices, values


def first_rounded(written: "pl.Series", numbers: "pl.Series") -> int | None:
    """The place of the first whole number in text that is not the float64 read of it, if any is."""
    for place in (numbers.is_finite() & (numbers.abs() >= LARGE)).arg_true():
        whole = _WHOLE.fullmatch(written[place].strip())
        if whole is not None and int(whole[1]) != abs(int(numbers[place])):
            return int(place)
    return None


def libsvm_batches(path: Path, *, labels: bool, ids: bool) -> Iterator[SparseBatch]:
    """The rows of a LIBSVM file, plain, .gz or .bz2; empty lines and mere comments are none.

    Labels are read only if asked for, and so are comments, as ids.

    Raises:
        DataError: it cannot be read or ends within its compression, or a line is malformed: a label
            or entry that is no number, or a whole one that no float64 is, an index twice or below
            0, or no id.
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
    """The rows of some lines, of which the first has the number `first`; see `libsvm_batches`."""
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
