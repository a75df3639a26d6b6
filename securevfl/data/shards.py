"""A shard: one party's sparse rows on disk, as memory-mapped arrays.

A folder of `header.json`; `pointers.npy` (int64, rows + 1) and `indices.npy` (uint16, or uint32
beyond 65,536 columns) of its CSR rows; `values.npy` (float32 or float64) unless all are 1;
`digests.npy` (uint64) and `held_out.npy` (bool) of its ids; the ids themselves in `ids.txt`, one
per line; and at the label party `labels.npy`: float64 numbers, or int32 positions in `classes`.
"""

import mmap
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray
from pydantic import ConfigDict, TypeAdapter, ValidationError
from typing_extensions import override

from securevfl.data.ids import IdFormat, first_problem
from securevfl.data.tables import Note, rows_fingerprint
from securevfl.errors import DataError
from securevfl.shown import Shown, first_line
from securevfl.sparse import SparseRows, index_type

FORMAT = 1
MOST_COLUMNS = 1 << 32
BLOCK = 1 << 22
"""Entries that are checked at a time."""
HEADER = "header.json"


@dataclass(frozen=True)
class Header:
    """A shard's header: N rows, P columns and the number of stored entries.

    Attributes:
        format: version of the folder's format.
        values: dtype of the values; None if all are 1.
        labels: numbers, or positions in `classes`, the sorted names; None at a feature party.
        names: of the columns; None for generated names, x and a number.
        first: the number in the first generated name, 0 or 1.
        id_format: how ids were normalized before digests were computed.
        fingerprint: SHA-256 (hex) over the digests; equal for shards with the same rows in the same
            order.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    format: int
    rows: int
    columns: int
    ones: int
    indices: Literal["uint16", "uint32"]
    values: Literal["float32", "float64"] | None
    labels: Literal["numbers", "names"] | None
    classes: tuple[str, ...]
    names: tuple[str, ...] | None
    first: Literal[0, 1]
    id_format: IdFormat
    fingerprint: str

    @property
    def column_names(self) -> tuple[str, ...]:
        """The columns' names, given or generated."""
        if self.names is not None:
            return self.names
        return tuple(f"x{number}" for number in range(self.first, self.first + self.columns))

    @property
    def line(self) -> str:
        """A summary for the user to check."""
        last = self.first + self.columns - 1
        names = self.names or (f"x{self.first}", f"x{last}")  # there may be 2^32 columns
        values = "all 1" if self.values is None else f"as {self.values}"
        labels = {None: "no labels", "numbers": "labels", "names": f"{len(self.classes)} classes"}
        return (
            f"{self.rows} rows, {self.columns} columns {names[0]} to {names[-1]}, {self.ones} "
            f"entries, {values}; {labels[self.labels]}"
        )


HEADERS = TypeAdapter(Header)


@dataclass(frozen=True, eq=False, repr=False)
class Shard(Shown):
    """One party's rows of shape (N, P), memory-mapped and checked by `open_shard`.

    Attributes:
        digests: of the ids, see `tables.row_digests`, shape (N,), distinct.
        held_out: whether a row is held out if there are no test files.
        labels: shape (N,), float64 or int32 positions in `header.classes`; None at a feature party.
        notes: always empty, as a shard is never ambiguous.
    """

    path: Path
    header: Header
    rows: SparseRows
    digests: NDArray[np.uint64]
    held_out: NDArray[np.bool_]
    labels: NDArray[np.float64] | NDArray[np.int32] | None
    notes: tuple[Note, ...] = ()

    @override
    def shown(self) -> dict[str, object]:
        header = self.header
        return {"rows": header.rows, "columns": header.columns, "entries": header.ones}

    def __len__(self) -> int:
        return self.header.rows

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """The rows' ids, read on first use."""
        try:
            text = (self.path / "ids.txt").read_bytes().decode()
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"shard {self.path}: ids.txt cannot be read ({error})") from error
        ids = tuple(text.split("\n")[:-1])
        if len(ids) != self.header.rows:
            raise DataError(f"shard {self.path}: {len(ids)} ids of {self.header.rows} rows")
        return ids


def is_shard(path: Path) -> bool:
    """Whether a path is a folder with a shard's header."""
    return (path / HEADER).is_file()


