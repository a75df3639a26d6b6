"""A party's table from its raw rows, by a recipe or as they stand."""

import numpy as np
from numpy.typing import NDArray

from securevfl.data.own_files import FileSource, PartyRows
from securevfl.data.preprocess import fit_recipe
from securevfl.data.tables import Note, PartyTable
from securevfl.errors import DataError
from securevfl.recipe import read_as_numbers


def make_table(
    source: FileSource,
    train: PartyRows,
    test: PartyRows,
    rows: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
) -> tuple[PartyTable, NDArray[np.float64], tuple[Note, ...]]:
    """A party's features of training and test rows, and of those that are its own.

    The columns of `train` go as features come, so that a file is never held twice.

    Args:
        source: what is to be made of them.
        train: the party's raw rows.
        test: those of its test file, or the same again.
        rows: numbers of the training rows, of the test rows in `test`, and of its own.

    Raises:
        DataError: values that the training rows did not have the like of; see `fit_recipe`.
    """
    frame = train.frame
    notes: list[Note] = []
    if source.preprocess is None:
        recipe = read_as_numbers(train.columns)
    else:
        recipe, notes = fit_recipe(source.name, frame, train.columns, rows[0], source.preprocess)
    parts = list(zip((frame, test.frame, frame), rows, strict=True))
    arrays = [np.empty((len(places), len(recipe.columns))) for _, places in parts]
    kept = None if source.preprocess is None else recipe
    raw_test = None if kept is None else np.empty((len(rows[1]), len(recipe.parts)))
    wrong: list[str] = []
    for index, (part, place) in enumerate(recipe.places()):
        for (raw, places), out in zip(parts, arrays, strict=True):
            try:
                part.write(raw[part.name].gather(places), recipe.missing, out[:, place])
            except ValueError as error:
                wrong.append(f"party {source.name!r}: column {part.name!r} {error}")
        if raw_test is not None and not wrong:
            held_out = test.frame[part.name].gather(rows[1])
            raw_test[:, index] = part.as_it_was(held_out, recipe.missing)
        frame.drop_in_place(part.name)
    if wrong:
        raise DataError("; ".join(dict.fromkeys(wrong)))
    table = PartyTable(source.name, recipe.columns, arrays[0], arrays[1], kept, raw_test)
    return table, arrays[2], tuple(notes)
