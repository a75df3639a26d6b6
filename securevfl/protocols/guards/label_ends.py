"""What final models tell of labels where parameters are in shares until the end, over all jobs.

A peer with P columns learns P numbers, each on a grid of 2^-12. They single out one labelling where
few labelings are likely: few rows, or a rare label. So all numbers that these people's record
holds, of `BITS` bits each, must be fewer bits than their labels have.

Rounds depend on the labels of a batch B through X_Bᵀy alone, X of all parties' columns. So the ends
of all jobs on the same rows, fixed batches, columns and labels are functions of one number for each
batch and column, and the very same job tells nothing new but some digits. The ends of two jobs on
rows that a few people tell apart differ by what these add: so many more than columns have to.
Source: docs/decisions/0016-label-guard-by-person.md.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from math import ceil, inf, log2

import numpy as np

from securevfl.arrays import IntArray, Labels
from securevfl.errors import LabelLeakRefused
from securevfl.protocols.guards.people import OwnTable
from securevfl.protocols.guards.person_record import (
    CHANGED_FOR_EACH_COLUMN,
    ROUNDING,
    PersonRecord,
)
from securevfl.protocols.plan import Plan
from securevfl.protocols.session.agreement import Agreement

# One job was found to tell up to 11.6 bits a number. Its runs, which round differently, tell 8 more
# at most, as the record counts 256 of them as another job.
BITS = 20


def label_bits(labels: Labels) -> float:
    """The entropy of whether a label is the commonest, in bits; that of a real target is 1."""
    share = 1 - np.unique(labels, return_counts=True)[1].max() / len(labels)
    share = float(min(share, 0.5))
    return -share * log2(share) - (1 - share) * log2(1 - share) if share else 0.0


def visited(plan: Plan) -> IntArray:
    """The rows that some round takes, sorted."""
    batches = {plan.schedule.batch_key(each): each for each in range(plan.rounds)}
    return np.unique(np.concatenate([plan.schedule.batch(each) for each in batches.values()]))


@dataclass(frozen=True, eq=False)
class End:
    """The final model of a job, beside a record that has noted the job's labels.

    Attributes:
        plan: of the job.
        agreement: of the label party with all others.
        own: the label party's rows.
        labels: of all training rows, shape (N,).
        places: positions of these in the record, shape (N,).
        record: of earlier jobs.
    """

    plan: Plan
    agreement: Agreement
    own: OwnTable
    labels: Labels
    places: IntArray
    record: PersonRecord

    def count(self, session: str = "", *, resumes: bool = False) -> None:
        """Note what it tells, unless the job resumes and was noted when it started.

        `session` is that of the label party's `Workplace`.

        Raises:
            LabelLeakRefused: the record would hold as many bits as the labels have.
        """
        room, settings, job = self.room, self.plan.job.job, self.plan.hash.hex()
        committed = self.plan.schedule.repeats and all(self.agreement.commitments.values())
        batches = len(self.plan.schedule.fixed)
        starts = f"{job} {session}" if session else ""
        same = job if settings.start != "random" else starts
        everybody = self.agreement.own_columns + self.columns
        self.record.add_end(
            self.places[self.rows],
            self._unknowns() if committed else job,
            job,
            self.columns,
            batches * everybody if committed else inf,
            same=same if committed else "",
            resumes=resumes,
        )
        if self.room < -ROUNDING and not settings.allow_label_leak:
            raise LabelLeakRefused(self._refusal(room))

    @property
    def columns(self) -> int:
        """P of all peers together."""
        return sum(self.agreement.columns.values())

    def require_apart(self) -> None:
        """Note the rows, unless a few people tell them apart from the rows of an earlier job.

        Of two jobs, one of which tells a final model. The guard has another rule for gradients.

        Raises:
            LabelLeakRefused: a few people have left or joined since an earlier job.
        """
        ends, places = self.plan.exchange.shares_parameters, self.places[self.rows]
        apart = self.record.apart(places, ended=not ends)
        self.record.visit(places, ends=ends)
        if apart < self.least_apart and not self.plan.job.job.allow_label_leak:
            raise LabelLeakRefused(
                f"label guard: people who left or joined since an earlier job: {apart}, at least "
                f"{self.least_apart} expected: a final model and the other job would tell their "
                "labels; train on the rows of the earlier job until more have left or joined, or "
                "set allow_label_leak = true"
            )

    @property
    def least_apart(self) -> int:
        """How many people have to tell apart the rows of two jobs: each column tells of them."""
        return CHANGED_FOR_EACH_COLUMN * self.columns

    @property
    def passes(self) -> bool:
        """Whether a final model of these rows would be allowed, on top of what is noted."""
        apart = self.record.apart(self.places[self.rows], ended=False)
        return self.columns <= self.room and apart >= self.least_apart

    @cached_property
    def rows(self) -> IntArray:
        """The rows that rounds visit, shape (S,)."""
        return visited(self.plan)

    @property
    def bits(self) -> float:
        """Of the labels of these rows."""
        return label_bits(self.labels[self.rows]) * len(self.rows)

    @property
    def room(self) -> float:
        """How many numbers more the record may hold of these people."""
        held = float(self.record.ends[self.places[self.rows]].max())
        return self.bits / BITS - held * len(self.rows)

    def _unknowns(self) -> str:
        """A name of the labels and columns."""
        settings, rows = self.plan.job.job, self.rows
        rows = rows[np.argsort(self.places[rows])]
        scaled = (settings.standardize, settings.intercept, settings.bounds)
        digest = hashlib.sha256(repr(scaled).encode())
        for each in sorted(self.agreement.commitments.values()):
            digest.update(each)
        for values in (self.own.values[rows], self.record.current[self.places[rows]]):
            digest.update(values.astype("<u8").tobytes())
        return digest.hexdigest()

    def _refusal(self, room: float) -> str:
        rows, columns = len(self.rows), int(max(room, 0) + ROUNDING)
        held, passes = round(self.bits / BITS - self.room), "more rows, or an earlier job as it was"
        if columns:
            more = ceil(rows * self.columns / room)
            bins = self.plan.facts.fewer_bins(self.agreement.columns, columns)
            fewer = f"fewer columns (at most {columns} of peers pass{bins})"
            passes = f"{fewer}, or {more} rows as balanced"
        return (
            f"label guard: final models, those of earlier jobs among them, would tell {held} "
            f"numbers of the labels of {rows} rows, which count as {held * BITS} bits: these "
            f"labels have {self.bits:.0f}, and could be read; take {passes}, or set "
            "allow_label_leak = true"
        )
