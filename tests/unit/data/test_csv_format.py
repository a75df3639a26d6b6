"""CSV as it comes: found out where a file can be read in one way, refused where in two."""

import csv
import re
from dataclasses import replace
from pathlib import Path

import pytest

from securevfl.data import FileSource, read_party
from securevfl.data.csv_files import CsvOptions
from securevfl.data.read import PartyRows
from securevfl.errors import ConfigError, DataError


@pytest.fixture
def source(tmp_path: Path) -> FileSource:
    return FileSource("bank", tmp_path / "bank.csv", "id")


def read(source: FileSource, content: str | bytes) -> PartyRows:
    source.path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_party(source)


def rows(source: FileSource, content: str | bytes) -> list[tuple[object, ...]]:
    held = read(source, content)
    return [
        (row_id, *values)
        for row_id, values in zip(held.ids, held.whole_frame.iter_rows(), strict=True)
    ]


@pytest.mark.parametrize(
    "content",
    [
        "id,x,z\np1,1.5,-2\np2,1e3,7.25\n",
        "id;x;z\np1;1,5;-2\np2;1e3;7,25\n",
        "id;x;z\np1;1.5;-2\np2;1e3;7.25\n",
        "id\tx\tz\np1\t1,5\t-2\np2\t1.000\t7,25\n",
        "id|x|z\r\np1|1.5|-2\r\np2|1,000|7.25\r\n",
        'id,x,z\np1,"1,5",-2\np2,1e3,"7,25"\n',
        'id,x,z\np1,1.5,-2\np2,"1,000",7.25\n',
        '"id";"x";"z"\n"p1";"1,5";"-2"\n"p2";"1.000";"7,25"\n',
        "sep=;\r\nid;x;z\r\np1;1,5;-2\r\np2;1000;7,25\r\n",
        "id; x;z\np1; 1.5 ;-2\np2;1e3; +7.25\n".replace(" x", "x"),
        b"\xef\xbb\xbfid;x;z\r\np1;1,5;-2\r\np2;1e3;7,25\r\n",
        b"\xef\xbb\xbfsep=;\r\nid;x;z\r\np1;1,5;-2\r\np2;1e3;7,25\r\n",
        "id\tx\tz\np1\t1,5\t-2\np2\t1000\t7,25\n".encode("utf-16"),
        "id;x;z\n\np1;1,5;-2\n;;\np2;1e3;7,25\n;;\n\n",
        "id;y\nz;x;z\np1;1.5;-2\np2;1e3;7.25\n".replace("y\nz;", ""),
    ],
)
def test_numbers_are_the_same_however_they_are_written(
    source: FileSource, content: str | bytes
) -> None:
    assert rows(source, content) == [("p1", 1.5, -2), ("p2", 1000, 7.25)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "id;x\n1;1.234\n2;5.678\n",
            "'1.234', which is a fraction or 1234: set `decimal = \".\"` or `thou",
        ),
        (
            'id,x\n1,"1,234"\n',
            '\'1,234\', which is a fraction or 1234: set `decimal = ","` or `thousands = "',
        ),
        ("id;x;y\n1;1.5;2,5\n", "'1.5' and '2,5': set `decimal = \".\"` or `decimal = \",\"` at"),
        ("id;x,id\n1;2,3\n", "separator ',' or ';': set `separator = "),
        ("id;x;y\n1;2\n3;4;5\n", "1 line of fewer than 3 fields, the first is line 2"),
        ('id;x;y\n1;"a\nb;c";2\n3;4\n', "1 line of fewer than 3 fields, the first is line 4"),
        ("id;x\n1;2;3\n", "malformed"),
        ("id;x\r1;2\r3;4\r", "malformed (new-line character"),
        (f"id;x\n1;{'9' * 200_000}\n", "malformed (field larger than"),
        ("key;x\n1;2\n", "has no column 'id'; it has key, x: name one"),
        (b"id;x\n1;\x81\n", "neither UTF-8 nor Windows-1252 text: set `encoding"),
        ("", "empty"),
    ],
)
def test_what_can_be_read_in_two_ways_or_not_at_all_is_refused(
    source: FileSource, content: str | bytes, message: str
) -> None:
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        read(source, content)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "content", "value"),
    [
        (CsvOptions(decimal="."), "id;x\n1;1.234\n", 1.234),
        (CsvOptions(thousands="."), "id;x\n1;1.234\n", 1234),
        (CsvOptions(decimal=","), "id;x\n1;1.234\n", 1234),
        (CsvOptions(thousands="'"), "id;x\n1;1'234.5\n", 1234.5),
        (CsvOptions(separator="~"), "id~x\n1~1.5\n", 1.5),
    ],
)
def test_a_key_settles_it(
    source: FileSource, given: CsvOptions, content: str, value: float
) -> None:
    assert rows(replace(source, csv=given), content) == [("1", value)]


@pytest.mark.parametrize("separator", ",;\t|")
def test_a_header_may_be_longer_than_a_field(source: FileSource, separator: str) -> None:
    names = [f"{number:01000}" for number in range(150)]
    assert len(separator.join(names)) > csv.field_size_limit()
    content = "".join(f"{separator.join(line)}\n" for line in (["id", *names], "p" + "1" * 150))
    assert rows(source, content) == [("p", *[1.0] * 150)]


def test_a_point_is_no_decimal_mark_beside_a_decimal_comma(source: FileSource) -> None:
    # The sample has no such number: found when the column is read.
    text = "id;x\n" + "".join(f"{n};{n},5\n" for n in range(1500)) + "1500;1.5\n"
    held = read(source, text)
    (problem,) = held.problems
    assert problem.problem == "has 1 value that is no number, such as '1.5', among numbers"


def test_text_is_read_in_the_files_encoding(source: FileSource) -> None:
    for encoding in ("utf-8", "utf-8-sig", "cp1252", "utf-16"):
        assert rows(source, "id;city\n1;Köln\n".encode(encoding)) == [("1", "Köln")]
    (note,) = read(source, "id;city\n1;Köln\n".encode("cp1252")).notes
    assert "bank.csv: semicolon-separated, decimal '.', windows-1252" in note.line
    polish = replace(source, csv=CsvOptions(encoding="iso-8859-2"))
    assert rows(polish, "id;city\n1;Łódź\n".encode("iso-8859-2")) == [("1", "Łódź")]
    with pytest.raises(DataError, match="is not utf-8 text"):
        read(replace(source, csv=CsvOptions(encoding="utf-8")), "id;city\n1;ö\n".encode("cp1252"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (CsvOptions(separator="::"), "separator = '::'"),
        (CsvOptions(decimal="x"), "decimal = 'x'"),
        (CsvOptions(thousands=",", decimal=","), "thousands = ','"),
        (CsvOptions(encoding="utf-9"), "encoding = 'utf-9'"),
    ],
)
def test_a_format_that_cannot_be_is_refused(
    source: FileSource, given: CsvOptions, message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        read(replace(source, csv=given), "id;x\n1;2\n")


def test_a_row_beyond_the_sample_that_is_no_number_makes_a_column_text(source: FileSource) -> None:
    text = "id,x\n" + "".join(f"{n},{n}.0\n" for n in range(1200)) + "1200,many\n"
    held = read(source, text)
    assert held.frame["x"][-1] == "many"
    assert held.frame["x"][0] == "0.0"
