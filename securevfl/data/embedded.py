"""The data sets that come with scikit-learn, read from its files.

Importing `sklearn.datasets` takes longer than all else that a command does before it works.
"""

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from securevfl.errors import DataError

_MEASURED = (
    *("radius", "texture", "perimeter", "area", "smoothness", "compactness", "concavity"),
    *("concave points", "symmetry", "fractal dimension"),
)
BREAST_CANCER_COLUMNS = (
    *(f"mean {name}" for name in _MEASURED),
    *(f"{name} error" for name in _MEASURED),
    *(f"worst {name}" for name in _MEASURED),
)
BREAST_CANCER_LABELS = ("malignant", "benign")
DIABETES_COLUMNS = ("age", "sex", "bmi", "bp", "s1", "s2", "s3", "s4", "s5", "s6")


def breast_cancer() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Features of shape (569, 30) and labels, 0 for malignant.

    Raises:
        DataError: scikit-learn has no such file.
    """
    return _table("breast_cancer.csv", skipped=1)


def digits() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Images of shape (1797, 64), pixels 0 to 16 row by row, and the digits.

    Raises:
        DataError: scikit-learn has no such file.
    """
    return _table("digits.csv.gz", skipped=0)


def diabetes() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Features of shape (442, 10), unscaled, and the progression of the disease after a year.

    Raises:
        DataError: scikit-learn has no such file.
    """
    return _numbers("diabetes_data_raw.csv.gz"), _numbers("diabetes_target.csv.gz")[:, 0]


def _table(name: str, skipped: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    table = _numbers(name, skipped=skipped, delimiter=",")
    return table[:, :-1], table[:, -1].astype(np.int64)


def _numbers(name: str, *, skipped: int = 0, delimiter: str | None = None) -> NDArray[np.float64]:
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
