"""What the label party makes of H: columns of a scores file, and metrics where it has labels."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from securevfl.arrays import FloatArray, IntArray
from securevfl.errors import ConfigError, DataError
from securevfl.models.probabilities import class_numbers, has_probabilities, probabilities
from securevfl.models.scores import auc
from securevfl.models.storage import ModelHeader

Columns = dict[str, Sequence[str] | FloatArray]


def score_columns(
    header: ModelHeader, id_column: str, ids: Sequence[str], predictions: FloatArray
) -> Columns:
    """The columns of a scores file, by name, in their order.

    For two classes `probability`, of the second one, and `class`; beyond two `probability_<class>`
    of each, and `class`. A loss without probabilities has `score` in their place, which is H.

    Args:
        header: of the label party's part.
        id_column: what ids are called.
        ids: of the rows.
        predictions: H, shape (rows, C).

    Raises:
        ConfigError: the id column has the name of another one.
    """
    names = header.class_names or ()
    columns: Columns = {}
    if not has_probabilities(header.loss):
        columns["score"] = predictions[:, 0]
    elif len(names) == 2:  # noqa: PLR2004
        columns["probability"] = probabilities(header.loss, predictions)[:, 1]
    else:
        shares = probabilities(header.loss, predictions).T
        columns |= {f"probability_{name}": each for name, each in zip(names, shares, strict=True)}
    columns["class"] = [names[code] for code in class_numbers(header.loss, predictions)]
    if id_column in columns:
        raise ConfigError(f"id_column = {id_column!r}: a column of scores has that name")
    return {id_column: ids, **columns}


@dataclass(frozen=True)
class Metrics:
    """How good scores are.

    Attributes:
        rows: with a label.
        auc: area under the ROC curve; None where one class alone occurs.
        accuracy: share of rows whose most likely class is theirs.
    """

    rows: int
    auc: float | None
    accuracy: float


def metrics(header: ModelHeader, predictions: FloatArray, labels: Sequence[str]) -> Metrics:
    """How good scores of labelled rows are.

    Args:
        header: of the label party's part.
        predictions: H, shape (rows, C).
        labels: as the file has them.

    Raises:
        DataError: labels that are no class of the model.
    """
    codes = _codes(header.class_names or (), labels)
    chosen = class_numbers(header.loss, predictions)
    several = len(np.unique(codes)) > 1
    return Metrics(
        rows=len(codes),
        auc=auc(predictions, codes) if several else None,
        accuracy=float(np.mean(chosen == codes)),
    )


def _codes(names: Sequence[str], labels: Sequence[str]) -> IntArray:
    """Class numbers of labels; numbers are compared by value, as in training."""
    known = {_as_class(name): code for code, name in enumerate(names)}
    codes = [known.get(_as_class(label), -1) for label in labels]
    if unknown := codes.count(-1):
        first = labels[codes.index(-1)]
        raise DataError(
            f"labels: {unknown} are no class of the model, the first is {first!r}; classes are "
            f"{', '.join(names)}"
        )
    return np.array(codes, np.int64)


def _as_class(label: str) -> str | float:
    try:
        return float(label)
    except ValueError:
        return label
