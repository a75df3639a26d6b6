"""Loading the known data sets, each with its published or documented split and parties."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.data import embedded
from securevfl.data.catalog import entry_of, pair_of
from securevfl.data.formats import parse_csv, parse_idx, parse_libsvm
from securevfl.data.icu2012 import SETS, Events, load_arrays, parse_archives, read_events
from securevfl.data.icu2012_tables import (
    BEDSIDE_COLUMNS,
    SERIES,
    SUMMARY_COLUMNS,
    WINDOW_COLUMNS,
    cached,
    summary_table,
    window_table,
)
from securevfl.data.locations import Content, open_files
from securevfl.data.multiview import mfeat, wikipedia
from securevfl.data.scaling import fill_and_clip
from securevfl.data.splits import JointTable, block_sizes, first_fifth, part, stratified_fifth
from securevfl.data.tables import VerticalDataset

A9A_COLUMNS = 123
A9A_FIRST_PARTY = 67
DIGITS_SIDE = 8
MNIST_SIDE = 28
CREDIT_NAMES = (
    *("ID", "LIMIT_BAL", "SEX", "EDUCATION", "MARRIAGE", "AGE"),
    *(f"PAY_{month}" for month in (0, 2, 3, 4, 5, 6)),
    *(f"BILL_AMT{month}" for month in range(1, 7)),
    *(f"PAY_AMT{month}" for month in range(1, 7)),
)
CREDIT_CATEGORIES = {"SEX": range(1, 3), "EDUCATION": range(7), "MARRIAGE": range(4)}


def load(
    name: str,
    *,
    parties: int | None = None,
    data_dir: Path | None = None,
    variant: str | None = None,
) -> VerticalDataset:
    """Load a data set as its parties hold it.

    Args:
        name: See `securevfl data list`; `mnist-3v8` and every other pair of digits too.
        parties: Into how many parties to part it; the default number gives the default parties,
            any other K contiguous, nearly equal blocks of columns (icu2012-714: of variables).
        data_dir: Looked in before $SECUREVFL_DATA and the per-user cache.
        variant: Joined to the name by "-": ("mnist", "3v8") is "mnist-3v8".

    Raises:
        ConfigError: Unknown name (the nearest are named) or a number of parties that cannot be.
        DataError: Files missing, changed or malformed.
    """
    entry = entry_of(name if variant is None else f"{name}-{variant}")
    if entry.name == "breast_cancer":
        table = _breast_cancer()
    elif entry.name == "digits":
        table = _digits()
    elif entry.name == "diabetes":
        table = _diabetes()
    else:
        files = open_files(entry.name, data_dir=data_dir)
        family = entry.name.split("-", maxsplit=1)[0]
        table = _FAMILIES[family](entry.name, files)
    return part(entry.name, table, entry.parties, parties)


def _rows(
    values: NDArray[np.float64], labels: NDArray[np.int64], test: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    return values[~test], values[test], labels[~test], labels[test]


def _breast_cancer() -> JointTable:
    values, labels = embedded.breast_cancer()
    test = first_fifth(labels.size)
    return JointTable(
        embedded.BREAST_CANCER_COLUMNS,
        *_rows(values, labels, test),
        train_ids=np.flatnonzero(~test),
        label_names=embedded.BREAST_CANCER_LABELS,
        party_columns=(15, 15),
    )


def _digits() -> JointTable:
    values, labels = embedded.digits()
    test = first_fifth(labels.size)
    images = values.reshape(-1, DIGITS_SIDE, DIGITS_SIDE)
    half = DIGITS_SIDE * DIGITS_SIDE // 2
    return JointTable(
        _pixels(DIGITS_SIDE),
        *_rows(_by_image_column(images) / 16.0, labels, test),
        train_ids=np.flatnonzero(~test),
        label_names=tuple(map(str, range(10))),
        party_columns=(half, half),
        label_last=True,
        standardize=False,
    )


def _diabetes() -> JointTable:
    values, targets = embedded.diabetes()
    test = first_fifth(targets.size)
    return JointTable(
        embedded.DIABETES_COLUMNS,
        values[~test],
        values[test],
        targets[~test],
        targets[test],
        train_ids=np.flatnonzero(~test),
        label_names=(),
        party_columns=(4, 6),  # who a patient is, and the blood serum
    )


def _a9a(_name: str, files: Mapping[str, Content]) -> JointTable:
    (train, train_labels), (test, test_labels) = (
        parse_libsvm(files[name].data, A9A_COLUMNS, files[name].path) for name in ("a9a", "a9a.t")
    )
    return JointTable(
        tuple(f"x{number}" for number in range(1, A9A_COLUMNS + 1)),
        train,
        test,
        (train_labels > 0).astype(np.int64),
        (test_labels > 0).astype(np.int64),
        train_ids=np.arange(train_labels.size),
        label_names=("-1", "+1"),
        party_columns=(A9A_FIRST_PARTY, A9A_COLUMNS - A9A_FIRST_PARTY),
        standardize=False,
    )


def _credit(name: str, files: Mapping[str, Content]) -> JointTable:
    (file,) = files.values()
    _, values = parse_csv(file.data, file.path)
    # Two pinned files, the same columns in the same order under two headers; the label is last.
    column = dict(zip(CREDIT_NAMES, values.T[:-1], strict=True))
    payments = {payment: column[payment] for payment in CREDIT_NAMES[6:]}
    people = {"LIMIT_BAL": column["LIMIT_BAL"], "AGE": column["AGE"]}
    for kind, categories in CREDIT_CATEGORIES.items():
        people |= {f"{kind}={value}": column[kind] == value for value in categories}
    first, second = (people, payments) if name == "credit-swapped" else (payments, people)
    blocks = first | second
    labels = values[:, -1].astype(np.int64)
    test = stratified_fifth(labels)
    return JointTable(
        tuple(blocks),
        *_rows(np.column_stack(list(blocks.values())).astype(np.float64), labels, test),
        train_ids=column["ID"].astype(np.int64)[~test],
        label_names=("0", "1"),
        party_columns=(len(first), len(second)),
    )


def _mnist(name: str, files: Mapping[str, Content]) -> JointTable:
    arrays = []
    for split in ("train", "t10k"):
        for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"):
            file = files[f"{split}-{kind}"]
            arrays.append(parse_idx(file.data, file.path))
    train, train_digits, test, test_digits = arrays
    label_of, label_names = _digit_labels(name)
    train_rows, test_rows = (
        np.flatnonzero(label_of[digits] >= 0) for digits in (train_digits, test_digits)
    )
    half = MNIST_SIDE * MNIST_SIDE // 2
    return JointTable(
        _pixels(MNIST_SIDE),
        _by_image_column(train[train_rows]) / 255.0,
        _by_image_column(test[test_rows]) / 255.0,
        label_of[train_digits[train_rows]],
        label_of[test_digits[test_rows]],
        train_ids=train_rows,
        label_names=label_names,
        party_columns=(half, half),
        label_last=True,
        standardize=False,
    )


def _digit_labels(name: str) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    label_of = np.arange(10)
    if name == "mnist-even-odd":
        return label_of % 2, ("even", "odd")
    if pair := pair_of(name):
        label_of = np.full(10, -1)
        label_of[list(pair)] = (0, 1)
        return label_of, (str(pair[0]), str(pair[1]))
    return label_of, tuple(map(str, range(10)))


def _by_image_column(images: NDArray[Any]) -> NDArray[Any]:
    # Pixel columns from left to right, so that any block of columns is a vertical strip.
    return images.transpose(0, 2, 1).reshape(len(images), -1)


def _pixels(side: int) -> tuple[str, ...]:
    return tuple(f"row{row}_column{column}" for column in range(side) for row in range(side))


def _icu2012(name: str, files: Mapping[str, Content]) -> JointTable:
    if summary := files.get("icu2012_summary.npz"):
        arrays = load_arrays(summary.data, summary.path)
    else:
        sources = [file.sha256 for file in files.values()]
        arrays = cached(name, sources, lambda: _icu_arrays(name, files))
    test, died = arrays["set"] == SETS.index("c"), arrays["y"].astype(np.int64)
    columns, values = SUMMARY_COLUMNS, arrays["X"].astype(np.float64)
    first, unit, label_last = len(BEDSIDE_COLUMNS), 1, False
    if name == "icu2012-714":
        columns, unit, label_last = WINDOW_COLUMNS, len(WINDOW_COLUMNS) // len(SERIES), True
        first = block_sizes(len(SERIES), 2)[0] * unit
    else:
        # The bedside's columns first; a stable sort keeps the rest of the order.
        order = sorted(range(len(columns)), key=lambda i: columns[i] not in BEDSIDE_COLUMNS)
        columns, values = tuple(columns[i] for i in order), values[:, order]
    train, held_out, train_labels, test_labels = _rows(values, died, test)
    return JointTable(
        columns,
        *fill_and_clip(train, held_out),
        train_labels,
        test_labels,
        train_ids=arrays["record_id"][~test],
        label_names=("survived", "died"),
        party_columns=(first, len(columns) - first),
        label_last=label_last,
        unit_columns=unit,
    )


def _icu_arrays(name: str, files: Mapping[str, Content]) -> dict[str, NDArray[Any]]:
    events = _icu_events(files)
    return {
        "X": (window_table if name == "icu2012-714" else summary_table)(events),
        "set": events.set_index,
        "y": events.died,
        "record_id": events.record_id,
    }


def _icu_events(files: Mapping[str, Content]) -> Events:
    if file := files.get("icu2012_events.npz"):
        return read_events(file.data, file.path)
    by_stem = {name.split(".", maxsplit=1)[0]: file.data for name, file in files.items()}
    return parse_archives(
        {letter: by_stem[f"set-{letter}"] for letter in SETS},
        {letter: by_stem[f"Outcomes-{letter}"] for letter in SETS},
    )


_FAMILIES = {
    "a9a": _a9a,
    "credit": _credit,
    "icu2012": _icu2012,
    "mfeat": mfeat,
    "mnist": _mnist,
    "wikipedia": wikipedia,
}
