"""The held-out guard before a job starts: what its scorings would show, with earlier ones'."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from securevfl.files import only_one
from securevfl.models.storage import SavedModel
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.held_out_guard import (
    HeldOutCount,
    HeldOutRecord,
    names_of_rows,
    names_under_model,
)
from securevfl.protocols.session.party import Party
from securevfl.protocols.session.workplace import Workplace
from securevfl.protocols.vertical.remedies import least
from securevfl.sparse import Matrix, SparseRows, dense

RANKED_VALUES = 1 << 22

if TYPE_CHECKING:
    from securevfl.protocols.vertical.program import Training


def require_held_out_guard(training: "Training") -> Callable[[], None]:
    """Refuse a job that would show too much of this party's held-out rows.

    The label party shows nothing, and nothing is counted where scoring shows no row, or where
    rounds show as much of training rows anyway (`Exchange.counts_held_out`).

    Returns:
        Checks again and writes the job down; to be called before its first round, once no other
        party can refuse it: a job that never ran would use up what is left.

    Raises:
        HeldOutLeakRefused: it would.
        DataError: the record of earlier jobs cannot be read.
    """
    party, plan, place = training.party, training.plan, training.workplace
    record = _record(party, plan, place)
    if record is None:
        return lambda: None
    rank = rank_of(training.part.held_out)
    rounds_show = plan.learns.predictions == "singly"
    scorings = plan.timetable.times(plan.rounds)
    count = HeldOutCount(scorings, plan.loss.outputs, rank, rounds_show)
    names = names_of_rows(place.data.table.held_out_rows)

    def counted() -> dict[str, int]:
        earlier = record.load()
        after = count.planned(earlier, names, resumes=place.resume is not None)
        columns = max(after.values())
        if not plan.job.job.allow_feature_leak:
            remedy = ""
            if columns > count.allowed:
                remedy = _remedy(plan, (count.allowed - columns) // count.outputs + scorings)
            count.require_below_limit(columns, remedy)
        return earlier | after

    def write_down() -> None:
        # Again: another job may have been written down since.
        with only_one(record.path, "held-out guard record"):
            record.save(counted())

    counted()
    return write_down


def rank_of(held_out: Matrix) -> int:
    """The rank of held-out columns; of sparse ones that of as many rows as memory is for.

    More rows may have a higher one, and then more would be allowed.
    """
    rows = len(held_out)
    if isinstance(held_out, SparseRows):
        rows = max(1, RANKED_VALUES // held_out.shape[1])
    return int(np.linalg.matrix_rank(dense(held_out[:rows])))


def _remedy(plan: Plan, most: int) -> str:
    """How often a job that is refused may score, if it may `most` times."""
    if most < 1 and plan.exchange.shares_parameters:
        return "take scores = 'sums', which opens no row's, or do not score (eval_every = 'never')"
    if most < 1:
        return "do not score (eval_every = 'never', where a job can do without)"

    def passes(every: int) -> bool:
        return replace(plan.timetable, every=every).times(plan.rounds) <= most

    now = plan.timetable.every
    every = least(1 if now == "doubling" else now, plan.rounds, passes)
    once = "" if every < plan.rounds else " or 0"
    return f"score at most {most} times: eval_every = {every}{once} passes, and less often"


def note_last_scoring(party: Party, plan: Plan, place: Workplace, model: SavedModel) -> None:
    """Remember that a trained model has scored the held-out rows, so that it may again.

    Raises:
        DataError: the record cannot be written.
    """
    record = _record(party, plan, place)
    if record is not None:
        rows = names_of_rows(place.data.table.held_out_rows)
        record.note_scored(names_under_model(rows, model.digest))


def _record(party: Party, plan: Plan, place: Workplace) -> HeldOutRecord | None:
    """Where a party counts scorings; None where they show none of its rows, or nobody counts."""
    scorings = plan.timetable.times(plan.rounds)
    hidden = plan.algorithm.held_out(plan) == "hidden"
    shows = scorings > 0 and not (party.holds_labels or hidden)
    if place.guard_directory is None or not (shows and plan.exchange.counts_held_out(plan.job)):
        return None
    return HeldOutRecord(place.guard_directory / party.name)
