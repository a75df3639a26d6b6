"""CSV files: how one is written, given or found out or refused, and its columns as numbers or text.

Nothing is guessed where a file can be read in two ways: the error names the key that settles it.
A file's numbers are never held as text.
"""

import codecs
import csv
import io
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from securevfl.errors import ConfigError, DataError
from securevfl.files import read_content
from securevfl.lazy import Lazy

if TYPE_CHECKING:
    import polars as pl
else:
    pl = Lazy("polars")

SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
HEAD = 200
EVERY = 1000
SAMPLED = 1000
BLOCK = 1 << 20
UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_QUOTED = re.compile(rb'"[^"]*"')


@dataclass(frozen=True)
class CsvOptions:
    """What a job says of a party's CSV; None is found out.

    `thousands` is the mark between groups of three digits; `encoding` is as Python names it.
    """

    separator: str | None = None
    decimal: str | None = None
    thousands: str | None = None
    encoding: str | None = None


DETECT = CsvOptions()


@dataclass(frozen=True)
class CsvFormat:
    """How a file is written.

    Attributes:
        content: UTF-8: the file itself, or its content where it had to be unpacked or recoded.
        thousands: between groups of three digits; "" for none.
        encoding: of the file.
        skipped: lines before the header.
        has_empty_lines: whether there are lines without a value.
    """

    content: Path | bytes
    separator: str
    decimal: str
    thousands: str
    encoding: str
    skipped: int
    header: tuple[str, ...]
    has_empty_lines: bool

    @property
    def line(self) -> str:
        """What a reader may want to check."""
        separator = SEPARATORS.get(self.separator, repr(self.separator))
        told = f"{separator}-separated, decimal {self.decimal!r}"
        if self.thousands:
            told += f", thousands {self.thousands!r}"
        return f"{told}, {self.encoding}"


def detect_format(path: Path, given: CsvOptions, known: tuple[str, ...], where: str) -> CsvFormat:
    """How a CSV file is written, plain or .gz, as far as that is not given.

    The header must have the `known` columns; `where` is what messages call the file.

    Raises:
        ConfigError: an encoding that Python does not know, or a setting of more than one character.
        DataError: a file that cannot be read, is empty, has rows of too few fields or can be
            read in two ways.
    """
    _check(given)
    content, encoding = _in_utf8(path, given.encoding, where)
    try:
        return _format_of(content, encoding, given, known, where)
    except csv.Error as error:
        raise DataError(f"{where} is malformed ({error})") from error


def _format_of(
    content: Path | bytes, encoding: str, given: CsvOptions, known: tuple[str, ...], where: str
) -> CsvFormat:
    head = [line for line, _ in zip(_lines(content), range(HEAD), strict=False)]
    if not b"".join(head).strip():
        raise DataError(f"{where} is empty or malformed (no header)")
    first = head[0].decode("utf-8-sig").strip()
    skipped, told = 0, given.separator
    if re.fullmatch(r'"?sep=.?"?', first):  # as Excel writes it
        skipped, told = 1, told or first.strip('"')[4:] or "\t"
    separator = told or _find_separator(head, known, where)
    rows = csv.reader(io.StringIO(b"".join(head).decode("utf-8-sig")), delimiter=separator)
    for _ in range(skipped):
        next(rows, None)
    header = tuple(next(rows, []))
    if len(set(header)) < len(header):
        double = next(column for column in header if header.count(column) > 1)
        raise DataError(f"{where}: column {double!r} stands twice in the header")
    short, is_empty, sample = _survey(content, separator, len(header), skipped)
    if short:
        raise DataError(
            f"{where} is malformed ({len(short)} lines of fewer than {len(header)} fields, the "
            f"first is line {short[0]}; separator {separator!r})"
        )
    decimal, thousands = _find_marks(sample, separator, given, where)
    return CsvFormat(content, separator, decimal, thousands, encoding, skipped, header, is_empty)


def _check(given: CsvOptions) -> None:
    for key in ("separator", "decimal", "thousands"):
        value = getattr(given, key)
        if value is not None and len(value) != 1:
            raise ConfigError(f"{key} = {value!r}: expected one character")
    if given.decimal not in (None, ".", ","):
        raise ConfigError(f"decimal = {given.decimal!r}: expected '.' or ','")
    if given.thousands is not None and given.thousands == given.decimal:
        raise ConfigError(f"thousands = {given.thousands!r}: is the decimal mark too")
    try:
        codecs.lookup(given.encoding or "utf-8")
    except LookupError:
        raise ConfigError(
            f"encoding = {given.encoding!r}: expected one that Python knows, as utf-8 or cp1252"
        ) from None