def open_shard(path: Path) -> Shard:
    """Map a shard's arrays and check every entry, block by block.

    Raises:
        DataError: not a shard, another version, an array of another dtype or length than the header
            says, rows that overlap, column numbers that are out of range or do not ascend within a
            row, values or labels that are not finite, or repeated ids.
    """
    header = read_header(path)
    rows = header.rows
    pointers = _mapped(path, "pointers", np.int64, rows + 1)
    indices = _mapped(path, "indices", header.indices, header.ones)
    values = None
    if header.values is not None:
        values = _mapped(path, "values", header.values, header.ones)
        _require_finite(path, "values", values)
        _give_back(values)
    labels = None
    if header.labels == "numbers":
        labels = _mapped(path, "labels", np.float64, rows)
        _require_finite(path, "labels", labels)
    elif header.labels == "names":
        labels = _mapped(path, "labels", np.int32, rows)
        if labels.min() < 0 or labels.max() >= len(header.classes):
            raise DataError(f"shard {path}: labels beyond its {len(header.classes)} classes")
    digests = _mapped(path, "digests", np.uint64, rows)
    if rows_fingerprint(digests) != header.fingerprint:
        raise DataError(f"shard {path}: its ids do not match its fingerprint")
    if double := duplicates(digests):
        raise DataError(f"shard {path}: {double} duplicate ids")
    _check_rows(path, header, pointers, indices)
    held_out = _mapped(path, "held_out", np.bool_, rows)
    sparse = SparseRows(pointers, indices, values, header.columns)
    return Shard(path, header, sparse, digests, held_out, labels)


def duplicates(digests: NDArray[np.uint64]) -> int:
    """How many digests are repeated; sorting takes a tenth of the time of `np.unique` or less."""
    ordered = np.sort(digests)
    return int((ordered[1:] == ordered[:-1]).sum())


def read_header(path: Path) -> Header:
    """The header of a shard; a DataError for another version or a contradiction."""
    if not is_shard(path):
        raise DataError(f"{path} is not a shard: it has no {HEADER}")
    try:
        header = HEADERS.validate_json((path / HEADER).read_bytes(), strict=True)
    except OSError as error:
        raise DataError(f"shard {path}: {HEADER} cannot be read ({error.strerror})") from error
    except ValidationError as error:
        raise DataError(f"shard {path}: {HEADER} {first_problem(error)}") from error
    if header.format != FORMAT:
        raise DataError(f"shard {path}: format {header.format}, expected {FORMAT}")
    if header.rows < 1 or not 1 <= header.columns <= MOST_COLUMNS or header.ones < 0:
        raise DataError(
            f"shard {path}: {header.rows} rows, {header.columns} columns and {header.ones} "
            f"entries, expected at least 1 row and 1 to {MOST_COLUMNS} columns"
        )
    if header.indices != index_type(header.columns):
        raise DataError(f"shard {path}: {header.indices} for {header.columns} columns")
    if header.names is not None and len(set(header.names)) != header.columns:
        raise DataError(
            f"shard {path}: {len(set(header.names))} different names of {header.columns} columns"
        )
    return header


def _mapped(path: Path, name: str, kind: DTypeLike, length: int) -> NDArray[Any]:
    file = path / f"{name}.npy"
    try:
        array = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        reason = first_line(error)
        raise DataError(f"shard {path}: {file.name} cannot be mapped ({reason})") from error
    expected = np.dtype(kind)
    if not isinstance(array, np.ndarray) or array.dtype != expected or array.shape != (length,):
        found = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else "no array"
        raise DataError(f"shard {path}: {file.name} is {found}, expected {expected} ({length},)")
    return array


def _require_finite(path: Path, name: str, values: NDArray[Any]) -> None:
    for start in range(0, len(values), BLOCK):
        if unusable := int((~np.isfinite(values[start : start + BLOCK])).sum()):
            raise DataError(f"shard {path}: {unusable} NaN or infinite {name}")


def _check_rows(
    path: Path, header: Header, pointers: NDArray[np.int64], indices: NDArray[Any]
) -> None:
    """Refuse rows that are not consecutive parts of the indices, ascending and in range."""
    for start in range(0, header.rows, BLOCK):
        some = pointers[start : start + BLOCK + 1]
        if (some[1:] < some[:-1]).any():  # a difference could wrap
            raise DataError(f"shard {path}: pointers.npy falls after row {start}")
    if pointers[0] != 0 or pointers[-1] != header.ones:
        raise DataError(
            f"shard {path}: pointers.npy spans {pointers[0]}..{pointers[-1]}, expected "
            f"0..{header.ones}"
        )
    starts = np.searchsorted(pointers, np.arange(0, pointers[-1], BLOCK))  # rows are not split
    for first, last in pairwise(np.unique([0, *starts, header.rows]).tolist()):
        begin = pointers[first]
        block = np.asarray(indices[begin : pointers[last]])
        if not len(block):
            continue
        if (most := int(block.max())) >= header.columns:
            raise DataError(f"shard {path}: column {most} of {header.columns}")
        falls = block[1:] <= block[:-1]
        # The last entry of a row and the first of the next need not ascend.
        starts = pointers[first + 1 : last] - begin
        falls[starts[(starts > 0) & (starts < len(block))] - 1] = False
        if falls.any():
            row = np.searchsorted(pointers, begin + falls.argmax(), side="right") - 1
            raise DataError(f"shard {path}: column numbers of row {row} do not ascend")
        _give_back(indices)
    _give_back(pointers)


def _give_back(mapped: NDArray[Any]) -> None:
    """Drop the pages of a map from this process's memory until they are read again."""
    base: object = mapped.base
    if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        base.madvise(mmap.MADV_DONTNEED)
