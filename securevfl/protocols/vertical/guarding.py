"""The label guard before a job starts: what its rounds would tell, with what earlier ones did."""

from pathlib import Path

from securevfl.protocols.plan import Plan
from securevfl.protocols.session.agreement import Agreement
from securevfl.protocols.session.label_guard import GuardRecord, LeakageCount, planned
from securevfl.protocols.session.party import Party


def require_guard(
    party: Party, plan: Plan, agreement: Agreement, directory: Path | None, *, resumes: bool = False
) -> None:
    """Refuse a job whose gradients would tell too much, or write it down before it starts.

    A job that goes on was written down when it started, and is not counted twice.

    Raises:
        LabelLeakRefused: they would.
        DataError: the record of earlier jobs cannot be read or written.
    """
    if directory is None:
        return
    record = GuardRecord(directory / party.name, plan.schedule.fingerprint)
    earlier = record.load()
    count = LeakageCount(
        plan.facts.rows,
        plan.loss.outputs,
        agreement.columns,
        {} if resumes else earlier,
        frozenset(plan.networks),
    )
    batches = (plan.schedule.batch(index) for index in range(plan.rounds))
    after = planned(count, party.others, batches)
    if resumes:
        after.include(earlier)
    if not plan.job.job.allow_label_leak:
        after.require_below_limit()
    record.save(after.revealed)
