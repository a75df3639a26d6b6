"""A user's own CSV and Parquet files, joined by id."""

import csv
import hashlib
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from securevfl.data.formats import decode_text, read_content
from securevfl.data.tables import PartyTable, VerticalDataset, check, fingerprint
from securevfl.errors import ConfigError, DataError

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class FileSource:
    """One party's file.

    Attributes:
        name: The party.
        path: .csv, .csv.gz or .parquet; CSV has a header and commas.
        id_column: Joins the parties' rows; compared as text, so "07" is not "7".
        label_column: At exactly one party.
        features: Columns to use; None for all but the id and the label.
        test_path: A second file of test rows, at every party or at none.
    """

    name: str
    path: Path
    id_column: str
    label_column: str | None = None
    features: Sequence[str] | None = None
    test_path: Path | None = None


@dataclass(frozen=True, eq=False)
class PartyRows:
    """What one party's file holds, rows sorted by id.

    Attributes:
        ids: N different ids.
        columns: P feature names.
        features: Shape (N, P), finite.
        labels: N labels as text, or None.
    """

    ids: tuple[str, ...]
    columns: tuple[str, ...]
    features: NDArray[np.float64]
    labels: tuple[str, ...] | None


def load_files(parties: Sequence[FileSource], *, name: str = "files") -> VerticalDataset:
    """Join the parties' files by id into one data set, rows sorted by id.

    Without test files, a row is a test row if the SHA-256 of its id falls into the first fifth,
    so further rows never move one from test to training. Labels become 0..C-1 in sorted order, as
    numbers if all are numbers. `dropped` counts each party's rows whose id some party lacks.

    Raises:
        ConfigError: Fewer than two parties, two of one name, not exactly one label party, test
            files at some parties only, or a column used twice.
        DataError: A file or column is missing, empty or malformed, ids are missing or double,
            features not finite numbers, no common ids, or one class only.
    """
    _check_sources(parties)
    holder = next(source for source in parties if source.label_column is not None)
    train = {source.name: read_party(source) for source in parties}
    dropped = dict.fromkeys(train, 0)
    train_ids = _common_ids(train, dropped)
    if holder.test_path is None:
        test, in_test = train, [_falls_into_test(row_id) for row_id in train_ids]
        test_ids = [row_id for row_id, held in zip(train_ids, in_test, strict=True) if held]
        train_ids = [row_id for row_id, held in zip(train_ids, in_test, strict=True) if not held]
    else:
        test = {
            # By the training file's names, so that another order of columns swaps nothing.
            source.name: read_party(replace(source, features=columns), test=True)
            for source in parties
            for columns in [train[source.name].columns]
        }
        test_ids = _common_ids(test, dropped)
        if both := len(set(train_ids) & set(test_ids)):
            raise DataError(f"test_path: {both} ids are among the training rows too, expected 0")
    label_names, (train_labels, test_labels) = _encode_labels(
        holder, [_labels(train[holder.name], train_ids), _labels(test[holder.name], test_ids)]
    )
    dataset = VerticalDataset(
        name=name,
        parties=tuple(
            PartyTable(
                source.name,
                train[source.name].columns,
                _features(train[source.name], train_ids),
                _features(test[source.name], test_ids),
            )
            for source in parties
        ),
        label_party=holder.name,
        train_labels=train_labels,
        test_labels=test_labels,
        classes=len(label_names),
        standardize=True,
        fingerprint=fingerprint(train_ids),
        label_names=label_names,
        dropped=dropped,
    )
    check(dataset)
    return dataset


def read_party(source: FileSource, *, test: bool = False) -> PartyRows:
    """Read one party's own file, or its test file, without looking at any other party's.

    Raises:
        ConfigError: A suffix that is not known, or a column used twice.
        DataError: See `load_files`.
    """
    path = source.test_path if test else source.path
    if path is None:
        raise ConfigError(f"test_path: party {source.name!r} has none")
    frame = _read_frame(source.name, Path(path))
    columns = _feature_columns(source, frame)
    ids = _ids(source, frame)
    labels = None
    if source.label_column is not None:
        labels = _as_text(source.name, frame[source.label_column])
    order = sorted(range(len(ids)), key=ids.__getitem__)
    features = np.column_stack([_numbers(source.name, frame[column]) for column in columns])
    return PartyRows(
        tuple(ids[row] for row in order),
        columns,
        features[order],
        None if labels is None else tuple(labels[row] for row in order),
    )


def _check_sources(parties: Sequence[FileSource]) -> None:
    names = [source.name for source in parties]
    if len(names) < 2:  # noqa: PLR2004
        raise ConfigError(f"parties: {len(names)}, expected at least 2")
    if len(set(names)) < len(names):
        raise ConfigError(f"parties: names {names} are not all different")
    holders = [source.name for source in parties if source.label_column is not None]
    if len(holders) != 1:
        raise ConfigError(f"label_column: given at {holders or 'no party'}, expected exactly one")
    without = [source.name for source in parties if source.test_path is None]
    if without and len(without) < len(names):
        raise ConfigError(f"test_path: missing at {without}, expected at every party or at none")


def _read_frame(party: str, path: Path) -> "pl.DataFrame":
    content = read_content(path)
    import polars as pl  # noqa: PLC0415  # slow to import, and needed only for files

    suffix = path.name.lower().removesuffix(".gz").rpartition(".")[2]
    try:
        if suffix == "parquet":
            frame = pl.read_parquet(io.BytesIO(content))
        elif suffix == "csv":
            header = next(csv.reader(io.StringIO(decode_text(content, path), newline="")), [])
            if len(set(header)) < len(header):
                double = next(column for column in header if header.count(column) > 1)
                raise DataError(f"party {party!r}: column {double!r} stands twice in {path}")
            frame = pl.read_csv(content, infer_schema=False)
        else:
            raise ConfigError(
                f"path: {path} of party {party!r}, expected .csv, .csv.gz or .parquet"
            )
    except (pl.exceptions.PolarsError, csv.Error, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"party {party!r}: {path} is empty or malformed ({reason})") from error
    if frame.is_empty():
        raise DataError(f"party {party!r}: {path} has no rows")
    return frame


