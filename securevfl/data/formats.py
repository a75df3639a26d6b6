"""The original formats of published data sets: LIBSVM text, CSV of numbers, IDX; gzip or not."""

import csv
import gzip
import io
import math
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from securevfl.errors import DataError

_GZIP_MAGIC = b"\x1f\x8b"
_IDX_UNSIGNED_BYTE = 0x08


def read_content(path: Path) -> bytes:
    """A file's content, gunzipped where it is gzip; archives (.tar.gz) stay as they are.

    Raises:
        DataError: No such file, not readable, or damaged gzip.
    """
    try:
        data = path.read_bytes()
        if data.startswith(_GZIP_MAGIC) and not path.name.endswith((".tar.gz", ".tgz")):
            data = gzip.decompress(data)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: damaged gzip ({error})") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    return data


def decode_text(data: bytes, source: object) -> str:
    """UTF-8 text, a byte order mark removed.

    Raises:
        DataError: Not UTF-8.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(f"{source}, line {line}: not UTF-8 text") from error


def parse_libsvm(
    data: bytes, features: int, source: object
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """LIBSVM text: `label index:value ...`, indices from 1, ascending.

    Args:
        data: The file's content.
        features: P; a file need not mention its last columns.
        source: What error messages call the file.

    Returns:
        Values of shape (N, P) and labels of shape (N,), as they stand in the file.

    Raises:
        DataError: Malformed; file, line and reason are named.
    """
    lines = decode_text(data, source).splitlines()
    if not lines:
        raise DataError(f"{source}: no rows")
    values = np.zeros((len(lines), features))
    labels = np.zeros(len(lines), dtype=np.int64)
    for row, line in enumerate(lines):
        try:
            label, *items = line.split()
            labels[row] = int(label)
            last = 0
            for item in items:
                index, value = item.split(":")
                last = _next_index(int(index), last, features)
                values[row, last - 1] = _finite(value)
        except (ValueError, OverflowError) as error:
            raise DataError(f"{source}, line {row + 1}: {_reason(line, error)}") from error
    return values, labels


def parse_csv(data: bytes, source: object) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """CSV of numbers under one header line.

    Returns:
        The header and values of shape (N, columns).

    Raises:
        DataError: Malformed; file, line and reason are named.
    """
    reader = csv.reader(io.StringIO(decode_text(data, source), newline=""), strict=True)
    rows: list[list[float]] = []
    header: list[str] = []
    try:
        header = next(reader, [])
        for cells in reader:
            rows.append(_row(cells, len(header)))
    except (csv.Error, ValueError) as error:
        raise DataError(f"{source}, line {reader.line_num}: {error}") from error
    if not rows:
        raise DataError(f"{source}: no rows")
    return tuple(header), np.array(rows)


def parse_idx(data: bytes, source: object) -> NDArray[np.uint8]:
    """IDX: two zero bytes, type, number of dimensions, their sizes (big-endian), values.

    Raises:
        DataError: Malformed, not of unsigned bytes, or of another length than its header says.
    """
    if len(data) < 4 or data[:2] != b"\0\0":  # noqa: PLR2004
        raise DataError(f"{source}, byte 0: not an IDX file")
    kind, dimensions = data[2], data[3]
    if kind != _IDX_UNSIGNED_BYTE:
        raise DataError(f"{source}, byte 2: type 0x{kind:02x}, expected 0x08 (unsigned bytes)")
    start = 4 + 4 * dimensions
    if dimensions == 0 or len(data) < start:
        raise DataError(f"{source}, byte 3: header of {dimensions} dimensions is cut off")
    shape = struct.unpack(f">{dimensions}I", data[4:start])
    if len(data) - start != math.prod(shape):
        raise DataError(
            f"{source}, byte {start}: {len(data) - start} values, expected {math.prod(shape)}"
        )
    return np.frombuffer(data, dtype=np.uint8, offset=start).reshape(shape)


def _next_index(index: int, last: int, features: int) -> int:
    if not last < index <= features:
        raise ValueError(f"index {index}, expected {last + 1} to {features}")
    return index


def _row(cells: list[str], columns: int) -> list[float]:
    if len(cells) != columns:
        raise ValueError(f"{len(cells)} fields, expected {columns}")
    return [_finite(cell) for cell in cells]


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text.strip()!r} is not a finite number")
    return value


def _reason(line: str, error: Exception) -> str:
    return str(error) if line.strip() else "empty line"