def _in_utf8(path: Path, encoding: str | None, where: str) -> tuple[Path | bytes, str]:
    """The content as polars reads it, and what it was encoded in."""
    packed = path.name.lower().endswith(".gz")
    content: Path | bytes = read_content(path) if packed else path
    try:
        if encoding is None:
            start = next(_lines(content), b"")
            encoding = "utf-16" if start.startswith(UTF16) else _utf8_or_windows(content, where)
        if codecs.lookup(encoding).name in ("utf-8", "utf-8-sig", "ascii"):
            _decode(content, encoding)
            return content, encoding
        text = b"".join(_lines(content)).decode(encoding)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise DataError(
            f'{where} is not {encoding} text ({error.reason}): `encoding = "…"` at the party '
            "says what it is"
        ) from None
    return text.removeprefix("\ufeff").encode(), encoding


def _utf8_or_windows(content: Path | bytes, where: str) -> str:
    """Whatever is no UTF-8 and has no byte that Windows-1252 lacks, is taken for the latter."""
    for encoding in ("utf-8", "windows-1252"):
        try:
            _decode(content, encoding)
        except UnicodeDecodeError:
            continue
        return encoding
    raise DataError(
        f'{where} is neither UTF-8 nor Windows-1252 text: `encoding = "…"` at the party says '
        "what it is"
    )


def _decode(content: Path | bytes, encoding: str) -> None:
    """Nothing but the errors of decoding, of a block of the content at a time."""
    with opened(content) as file:
        for _ in codecs.iterdecode(iter(lambda: file.read(BLOCK), b""), encoding):
            pass


def opened(content: Path | bytes) -> BinaryIO:
    """The content of a `CsvFormat`, to read."""
    return io.BytesIO(content) if isinstance(content, bytes) else content.open("rb")


def _lines(content: Path | bytes) -> Iterator[bytes]:
    with opened(content) as file:
        yield from file


def _find_separator(head: list[bytes], known: tuple[str, ...], where: str) -> str:
    """The one under which the header has the columns that it must have."""
    text = b"".join(head).decode("utf-8-sig")
    headers = {each: _header(text, each) for each in SEPARATORS}
    fitting = [each for each, header in headers.items() if set(known) <= set(header)]
    if len(fitting) == 1:
        return fitting[0]
    if fitting and all(len(headers[each]) == 1 for each in fitting):
        return fitting[0]  # one column whatever the separator
    if fitting:
        raise DataError(
            f"{where} can be read with separator {' or '.join(map(repr, fitting))}: "
            '`separator = "…"` at the party settles it'
        )
    most = max(len(header) for header in headers.values())
    return next(each for each, header in headers.items() if len(header) == most)


def _header(text: str, separator: str) -> list[str]:
    try:
        return next(csv.reader(io.StringIO(text), delimiter=separator), [])
    except csv.Error:  # a wide header is one field, and too long, under another separator
        return []


def _survey(
    content: Path | bytes, separator: str, columns: int, skipped: int
) -> tuple[list[int], bool, list[bytes]]:
    """Lines of too few fields, which a parser fills up; whether any has no value; some lines."""
    blank = b" \t\r\n" + separator.encode()
    short: list[int] = []
    is_empty = False
    sample: list[bytes] = []
    for number, line, fields in _fields(_lines(content), separator.encode()):
        if number <= skipped + 1:
            continue
        if not line.strip(blank):
            is_empty = True
        elif fields < columns:
            short.append(number)
        if number <= HEAD or number % EVERY == 0:
            sample.append(line)
    return short, is_empty, sample


def _fields(lines: Iterator[bytes], mark: bytes) -> Iterator[tuple[int, bytes, int]]:
    """Number, line and count of fields, but for lines that a quoted field goes on over."""
    is_open = False
    for number, line in enumerate(lines, 1):
        if not is_open and b'"' not in line:  # as nearly all are
            yield number, line, line.count(mark) + 1
            continue
        began = is_open
        is_open ^= bool(line.count(b'"') % 2)
        if not (began or is_open):
            yield number, line, (_QUOTED.sub(b"", line) if b'"' in line else line).count(mark) + 1


