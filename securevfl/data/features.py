"""A party's features from its own raw rows, and suspicious columns among them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import Labels
from securevfl.blocks import LONG_CELLS, BlockedRows
from securevfl.data.bins import Binning
from securevfl.data.read import ColumnsOnDisk, FileSource, PartyRows
from securevfl.data.scaling import Scaling
from securevfl.data.tables import Kind, Note, PartyTable, VerticalDataset, rows_digest
from securevfl.errors import ConfigError, DataError
from securevfl.lazy import Lazy
from securevfl.recipe import (
    MISSING_LEVEL,
    OTHER_LEVEL,
    ColumnRecipe,
    Preprocessing,
    Recipe,
    days_of,
    frame_of,
    numbers_of,
    read_as_numbers,
    text_of,
)
from securevfl.shown import controls, did_you_mean
from securevfl.sparse import Matrix, column_of

if TYPE_CHECKING:
    import polars as pl
else:
    pl = Lazy("polars")

NARROW = ("Float32", "Int8", "Int16", "Int32", "UInt8", "UInt16", "UInt32")
COPY = 0.999
FEWEST = 20
FIRST = 1000
_ID_NAME = re.compile(
    r"(^|[_\s.-])(id|uuid|guid|nr|no|key|index|rownum)($|[_\s.-])|[a-z](Id|ID|Nr)$"
)


def make_table(
    source: FileSource,
    train: PartyRows,
    test: PartyRows,
    rows: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
) -> tuple[PartyTable[Matrix], NDArray[np.float64], tuple[Note, ...]]:
    """A party's features of its training rows, its test rows, and the rows that only it holds.

    `rows` are their numbers: training rows, rows of `test`, and own rows of `train`. Consumes the
    frame of `train`: each column is dropped once it is encoded, so that memory holds it once.

    Raises:
        DataError: test rows with values of another kind than training rows; see `fit_recipe`.
    """
    frame = train.frame
    notes: list[Note] = []
    if source.preprocess is None:
        recipe = read_as_numbers(train.columns)
    else:
        recipe, notes = fit_recipe(source.name, frame, train.columns, rows[0], source.preprocess)
    sides = (frame, test.frame)
    tables = [
        _Room(len(places), _widths(recipe, side.schema, source.preprocess))
        for side, places in zip(sides, rows, strict=False)
    ]
    own: NDArray[np.float64] = np.empty((len(rows[2]), len(recipe.columns)))
    kept = None if source.preprocess is None else recipe
    raw_test = None if kept is None else np.empty((len(rows[1]), len(recipe.parts)))
    wrong: list[str] = []
    for index, (part, place) in enumerate(recipe.places()):
        outs = [each.halves(place, part.numbers) for each in tables]
        outs.append(np.split(own[:, place], [part.numbers], axis=1))
        for raw, places, out in zip((frame, test.frame, frame), rows, outs, strict=True):
            try:
                part.write(raw[part.name].gather(places), recipe.missing, *out)
            except ValueError as error:
                wrong.append(f"party {source.name!r}: column {part.name!r} {error}")
        if raw_test is not None and not wrong:
            held_out = test.frame[part.name].gather(rows[1])
            raw_test[:, index] = part.raw_numbers(held_out, recipe.missing)
        frame.drop_in_place(part.name)
    if wrong:
        raise DataError("; ".join(dict.fromkeys(wrong)))
    table = PartyTable(
        source.name,
        recipe.columns,
        tables[0].rows,
        tables[1].rows,
        kept,
        raw_test,
        str(source.path.resolve()),
        (train.people[rows[0]], test.people[rows[1]]),
        rows_digest(train.digests[rows[0]], test.digests[rows[1]]),
        None if train.weights is None else train.weights[rows[0]],
    )
    return table, own, tuple(notes)


def encoded(dataset: VerticalDataset[Any], settings: Preprocessing) -> VerticalDataset[Any]:
    """A data set of numbers, with the recipes that `fit_recipe` fits to its training rows.

    Raises:
        ConfigError: no party has a column that the settings name.
        DataError: see `fit_recipe`.
    """
    known = {name for table in dataset.parties for name in table.columns}
    for name in (*settings.categories, *settings.binned, *settings.monotone):
        if name not in known:
            hint = did_you_mean(name, known)
            raise ConfigError(
                f"preprocess: no column {name!r} to train on in {dataset.name!r}{hint}"
            )
    tables: list[PartyTable[Any]] = []
    notes = [*dataset.notes]
    for table in dataset.parties:
        frames = [frame_of(rows, table.columns) for rows in (table.train, table.test)]
        rows = np.arange(frames[0].height)
        recipe, own_notes = fit_recipe(table.name, frames[0], table.columns, rows, settings)
        widths = _widths(recipe, frames[0].schema, settings)
        rooms = [_Room(frame.height, widths) for frame in frames]
        for part, place in recipe.places():
            for frame, room in zip(frames, rooms, strict=True):
                part.write(frame[part.name], recipe.missing, *room.halves(place, part.numbers))
        made = replace(table, columns=recipe.columns, train=rooms[0].rows, test=rooms[1].rows)
        raw_test = recipe.raw_numbers(frames[1])
        tables.append(replace(made, recipe=recipe, raw_test=raw_test))
        notes += own_notes
    return replace(dataset, parties=tuple(tables), notes=tuple(notes))


def _widths(
    recipe: Recipe, schema: "Mapping[str, pl.DataType]", settings: Preprocessing | None
) -> "list[np.dtype[Any]]":
    """By feature the narrowest type that holds all its values as they are in a file."""
    found: list[np.dtype[Any]] = []
    for part in recipe.parts:
        kind, width = str(schema[part.name]), "float64"
        # What replaces a missing value may be between two values of the type.
        if settings is None and kind in NARROW:
            width = kind.lower()
        if settings is None and kind == "Boolean":
            width = "uint8"
        found += [np.dtype(width)] * part.numbers
        found += [np.dtype("uint8")] * (len(part.columns) - part.numbers)
    return found


class _Room:
    """Room for the columns of a table: an array of float64, or of each width if there are many.

    Attributes:
        rows: the table.
    """

    def __init__(self, count: int, kinds: Sequence["np.dtype[Any]"]) -> None:
        if count * len(kinds) <= LONG_CELLS:
            kinds = [np.dtype(np.float64)] * len(kinds)
        numbers = np.arange(len(kinds))
        places = [numbers[[each == kind for each in kinds]] for kind in dict.fromkeys(kinds)]
        self._parts = [np.empty((count, len(each)), kinds[each[0]]) for each in places]
        self._places = places
        self.rows: Matrix = self._parts[0]
        if len(places) > 1 or kinds[0] != np.float64:
            self.rows = BlockedRows(tuple(self._parts), tuple(places))

    def halves(self, place: slice, numbers: int) -> list[NDArray[Any]]:
        """Where some adjacent columns are written: the first ones, numbers, and the others."""
        split = place.start + numbers
        return [self._columns(slice(place.start, split)), self._columns(slice(split, place.stop))]

    def _columns(self, place: slice) -> NDArray[Any]:
        if place.start == place.stop:
            return self._parts[0][:, :0]
        for part, places in zip(self._parts, self._places, strict=True):
            first = int(np.searchsorted(places, place.start))
            if first < len(places) and places[first] == place.start:
                return part[:, first : first + place.stop - place.start]
        raise AssertionError(place)


def fit_recipe(
    party: str,
    frame: "pl.DataFrame | ColumnsOnDisk",
    columns: Sequence[str],
    rows: NDArray[np.int64],
    settings: Preprocessing,
) -> tuple[Recipe, list[Note]]:
    """Fit a party's recipe to the training rows, whose numbers are `rows`, with notes on columns.

    A category with fewer than `rare_count` rows, or a smaller fraction than `rare_share`, is pooled
    with others until the pool is not rare either: a 0/1 column with few ones would expose these
    rows to anybody who learns something about the column's weight.

    Raises:
        DataError: no column is left, two features have the same name, or values are unusable.
    """
    parts: list[ColumnRecipe] = []
    notes: list[Note] = []
    binning = Binning(settings, len(rows), len(columns))

    def note(kind: Kind, column: str, text: str) -> None:
        notes.append(Note(kind, party, column, text))

    for name in columns:
        values = frame[name].gather(rows)
        kind = kind_of(values, settings)
        if kind == "category":
            part, texts = _categories(name, text_of(values, settings.markers), settings)
            notes += [Note("preprocess", party, name, text) for text in texts]
        else:
            part = _numbers(name, kind == "date", values, settings, binning)
            if kind == "date":
                note("preprocess", name, "is read as dates, in days since 1970-01-01")
        if part is None or not part.columns:
            note("unused", name, f"is left out: {_why_unused(values.n_unique(), len(rows))}")
        elif kind == "category" and name in settings.monotone:
            raise DataError(
                f"party {party!r}: monotone takes numbers and dates, and column {name!r} is a "
                "category"
            )
        else:
            parts.append(replace(part, monotone=settings.monotone.get(name)))
    recipe = Recipe(tuple(parts), settings.markers)
    names = recipe.columns
    if not names:
        raise DataError(f"party {party!r}: no column varies over the training rows")
    _require_names(party, names)
    return recipe, notes + binning.notes(party, recipe)


def _require_names(party: str, names: Sequence[str]) -> None:
    if (odd := controls(names)) is not None:
        raise DataError(f"party {party!r}: feature {odd!r} would have control characters")
    if len(set(names)) < len(names):
        double = next(name for name in names if names.count(name) > 1)
        raise DataError(f"party {party!r}: two features would have the name {double!r}")


def _why_unused(values: int, rows: int) -> str:
    if values > rows / 2:
        return f"{values} different values in {rows} training rows, like an id or free text"
    return "the same in all training rows, or all but a few, or what another column says"


def _numbers(
    name: str, is_date: bool, values: "pl.Series", settings: Preprocessing, binning: Binning
) -> ColumnRecipe | None:
    read = (days_of if is_date else numbers_of)(values, settings.markers)
    there = read.drop_nulls().to_numpy()
    if not len(there):
        return None
    missing = len(read) - len(there)
    few = max(settings.rare_count, settings.rare_share * len(read))
    wanted = settings.missing_indicator or binning.bins_of(name) is not None
    indicator = wanted and missing >= few and len(there) >= few
    fill = float(np.median(there))
    if not indicator and (there == fill).all():
        return None
    return binning.added(ColumnRecipe(name, "date" if is_date else "number", fill, indicator), read)


def _categories(
    name: str, values: "pl.Series", settings: Preprocessing
) -> tuple[ColumnRecipe | None, list[str]]:
    if values.name in settings.binned:
        raise DataError(f"preprocess.bins: column {values.name!r} is a category, expected numbers")
    few = max(settings.rare_count, settings.rare_share * len(values))
    counted = values.drop_nulls().alias("level").value_counts(name="rows")
    # Ties are broken by name, so that the order of rows does not matter.
    counted = counted.sort(["rows", "level"], descending=[True, False])
    reserved = pl.col("level").is_in([MISSING_LEVEL, OTHER_LEVEL])
    common = counted.filter((pl.col("rows") >= few) & ~reserved)
    # The level None stands for missing values.
    sizes: list[tuple[int, str | None]] = [(rows, level) for level, rows in common.iter_rows()]
    pooled = len(values) - values.null_count() - sum(rows for rows, _ in sizes)
    rare = counted.height - common.height
    if missing := values.null_count():
        if missing >= few:
            sizes.append((missing, None))
        else:
            pooled += missing
    sizes.sort(key=lambda each: -each[0])
    while 0 < pooled < few and sizes:
        pooled += sizes.pop()[0]
    if len(sizes) + (pooled > 0) < 2:  # noqa: PLR2004
        return None, []
    levels = tuple(sorted(level for _, level in sizes if level is not None))
    has_missing = any(level is None for _, level in sizes)
    part = ColumnRecipe(
        name, "category", levels=levels, missing_level=has_missing, other_level=pooled > 0
    )
    several = f"{len(part.columns)} columns, one per category"
    text = f"becomes {several if len(part.columns) > 1 else '1 column'}"
    if rare:
        pooled_ones = "1 rare category is" if rare == 1 else f"{rare} rare categories are"
        text += f"; {pooled_ones} pooled in {OTHER_LEVEL!r}"
    return part, [text]


def kind_of(values: "pl.Series", settings: Preprocessing) -> Literal["number", "date", "category"]:
    """How a raw column is encoded."""
    if values.name in settings.categories:
        return "category"
    if values.dtype.is_numeric() or values.dtype == pl.Null:
        return "number"
    if values.dtype.is_temporal():
        return "date"
    if values.dtype != pl.String:
        return "category"
    for kind, read in (("number", numbers_of), ("date", days_of)):
        try:
            read(values, settings.markers)
        except ValueError:
            continue
        return kind  # type: ignore[return-value]  # one of them
    return "category"


def suspicious(table: PartyTable[Matrix], labels: Labels | None) -> list[Note]:
    """Notes on columns that copy the label or another column, are constant, or look like an id.

    Only the label party can compare columns with the labels, and only its own columns.
    """
    notes: list[Note] = []
    twins: dict[bytes, list[int]] = {}
    copies = _copies(table.train, labels)

    def note(kind: Kind, column: str, text: str) -> None:
        notes.append(Note(kind, table.name, column, text, warning=kind == "label"))

    for place, column in enumerate(table.columns):
        values = column_of(table.train, place)
        head = values[:FIRST]
        # The first rows rule out most columns quickly.
        if (head == head[0]).all() and (values == values[0]).all():
            note("constant", column, "is the same in all training rows")
            continue
        alike = twins.setdefault(np.ascontiguousarray(head).tobytes(), [])
        earlier = next(
            (e for e in alike if np.array_equal(column_of(table.train, e), values)), None
        )
        alike.append(place)
        if earlier is not None:
            note("duplicate", column, f"is a copy of {table.columns[earlier]!r}")
        if copies[place]:
            note("label", column, "is a copy of the label, or nearly, so no model is needed")
        elif _is_id(column, values):
            note("id", column, "has a different whole number in every row, like an id")
    return notes


def _copies(train: Matrix, labels: Labels | None) -> NDArray[np.bool_]:
    """Which columns correlate with the label, or with one class, by more than `COPY`."""
    if labels is None:
        return np.zeros(train.shape[1], np.bool_)
    several = np.unique(labels) if labels.dtype.kind == "i" else np.array([])
    of_each = [labels == each for each in several] if len(several) > 2 else []  # noqa: PLR2004
    targets = np.column_stack([labels.astype(np.float64), *of_each])
    targets -= targets.mean(axis=0)
    # Centred targets make centring the columns unnecessary.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        lengths = Scaling.estimate(train).scale[:, None] * np.sqrt(len(train))
        together = np.abs(train.T @ targets) / (lengths * np.linalg.norm(targets, axis=0))
    copies: NDArray[np.bool_] = (together > COPY).any(axis=1)
    return copies


def _is_id(column: str, values: NDArray[np.float64]) -> bool:
    whole = len(values) >= FEWEST and all(
        (part == np.rint(part)).all() for part in (values[:FIRST], values[FIRST:])
    )
    with np.errstate(over="ignore"):
        spread = values.max() - values.min()
    # As many whole numbers as rows lie at least so far apart; to sort all 0/1 columns takes long.
    if not whole or spread < len(values) - 1 or len(np.unique(values)) < len(values):
        return False
    return bool(spread < 2 * len(values) or _ID_NAME.search(column))
