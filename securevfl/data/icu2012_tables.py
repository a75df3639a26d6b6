"""The two tables made from the ICU events: summaries (227 columns), windows (714 columns)."""

import contextlib
import hashlib
import os
import secrets
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.data.formats import read_content
from securevfl.data.icu2012 import DESCRIPTORS, MEASURED, PARAMETERS, Events, load_arrays
from securevfl.data.locations import user_cache

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

SUMMARY_COLUMNS = (
    *DESCRIPTORS,
    *(f"{name}_{what}" for name in MEASURED for what in _SUMMARIES),
)
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


def summary_table(events: Events) -> NDArray[np.float32]:
    """Five descriptors and first, last, min, max, mean, count of 37 parameters, one row a stay.

    NaN where nothing was measured (count 0); descriptors of -1 are missing. Mantissas are rounded
    to 14 bits (relative error at most 3.1e-5), as in the summary file, which this equals.

    Returns:
        Shape (stays, 227).
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
    """17 series x 7 windows x 6 statistics, the columns of one series side by side.

    As in FedBCD's MIMIC-III experiment: mean, min, max, population standard deviation, population
    skewness m3 / m2^1.5 (0 for a constant series) and count; in an empty window the count is 0 and
    the rest NaN. Values are taken as published, a weight of -1 included.

    Returns:
        Shape (stays, 714).
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
    """Built arrays from the per-user cache, or built and kept there.

    Args:
        name: What is built.
        sources: SHA-256 of everything it is built from.
        build: Makes it.

    Raises:
        DataError: A damaged cache file.
    """
    key = hashlib.sha256("|".join([name, str(_RECIPE), *sources]).encode()).hexdigest()
    path = user_cache() / "built" / f"{name}-{key[:32]}.npz"
    if path.is_file():
        return load_arrays(read_content(path), path)
    arrays = build()
    part = path.with_name(f".{secrets.token_hex(4)}.part")
    # A cache that cannot be written costs time at the next load, nothing else.
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with part.open("xb") as stream:
                np.savez(stream, allow_pickle=False, **arrays)
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
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