def _find_marks(
    sample: list[bytes], separator: str, given: CsvOptions, where: str
) -> tuple[str, str]:
    """Decimal mark and the one between thousands, under which all numbers of a sample are such."""
    rows = csv.reader((line.decode("utf-8-sig") for line in sample), delimiter=separator)
    fields = sorted({field.strip() for row in rows for field in row})
    ways = {
        (decimal, thousands): _numbers_with(decimal, thousands)
        for decimal in given.decimal or ".,"
        for thousands in (
            (given.thousands,) if given.thousands else ("", *".,".replace(decimal, ""))
        )
        if decimal != thousands
    }
    fitting, seen = set(ways), dict[frozenset[str], str]()
    for field in fields:
        way = {each for each, pattern in ways.items() if pattern.fullmatch(field)}
        if way and way != set(ways):
            fitting &= way
            seen.setdefault(frozenset(decimal for decimal, _ in way), field)
    if not fitting:
        told = " and ".join(map(repr, seen.values()))
        raise DataError(
            f'{where} has {told}: `decimal = "."` or `decimal = ","` at the party says which '
            "is a number"
        )
    plain = given.decimal or ".", given.thousands or ""
    if (
        len({decimal for decimal, _ in fitting}) > 1
        and seen
        and not (
            # With commas between fields nobody puts points between thousands.
            separator == "," and plain in fitting
        )
    ):
        field = next(iter(seen.values()))
        mark = "," if "," in field else "."
        raise DataError(
            f"{where} has {field!r}, a fraction or {field.replace(mark, '')}: `decimal = "
            f'"{mark}"` or `thousands = "{mark}"` at the party settles it'
        )
    return plain if plain in fitting else min(fitting, key=lambda way: way[1])


def _numbers_with(decimal: str, thousands: str) -> re.Pattern[str]:
    mark, between = re.escape(decimal), re.escape(thousands)
    groups = rf"[1-9]\d{{0,2}}({between}\d{{3}})+|" if thousands else ""
    return re.compile(rf"[+-]?(?=.*\d)({groups}\d*)({mark}\d*)?([eE][+-]?\d+)?")


def read_csv(
    found: CsvFormat, columns: Sequence[str], text: Collection[str], missing: Sequence[str]
) -> "pl.DataFrame":
    """Some columns of a CSV file: float64 where all that is there are numbers, else text.

    Those of `text` stay as they stand; `missing` is what stands for a missing number. A malformed
    file is an error of polars.
    """
    lazy = pl.scan_csv(
        found.content,
        separator=found.separator,
        skip_rows=found.skipped,
        infer_schema=False,
        glob=False,
    )
    if found.has_empty_lines:
        lazy = lazy.filter(pl.any_horizontal(pl.all().str.strip_chars().fill_null("") != ""))
    lazy = lazy.select(columns)
    free = [name for name in columns if name not in text]
    sample = lazy.select(_number(name, found, missing) for name in free).head(SAMPLED).collect()
    numbers = [name for name in free if not sample[name].is_nan().any()]
    frame = lazy.with_columns(
        _pointed(pl.col(name), found).cast(pl.Float64, strict=False) for name in numbers
    ).collect(engine="streaming")
    # Most columns have neither gaps nor blanks, and are done.
    if gaps := [n for n in numbers if frame[n].null_count() or frame[n].is_nan().any()]:
        looked_at = lazy.select(_number(name, found, missing) for name in gaps)
        frame = frame.with_columns(looked_at.collect(engine="streaming"))
    # Numbers but for a row that the sample has not.
    if late := [name for name in gaps if frame[name].is_nan().any()]:
        frame = frame.with_columns(lazy.select(late).collect(engine="streaming"))
    return frame


def as_point(values: "pl.Series", found: CsvFormat) -> "pl.Series":
    """Text with its numbers written with a point; null where something else stands."""
    pointed = values.alias("value").to_frame().select(_pointed(pl.col("value"), found))
    read = pointed["value"].alias(values.name)
    return read.set(read.cast(pl.Float64, strict=False).is_null(), None)


def _number(name: str, found: CsvFormat, missing: Sequence[str]) -> "pl.Expr":
    """The column as numbers: null where missing, NaN where something else stands."""
    text = pl.col(name).str.strip_chars()
    absent = text.is_null() | text.is_in(list(missing))
    number = _pointed(text, found).cast(pl.Float64, strict=False)
    return pl.when(~absent).then(number.fill_null(float("nan"))).alias(name)


def _pointed(text: "pl.Expr", found: CsvFormat) -> "pl.Expr":
    """Numbers with a point and without marks between thousands; null where they break the rule."""
    if found.thousands:
        mark, decimal = re.escape(found.thousands), re.escape(found.decimal)
        grouped = text.str.contains(rf"^[+-]?\d{{1,3}}({mark}\d{{3}})+({decimal}\d*)?$")
        bare = text.str.replace_all(found.thousands, "", literal=True)
        text = pl.when(grouped).then(bare).otherwise(text)
        text = pl.when(~text.str.contains(found.thousands, literal=True)).then(text)
    if found.decimal == ",":
        text = pl.when(~text.str.contains(".", literal=True)).then(text)
        text = text.str.replace(",", ".", literal=True)
    return text
