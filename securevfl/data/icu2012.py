"""PhysioNet/CinC Challenge 2012: the first 48 hours of 12,000 stays, as events and as two tables.

Summaries have 227 columns; windows as in FedBCD's MIMIC-III experiment have 714.
"""

import contextlib
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from securevfl.data.catalog import Content, load_arrays, user_cache
from securevfl.data.splits import JointTable, block_sizes
from securevfl.errors import DataError
from securevfl.files import read_content, replace_file
from securevfl.lazy import Lazy

if TYPE_CHECKING:
    import polars as pl
else:
    pl = Lazy("polars")

MEASURED = (
    *("Albumin", "ALP", "ALT", "AST", "Bilirubin", "BUN", "Cholesterol", "Creatinine", "DiasABP"),
    *("FiO2", "GCS", "Glucose", "HCO3", "HCT", "HR", "K", "Lactate", "MAP", "MechVent", "Mg", "Na"),
    *("NIDiasABP", "NIMAP", "NISysABP", "PaCO2", "PaO2", "pH", "Platelets", "RespRate", "SaO2"),
    *("SysABP", "Temp", "TroponinI", "TroponinT", "Urine", "WBC", "Weight"),
)
DESCRIPTORS = ("Age", "Gender", "Height", "ICUType", "Weight")
# Weight is both, under one index.
PARAMETERS = (*MEASURED, *DESCRIPTORS[:4])
_RECORD_ID = len(PARAMETERS)
SETS = ("a", "b", "c")
_LAST_MINUTE = 48 * 60
SERIES = (
    *("DiasABP", "NIDiasABP", "SysABP", "NISysABP", "MAP", "NIMAP", "HR", "RespRate", "SaO2"),
    *("Temp", "GCS", "FiO2", "pH", "Glucose", "BUN", "Urine", "Weight"),
)
WINDOWS = ((0, 2881), (0, 288), (0, 720), (0, 1440), (2592, 2881), (2160, 2881), (1440, 2881))
STATISTICS = ("mean", "min", "max", "std", "skew", "count")
_BEDSIDE = (
    *("DiasABP", "FiO2", "GCS", "HR", "MAP", "MechVent", "NIDiasABP", "NIMAP", "NISysABP"),
    *("RespRate", "SaO2", "SysABP", "Temp", "Urine", "Weight"),
)
_SUMMARIES = ("first", "last", "min", "max", "mean", "count")
_ROUNDED_BITS = 23 - 14

SUMMARY_COLUMNS = (*DESCRIPTORS, *(f"{name}_{what}" for name in MEASURED for what in _SUMMARIES))
WINDOW_COLUMNS = tuple(
    f"{name}_{start}-{end}_{what}"
    for name in SERIES
    for start, end in WINDOWS
    for what in STATISTICS
)
# Descriptors are known at the bedside.
BEDSIDE_COLUMNS = frozenset(
    {*DESCRIPTORS, *(f"{name}_{what}" for name in _BEDSIDE for what in _SUMMARIES)}
)
# Raised when a table would come out differently from the same events.
_RECIPE = 1


@dataclass(frozen=True, eq=False)
class Events:
    """Observations in long form; stay i has `offsets[i]:offsets[i + 1]`, in file order.

    Attributes:
        record_id: shape (stays,).
        set_index: shape (stays,), 0, 1, 2 for A, B, C.
        died: shape (stays,), in-hospital death, 0 or 1.
        minute: shape (events,), 0..2880 since admission.
        parameter: shape (events,), index into PARAMETERS.
        value: shape (events,), float32; a missing descriptor is -1, as published.
    """

    record_id: NDArray[np.int64]
    set_index: NDArray[np.int64]
    died: NDArray[np.int64]
    offsets: NDArray[np.int64]
    minute: NDArray[np.int16]
    parameter: NDArray[np.uint8]
    value: NDArray[np.float32]


