"""What a job that a guard refuses would have to be for it to pass, found by asking that guard.

Nothing is estimated: a changed job is counted on top of the same record as the refused one, and
the least change that passes is found by halving.
"""

from collections.abc import Callable
from dataclasses import replace

from securevfl.data.partition import BatchSchedule
from securevfl.errors import ConfigError
from securevfl.protocols.plan import Plan


def least(fails: int, passes: int, test: Callable[[int], bool]) -> int:
    """The number next to one that fails, towards one that passes, that passes.

    Args:
        fails: a number that does not pass.
        passes: one that does, on either side of it.
        test: whether a number passes.
    """
    while abs(passes - fails) > 1:
        middle = (fails + passes) // 2
        if test(middle):
            passes = middle
        else:
            fails = middle
    return passes


def with_batch_size(plan: Plan, size: int) -> Plan:
    """The same job with other batches.

    Raises:
        ConfigError: its exchange does not take them.
    """
    settings = plan.job.job
    other = replace(
        plan,
        job=plan.job.with_settings(batch_size=size),
        schedule=BatchSchedule(plan.facts.row_digests, size, settings.seed, settings.sampling),
    )
    plan.exchange.check(other)
    return other


def smallest_batch(plan: Plan, passes: Callable[[Plan], bool]) -> int | None:
    """The smallest batch size above the plan's that passes; N where only all rows together do.

    None where not even these do.
    """
    rows = plan.facts.rows
    if plan.full_batches or plan.batch_size == "full":
        return None

    def test(size: int) -> bool:
        try:
            return passes(with_batch_size(plan, size))
        except ConfigError:
            return False

    fails = size = plan.batch_size
    # Beyond half of the rows there is one batch, of all of them.
    while 2 * size <= rows:
        size = min(2 * size, rows // 2)
        if test(size):
            return least(fails, size, test)
        fails = size
        if size == rows // 2:
            break
    return rows if test(rows) else None


def most_rounds(plan: Plan, passes: Callable[[Plan], bool]) -> int:
    """The most rounds, up to the plan's, that pass; 0 where not even one does."""

    def test(rounds: int) -> bool:
        return rounds == 0 or passes(replace(plan, job=plan.job.with_settings(rounds=rounds)))

    return least(plan.rounds + 1, 0, test)
