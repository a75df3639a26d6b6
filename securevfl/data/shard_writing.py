"""Writing a shard row by row, in the memory of one block of rows.

A shard is written to a hidden folder beside its destination, header last, and moved there once it
is complete, so the destination always holds a complete shard or none. The next attempt overwrites
what a killed one left.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.lib import format as npy
from numpy.typing import DTypeLike, NDArray

from securevfl.data.ids import IdFormat, is_held_out
from securevfl.data.shards import FORMAT, HEADER, MOST_COLUMNS, Header, duplicates, is_shard
from securevfl.data.tables import row_digests, rows_fingerprint
from securevfl.errors import DataError
from securevfl.files import only_one, sync_folder
from securevfl.sparse import index_type

BLOCK = 1 << 20
LabelKind = Literal["numbers", "names"]
_VALUES: dict[int, Literal["float32", "float64"]] = {4: "float32", 8: "float64"}


class GrowingArray:
    """A one-dimensional .npy file that grows piece by piece and whose dtype may change."""

    def __init__(self, path: Path, kind: DTypeLike) -> None:
        self.path = path
        self._begin(kind)

    def _begin(self, kind: DTypeLike) -> None:
        self.kind, self._length = np.dtype(kind), 0
        self._file = self.path.open("w+b")
        self._complete()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        with self._file:
            self._complete()
            os.fsync(self._file.fileno())

    def append(self, values: NDArray[Any]) -> None:
        """Append entries, which fit the dtype."""
        self._file.write(np.ascontiguousarray(values, self.kind).tobytes())
        self._length += len(values)

    def mapped(self) -> NDArray[Any]:
        """The entries so far, memory-mapped read-only."""
        self._complete()
        array: NDArray[Any] = np.load(self.path, mmap_mode="r", allow_pickle=False)
        return array

    def change(
        self, kind: DTypeLike, to: Callable[[NDArray[Any]], NDArray[Any]] = lambda entries: entries
    ) -> None:
        """Map every entry to a new one of this dtype, block by block."""
        if not self._length:
            self.kind = np.dtype(kind)
            return
        written = self.mapped()
        self.path.unlink()  # its blocks live on until nothing maps them
        with self._file:
            self._begin(kind)
        for start in range(0, len(written), BLOCK):
            self.append(to(np.asarray(written[start : start + BLOCK])))

    def _complete(self) -> None:
        self._file.seek(0)
        # NumPy pads this header, so that the length can grow in place.
        shape = {"descr": self.kind.str, "fortran_order": False, "shape": (self._length,)}
        npy.write_array_header_1_0(self._file, shape)
        self._file.seek(0, os.SEEK_END)
        self._file.flush()


@dataclass(frozen=True, eq=False)
class RowIds:
    """Ids of N rows, with `row_digests` and `is_held_out` of each."""

    text: Sequence[str]
    digests: NDArray[np.uint64]
    held_out: NDArray[np.bool_]

    @classmethod
    def of(cls, ids: Sequence[str]) -> Self:
        """Rows of these normalized ids; a DataError if one is empty or has a line break."""
        if "" in ids:
            raise DataError("an id is empty")
        if wrong := [each for each in ids if "\n" in each]:
            raise DataError(f"id {wrong[0]!r} contains a line break")
        return cls(ids, row_digests(ids), np.fromiter(map(is_held_out, ids), bool, len(ids)))


@contextmanager
def write_shard(
    path: Path,
    *,
    columns: int | None = None,
    names: Sequence[str] | None = None,
    first: Literal[0, 1] = 1,
    id_format: IdFormat = "text",
    force: bool = False,
) -> Iterator["ShardWriter"]:
    """Write a shard within a `with` block; it is in place once the block ends without an error.

    Args:
        path: a folder that must not exist.
        columns: P; by default the largest column number plus one.
        names: the columns' names, if they have any.
        first: the number of the first column in generated names.
        id_format: how the ids were normalized.
        force: replace an existing shard.

    Raises:
        DataError: the path is taken or cannot be written, there are no rows, or an id is repeated.
    """
    if not path.name:
        raise DataError(f"{path}: expected a new folder")
    _require_free(path, force=force)
    part, is_ours = path.with_name(f".{path.name}.part"), False
    try:
        # The shard may hold data of a file that other users could not read.
        part.mkdir(mode=0o700, parents=True, exist_ok=True)
        with only_one(part / "shard", "shard"):
            is_ours = True
            for leftover in part.iterdir():
                if leftover.suffix != ".lock":
                    leftover.unlink()
            with ExitStack() as files:
                writer = ShardWriter(
                    path,
                    part,
                    files,
                    columns=columns,
                    names=names,
                    first=first,
                    id_format=id_format,
                )
                yield writer
                header = writer.finish()
        with suppress(FileNotFoundError):
            (part / "shard.lock").unlink()
        (part / HEADER).write_text(json.dumps(asdict(header), indent=1) + "\n", "utf-8")
        sync_folder(part)
        _require_free(path, force=force)
        if path.exists():
            shutil.rmtree(path)
        part.rename(path)
    except OSError as error:
        raise DataError(f"shard {path} cannot be written: {error.strerror or error}") from error
    finally:
        if is_ours:
            shutil.rmtree(part, ignore_errors=True)


class ShardWriter:
    """The rows of a shard that `write_shard` is writing."""

    def __init__(
        self,
        path: Path,
        part: Path,
        files: ExitStack,
        *,
        columns: int | None,
        names: Sequence[str] | None,
        first: Literal[0, 1],
        id_format: IdFormat,
    ) -> None:
        self._path, self._part, self._files, self._columns = path, part, files, columns
        self._names = None if names is None else tuple(names)
        self._first: Literal[0, 1] = first
        self._id_format: IdFormat = id_format
        self._rows = self._ones = 0
        self._largest = -1
        self._label_codes: dict[str, int] = {}
        self._label_kind: LabelKind | None = None
        self._values: GrowingArray | None = None
        self._labels: GrowingArray | None = None
        self._pointers = self._array("pointers", np.int64)
        self._indices = self._array("indices", np.uint16)
        self._digests = self._array("digests", np.uint64)
        self._held_out = self._array("held_out", np.bool_)
        self._ids = files.enter_context((part / "ids.txt").open("wb"))
        self._pointers.append(np.zeros(1, np.int64))

    def append(
        self,
        ids: RowIds,
        lengths: NDArray[np.int64],
        indices: NDArray[np.integer[Any]],
        values: NDArray[np.floating[Any]] | None = None,
        labels: NDArray[np.float64] | Sequence[str] | None = None,
    ) -> None:
        """Write N' more rows; `lengths` are their numbers of entries.

        Column numbers come row by row, ascending and distinct within a row, and values are finite
        (not checked here, but where rows are read from files, and by `open_shard`). Without
        `values` all are 1. There are N' labels, numbers or names, in every call or in none.

        Raises:
            DataError: a column number out of range, or labels that are not finite, are missing or
                are of another kind than before.
        """
        ends = np.cumsum(lengths)
        limit = MOST_COLUMNS if self._columns is None else self._columns
        self._largest = max(self._largest, int(indices.max(initial=-1)))
        if self._largest >= limit:
            raise DataError(f"column number {self._largest}, expected 0 to {limit - 1}")
        if (kind := np.dtype(index_type(self._largest + 1))) != self._indices.kind:
            self._indices.change(kind)
        self._write_values(len(indices), values)
        self._write_labels(labels)
        self._indices.append(indices)
        self._pointers.append(self._ones + ends)
        self._digests.append(ids.digests)
        self._held_out.append(ids.held_out)
        self._ids.write("".join(f"{row_id}\n" for row_id in ids.text).encode())
        self._rows += len(lengths)
        self._ones += len(indices)

    def _write_values(self, entries: int, values: NDArray[np.floating[Any]] | None) -> None:
        if values is None or (values == 1).all():
            if self._values is not None:
                self._values.append(np.ones(entries, self._values.kind))
            return
        if self._values is None:
            self._values = self._array("values", np.float32)
            for start in range(0, self._ones, BLOCK):
                self._values.append(np.ones(min(BLOCK, self._ones - start), np.float32))
        with np.errstate(over="ignore", under="ignore"):
            survives = (values.astype(np.float32) == values).all()
        if not survives and self._values.kind != np.float64:
            self._values.change(np.float64)
        self._values.append(values)

    def _write_labels(self, labels: NDArray[np.float64] | Sequence[str] | None) -> None:
        kind: LabelKind | None = None
        if labels is not None:
            kind = "numbers" if isinstance(labels, np.ndarray) else "names"
        if self._rows and kind != self._label_kind:
            found = {None: "missing", "numbers": "numbers", "names": "text"}
            raise DataError(
                f"labels are {found[kind]} from row {self._rows} on and "
                f"{found[self._label_kind]} before"
            )
        self._label_kind = kind
        if labels is None:
            return
        if isinstance(labels, np.ndarray):
            if unusable := int((~np.isfinite(labels)).sum()):
                raise DataError(f"{unusable} NaN or infinite labels")
            codes: NDArray[Any] = labels
        else:
            known = self._label_codes
            codes = np.array([known.setdefault(label, len(known)) for label in labels], np.int32)
        if self._labels is None:
            self._labels = self._array("labels", codes.dtype)
        self._labels.append(codes)

    def finish(self) -> Header:
        """Bring arrays into their final form; the header that describes them."""
        if not self._rows:
            raise DataError(f"shard {self._path}: no rows")
        columns = self._largest + 1 if self._columns is None else self._columns
        if columns < 1:
            raise DataError(f"shard {self._path}: no entries, expected at least 1")
        kind = index_type(columns)
        if kind != self._indices.kind:
            self._indices.change(kind)
        digests: NDArray[np.uint64] = np.asarray(self._digests.mapped())
        if double := duplicates(digests):
            raise DataError(f"shard {self._path}: {double} duplicate ids")
        names = sorted(self._label_codes)
        if names and self._labels is not None:
            order = np.empty(len(names), np.int32)
            order[[self._label_codes[name] for name in names]] = np.arange(len(names))
            self._labels.change(np.int32, lambda codes: order[codes])
        return Header(
            FORMAT,
            self._rows,
            columns,
            self._ones,
            kind,
            None if self._values is None else _VALUES[self._values.kind.itemsize],
            self._label_kind,
            tuple(names),
            self._names,
            self._first,
            self._id_format,
            rows_fingerprint(digests),
        )

    def number_columns(self, first: Literal[0, 1], columns: int | None) -> None:
        """Set the number of the first column in everything written so far, and P if it is known."""
        if first:
            self._indices.change(self._indices.kind, lambda indices: indices - 1)
            self._largest -= 1
        if columns is not None and self._largest >= columns:
            raise DataError(
                f"column number {self._largest + first} occurs: {columns} columns, counted from "
                f"{first}, end at {columns + first - 1}"
            )
        self._first, self._columns = first, columns

    def _array(self, name: str, kind: DTypeLike) -> GrowingArray:
        return self._files.enter_context(GrowingArray(self._part / f"{name}.npy", kind))


def _require_free(path: Path, *, force: bool) -> None:
    if not path.exists():
        return
    if not force:
        raise DataError(f"{path} already exists; --force replaces a shard")
    if not is_shard(path):
        raise DataError(f"{path} already exists and is not a shard: it is not replaced")
