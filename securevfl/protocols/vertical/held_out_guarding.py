"""The held-out guard before a job starts: what its scorings would show, with earlier ones'."""

import numpy as np

from securevfl.protocols.session.held_out_guard import HeldOutCount, HeldOutRecord, row_digests
from securevfl.protocols.vertical.program import Training


def require_held_out_guard(training: Training) -> None:
    """Refuse a job that would show too much of this party's held-out rows, or write it down.

    The label party shows nothing, and nothing is counted where scoring shows no row, or where
    rounds show as much of training rows anyway (`Exchange.counts_held_out`).

    Raises:
        HeldOutLeakRefused: it would.
        DataError: the record of earlier jobs cannot be read or written.
    """
    party, plan, place = training.party, training.plan, training.workplace
    scorings = plan.timetable.times(plan.rounds)
    hidden = plan.exchange.held_out(plan.job, len(party.names)) == "hidden"
    if place.guard_directory is None or party.holds_labels or hidden or not scorings:
        return
    if not plan.exchange.counts_held_out(plan.job):
        return
    rank = int(np.linalg.matrix_rank(training.part.held_out))
    count = HeldOutCount(scorings, plan.loss.outputs, rank)
    record = HeldOutRecord(place.guard_directory / party.name)
    earlier = record.load()
    rows = row_digests(place.data.table.test)
    after = count.planned(earlier, rows, resumes=place.resume is not None)
    if not plan.job.job.allow_feature_leak:
        count.require_below_limit(max(after.values()))
    record.save(earlier | after)
