"""Writing a shard as its rows come, in the memory of one block of them.

A shard is written beside its place, header last, and moved there once it is whole: however writing
ends, there is a whole shard or none. The next attempt overwrites what a killed one has left.
"""

import json
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
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
    """A one-dimensional .npy file that grows piece by piece, and whose type may change."""

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
        """Write more entries, which its type holds."""
        self._file.write(np.ascontiguousarray(values, self.kind).tobytes())
        self._length += len(values)

    def mapped(self) -> NDArray[Any]:
        """What was written, to read."""
        self._complete()
        array: NDArray[Any] = np.load(self.path, mmap_mode="r", allow_pickle=False)
        return array

    def become(self, kind: DTypeLike) -> None:
        """Take another type, which holds all that was written."""
        if kind != self.kind:
            self.change(kind, lambda entries: entries)

    def change(self, kind: DTypeLike, to: Callable[[NDArray[Any]], NDArray[Any]]) -> None:
        """Replace every entry by another, of this type, block by block."""
        if not self._length:
            self.kind = np.dtype(kind)
            return
        written = self.mapped()
        self.path.unlink()  # it is there until nothing maps it
        with self._file:
            self._begin(kind)
        for start in range(0, len(written), BLOCK):
            self.append(to(np.asarray(written[start : start + BLOCK])))

    def _complete(self) -> None:
        self._file.seek(0)
        # numpy leaves room for the length to grow in.
        shape = {"descr": self.kind.str, "fortran_order": False, "shape": (self._length,)}
        npy.write_array_header_1_0(self._file, shape)
        self._file.seek(0, os.SEEK_END)
        self._file.flush()


@dataclass(frozen=True, eq=False)
class RowIds:
    """Who N rows are: their ids, and of each `row_digests` and `is_held_out`."""

    text: Sequence[str]
    digests: NDArray[np.uint64]
    held_out: NDArray[np.bool_]

    @classmethod
    def of(cls, ids: Sequence[str]) -> Self:
        """Those of ids as they are compared; empty ones and line breaks are refused."""
        if "" in ids:
            raise DataError("an id is empty")
        if wrong := [each for each in ids if "\n" in each]:
            raise DataError(f"id {wrong[0]!r} has a line break in it")
        return cls(ids, row_digests(ids), np.fromiter(map(is_held_out, ids), bool, len(ids)))


