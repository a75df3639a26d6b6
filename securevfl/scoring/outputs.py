"""The label party's results from H: columns of a scores file, and metrics if it has labels."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from securevfl.arrays import FloatArray, IntArray, Labels
from securevfl.data.labels import as_compared
from securevfl.errors import ConfigError, DataError
from securevfl.models.losses import class_numbers, has_probabilities, probabilities
from securevfl.models.ranking import Cutoff, Cutoffs, Ranking, ranking
from securevfl.models.scores import (
    Calibration,
    auc,
    calibration,
    mean_absolute_error,
    mean_squared_error,
    r2,
)
from securevfl.models.storage import ModelHeader

Column = Sequence[str] | Sequence[int] | FloatArray
Columns = dict[str, Column]


def score_columns(
    header: ModelHeader,
    id_column: str,
    ids: Sequence[str],
    predictions: FloatArray,
    cutoff: float | None = None,
) -> Columns:
    """The columns of a scores file, by name, in order; `header` is the label party's.

    For two classes `probability` of the second one, and `class`; for more `probability_<class>` of
    each, and `class`. A loss without probabilities has `score` instead, which is H. Real targets
    have `prediction`, in their own units. With a cut-off `flagged` is 1 from it on, else 0.

    Raises:
        ConfigError: the id column has the name of another column.
    """
    names = header.class_names or ()
    columns: Columns = {}
    if header.classes == 0:
        columns["prediction"] = predictions[:, 0]
    elif not has_probabilities(header.loss):
        columns["score"] = predictions[:, 0]
    elif len(names) == 2:  # noqa: PLR2004
        columns["probability"] = probabilities(header.loss, predictions)[:, 1]
    else:
        shares = probabilities(header.loss, predictions).T
        columns |= {f"probability_{name}": each for name, each in zip(names, shares, strict=True)}
    if names:
        columns["class"] = [names[code] for code in class_numbers(header.loss, predictions)]
    if cutoff is not None:
        scores = next(iter(columns.values()))
        columns["flagged"] = (np.asarray(scores) >= cutoff).astype(int).tolist()
    if id_column in columns:
        raise ConfigError(f"id_column = {id_column!r}: a column of scores has that name")
    return {id_column: ids, **columns}


def rounded(columns: Columns, digits: int) -> Columns:
    """Scores with fewer digits: decimals of probabilities, else significant digits."""

    def short(name: str, values: Column) -> Column:
        if not isinstance(values, np.ndarray):
            return values
        if name.startswith("probability"):
            return values.round(digits)
        return np.array([float(f"{value:.{digits}g}") for value in values])

    return {name: short(name, values) for name, values in columns.items()}


@dataclass(frozen=True)
class Metrics:
    """Quality of scores; metrics that do not apply are None.

    Attributes:
        rows: with a label.
        auc: area under the ROC curve; None if only one class occurs.
        accuracy: fraction of rows whose most likely class is right.
        ranking: of two classes that both occur.
        calibration: of the probabilities, if there are any.
        r2: fraction of the variance of real targets that is explained; None if all are the same.
        rmse: root mean squared error, in the targets' units.
        mae: mean absolute error.
    """

    rows: int
    auc: float | None = None
    accuracy: float | None = None
    ranking: Ranking | None = None
    calibration: Calibration | None = None
    r2: float | None = None
    rmse: float | None = None
    mae: float | None = None


def metrics(header: ModelHeader, predictions: FloatArray, labels: Sequence[str | None]) -> Metrics:
    """Quality of labelled rows' scores, with the header's classes; errors of `known_labels`."""
    truth = known_labels(header, labels)
    if not len(truth):
        return Metrics(0)
    predictions = predictions[[row for row, label in enumerate(labels) if label is not None]]
    if header.classes == 0:
        targets = truth.astype(np.float64)
        return Metrics(
            rows=len(targets),
            r2=r2(predictions, targets) if np.ptp(targets) > 0 else None,
            rmse=float(np.sqrt(mean_squared_error(predictions, targets))),
            mae=mean_absolute_error(predictions, targets),
        )
    codes = truth.astype(np.int64)
    chosen = class_numbers(header.loss, predictions)
    several, binary = len(np.unique(codes)) > 1, header.classes == 2  # noqa: PLR2004
    likely = probabilities(header.loss, predictions) if has_probabilities(header.loss) else None
    return Metrics(
        rows=len(codes),
        auc=auc(predictions, codes) if several else None,
        accuracy=float(np.mean(chosen == codes)),
        ranking=ranking(predictions[:, 0], codes) if several and binary else None,
        calibration=None if likely is None else calibration(likely, codes),
    )


def cutoffs(
    header: ModelHeader,
    predictions: FloatArray,
    labels: Sequence[str | None],
    *,
    costs: Sequence[float],
    share: float | None,
) -> list[Cutoff]:
    """Cut-offs by costs and by share, of labelled rows' probabilities, or H if there are none."""
    found = predictions[[row for row, label in enumerate(labels) if label is not None]]
    if has_probabilities(header.loss):
        found = probabilities(header.loss, found)[:, 1:]
    every = Cutoffs(found[:, 0], known_labels(header, labels))
    by_cost = [] if not costs else [every.by_cost(*costs)]
    return by_cost if share is None else [*by_cost, every.by_share(share)]


def known_labels(header: ModelHeader, labels: Sequence[str | None]) -> Labels:
    """The known labels as class numbers or targets; a DataError for labels of another model."""
    known = [label for label in labels if label is not None]
    if header.classes != 0:
        return _codes(header.class_names or (), known)
    try:
        targets = np.array([float(label) for label in known])
    except ValueError as error:
        raise DataError(f"labels: the model predicts numbers ({error})") from error
    if not np.isfinite(targets).all():
        raise DataError("labels: NaN or infinite targets")
    return targets


def _codes(names: Sequence[str], labels: Sequence[str]) -> IntArray:
    """Class numbers of labels; numbers are compared by value, as in training."""
    known = {as_compared(name): code for code, name in enumerate(names)}
    codes = [known.get(as_compared(label), -1) for label in labels]
    if unknown := codes.count(-1):
        first = labels[codes.index(-1)]
        raise DataError(
            f"labels: {unknown} are not classes of the model, the first is {first!r}; classes are "
            f"{', '.join(names)}"
        )
    return np.array(codes, np.int64)
