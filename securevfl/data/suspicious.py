"""What a party can notice in its own features before anyone trains on them."""

import re

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import Labels
from securevfl.data.scaling import Scaling
from securevfl.data.tables import Kind, Note, PartyTable

COPY = 0.999
FEWEST = 20
FIRST = 1000
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
    twins: dict[bytes, list[int]] = {}
    copies = _copies(table.train, labels)

    def note(kind: Kind, column: str, text: str) -> None:
        notes.append(Note(kind, table.name, column, text, warning=kind == "label"))

    for place, column in enumerate(table.columns):
        values, head = table.train[:, place], table.train[:FIRST, place]
        # Most columns show at once that they are none of these.
        if (head == head[0]).all() and (values == values[0]).all():
            note("constant", column, "is the same in all training rows")
            continue
        alike = twins.setdefault(np.ascontiguousarray(head).tobytes(), [])
        earlier = next((e for e in alike if np.array_equal(table.train[:, e], values)), None)
        alike.append(place)
        if earlier is not None:
            note("duplicate", column, f"is {table.columns[earlier]!r} once more")
        if copies[place]:
            note("label", column, "is a copy of the label, or nearly: no model is needed for it")
        elif _is_id(column, values):
            note("id", column, "has another whole number in every row, as an id has")
    return notes


def _copies(train: NDArray[np.float64], labels: Labels | None) -> NDArray[np.bool_]:
    """Which columns go with the label, or with a class, as closely as `COPY`."""
    if labels is None:
        return np.zeros(train.shape[1], np.bool_)
    targets = np.column_stack(_targets(labels))
    targets -= targets.mean(axis=0)
    # Centred targets leave out what is common to all rows of a column.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        lengths = Scaling.fit(train).scale[:, None] * np.sqrt(len(train))
        together = np.abs(train.T @ targets) / (lengths * np.linalg.norm(targets, axis=0))
    copies: NDArray[np.bool_] = (together > COPY).any(axis=1)
    return copies


def _targets(labels: Labels) -> list[NDArray[np.float64]]:
    """The labels, and of more than two classes each."""
    targets = [labels.astype(np.float64)]
    classes = np.unique(labels) if labels.dtype.kind == "i" else np.array([])
    if len(classes) > 2:  # noqa: PLR2004
        targets += [(labels == each).astype(np.float64) for each in classes]
    return targets


def _is_id(column: str, values: NDArray[np.float64]) -> bool:
    whole = len(values) >= FEWEST and all(
        (part == np.rint(part)).all() for part in (values[:FIRST], values[FIRST:])
    )
    if not whole:
        return False
    if len(np.unique(values)) < len(values):
        return False
    dense = values.max() - values.min() < 2 * len(values)
    return bool(dense or _ID_NAME.search(column))
