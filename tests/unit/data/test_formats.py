import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from securevfl.data.formats import parse_csv, parse_idx, parse_libsvm, read_content
from securevfl.errors import DataError


def test_libsvm_columns_count_from_one_and_may_end_early() -> None:
    values, labels = parse_libsvm(b"-1 1:0.5 3:2 \n+1\n1 2:-1e1\n", 4, "f")
    assert values.tolist() == [[0.5, 0, 2, 0], [0, 0, 0, 0], [0, -10, 0, 0]]
    assert labels.tolist() == [-1, 1, 1]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("1 0:1", "index 0, expected 1 to 4"),
        ("1 5:1", "index 5, expected 1 to 4"),
        ("1 2:1 2:1", "index 2, expected 3 to 4"),
        ("1 3:1 2:1", "index 2, expected 4 to 4"),
        ("1 2:nan", "not a finite number"),
        ("1 2:x", "could not convert"),
        ("1 2", "not enough values"),
        ("1 2:3:4", "too many values"),
        ("yes 2:1", "invalid literal"),
        ("99999999999999999999 1:1", "too large"),
        ("", "empty line"),
    ],
)
def test_malformed_libsvm_is_refused_with_file_line_and_reason(line: str, reason: str) -> None:
    with pytest.raises(DataError, match=f"^file, line 2: .*{reason}"):
        parse_libsvm(f"1 1:1\n{line}\n1 1:1\n".encode(), 4, "file")


def test_csv_of_numbers_keeps_its_header() -> None:
    header, values = parse_csv(b'\xef\xbb\xbf"ID","x"\r\n1,1e+05\r\n2,-3\r\n', "f")
    assert header == ("ID", "x")
    assert values.tolist() == [[1, 100000], [2, -3]]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("1", "1 fields, expected 2"),
        ("1,2,3", "3 fields, expected 2"),
        ("", "0 fields, expected 2"),
        ("1,x", "could not convert"),
        ("1,", "could not convert"),
        ("1,inf", "not a finite number"),
        ('1,"2', "unexpected end of data"),
    ],
)
def test_malformed_csv_is_refused_with_file_line_and_reason(line: str, reason: str) -> None:
    with pytest.raises(DataError, match=f"^file, line 3: .*{reason}"):
        parse_csv(f"a,b\n1,2\n{line}".encode() + (b"\n" if line[-1:] != "2" else b""), "file")


def test_text_that_is_not_utf8_is_refused_with_its_line() -> None:
    with pytest.raises(DataError, match="file, line 2: not UTF-8"):
        parse_csv(b"a,b\n\xff,2\n", "file")


@pytest.mark.parametrize("data", [b"", b"a,b\n"])
def test_files_without_rows_are_refused(data: bytes) -> None:
    with pytest.raises(DataError, match="file: no rows"):
        parse_csv(data, "file")
    if not data:
        with pytest.raises(DataError, match="file: no rows"):
            parse_libsvm(data, 3, "file")


def idx(*shape: int, kind: int = 8, values: int | None = None) -> bytes:
    count = int(np.prod(shape)) if values is None else values
    return struct.pack(f">2xBB{len(shape)}I", kind, len(shape), *shape) + bytes(range(count))


def test_idx_has_the_shape_of_its_header() -> None:
    images = parse_idx(idx(2, 3, 4), "f")
    assert images.shape == (2, 3, 4)
    assert images[1, 2, 3] == 23


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\0\0\x08", "byte 0: not an IDX file"),
        (b"PNG" + idx(2), "byte 0: not an IDX file"),
        (idx(2, kind=0x0D), "byte 2: type 0x0d"),
        (idx(), "byte 3: header of 0 dimensions"),
        (idx(2, 3)[:10], "byte 3: header of 2 dimensions is cut off"),
        (idx(2, 3, values=5), "byte 12: 5 values, expected 6"),
        (idx(2, 3, values=7), "byte 12: 7 values, expected 6"),
    ],
)
def test_malformed_idx_is_refused_with_file_place_and_reason(data: bytes, reason: str) -> None:
    with pytest.raises(DataError, match=f"^file, {reason}"):
        parse_idx(data, "file")


def test_gzip_is_opened_by_its_content_whatever_the_name(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(gzip.compress(b"text"))
    (tmp_path / "b.gz").write_bytes(b"text")
    assert read_content(tmp_path / "a") == read_content(tmp_path / "b.gz") == b"text"


def test_an_archive_is_not_opened(tmp_path: Path) -> None:
    archive = gzip.compress(b"tar")
    (tmp_path / "a.tar.gz").write_bytes(archive)
    assert read_content(tmp_path / "a.tar.gz") == archive


@pytest.mark.parametrize("damage", ["cut", "flip"])
def test_damaged_gzip_is_refused(tmp_path: Path, damage: str) -> None:
    data = bytearray(gzip.compress(b"text" * 99))
    if damage == "cut":
        data = data[:-9]
    else:
        data[-6] ^= 1
    (tmp_path / "a.gz").write_bytes(data)
    with pytest.raises(DataError, match=r"a\.gz: damaged gzip"):
        read_content(tmp_path / "a.gz")


def test_a_file_that_cannot_be_read_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        read_content(tmp_path)
    with pytest.raises(DataError, match="No such file"):
        read_content(tmp_path / "none")