def _feature_columns(source: FileSource, frame: "pl.DataFrame") -> tuple[str, ...]:
    taken = [column for column in (source.id_column, source.label_column) if column is not None]
    if source.features is None:
        columns = tuple(column for column in frame.columns if column not in taken)
    else:
        columns = tuple(source.features)
    used = [*taken, *columns]
    if len(set(used)) < len(used):
        double = next(column for column in used if used.count(column) > 1)
        raise ConfigError(f"features: column {double!r} of party {source.name!r} is used twice")
    missing = [column for column in used if column not in frame.columns]
    if missing:
        raise DataError(
            f"party {source.name!r}: {len(missing)} columns missing, the first is "
            f"{missing[0]!r}; the file has {', '.join(frame.columns)}"
        )
    if not columns:
        raise DataError(f"party {source.name!r}: no feature columns, expected at least 1")
    return columns


def _ids(source: FileSource, frame: "pl.DataFrame") -> list[str]:
    import polars as pl  # noqa: PLC0415

    column = frame[source.id_column]
    if not (column.dtype == pl.String or column.dtype.is_integer()):
        raise DataError(
            f"party {source.name!r}: ids in {source.id_column!r} are {column.dtype}, expected "
            f"text or integers"
        )
    ids = _as_text(source.name, column)
    if double := len(ids) - len(set(ids)):
        first = next(row_id for row_id, count in Counter(ids).items() if count > 1)
        raise DataError(
            f"party {source.name!r}: {double} duplicate ids in {source.id_column!r}, the first "
            f"is {first!r}"
        )
    return ids


def _as_text(party: str, column: "pl.Series") -> list[str]:
    import polars as pl  # noqa: PLC0415

    text = column.cast(pl.String)
    if missing := int((text.is_null() | (text == "").fill_null(False)).sum()):
        raise DataError(f"party {party!r}: column {column.name!r} has {missing} missing values")
    values: list[str] = text.to_list()
    return values


def _numbers(party: str, column: "pl.Series") -> NDArray[np.float64]:
    import polars as pl  # noqa: PLC0415

    where = f"party {party!r}: column {column.name!r}"
    if not (column.dtype.is_numeric() or column.dtype in (pl.String, pl.Boolean)):
        raise DataError(f"{where} is {column.dtype}, expected numbers")
    if missing := column.null_count():
        raise DataError(f"{where} has {missing} missing values, expected finite numbers")
    numbers = column.cast(pl.Float64, strict=False)
    if wrong := numbers.null_count():
        raise DataError(f"{where} has {wrong} values that are not numbers")
    if unusable := int((~numbers.is_finite()).sum()):
        raise DataError(f"{where} has {unusable} NaN or infinite values, expected finite numbers")
    return numbers.to_numpy()


def _common_ids(parties: Mapping[str, PartyRows], dropped: dict[str, int]) -> list[str]:
    common = set.intersection(*(set(rows.ids) for rows in parties.values()))
    if not common:
        counts = ", ".join(f"{name!r} {len(rows.ids)}" for name, rows in parties.items())
        raise DataError(f"no common ids among the parties ({counts} ids), expected at least 1")
    for name, rows in parties.items():
        dropped[name] += len(rows.ids) - len(common)
    return sorted(common)


def _falls_into_test(row_id: str) -> bool:
    digest = hashlib.sha256(row_id.encode()).digest()
    return int.from_bytes(digest[:8], "big") * 5 < 1 << 64


def _positions(rows: PartyRows, ids: list[str]) -> list[int]:
    place = {row_id: row for row, row_id in enumerate(rows.ids)}
    return [place[row_id] for row_id in ids]


def _features(rows: PartyRows, ids: list[str]) -> NDArray[np.float64]:
    return rows.features[_positions(rows, ids)]


def _labels(rows: PartyRows, ids: list[str]) -> list[str]:
    labels = rows.labels or ()
    return [labels[row] for row in _positions(rows, ids)]


def _encode_labels(
    holder: FileSource, splits: list[list[str]]
) -> tuple[tuple[str, ...], list[NDArray[np.int64]]]:
    import polars as pl  # noqa: PLC0415

    text = pl.Series([label for labels in splits for label in labels], dtype=pl.String)
    numbers = text.cast(pl.Float64, strict=False)
    numeric = not numbers.null_count()
    if numeric and (unusable := int((~numbers.is_finite()).sum())):
        raise DataError(
            f"party {holder.name!r}: column {holder.label_column!r} has {unusable} NaN or "
            f"infinite labels"
        )
    values = numbers.to_numpy() if numeric else np.array(text.to_list(), dtype=np.str_)
    classes, codes = np.unique(values, return_inverse=True)
    codes = codes.astype(np.int64)
    train, test = codes[: len(splits[0])], codes[len(splits[0]) :]
    if unseen := np.setdiff1d(test, train).size:
        raise DataError(
            f"party {holder.name!r}: {unseen} classes of {holder.label_column!r} occur among the "
            f"test rows only"
        )
    names = [f"{label:.0f}" if numeric and label == int(label) else str(label) for label in classes]
    return tuple(names), [train, test]
