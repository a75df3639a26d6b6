"""Rows to score, from the parties' own files: those that all hold, as one model knows them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from securevfl.data.own_files import FileSource, PartyRows, columns_of, read_party
from securevfl.errors import DataError


@dataclass(frozen=True, eq=False)
class NewRows:
    """The same rows at every party, in the same order.

    Attributes:
        ids: of the rows that all parties hold, sorted.
        features: by party, raw columns in the order that was asked for, shape (rows, P).
        labels: as text, where the label party's file has them.
        dropped: by party, rows whose id another party lacks.
        unused: by party, columns of its file that nobody asked for.
    """

    ids: tuple[str, ...]
    features: Mapping[str, NDArray[np.float64]]
    labels: tuple[str, ...] | None
    dropped: Mapping[str, int]
    unused: Mapping[str, tuple[str, ...]]


def read_new_rows(sources: Sequence[FileSource]) -> NewRows:
    """Join the parties' files of new rows by id.

    Args:
        sources: one a party, with the columns that its model takes as `features`, found by name
            whatever their order; a label column may be missing.

    Raises:
        DataError: a file or columns missing, all of which are listed; ids missing or double,
            features that are no finite numbers, or no common ids.
        ConfigError: a suffix that is not known.
    """
    held: dict[str, PartyRows] = {}
    unused: dict[str, tuple[str, ...]] = {}
    for source in sources:
        held[source.name], unused[source.name] = _read(source)
    common = set.intersection(*(set(rows.ids) for rows in held.values()))
    if not common:
        counts = ", ".join(f"{name!r} {len(rows.ids)}" for name, rows in held.items())
        raise DataError(f"no common ids among the new rows ({counts} ids), expected at least 1")
    ids = tuple(sorted(common))
    places = {name: _places(rows, ids) for name, rows in held.items()}
    labels = None
    for name, rows in held.items():
        if rows.labels is not None:
            labels = tuple(rows.labels[row] for row in places[name])
    return NewRows(
        ids=ids,
        features={name: rows.features[places[name]] for name, rows in held.items()},
        labels=labels,
        dropped={name: len(rows.ids) - len(ids) for name, rows in held.items()},
        unused=unused,
    )


def _read(source: FileSource) -> tuple[PartyRows, tuple[str, ...]]:
    there = columns_of(source)
    due = (source.id_column, *(source.features or ()))
    missing = [column for column in due if column not in there]
    if missing:
        raise DataError(
            f"party {source.name!r}: {source.path} lacks {len(missing)} columns of the model: "
            f"{', '.join(map(repr, missing))}; it has {', '.join(there)}"
        )
    label = source.label_column if source.label_column in there else None
    rows = read_party(
        FileSource(source.name, source.path, source.id_column, label, source.features)
    )
    return rows, tuple(each for each in there if each not in {*due, source.label_column})


def _places(rows: PartyRows, ids: Sequence[str]) -> list[int]:
    place = {row_id: row for row, row_id in enumerate(rows.ids)}
    return [place[row_id] for row_id in ids]
