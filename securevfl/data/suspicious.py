"""What a party can notice in its own features before anyone trains on them."""

import hashlib
import re

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import Labels
from securevfl.data.notes import Kind, Note
from securevfl.data.tables import PartyTable

COPY = 0.999
FEWEST = 20
_ID_NAME = re.compile(
    r"(^|[_\s.-])(id|uuid|guid|nr|no|key|index|rownum)($|[_\s.-])|[a-z](Id|ID|Nr)$"
)


def suspicious(table: PartyTable, labels: Labels | None) -> list[Note]:
    """Columns that are the label, an id, constant, or another column once more.

    A feature party has no labels, so whether one of its columns is a copy of them only the label
    party could tell, and only of its own columns.

    Args:
        table: a party's training rows.
        labels: at the label party, shape (N,).
    """
    notes: list[Note] = []
    seen: dict[bytes, str] = {}
    targets = [] if labels is None else _targets(labels)

    def note(kind: Kind, column: str, text: str) -> None:
        notes.append(Note(kind, table.name, column, text, warning=kind == "label"))

    for place, column in enumerate(table.columns):
        values = np.ascontiguousarray(table.train[:, place])
        if (values == values[0]).all():
            note("constant", column, "is the same in all training rows")
            continue
        earlier = seen.setdefault(hashlib.blake2b(values.tobytes()).digest(), column)
        if earlier != column:
            note("duplicate", column, f"is {earlier!r} once more")
        if any(_correlation(values, target) > COPY for target in targets):
            note("label", column, "is a copy of the label, or nearly: no model is needed for it")
        elif _is_id(column, values):
            note("id", column, "has another whole number in every row, as an id has")
    return notes


def _targets(labels: Labels) -> list[NDArray[np.float64]]:
    """The labels, and of more than two classes each."""
    targets = [labels.astype(np.float64)]
    classes = np.unique(labels) if labels.dtype.kind == "i" else np.array([])
    if len(classes) > 2:  # noqa: PLR2004
        targets += [(labels == each).astype(np.float64) for each in classes]
    return targets


def _correlation(values: NDArray[np.float64], target: NDArray[np.float64]) -> float:
    values, target = values - values.mean(), target - target.mean()
    lengths = np.linalg.norm(values) * np.linalg.norm(target)
    return float(abs(values @ target) / lengths) if 0 < lengths < np.inf else 0.0


def _is_id(column: str, values: NDArray[np.float64]) -> bool:
    if len(values) < FEWEST or (values != np.rint(values)).any():
        return False
    if len(np.unique(values)) < len(values):
        return False
    dense = values.max() - values.min() < 2 * len(values)
    return bool(dense or _ID_NAME.search(column))