def icu2012(name: str, files: Mapping[str, Content]) -> JointTable:
    """The table `icu2012` of summaries, the bedside's columns first, or `icu2012-714` of windows.

    Sets A and B are the training rows, and set C is held out.
    """
    if summary := files.get("icu2012_summary.npz"):
        arrays = load_arrays(summary.data, summary.path)
    else:
        sources = [file.sha256 for file in files.values()]
        arrays = cached(name, sources, lambda: _built(name, files))
    columns, values = SUMMARY_COLUMNS, arrays["X"].astype(np.float64)
    first, unit, label_last = len(BEDSIDE_COLUMNS), 1, False
    if name == "icu2012-714":
        columns, unit, label_last = WINDOW_COLUMNS, len(WINDOW_COLUMNS) // len(SERIES), True
        first = block_sizes(len(SERIES), 2)[0] * unit
    else:
        # A stable sort keeps the rest of the order.
        order = sorted(range(len(columns)), key=lambda i: columns[i] not in BEDSIDE_COLUMNS)
        columns, values = tuple(columns[i] for i in order), values[:, order]
    test, died = arrays["set"] == SETS.index("c"), arrays["y"].astype(np.int64)
    return JointTable(
        columns,
        fill_and_clip(values, test),
        died,
        test,
        label_names=("survived", "died"),
        party_columns=(first, len(columns) - first),
        ids=arrays["record_id"],
        label_last=label_last,
        unit_columns=unit,
    )


def _built(name: str, files: Mapping[str, Content]) -> dict[str, NDArray[Any]]:
    if file := files.get("icu2012_events.npz"):
        events = read_events(file.data, file.path)
    else:
        by_stem = {name.split(".", maxsplit=1)[0]: file.data for name, file in files.items()}
        events = parse_archives(
            {letter: by_stem[f"set-{letter}"] for letter in SETS},
            {letter: by_stem[f"Outcomes-{letter}"] for letter in SETS},
        )
    return {
        "X": (window_table if name == "icu2012-714" else summary_table)(events),
        "set": events.set_index,
        "y": events.died,
        "record_id": events.record_id,
    }


def read_events(data: bytes, source: object) -> Events:
    """Events from the npz file that the catalog pins."""
    arrays = load_arrays(data, source)
    record_id, set_index, died, offsets = (
        arrays[name].astype(np.int64) for name in ("record_id", "set", "y", "offsets")
    )
    of_events = arrays["minute"], arrays["parameter"], arrays["value"]
    return Events(record_id, set_index, died, offsets, *of_events)


def parse_archives(archives: Mapping[str, bytes], outcomes: Mapping[str, bytes]) -> Events:
    """Events from the publisher's archives of one text file a stay, stays sorted by set and id.

    Archives (set-*.tar.gz or set-*.zip) and outcomes (Outcomes-*.txt), which the catalog pins, are
    given by set: "a", "b", "c". Lines without a parameter name (2,403 in set C) and the RecordID
    line are no observations.

    Raises:
        DataError: a line that is no observation either, named with its file.
    """
    parts = [
        _parse_set(archives[letter], outcomes[letter], number)
        for number, letter in enumerate(SETS)
        if letter in archives
    ]
    joined = [np.concatenate(columns) for columns in zip(*parts, strict=True)]
    record_id, set_index, died, counts, minute, parameter, value = joined
    offsets = np.concatenate([[0], np.cumsum(counts)])
    return Events(record_id, set_index, died, offsets, minute, parameter, value)


def _parse_set(archive: bytes, outcomes: bytes, number: int) -> list[NDArray[Any]]:
    """By stay: id, set, death, count of events; then minute, parameter and value of its events."""
    names, lines, lengths = [], [], []
    for name, content in sorted(_records(archive)):
        body = content.decode("utf-8-sig").splitlines()[1:]
        names.append(name)
        lines += body
        lengths.append(len(body))
    stay, starts = np.repeat(np.arange(len(names)), lengths), np.cumsum([0, *lengths])
    minute, parameter, value, wrong = _parse_lines(lines)
    if len(wrong):
        line = wrong[0] - starts[stay[wrong[0]]] + 2
        raise DataError(f"{names[stay[wrong[0]]]}, line {line}: expected Time,Parameter,Value")
    ids = value[parameter == _RECORD_ID].astype(np.int64)
    observed = parameter < len(PARAMETERS)
    order = np.argsort(ids, kind="stable")
    rank = np.argsort(order)[stay]
    rows = np.argsort(rank, kind="stable")
    rows = rows[observed[rows]]
    table = np.loadtxt(outcomes.decode("utf-8-sig").splitlines()[1:], np.int64, delimiter=",")
    died = dict(np.atleast_2d(table)[:, [0, -1]].tolist())
    return [
        ids[order],
        np.full(len(names), number),
        np.array([died[record] for record in ids[order].tolist()]),
        np.bincount(rank[observed], minlength=len(names)),
        minute[rows].astype(np.int16),
        parameter[rows].astype(np.uint8),
        value[rows].astype(np.float32),
    ]


