"""Loading the built-in data sets, each with its published or documented split and parties.

File contents are verified beforehand. Sets that come with scikit-learn are read from its files,
since importing `sklearn.datasets` would take longer than everything else that a command does first.
"""

import gzip
import struct
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.data.catalog import Content, entry_of, load_arrays, open_files, pair_of
from securevfl.data.features import encoded
from securevfl.data.icu2012 import icu2012
from securevfl.data.libsvm import parse_libsvm
from securevfl.data.splits import JointTable, first_fifth, last_rows, part, stratified_fifth
from securevfl.data.tables import VerticalDataset
from securevfl.errors import DataError
from securevfl.recipe import Preprocessing

A9A_COLUMNS = 123
A9A_FIRST_PARTY = 67
DIGITS_SIDE = 8
MNIST_SIDE = 28
_MEASURED = (
    *("radius", "texture", "perimeter", "area", "smoothness", "compactness", "concavity"),
    *("concave points", "symmetry", "fractal dimension"),
)
BREAST_CANCER_COLUMNS = (
    *(f"mean {name}" for name in _MEASURED),
    *(f"{name} error" for name in _MEASURED),
    *(f"worst {name}" for name in _MEASURED),
)
DIABETES_COLUMNS = ("age", "sex", "bmi", "bp", "s1", "s2", "s3", "s4", "s5", "s6")
CREDIT_NAMES = (
    *("ID", "LIMIT_BAL", "SEX", "EDUCATION", "MARRIAGE", "AGE"),
    *(f"PAY_{month}" for month in (0, 2, 3, 4, 5, 6)),
    *(f"BILL_AMT{month}" for month in range(1, 7)),
    *(f"PAY_AMT{month}" for month in range(1, 7)),
)
CREDIT_CATEGORIES = {"SEX": range(1, 3), "EDUCATION": range(7), "MARRIAGE": range(4)}
WIKIPEDIA_LABELS = (
    *("art", "biology", "geography", "history", "literature"),
    *("media", "music", "royalty", "sport", "warfare"),
)
TEN_DIGITS = tuple(map(str, range(10)))


def load(
    name: str,
    *,
    parties: int | None = None,
    data_dir: Path | None = None,
    preprocess: Preprocessing | None = None,
) -> VerticalDataset[Any]:
    """Load a data set as its parties hold it.

    Args:
        name: see `securevfl data list`; also `mnist-3v8` and every other pair of digits.
        parties: number of parties; other than the data set's own, the columns (icu2012-714: the
            variables) are split into contiguous, nearly equal blocks.
        data_dir: searched before $SECUREVFL_DATA and the per-user cache.
        preprocess: how columns are encoded; None takes them as they are.

    Raises:
        ConfigError: an unknown name (the nearest are named), an impossible number of parties, or
            no column that `preprocess` names.
        DataError: missing, changed or malformed files.
    """
    entry = entry_of(name)
    files = open_files(entry, data_dir=data_dir) if entry.file_sets else {}
    family = entry.name.split("-", maxsplit=1)[0]
    found = part(entry.name, _FAMILIES[family](entry.name, files), entry.parties, parties)
    return found if preprocess is None else encoded(found, preprocess)


def parse_idx(file: Content) -> NDArray[np.uint8]:
    """An IDX file of bytes: two zeros, type, number of dimensions, sizes (big-endian), values."""
    start = 4 + 4 * file.data[3]
    shape = struct.unpack(f">{file.data[3]}I", file.data[4:start])
    return np.frombuffer(file.data, np.uint8, offset=start).reshape(shape)


def embedded(name: str, *, skipped: int = 0, delimiter: str | None = None) -> NDArray[np.float64]:
    """The numbers in one of scikit-learn's files, shape (rows, columns)."""
    spec = find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise DataError("scikit-learn is not installed, whose files hold the embedded data")
    path = Path(spec.origin).parent / "datasets" / "data" / name
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    return np.loadtxt(text.splitlines()[skipped:], delimiter=delimiter, ndmin=2)