class ShardWriter:
    """A shard in the making; leaving its `with` block whole puts it in its place.

    Args:
        path: the folder, which must not be there, unless `force` replaces the shard that it is.
        columns: P; one more than the largest number written where not given.
        names: of the columns, or None.
        first: what number the first column has in names that are made for it.
        id_format: how the ids that are written were made comparable.

    Raises:
        DataError: a path without a name; entering, something is in its place; leaving, there are no
            rows or an id twice; in either, it cannot be written.
    """

    def __init__(
        self,
        path: Path,
        *,
        columns: int | None = None,
        names: Sequence[str] | None = None,
        first: Literal[0, 1] = 1,
        id_format: IdFormat = "text",
        force: bool = False,
    ) -> None:
        if not path.name:
            raise DataError(f"{path}: expected a folder that is not there yet")
        self._path, self._force, self._columns = path, force, columns
        self._names = None if names is None else tuple(names)
        self._first: Literal[0, 1] = first
        self._id_format: IdFormat = id_format
        self._part = path.with_name(f".{path.name}.part")
        self._stack = ExitStack()
        self._is_ours = False
        self._rows = self._ones = 0
        self._largest = -1
        self._label_codes: dict[str, int] = {}
        self._label_kind: LabelKind | None = None
        self._values: GrowingArray | None = None
        self._labels: GrowingArray | None = None

    def __enter__(self) -> Self:
        self._require_free()
        try:
            # Other users may not read what may come from a file that they could not.
            self._part.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._stack.enter_context(only_one(self._part / "shard", "shard"))
            self._is_ours = True
            for left in self._part.iterdir():
                if left.suffix != ".lock":
                    left.unlink()
            self._pointers = self._array("pointers", np.int64)
            self._indices = self._array("indices", np.uint16)
            self._digests = self._array("digests", np.uint64)
            self._held_out = self._array("held_out", np.bool_)
            self._ids = self._stack.enter_context((self._part / "ids.txt").open("wb"))
            self._pointers.append(np.zeros(1, np.int64))
        except BaseException as error:
            self._discard()
            if isinstance(error, OSError):
                raise self._unwritable(error) from error
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._finish()
        except OSError as failed:
            raise self._unwritable(failed) from failed
        finally:
            self._discard()
        if isinstance(error, OSError):
            raise self._unwritable(error) from error

    def append(
        self,
        ids: RowIds,
        lengths: NDArray[np.int64],
        indices: NDArray[np.integer[Any]],
        values: NDArray[np.floating[Any]] | None = None,
        labels: NDArray[np.float64] | Sequence[str] | None = None,
    ) -> None:
        """Write N' more rows, whose lengths say how many entries each has.

        Column numbers of the entries come row by row, ascending within a row, each once, and values
        are finite: what makes rows of files refuses others, and so does opening the shard. Without
        `values` all are 1. There are N' labels, numbers or names, in every call or in none.

        Raises:
            DataError: a column number beyond the last column; labels that are not finite, are
                missing or are of another kind than before.
            OSError: they cannot be written.
        """
        ends = np.cumsum(lengths)
        limit = MOST_COLUMNS if self._columns is None else self._columns
        self._largest = max(self._largest, int(indices.max(initial=-1)))
        if self._largest >= limit:
            raise DataError(f"column number {self._largest}, expected 0 to {limit - 1}")
        self._indices.become(index_type(self._largest + 1))
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
        if not survives:
            self._values.become(np.float64)
        self._values.append(values)

    def _write_labels(self, labels: NDArray[np.float64] | Sequence[str] | None) -> None:
        kind: LabelKind | None = None
        if labels is not None:
            kind = "numbers" if isinstance(labels, np.ndarray) else "names"
        if self._rows and kind != self._label_kind:
            said = {None: "none", "numbers": "numbers", "names": "text"}
            raise DataError(
                f"labels are {said[kind]} from row {self._rows} on and {said[self._label_kind]} "
                "before"
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

    def _finish(self) -> None:
        if not self._rows:
            raise DataError(f"shard {self._path}: no rows")
        columns = self._largest + 1 if self._columns is None else self._columns
        if columns < 1:
            raise DataError(f"shard {self._path}: no entries, expected at least 1")
        kind = index_type(columns)
        self._indices.become(kind)
        digests: NDArray[np.uint64] = np.asarray(self._digests.mapped())
        if double := duplicates(digests):
            raise DataError(f"shard {self._path}: {double} duplicate ids")
        header = Header(
            FORMAT,
            self._rows,
            columns,
            self._ones,
            kind,
            None if self._values is None else _VALUES[self._values.kind.itemsize],
            self._label_kind,
            self._sort_classes(),
            self._names,
            self._first,
            self._id_format,
            rows_fingerprint(digests),
        )
        del digests
        self._stack.close()
        with suppress(FileNotFoundError):
            (self._part / "shard.lock").unlink()
        (self._part / HEADER).write_text(json.dumps(asdict(header), indent=1) + "\n", "utf-8")
        sync_folder(self._part)
        self._require_free()
        if self._path.exists():
            shutil.rmtree(self._path)
        self._part.rename(self._path)

    def _sort_classes(self) -> tuple[str, ...]:
        """Names of classes sorted, the written numbers changed to theirs."""
        names = sorted(self._label_codes)
        if names and self._labels is not None:
            order = np.empty(len(names), np.int32)
            order[[self._label_codes[name] for name in names]] = np.arange(len(names))
            self._labels.change(np.int32, lambda codes: order[codes])
        return tuple(names)

    def number_columns(self, first: Literal[0, 1], columns: int | None) -> None:
        """Say what number the first column has in all that was written, and P, if it is known."""
        if first:
            self._indices.change(self._indices.kind, lambda indices: indices - 1)
            self._largest -= 1
        if columns is not None and self._largest >= columns:
            raise DataError(
                f"column number {self._largest + first} occurs: {columns} columns, counted from "
                f"{first}, end at {columns + first - 1}"
            )
        self._first, self._columns = first, columns

    def _require_free(self) -> None:
        path = self._path
        if not path.exists():
            return
        if not self._force:
            raise DataError(f"{path} is there already; --force replaces a shard")
        if not is_shard(path):
            raise DataError(f"{path} is there already and is no shard: it is not replaced")

    def _array(self, name: str, kind: DTypeLike) -> GrowingArray:
        return self._stack.enter_context(GrowingArray(self._part / f"{name}.npy", kind))

    def _discard(self) -> None:
        with suppress(OSError):  # what could not be written cannot be now
            self._stack.close()
        if self._is_ours:
            shutil.rmtree(self._part, ignore_errors=True)

    def _unwritable(self, error: OSError) -> DataError:
        return DataError(f"shard {self._path} cannot be written: {error.strerror or error}")