def _records(archive: bytes) -> Iterator[tuple[str, bytes]]:
    stream = io.BytesIO(archive)
    if zipfile.is_zipfile(stream):
        with zipfile.ZipFile(stream) as files:
            texts = (name for name in files.namelist() if name.endswith(".txt"))
            yield from ((name, files.read(name)) for name in texts)
        return
    stream.seek(0)
    with tarfile.open(fileobj=stream) as files:
        for member in files:
            content = files.extractfile(member) if member.name.endswith(".txt") else None
            if content:
                yield member.name, content.read()


def _parse_lines(lines: list[str]) -> tuple[NDArray[Any], ...]:
    """Minutes, numbers of parameters and values of lines, and which lines have none of these."""
    codes = {name: index for index, name in enumerate((*PARAMETERS, "RecordID", ""))}
    cells = pl.DataFrame({"line": lines}, schema={"line": pl.String}).select(
        pl.col("line").str.splitn(",", 3).struct.rename_fields(["time", "parameter", "value"])
    )
    frame = cells.unnest("line").select(
        hours=pl.col("time").str.extract(r"^(\d\d):[0-5]\d$").cast(pl.Int64),
        minutes=pl.col("time").str.extract(r"^\d\d:([0-5]\d)$").cast(pl.Int64),
        parameter=pl.col("parameter").replace_strict(codes, default=None, return_dtype=pl.Int64),
        value=pl.col("value").cast(pl.Float64, strict=False),
    )
    minute, parameter, value = frame["hours"] * 60 + frame["minutes"], *frame[:, 2:]
    no_number = (parameter != codes[""]) & ~value.is_finite().fill_null(False)
    wrong = minute.is_null() | (minute > _LAST_MINUTE) | parameter.is_null() | no_number
    columns = (minute, parameter, value.fill_null(0.0), wrong.fill_null(True).arg_true())
    return tuple(each.to_numpy() for each in columns)


def summary_table(events: Events) -> NDArray[np.float32]:
    """Five descriptors and first, last, min, max, mean, count of 37 parameters: shape (stays, 227).

    NaN where nothing was measured (count 0); descriptors of -1 are missing. Mantissas are rounded
    to 14 bits (relative error at most 3.1e-5), as in the summary file, which this equals.
    """
    stays, stay = events.record_id.size, _stay_of_event(events)
    known = ~((events.value == -1) & np.isin(events.parameter, _codes(DESCRIPTORS)))
    table = np.full((stays, len(DESCRIPTORS)), np.nan)
    for column, code in enumerate(_codes(DESCRIPTORS)):
        rows = np.flatnonzero(events.parameter == code)
        present, first = np.unique(stay[rows], return_index=True)
        first = rows[first]
        table[present, column] = np.where(known[first], events.value[first], np.nan)
    keep = known & (events.parameter < len(MEASURED))
    group = stay[keep] * len(MEASURED) + events.parameter[keep]
    order = np.argsort(group, kind="stable")
    group, value = group[order], events.value[keep][order].astype(np.float64)
    start, count = _runs(group)
    cells = np.full((stays * len(MEASURED), len(_SUMMARIES)), np.nan)
    cells[:, -1] = 0
    cells[group[start]] = np.column_stack(
        [
            value[start],
            value[start + count - 1],
            np.minimum.reduceat(value, start),
            np.maximum.reduceat(value, start),
            np.add.reduceat(value, start) / count,
            count,
        ]
    )
    return _round_mantissa(np.hstack([table, cells.reshape(stays, -1)]))


