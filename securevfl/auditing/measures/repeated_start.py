"""Whether anybody who has the job repeats the parties' secret start, measured.

θ⁰ and row offsets hide labels in the first gradients. Audits are simulations, in which both follow
from the seed. So starts are drawn here as parties draw them that are processes of their own.
"""

from collections.abc import Iterable
from functools import partial
from secrets import token_bytes

import numpy as np

from securevfl.attacks.repeated_start import repeated_start
from securevfl.auditing.judging import RECOVERED, Finding
from securevfl.auditing.measuring import Attack, AttackCase, add_attack
from securevfl.auditing.subject import Subject
from securevfl.errors import ConfigError
from securevfl.privacy.streams import KEY_BYTES
from securevfl.protocols.attempts import start_of
from securevfl.protocols.vertical.local_part import LocalPart

SAME = 1e-9


def _nothing(subject: Subject) -> str:
    return "theta0 is zero: no start is secret" if subject.plan.job.job.start == "zero" else ""


@add_attack
@partial(
    Attack,
    "repeated_start",
    "any party",
    "the job and everybody's number of columns; parties are processes",
    immune=_nothing,
    place=125,
)
def repeated_starts(subject: Subject) -> Iterable[AttackCase]:
    """The job's own start, and one that follows from the seed."""
    if subject.plan.networks:
        raise ConfigError("repeated_start supports linear models")
    yield AttackCase(partial(_finding, subject), "this job's start")
    seeded = Subject(subject.job.with_settings(start="seeded"), subject.dataset, subject.seed)
    yield AttackCase(partial(_finding, seeded), "start = 'seeded'", control=True)


def _finding(subject: Subject) -> Finding:
    """The share of all parties' secret numbers that are repeated."""
    plan, same, offsets = subject.plan, list[np.bool_](), 0
    for place, table in enumerate(subject.dataset.parties):
        start = start_of(plan.job, place, token_bytes(KEY_BYTES))
        part, columns = LocalPart(plan, table, **start), len(table.columns)
        weights, repeated = repeated_start(plan, table.name, columns)
        true = part.model.weights[:columns]
        lengths = np.linalg.norm(true, axis=0) / np.linalg.norm(weights, axis=0)
        same += [*np.isclose(true, lengths * weights, rtol=SAME, atol=0).ravel()]
        if part.row_offsets is not None:
            same += [*np.isclose(part.row_offsets, repeated, rtol=SAME, atol=0).ravel()]
            offsets = repeated.size
    detail = {"secret_numbers": len(same), "row_offsets": offsets}
    return Finding(RECOVERED, float(np.mean(same)), chance=0.0, detail=detail)
