"""Reading a party's own rows from CSV, Parquet or a small shard, and finding unusable columns."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import FloatArray
from securevfl.blocks import LONG_CELLS
from securevfl.data.csv_files import (
    DETECT,
    CsvFormat,
    CsvOptions,
    as_point,
    detect_format,
    read_csv,
)
from securevfl.data.ids import (
    IdFormat,
    gapless_text,
    id_text,
    ids_alike,
    is_held_out,
    normalized_ids,
)
from securevfl.data.labels import class_names
from securevfl.data.shards import Shard, is_shard, open_shard
from securevfl.data.tables import Note, as_array, check_weights, row_digests
from securevfl.errors import ConfigError, DataError
from securevfl.lazy import Lazy
from securevfl.recipe import Preprocessing, numbers_of, text_of
from securevfl.shown import controls, counted, first_line, listed

if TYPE_CHECKING:
    import polars as pl
else:
    pl = Lazy("polars")

T = TypeVar("T")
SHARD_LABELS = "(labels)"
"""Name of the label column of a shard that is read as a file."""
NO_LABEL = ("", "NA", "N/A", "n/a", "NULL", "null", "?")
SHOWN = 10
MOST_COLUMNS = 100_000
MOSTLY = 0.5


@dataclass(frozen=True)
class FileSource:
    """One party's file.

    Attributes:
        name: the party.
        path: .csv, .csv.gz or .parquet (CSV has a header), or a shard, which `load_files` leaves on
            disk and other readers load as an array.
        id_column: joins the parties' rows.
        id_format: how ids are compared: as text ("07" is not "7"), as whole numbers, or folded
            (ignoring case and surrounding blanks).
        label_column: at exactly one party.
        features: columns to use; None for all except the id and the label.
        test_path: a second file of test rows, at every party or at none.
        drop: columns not to use.
        csv: what is known of a CSV's format; the rest is detected.
        preprocess: how text and missing values are encoded; None refuses them.
        weight_column: weights of the training rows, at the label party.
    """

    name: str
    path: Path
    id_column: str
    label_column: str | None = None
    features: Sequence[str] | None = None
    test_path: Path | None = None
    drop: Sequence[str] = ()
    csv: CsvOptions = DETECT
    preprocess: Preprocessing | None = None
    id_format: IdFormat = "text"
    weight_column: str | None = None


@dataclass(frozen=True)
class BadColumn:
    """A column that cannot be used, and why, with a count and an example.

    With `fixed_by_preprocess` an empty `[preprocess]` section makes it usable; `remedy` names what
    else does.
    """

    party: str
    column: str
    problem: str
    fixed_by_preprocess: bool = False
    remedy: str = ""

    @property
    def line(self) -> str:
        """The column and its problem as one line of text."""
        remedy = f" ({self.remedy})" if self.remedy else ""
        return f"party {self.party!r}: column {self.column!r} {self.problem}{remedy}"


@dataclass(frozen=True, eq=False)
class PartyRows:
    """The rows of one party's file, in its order.

    Attributes:
        ids: N distinct ids, normalized.
        written: the same ids as the file has them.
        columns: names of the raw feature columns.
        frame: these columns, as numbers or text; those of a long Parquet file stay on disk.
        labels: N labels as text, or None.
        weights: shape (N,), or None.
        problems: columns that cannot be used.
        notes: the file's format, where it was detected.
    """

    ids: "pl.Series"
    written: "pl.Series"
    columns: tuple[str, ...]
    frame: "pl.DataFrame | ColumnsOnDisk"
    labels: "pl.Series | None"
    problems: tuple[BadColumn, ...]
    notes: tuple[Note, ...]
    weights: FloatArray | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def digests(self) -> NDArray[np.uint64]:
        """See `row_digests`, shape (N,)."""
        return row_digests(self.ids)

    @cached_property
    def people(self) -> NDArray[np.uint64]:
        """Digests by which guards know the rows again, shape (N,), see `ids_alike`."""
        alike = ids_alike(self.ids)
        return self.digests if alike.equals(self.ids) else row_digests(alike)

    @property
    def held_out(self) -> NDArray[np.bool_]:
        """Whether a row is held out by its id, shape (N,)."""
        return np.fromiter(map(is_held_out, self.ids), bool, len(self))

    @property
    def text_columns(self) -> tuple[str, ...]:
        """Feature columns of text."""
        return tuple(name for name in self.columns if self.frame.schema[name] == pl.String)

    @property
    def whole_frame(self) -> "pl.DataFrame":
        """All columns in memory."""
        return self.frame.read() if isinstance(self.frame, ColumnsOnDisk) else self.frame


def read_party(
    source: FileSource,
    *,
    test: bool = False,
    text: Collection[str] = (),
    file: "PartyFile | None" = None,
) -> PartyRows:
    """Read one party's own file, or its test file.

    Columns in `text` are read as text even if they contain only numbers. An already opened `file`
    holds new rows, whose labels may be missing and are then empty.

    Raises:
        ConfigError: an unknown suffix, a column used twice, or a setting out of range.
        DataError: a missing, empty or malformed file, missing ids or labels, or repeated ids.
    """
    path = source.test_path if test else source.path
    if path is None:
        raise ConfigError(f"test_path: party {source.name!r} has none")
    labels_optional, file = file is not None, file or PartyFile(source, path)
    keys_of = source.id_column, source.label_column, source.weight_column
    as_written = [each for each in keys_of if each is not None]
    columns, found = _feature_columns(source, file.columns, as_written), file.found
    settings = source.preprocess or Preprocessing()
    strings = {*text, *settings.categories}
    keys, frame = file.read(as_written, columns, strings, settings.markers)
    if keys.is_empty():
        raise DataError(f"party {source.name!r}: {path} has no rows")
    ids, written = _ids(source, keys)
    labels = None
    if source.label_column is not None:
        column = keys[source.label_column]
        if not labels_optional:
            gapless_text(column, f"party {source.name!r}: rows need labels", missing=NO_LABEL)
        labels = _labels(column, found)
    weights = None if source.weight_column is None else _weights(source, keys, found)
    del keys
    problems = (
        _problem(source.name, frame[name], source.preprocess, found)
        for name in columns
        if name not in text
    )
    notes = [] if found is None else [Note("file", source.name, None, f"{path.name}: {found.line}")]
    return PartyRows(
        ids,
        written,
        columns,
        frame,
        labels,
        tuple(problem for problem in problems if problem is not None),
        tuple(notes),
        weights,
    )


def require_usable(held: Sequence[PartyRows]) -> None:
    """Refuse unusable columns, those of all files at once, and say how to fix them."""
    problems = [problem for rows in held for problem in rows.problems]
    if not problems:
        return
    shown = "; ".join(problem.line for problem in problems[:SHOWN])
    if len(problems) > SHOWN:
        shown += f"; and {len(problems) - SHOWN} more"
    columns = counted(len(problems), "column")
    remedy = ""
    if fixable := sorted({each.party for each in problems if each.fixed_by_preprocess}):
        parties = " or ".join(map(repr, fixable))
        remedy = (
            "; a [preprocess] section in the job file encodes text as categories and replaces "
            f"missing numbers by the median, and `drop = [...]` at party {parties} leaves columns "
            "out"
        )
    raise DataError(f"{columns} cannot be used: {shown}{remedy}")


class PartyFile:
    """A party's opened file, or a shard that is read as one: its columns and CSV format.

    See `read_party` for the errors.
    """

    def __init__(self, source: FileSource, path: Path) -> None:
        self._path, self._where = path, f"party {source.name!r}: {path}"
        self._id_column = source.id_column
        self._shard = open_shard(path) if is_shard(path) else None
        if self._shard is None:
            _require_readable(path)
        self.found: CsvFormat | None = None
        self._state = None if self._shard is not None else _state_of(path)
        if self._shard is not None:
            self.columns = (source.id_column, *self._shard.header.column_names)
            if self._shard.labels is not None:
                self.columns += (SHARD_LABELS,)
            return
        suffix = path.name.lower().removesuffix(".gz").rpartition(".")[2]
        if suffix == "csv":
            known = (source.id_column, *(source.features or ()))
            self.found = detect_format(path, source.csv, known, self._where)
            self.columns = self.found.header
        elif suffix == "parquet":
            self._schema = self._tried(lambda: pl.read_parquet_schema(path))
            self.columns = tuple(self._schema)
        else:
            raise ConfigError(
                f"path: {path} of party {source.name!r}, expected .csv, .csv.gz or .parquet, or a "
                "shard by `securevfl data convert`"
            )

    def read(
        self,
        as_written: Sequence[str],
        columns: Sequence[str],
        text: Collection[str],
        markers: Sequence[str],
    ) -> "tuple[pl.DataFrame, pl.DataFrame | ColumnsOnDisk]":
        """Ids and labels, `as_written`, and these columns; `text` ones stay text."""
        found, used = self.found, [*as_written, *columns]
        if found is None and self._shard is None:
            keys = self._read_parquet(as_written)
            if len(keys) * len(columns) > LONG_CELLS:
                return keys, ColumnsOnDisk(self._read_parquet, columns, self._schema)
            return keys, self._read_parquet(columns)
        if self._shard is not None:
            frame = _as_frame(self._shard, self._id_column).select(used)
        else:
            assert found is not None  # noqa: S101
            frame = self._tried(lambda: read_csv(found, used, {*as_written, *text}, markers))
        return frame.select(as_written), frame.select(columns)

    def _read_parquet(self, columns: Sequence[str]) -> "pl.DataFrame":
        read = self._tried(lambda: pl.read_parquet(self._path, columns=[*columns], glob=False))
        if self._state is not None and self._state != _state_of(self._path):
            raise DataError(f"{self._where} has changed while it was read")
        return read

    def _tried(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except (pl.exceptions.PolarsError, OSError) as error:
            raise DataError(f"{self._where} is empty or malformed ({first_line(error)})") from error


class ColumnsOnDisk:
    """The columns of a long Parquet file: memory holds one of them at a time.

    Attributes:
        schema: by column its type.
    """

    def __init__(
        self,
        read: "Callable[[Sequence[str]], pl.DataFrame]",
        columns: Sequence[str],
        schema: "Mapping[str, pl.DataType]",
    ) -> None:
        self._read, self._columns, self.schema = read, columns, schema
        self._last: pl.Series | None = None

    def __getitem__(self, name: str) -> "pl.Series":
        """A column, which is kept until another one is asked for."""
        if self._last is None or self._last.name != name:
            self._last = None
            self._last = self._read([name])[name]
        return self._last

    def read(self) -> "pl.DataFrame":
        """All of them."""
        return self._read(self._columns)

    def drop_in_place(self, name: str) -> None:
        """Forget a column."""
        del name
        self._last = None


def _state_of(path: Path) -> tuple[int, ...]:
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _as_frame(shard: Shard, id_column: str) -> "pl.DataFrame":
    dense = as_array(shard.rows, f"{shard.path}")
    frame = pl.DataFrame(dense, list(shard.header.column_names))
    frame = frame.with_columns(pl.Series(id_column, shard.ids, pl.String))
    if shard.labels is not None:
        names = shard.header.classes
        labels = [names[code] for code in shard.labels] if names else shard.labels.tolist()
        frame = frame.with_columns(pl.Series(SHARD_LABELS, class_names(labels), pl.String))
    return frame


def _require_readable(path: Path) -> None:
    if path.is_dir():
        raise DataError(f"{path} is a folder but not a shard (see `securevfl data convert`)")
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error


def _feature_columns(
    source: FileSource, existing: Sequence[str], as_written: Sequence[str]
) -> tuple[str, ...]:
    chosen = source.features
    if chosen is None:
        chosen = [column for column in existing if column not in as_written]
    columns = tuple(column for column in chosen if column not in source.drop)
    used = [*as_written, *columns]
    if len(set(used)) < len(used):
        double = next(column for column in used if used.count(column) > 1)
        raise ConfigError(f"features: column {double!r} of party {source.name!r} is used twice")
    if (weight := source.weight_column) in source.drop:
        raise ConfigError(f"drop: column {weight!r} of party {source.name!r} is its weight_column")
    there = set(existing)
    missing = [column for column in (*used, *source.drop) if column not in there]
    if missing:
        keys = {source.id_column: "id_column", source.label_column: "label_column"}
        keys[source.weight_column] = "weight_column"
        key, more = keys.get(missing[0]), f" and {len(missing) - 1} more" if missing[1:] else ""
        raise DataError(
            f"party {source.name!r}: {source.path.name} has no column {missing[0]!r}{more}; it has "
            f"{listed(existing)}" + (f": name one of them as {key}" if key else "")
        )
    if (odd := controls(used)) is not None:
        raise DataError(
            f"party {source.name!r}: column {odd!r} has control characters in its name: rename it"
        )
    if len(columns) > MOST_COLUMNS:
        raise DataError(
            f"party {source.name!r}: {source.path.name} has {len(columns):,} columns, at most "
            f"{MOST_COLUMNS:,} can be read: name fewer by features = [...]"
        )
    if not columns:
        raise DataError(f"party {source.name!r}: no feature columns, expected at least 1")
    return columns


def _ids(source: FileSource, frame: "pl.DataFrame") -> "tuple[pl.Series, pl.Series]":
    where, floats = f"party {source.name!r}", source.id_format == "number"
    written = id_text(frame[source.id_column], where, floats=floats)
    ids = normalized_ids(written, source.id_format, f"{where}: {source.id_column!r}")
    if double := len(ids) - ids.n_unique():
        first = ids.filter(ids.is_duplicated())[0]
        raise DataError(
            f"{where}: {counted(double, 'duplicate id')} in {source.id_column!r}, "
            f"the first is {first!r}"
        )
    return ids, written


def _labels(column: "pl.Series", found: CsvFormat | None) -> "pl.Series":
    """Labels as text, with decimal points in numbers; empty where missing."""
    labels = column.cast(pl.String).fill_null("").str.strip_chars()
    labels = labels.set(labels.is_in(list(NO_LABEL)), "")
    if found is None:
        return labels
    pointed = as_point(labels, found)
    there = labels != ""
    return labels if pointed.filter(there).null_count() else pointed.set(~there, "")


def _weights(source: FileSource, keys: "pl.DataFrame", found: CsvFormat | None) -> FloatArray:
    column = keys[str(source.weight_column)]
    if not column.dtype.is_numeric():
        column = column.cast(pl.String).str.strip_chars()
        column = column if found is None else as_point(column, found)
    weights = column.cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy()
    check_weights(f"party {source.name!r}: weight_column {column.name!r}", weights, len(keys))
    return weights


def _problem(
    party: str, values: "pl.Series", settings: Preprocessing | None, found: CsvFormat | None
) -> BadColumn | None:
    """Why a raw column cannot be used; `found` says how a CSV writes numbers."""
    name, kind = values.name, values.dtype
    if isinstance(kind, pl.List) and kind.inner.is_integer():
        remedy = "`securevfl data convert` converts lists of indices to a shard"
        return BadColumn(party, name, f"is {kind}, expected numbers or text", remedy=remedy)
    if kind.is_nested() or kind in (pl.Binary, pl.Object, pl.Time, pl.Duration):
        return BadColumn(party, name, f"is {kind}, expected numbers or text")
    if settings is not None and (name in settings.categories or kind.is_temporal()):
        return None
    if kind.is_temporal():
        return BadColumn(party, name, f"is {kind}, expected numbers", fixed_by_preprocess=True)
    if kind.is_numeric() or kind in (pl.Boolean, pl.Null):
        return _number_problem(party, values, settings)
    text = text_of(values, (settings or Preprocessing()).markers)
    numbers = text if found is None else as_point(text, found)
    return _text_problem(party, text, numbers.cast(pl.Float64, strict=False), settings)


def _number_problem(
    party: str, values: "pl.Series", settings: Preprocessing | None
) -> BadColumn | None:
    try:
        numbers = numbers_of(values, (settings or Preprocessing()).markers)
    except ValueError as error:
        remedy = '`missing = ["inf", "-inf"]` in [preprocess] treats them as missing'
        return BadColumn(party, values.name, str(error), remedy=remedy)
    if settings is None and numbers.null_count():
        problem = f"has {counted(numbers.null_count(), 'missing value')}"
        return BadColumn(party, values.name, problem, fixed_by_preprocess=True)
    return None


def _text_problem(
    party: str, text: "pl.Series", numbers: "pl.Series", settings: Preprocessing | None
) -> BadColumn | None:
    name = text.name
    wrong = text.filter(text.is_not_null() & numbers.is_null())
    gaps = text.null_count()
    missing = f" and {counted(gaps, 'missing value')}" if gaps else ""
    if not len(wrong):
        return _number_problem(party, numbers.alias(name), settings)
    are = "value that is no number" if len(wrong) == 1 else "values that are not numbers"
    problem = f"has {len(wrong)} {are}, such as {wrong[0]!r}{missing}"
    values = text.n_unique() - bool(text.null_count())
    if values - wrong.n_unique() > MOSTLY * values:
        remedy = (
            f'`missing = [{wrong[0]!r}]` or `categories = ["{name}"]` in [preprocess] resolves it'
        )
        return BadColumn(party, name, f"{problem}, among numbers", remedy=remedy)
    if settings is not None:
        return None
    return BadColumn(party, name, problem, fixed_by_preprocess=True)