def window_table(events: Events) -> NDArray[np.float32]:
    """17 series x 7 windows x 6 statistics, a series' columns side by side: shape (stays, 714).

    As in FedBCD's MIMIC-III experiment: mean, min, max, population standard deviation, population
    skewness m3 / m2^1.5 (0 for a constant series) and count; in an empty window the count is 0 and
    the rest NaN. Values are taken as published, a weight of -1 included.
    """
    codes = np.full(len(PARAMETERS), -1)
    codes[_codes(SERIES)] = np.arange(len(SERIES))
    series = codes[events.parameter]
    keep = series >= 0
    group = (_stay_of_event(events) * len(SERIES) + series)[keep]
    order = np.argsort(group, kind="stable")
    group, minute = group[order], events.minute[keep][order]
    value = events.value[keep][order].astype(np.float64)
    stays = events.record_id.size
    table = np.full((stays * len(SERIES), len(WINDOWS), len(STATISTICS)), np.nan, dtype=np.float32)
    table[:, :, -1] = 0
    for window, (begin, end) in enumerate(WINDOWS):
        inside = (minute >= begin) & (minute < end)
        if inside.any():
            start, _ = _runs(group[inside])
            table[group[inside][start], window] = _statistics(group[inside], value[inside])
    return table.reshape(stays, -1)


def cached(
    name: str, sources: list[str], build: Callable[[], dict[str, NDArray[Any]]]
) -> dict[str, NDArray[Any]]:
    """Built arrays from the per-user cache; else made of sources of these SHA-256 and kept."""
    key = hashlib.sha256("|".join([name, str(_RECIPE), *sources]).encode()).hexdigest()
    path = user_cache() / "built" / f"{name}-{key[:32]}.npz"
    if path.is_file():
        return load_arrays(read_content(path), path)
    arrays = build()
    stream = io.BytesIO()
    np.savez(stream, allow_pickle=False, **arrays)
    # A cache that cannot be written costs time at the next load, nothing else.
    with contextlib.suppress(DataError):
        replace_file(path, stream.getvalue(), "cache", durable=False)
    return arrays


def _statistics(group: NDArray[np.int64], value: NDArray[np.float64]) -> NDArray[np.float64]:
    start, count = _runs(group)
    low, high = np.minimum.reduceat(value, start), np.maximum.reduceat(value, start)
    mean = np.add.reduceat(value, start) / count
    centered = value - np.repeat(mean, count)
    variance = np.add.reduceat(centered**2, start) / count
    third = np.add.reduceat(centered**3, start) / count
    # By value: rounding in the mean leaves a constant series a tiny variance and any skew.
    deviation = np.where(low == high, 0.0, np.sqrt(variance))
    skew = np.divide(third, deviation**3, out=np.zeros_like(third), where=deviation > 0)
    return np.column_stack([mean, low, high, deviation, skew, count])


def _runs(group: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    start = np.flatnonzero(np.concatenate([[True], group[1:] != group[:-1]]))
    return start, np.diff(np.append(start, group.size))


def _stay_of_event(events: Events) -> NDArray[np.int64]:
    return np.repeat(np.arange(events.record_id.size), np.diff(events.offsets))


def _codes(names: tuple[str, ...]) -> list[int]:
    return [PARAMETERS.index(name) for name in names]


def _round_mantissa(values: NDArray[np.float64]) -> NDArray[np.float32]:
    bits = values.astype(np.float32).view(np.uint32)
    rounded = (bits + (1 << (_ROUNDED_BITS - 1))) >> _ROUNDED_BITS << _ROUNDED_BITS
    return np.where(np.isnan(values), np.nan, rounded.view(np.float32)).astype(np.float32)


def fill_and_clip(values: NDArray[np.float64], test: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Fill NaN by the training median, then clip to the training 0.5 and 99.5 percentiles.

    Everything is fitted column by column on the training rows, those that are not `test`; a column
    never seen in training becomes 0.
    """
    train = values[~test]
    median = np.zeros(train.shape[1])
    seen = ~np.isnan(train).all(axis=0)
    median[seen] = np.nanmedian(train[:, seen], axis=0)
    filled = np.where(np.isnan(values), median, values)
    low, high = np.percentile(filled[~test], [0.5, 99.5], axis=0)
    return np.clip(filled, low, high)
