"""The held-out guard before new rows are scored: what these scores would show, with earlier ones.

A row under a model is counted once: scoring it again shows the same numbers again. Under noise
nothing is counted here: each scoring is a release of its own, and these are not added up across
runs (docs/decisions/0028-scoring-new-rows.md).
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.files import only_one
from securevfl.models.storage import SavedModel
from securevfl.protocols.session.held_out_guard import (
    HeldOutCount,
    HeldOutRecord,
    names_of_rows,
    names_under_model,
)

REMEDY = "the model that scored these rows before may again"


def require_scoring_guard(
    directory: Path,
    model: SavedModel,
    features: FloatArray,
    rows: FloatArray,
    *,
    rounds_show: bool,
    allowed: bool,
) -> Callable[[], None]:
    """Refuse to score rows that other models have shown too much of.

    Args:
        directory: where the feature party remembers.
        model: its part.
        features: of the rows, unscaled, shape (rows, P).
        rows: what they are known by: the same, or what they were before a recipe.
        rounds_show: whether rounds of the job show the same of training rows.
        allowed: the job says that they may be shown all the same; they are still counted.

    Returns:
        Checks again and writes the rows down; to be called once no other party can refuse.

    Raises:
        HeldOutLeakRefused: they would be shown too often.
        DataError: the record of earlier jobs cannot be read.
    """
    record = HeldOutRecord(directory)
    names = names_of_rows(rows)
    marks = names_under_model(names, model.digest)
    # Fewer rows than columns do not tell the rank that columns have.
    columns = features.shape[1]
    centred = features - features.mean(axis=0)
    rank = columns if len(features) < columns else int(np.linalg.matrix_rank(centred))
    count = HeldOutCount(1, model.header.outputs, rank, rounds_show)

    def counted() -> dict[str, int]:
        earlier, scored = record.load(), record.load_scored()
        fresh = [name for name, mark in zip(names, marks, strict=True) if mark not in scored]
        after = count.planned(earlier, fresh, resumes=False)
        if not allowed:
            count.require_below_limit(max(after.values(), default=0), REMEDY)
        return earlier | after

    def write_down() -> None:
        with only_one(record.path, "held-out guard record"):
            record.save(counted())
        record.note_scored(marks)

    counted()
    return write_down
