"""An .npy file that is written piece by piece, and may change its type on the way."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

BLOCK = 1 << 20


class GrowingArray:
    """One dimension; its length is known once it is closed."""

    def __init__(self, path: Path, kind: np.dtype[Any]) -> None:
        """Make the file.

        Raises:
            OSError: it cannot be made.
        """
        self.path, self.kind, self._length = path, kind, 0
        self._file = path.open("w+b")
        self._write_header()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *raised: object) -> None:
        """Say how long it is, and have it on disk."""
        try:
            self._complete()
            os.fsync(self._file.fileno())
        finally:
            self._file.close()

    def append(self, values: NDArray[Any]) -> None:
        """Write more entries, which its type holds."""
        self._file.write(np.ascontiguousarray(values, self.kind).tobytes())
        self._length += len(values)

    def append_ones(self, count: int) -> None:
        """Write so many ones."""
        for start in range(0, count, BLOCK):
            self.append(np.ones(min(BLOCK, count - start), self.kind))

    def mapped(self) -> NDArray[Any]:
        """What was written, to read."""
        self._complete()
        array: NDArray[Any] = np.load(self.path, mmap_mode="r", allow_pickle=False)
        return array

    def change(self, to: Callable[[NDArray[Any]], NDArray[Any]]) -> None:
        """Replace every entry by another of the same type, block by block."""
        self._complete()
        if not self._length:
            return
        array = np.load(self.path, mmap_mode="r+", allow_pickle=False)
        for start in range(0, self._length, BLOCK):
            array[start : start + BLOCK] = to(np.asarray(array[start : start + BLOCK]))
        array.flush()

    def become(self, kind: np.dtype[Any]) -> None:
        """Take another type, which holds all that was written."""
        if kind == self.kind:
            return
        self._complete()
        old = self.path.rename(self.path.with_suffix(".old"))
        before, self._file = self._file, self.path.open("w+b")
        length, self.kind, self._length = self._length, kind, 0
        self._write_header()
        with before:
            if length:
                array = np.load(old, mmap_mode="r", allow_pickle=False)
                for start in range(0, length, BLOCK):
                    self.append(array[start : start + BLOCK])
        old.unlink()

    def _complete(self) -> None:
        self._file.seek(0)
        self._write_header()
        self._file.seek(0, os.SEEK_END)
        self._file.flush()

    def _write_header(self) -> None:
        # numpy leaves room for the length to grow in.
        npy.write_array_header_1_0(
            self._file,
            {"descr": self.kind.str, "fortran_order": False, "shape": (self._length,)},
        )