def digits() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Images of shape (1797, 64), pixels 0 to 16 row by row, and the digits."""
    table = embedded("digits.csv.gz", delimiter=",")
    return table[:, :-1], table[:, -1].astype(np.int64)


def _breast_cancer(_name: str, _files: Mapping[str, Content]) -> JointTable:
    table = embedded("breast_cancer.csv", skipped=1, delimiter=",")
    return JointTable(
        BREAST_CANCER_COLUMNS,
        table[:, :-1],
        table[:, -1].astype(np.int64),
        first_fifth(len(table)),
        label_names=("malignant", "benign"),
        party_columns=(15, 15),
    )


def _digits(_name: str, _files: Mapping[str, Content]) -> JointTable:
    values, labels = digits()
    images = _by_image_column(values.reshape(-1, DIGITS_SIDE, DIGITS_SIDE)) / 16.0
    return JointTable(
        _pixels(DIGITS_SIDE),
        images,
        labels,
        first_fifth(labels.size),
        label_names=TEN_DIGITS,
        party_columns=(DIGITS_SIDE**2 // 2,) * 2,
        label_last=True,
        standardize=False,
    )


def _diabetes(_name: str, _files: Mapping[str, Content]) -> JointTable:
    """Patients, unscaled, and the progression of the disease after one year."""
    values = embedded("diabetes_data_raw.csv.gz")
    targets = embedded("diabetes_target.csv.gz")[:, 0]
    return JointTable(
        DIABETES_COLUMNS,
        values,
        targets,
        first_fifth(targets.size),
        label_names=(),
        party_columns=(4, 6),  # who a patient is, and the blood serum
    )


def _a9a(_name: str, files: Mapping[str, Content]) -> JointTable:
    train, test = (files[name].data.decode().splitlines() for name in ("a9a", "a9a.t"))
    rows = parse_libsvm(files["a9a"].path, train + test)
    values = np.zeros((len(rows.lengths), A9A_COLUMNS))
    values[np.repeat(np.arange(len(values)), rows.lengths), rows.indices - 1] = rows.values
    return JointTable(
        tuple(f"x{number}" for number in range(1, A9A_COLUMNS + 1)),
        values,
        (np.asarray(rows.labels) > 0).astype(np.int64),
        last_rows(len(test), len(values)),
        label_names=("-1", "+1"),
        party_columns=(A9A_FIRST_PARTY, A9A_COLUMNS - A9A_FIRST_PARTY),
        standardize=False,
    )


def _credit(name: str, files: Mapping[str, Content]) -> JointTable:
    (file,) = files.values()
    values = np.loadtxt(file.data.decode().splitlines()[1:], delimiter=",")
    # Both pinned files have the same columns in the same order, with the label last.
    column = dict(zip(CREDIT_NAMES, values.T[:-1], strict=True))
    payments = {payment: column[payment] for payment in CREDIT_NAMES[6:]}
    people = {"LIMIT_BAL": column["LIMIT_BAL"], "AGE": column["AGE"]}
    for kind, categories in CREDIT_CATEGORIES.items():
        people |= {f"{kind}={value}": column[kind] == value for value in categories}
    first, second = (people, payments) if name == "credit-swapped" else (payments, people)
    blocks = first | second
    labels = values[:, -1].astype(np.int64)
    joint = np.column_stack(list(blocks.values())).astype(np.float64)
    return JointTable(
        tuple(blocks),
        joint,
        labels,
        stratified_fifth(labels),
        label_names=("0", "1"),
        party_columns=(len(first), len(second)),
        ids=column["ID"].astype(np.int64),
    )


def _mnist(name: str, files: Mapping[str, Content]) -> JointTable:
    label_of, label_names = _digit_labels(name)
    numerals, images = (
        [parse_idx(files[f"{split}-{kind}-ubyte"]) for split in ("train", "t10k")]
        for kind in ("labels-idx1", "images-idx3")
    )
    labels = label_of[np.concatenate(numerals)]
    chosen = np.flatnonzero(labels >= 0)
    return JointTable(
        _pixels(MNIST_SIDE),
        _by_image_column(np.concatenate(images)[chosen]) / 255.0,
        labels[chosen],
        last_rows(len(numerals[1]), len(labels))[chosen],
        label_names=label_names,
        party_columns=(MNIST_SIDE**2 // 2,) * 2,
        ids=chosen,
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
    return label_of, TEN_DIGITS


def _by_image_column(images: NDArray[Any]) -> NDArray[Any]:
    # Column by column, so that any block of features is a vertical strip.
    return images.transpose(0, 2, 1).reshape(len(images), -1)


def _pixels(side: int) -> tuple[str, ...]:
    return tuple(f"row{row}_column{column}" for column in range(side) for row in range(side))


# Two views per object, one at each party, stand in for NUS-WIDE, whose image features are not
# available. As with its tags, the label party holds the view that says more about the labels.


def _wikipedia(name: str, files: Mapping[str, Content]) -> JointTable:
    """Ten topic proportions of an article's text, then 128 visual words of its image.

    Classes are ten categories (Rasiwasia et al. 2010), or biology against the others.
    """
    (file,) = files.values()
    arrays = load_arrays(file.data, file.path)
    names: tuple[str, ...] = WIKIPEDIA_LABELS
    views = [
        np.vstack([arrays[f"X_{view}_{split}"] for split in ("train", "test")])
        for view in ("text", "image")
    ]
    labels = np.concatenate([arrays["y_train"], arrays["y_test"]]).astype(np.int64)
    if name == "wikipedia-biology":
        labels = (labels == names.index("biology")).astype(np.int64)
        names = ("others", "biology")
    topics, words = (view.shape[1] for view in views)
    return JointTable(
        (*(f"topic{i}" for i in range(topics)), *(f"word{i}" for i in range(words))),
        np.hstack(views).astype(np.float64),
        labels,
        last_rows(len(arrays["y_test"]), len(labels)),
        label_names=names,
        party_columns=(topics, words),
    )


def _mfeat(name: str, files: Mapping[str, Content]) -> JointTable:
    """240 averages of pixels, then 76 Fourier coefficients, of numerals (UCI, Duin).

    Classes are the digits, or under mfeat-even-odd whether a digit is odd.
    """
    (file,) = files.values()
    arrays = load_arrays(file.data, file.path)
    all_views, columns = arrays["view_names"].tolist(), arrays["view_index"]
    views = {
        view: arrays["X"][:, columns == all_views.index(view)].astype(np.float64)
        for view in ("pix", "fou")
    }
    numerals = arrays["y"].astype(np.int64)
    even_odd = name == "mfeat-even-odd"
    labels = numerals % 2 if even_odd else numerals
    return JointTable(
        tuple(f"{view}{i}" for view, block in views.items() for i in range(block.shape[1])),
        np.hstack(list(views.values())),
        labels,
        first_fifth(labels.size),
        label_names=("even", "odd") if even_odd else TEN_DIGITS,
        party_columns=tuple(block.shape[1] for block in views.values()),
    )


_FAMILIES = {
    "a9a": _a9a,
    "breast_cancer": _breast_cancer,
    "credit": _credit,
    "diabetes": _diabetes,
    "digits": _digits,
    "icu2012": icu2012,
    "mfeat": _mfeat,
    "mnist": _mnist,
    "wikipedia": _wikipedia,
}
