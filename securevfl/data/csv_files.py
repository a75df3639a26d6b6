"""CSV files: detecting how one is written, and reading its columns as numbers or text.

An ambiguous file is refused, and the error names the setting that resolves it. The numbers of a
file are never all held as text.
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
from securevfl.shown import counted

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
    """What a job specifies about a party's CSV; None is detected.

    `thousands` separates groups of three digits; `encoding` is a Python name.
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
        content: UTF-8: the file, or its content if it had to be decompressed or recoded.
        thousands: thousands separator, or "".
        encoding: of the file.
        skipped: lines before the header.
        has_empty_lines: whether some lines have no value.
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
        """A summary for the user to check."""
        separator = SEPARATORS.get(self.separator, repr(self.separator))
        thousands = f", thousands {self.thousands!r}" if self.thousands else ""
        return f"{separator}-separated, decimal {self.decimal!r}{thousands}, {self.encoding}"


def detect_format(path: Path, given: CsvOptions, known: tuple[str, ...], where: str) -> CsvFormat:
    """Detect how a CSV file, plain or .gz, is written, as far as it is not given.

    The header must have the `known` columns; `where` names the file in errors.

    Raises:
        ConfigError: an unknown encoding, or a setting of more than one character.
        DataError: a file that cannot be read, is empty or ambiguous, or has rows with too few
            fields.
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
    skipped, separator = 0, given.separator
    if re.fullmatch(r'"?sep=.?"?', first):  # written by Excel
        skipped, separator = 1, separator or first.strip('"')[4:] or "\t"
    separator = separator or _find_separator(head, known, where)
    rows = csv.reader(io.StringIO(b"".join(head).decode("utf-8-sig")), delimiter=separator)
    for _ in range(skipped):
        next(rows, None)
    header = tuple(next(rows, []))
    if len(set(header)) < len(header):
        double = next(column for column in header if header.count(column) > 1)
        raise DataError(f"{where}: column {double!r} is repeated in the header")
    short, is_empty, sample = _survey(content, separator, len(header), skipped)
    if short:
        raise DataError(
            f"{where} is malformed ({counted(len(short), 'line')} of fewer than {len(header)} "
            f"fields, the first is line {short[0]}; separator {separator!r})"
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
        raise ConfigError(f"thousands = {given.thousands!r}: is also the decimal mark")
    try:
        codecs.lookup(given.encoding or "utf-8")
    except LookupError:
        raise ConfigError(
            f"encoding = {given.encoding!r}: expected a Python name such as utf-8 or cp1252"
        ) from None


def _in_utf8(path: Path, encoding: str | None, where: str) -> tuple[Path | bytes, str]:
    """The content as polars reads it, and its original encoding."""
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
            f'{where} is not {encoding} text ({error.reason}): set `encoding = "…"` at the party'
        ) from None
    return text.removeprefix("\ufeff").encode(), encoding


def _utf8_or_windows(content: Path | bytes, where: str) -> str:
    """UTF-8 if possible, otherwise Windows-1252 if no byte is undefined there."""
    for encoding in ("utf-8", "windows-1252"):
        try:
            _decode(content, encoding)
        except UnicodeDecodeError:
            continue
        return encoding
    raise DataError(
        f'{where} is neither UTF-8 nor Windows-1252 text: set `encoding = "…"` at the party'
    )


def _decode(content: Path | bytes, encoding: str) -> None:
    """Decode the content in blocks, only to raise decoding errors."""
    with opened(content) as file:
        for _ in codecs.iterdecode(iter(lambda: file.read(BLOCK), b""), encoding):
            pass


def opened(content: Path | bytes) -> BinaryIO:
    """The content of a `CsvFormat`, opened for reading."""
    return io.BytesIO(content) if isinstance(content, bytes) else content.open("rb")


def _lines(content: Path | bytes) -> Iterator[bytes]:
    with opened(content) as file:
        yield from file


def _find_separator(head: list[bytes], known: tuple[str, ...], where: str) -> str:
    """The separator under which the header has the columns that it must have."""
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
            'set `separator = "…"` at the party'
        )
    most = max(len(header) for header in headers.values())
    return next(each for each, header in headers.items() if len(header) == most)


def _header(text: str, separator: str) -> list[str]:
    try:
        return next(csv.reader(io.StringIO(text), delimiter=separator), [])
    except csv.Error:  # under a wrong separator a wide header is one field, which may be too long
        return []


def _survey(
    content: Path | bytes, separator: str, columns: int, skipped: int
) -> tuple[list[int], bool, list[bytes]]:
    """Lines with too few fields, which polars would fill up; whether lines are empty; a sample."""
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
    """Number, content and field count of each line, except lines within a quoted field."""
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
    """The decimal mark and thousands separator under which all numbers of a sample are numbers."""
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
        examples = " and ".join(map(repr, seen.values()))
        raise DataError(
            f'{where} has {examples}: set `decimal = "."` or `decimal = ","` at the party'
        )
    plain = given.decimal or ".", given.thousands or ""
    if (
        len({decimal for decimal, _ in fitting}) > 1
        and seen
        and not (
            # Files with comma-separated fields do not use points as thousands separators.
            separator == "," and plain in fitting
        )
    ):
        field = next(iter(seen.values()))
        mark = "," if "," in field else "."
        raise DataError(
            f"{where} has {field!r}, which is a fraction or {field.replace(mark, '')}: set "
            f'`decimal = "{mark}"` or `thousands = "{mark}"` at the party'
        )
    return plain if plain in fitting else min(fitting, key=lambda way: way[1])


def _numbers_with(decimal: str, thousands: str) -> re.Pattern[str]:
    mark, between = re.escape(decimal), re.escape(thousands)
    groups = rf"[1-9]\d{{0,2}}({between}\d{{3}})+|" if thousands else ""
    return re.compile(rf"[+-]?(?=.*\d)({groups}\d*)({mark}\d*)?([eE][+-]?\d+)?")


def read_csv(
    found: CsvFormat, columns: Sequence[str], text: Collection[str], missing: Sequence[str]
) -> "pl.DataFrame":
    """Some columns of a CSV file: float64 if all their values are numbers, otherwise text.

    `text` columns stay as written; `missing` are the markers of a missing number. Polars raises the
    errors of a malformed file.
    """
    lazy = pl.scan_csv(
        found.content,
        separator=found.separator,
        skip_rows=found.skipped,
        infer_schema=False,
        glob=False,
        new_columns=[*found.header],  # polars leaves doubled quotes in a name as they are
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
    # Only columns with gaps or blanks need a second look.
    if gaps := [n for n in numbers if frame[n].null_count() or frame[n].is_nan().any()]:
        second = lazy.select(_number(name, found, missing) for name in gaps)
        frame = frame.with_columns(second.collect(engine="streaming"))
    # Text after all, in a row beyond the sample.
    if late := [name for name in gaps if frame[name].is_nan().any()]:
        frame = frame.with_columns(lazy.select(late).collect(engine="streaming"))
    return frame


def as_point(values: "pl.Series", found: CsvFormat) -> "pl.Series":
    """Text with decimal points in its numbers; null where a value is not a number."""
    pointed = values.alias("value").to_frame().select(_pointed(pl.col("value"), found))
    read = pointed["value"].alias(values.name)
    return read.set(read.cast(pl.Float64, strict=False).is_null(), None)


def _number(name: str, found: CsvFormat, missing: Sequence[str]) -> "pl.Expr":
    """The column as numbers: null where missing, NaN where a value is not a number."""
    text = pl.col(name).str.strip_chars()
    absent = text.is_null() | text.is_in(list(missing))
    number = _pointed(text, found).cast(pl.Float64, strict=False)
    return pl.when(~absent).then(number.fill_null(float("nan"))).alias(name)


def _pointed(text: "pl.Expr", found: CsvFormat) -> "pl.Expr":
    """Numbers with a decimal point and no thousands separators; null where grouping is wrong."""
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
