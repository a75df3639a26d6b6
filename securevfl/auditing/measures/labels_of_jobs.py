"""Attacks of feature parties on the labels, across several jobs on the same people, measured.

All jobs are real runs with a common guard directory, so the label guard decides which of them are
permitted. The attack uses all jobs up to the first one that this or another guard refuses, or that
cannot run. A quick homomorphic exchange stands in for a slow one, as it reveals the same gradients,
which are all that the guard counts. What-ifs have no guard and small batches, in clear.

*Final parameters.* Every exchange gives θ_k to its owner when a job is over; `blind` reveals
nothing else. One job then gives P equations and reveals no more than the own model. Jobs on the
same people that leave out different rows add up. They are recorded in clear, with the final
parameters rounded as `blind` rounds them, because it does not matter how the rounds were hidden.

The bar is the best model, over all people, of all columns that the attackers used.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil

import numpy as np

from securevfl.arrays import FloatArray, IntArray
from securevfl.attacks.labels_from_gradients import (
    JobEnd,
    SeenJob,
    labels_from_ends,
    labels_from_gradients,
)
from securevfl.auditing.figures import best, label_finding, own_models, score
from securevfl.auditing.judging import Finding, NotRun
from securevfl.auditing.measures.labels import EPOCHS, gradients_hidden, gradients_seen
from securevfl.auditing.measuring import CANNOT_RUN, Attack, AttackCase, add_attack
from securevfl.auditing.subject import Recording, Subject, table_of, with_columns
from securevfl.data.tables import VerticalDataset, as_classes, without_rows
from securevfl.errors import ConfigError
from securevfl.job import ExchangeSettings
from securevfl.protocols.blind.fixed_point import REVEALED_BITS
from securevfl.protocols.catalogue import EXCHANGES

JOBS = 8
ROWS = 4096
ROUNDS = 8  # of full batches: later visits of the same rows add little
ROWS_A_COLUMN = 8  # batch size of what-ifs, per column of the attackers
# Attacks on final parameters: people, of whom each job trains on half; equations in all jobs
# together per person; and the most jobs and rounds.
PEOPLE, EQUATIONS_A_PERSON, MOST_JOBS, END_ROUNDS = 160, 1.0, 32, 12


@dataclass(frozen=True, eq=False)
class Variation:
    """How one job differs from the subject's."""

    dataset: VerticalDataset
    people: IntArray  # the number of each of its training rows among the subject's
    settings: Mapping[str, object] = field(default_factory=dict)  # changed settings in `[job]`


Vary = Callable[[Subject, Sequence[str], int], Variation]
"""Makes the variation of a job with this number, for a subject and its attackers."""


@add_attack
@partial(
    Attack,
    "labels_across_jobs",
    "feature party",
    f"its columns, theta0, schedules and plans of up to {JOBS} jobs; the best model of its columns",
    immune=gradients_hidden,
    place=130,
    cost=6.0,
    quick=False,
)
def labels_of_jobs(subject: Subject) -> Iterable[AttackCase]:
    """Jobs that the guard permits, and what-ifs without a guard."""
    as_classes(subject.dataset.train_labels)
    quick = quickened(subject.with_rows(ROWS))
    for guarded in (True, False):
        for name, vary, attackers in _variations(quick):
            case = f"{name} each job" if guarded else f"{name}, S = {ROWS_A_COLUMN}P"
            measure = partial(_measured, quick, vary, attackers, guarded=guarded)
            yield AttackCase(measure, case, what_if=not guarded)


def quickened(subject: Subject) -> Subject:
    """The same under a quick exchange that reveals the same, if there is one."""
    if not subject.is_slow:
        return subject
    settings = subject.job.exchange
    for each in EXCHANGES.values():
        job = subject.job.model_copy(
            update={
                "exchange": ExchangeSettings(
                    scheme=each.name, hide=settings.hide, predictions=settings.predictions
                )
            }
        )
        if each.encrypts and not each.is_slow and each.learns(job) == subject.learns:
            return Subject(job, subject.dataset, subject.seed)
    return subject


def _variations(subject: Subject) -> Iterator[tuple[str, Vary, Sequence[str]]]:
    alone = (subject.feature_party,)
    yield "other columns", _other_columns, alone
    yield "one row fewer", _fewer_rows, alone
    yield "other batches", _other_batches, alone
    tables = subject.dataset.parties
    peers = [table for table in tables if table.name != subject.dataset.label_party]
    if len(peers) > 1:
        widest = sorted(peers, key=lambda table: len(table.columns))[-2:]
        yield "pooled peers", _other_columns, [table.name for table in widest]


def _other_columns(subject: Subject, attackers: Sequence[str], number: int) -> Variation:
    """Half of every attacker's columns, drawn for each job."""
    dataset = subject.dataset
    for place, name in enumerate(attackers):
        table = table_of(dataset, name)
        if len(table.columns) == 1:
            raise ConfigError(f"{name} has one column: jobs cannot use different ones")
        draw = np.random.default_rng([subject.seed, 5, place, number])
        chosen = np.sort(draw.permutation(len(table.columns))[: len(table.columns) // 2])
        dataset = with_columns(dataset, name, chosen.tolist())
    return Variation(dataset, np.arange(len(dataset.train_labels)))


def _fewer_rows(subject: Subject, _: Sequence[str], number: int) -> Variation:
    rows = len(subject.dataset.train_labels)
    order = np.random.default_rng([subject.seed, 6]).permutation(rows)
    gone = order[:number]
    dataset = without_rows(subject.dataset, gone) if number else subject.dataset
    return Variation(dataset, np.setdiff1d(np.arange(rows), gone))


def _other_batches(subject: Subject, _: Sequence[str], number: int) -> Variation:
    """Another seed, which draws other batches; a full batch stays the same."""
    settings = {"seed": subject.seed + number, "sampling": "shuffle"}
    return Variation(subject.dataset, np.arange(len(subject.dataset.train_labels)), settings)


def ran(
    subject: Subject, jobs: Iterable[Variation], *, guarded: bool
) -> tuple[list[tuple[Recording, Variation]], str]:
    """All jobs up to the first that a guard refuses or that cannot run, and why it did not."""
    found: list[tuple[Recording, Variation]] = []
    with subject.jobs(guarded=guarded) as run:
        for one in jobs:
            try:
                found.append((run(one.dataset, **one.settings), one))
            except CANNOT_RUN as error:
                return found, str(error)
    return found, ""


def _measured(
    subject: Subject, vary: Vary, attackers: Sequence[str], *, guarded: bool
) -> Finding | NotRun:
    def varied() -> Iterator[Variation]:
        for number in range(JOBS):
            one = vary(subject, attackers, number)
            columns = sum(len(table_of(one.dataset, name).columns) for name in attackers)
            size = subject.plan.batch_size if guarded else ROWS_A_COLUMN * columns
            yield replace(one, settings=_length(subject, one, size))

    found, refused = ran(subject, varied(), guarded=guarded)
    return _finding(subject, found, attackers, refused) if found else NotRun(refused)


def _length(subject: Subject, one: Variation, size: object) -> dict[str, object]:
    """A job's settings with so many rows per batch, for some epochs, or rounds of full batches."""
    rows = len(one.people)
    size = "full" if size == "full" or int(str(size)) >= rows else int(str(size))
    batches = 1 if isinstance(size, str) else rows // size
    rounds = max(EPOCHS * batches, min(subject.job.job.rounds, ROUNDS))
    return {**one.settings, "batch_size": size, "rounds": rounds}


def _finding(
    subject: Subject,
    found: Sequence[tuple[Recording, Variation]],
    attackers: Sequence[str],
    refused: str,
) -> Finding:
    labels = subject.dataset.train_labels
    alone = own_models(_columns_used(subject, found, attackers), labels)
    own = best(alone)
    jobs = [
        SeenJob(gradients_seen(recording, name), recording.adversary(name), varied.people)
        for recording, varied in found
        for name in attackers
    ]
    estimate = labels_from_gradients(jobs, own.probabilities)
    first = labels_from_gradients(jobs[: len(attackers)], own.probabilities)
    last = found[-1][0]
    detail = {
        "jobs": len(found),
        "auc_of_first_job": score(first, labels).auc,
        "refused": refused,
        **last.described,
        "attackers": list(attackers),
        "recorded_under": last.job.exchange.scheme,
    }
    return label_finding(estimate, labels, alone, detail)


def _columns_used(
    subject: Subject, found: Sequence[tuple[Recording, Variation]], attackers: Sequence[str]
) -> FloatArray:
    """All columns of the attackers that some job used, for all people, shape (N, P)."""
    parts = []
    for name in attackers:
        table = table_of(subject.dataset, name)
        used = {column for _, one in found for column in table_of(one.dataset, name).columns}
        parts.append(table.train[:, [column in used for column in table.columns]])
    return np.hstack(parts)


@add_attack
@partial(
    Attack,
    "labels_from_parameters",
    "feature party",
    "its columns and parameters, l2; the best model of its columns",
    place=140,
    cost=5.0,
    quick=False,
)
def parameter_labels(subject: Subject) -> Iterable[AttackCase]:
    """The final parameters of this job, and of many jobs on different rows."""
    as_classes(subject.dataset.train_labels)
    if subject.plan.networks or subject.job.job.l1:
        raise ConfigError("labels_from_parameters supports linear models without l1")
    yield AttackCase(partial(_this_job, subject), "this job")
    clear = Subject(subject.job.without_protection, subject.dataset, subject.seed)
    yield AttackCase(
        partial(_other_rows, clear.with_rows(PEOPLE)), "other rows each job", what_if=True
    )


def _this_job(subject: Subject) -> Finding:
    recording = subject.record()
    rows = np.arange(len(subject.dataset.train_labels))
    return _end_finding(subject, [_end(recording, subject.feature_party, rows)])


def _other_rows(subject: Subject) -> Finding:
    rows = len(subject.dataset.train_labels)
    columns = len(table_of(subject.dataset, subject.feature_party).columns)
    found = []
    for number in range(min(MOST_JOBS, ceil(EQUATIONS_A_PERSON * rows / columns))):
        order = np.random.default_rng([subject.seed, 8, number]).permutation(rows)
        kept = np.sort(order[: rows // 2])
        dataset = without_rows(subject.dataset, np.setdiff1d(order, kept))
        settings = {"batch_size": "full", "rounds": min(subject.job.job.rounds, END_ROUNDS)}
        job = subject.job.with_settings(**settings)
        recording = Subject(job, dataset, subject.seed).record()
        found.append(_end(recording, subject.feature_party, kept))
    return _end_finding(subject, found)


def _end(recording: Recording, party: str, people: IntArray) -> JobEnd:
    adversary, plan = recording.adversary(party), recording.plan
    model = recording.result.outcomes[party].model
    penalty = np.full(len(model.weights), plan.l2)
    if adversary.model.intercept:
        penalty[-1] = 0.0
    rounded = np.ldexp(np.floor(np.ldexp(model.weights, REVEALED_BITS)), -REVEALED_BITS)
    return JobEnd(adversary.inputs, rounded, penalty, people)


def _end_finding(subject: Subject, ends: list[JobEnd]) -> Finding:
    labels = subject.dataset.train_labels
    alone = own_models(table_of(subject.dataset, subject.feature_party).train, labels)
    estimate = labels_from_ends(ends, best(alone).probabilities)
    equations = sum(each.inputs.shape[1] for each in ends)
    detail = {"jobs": len(ends), "equations_over_people": equations / len(labels)}
    return label_finding(estimate, labels, alone, detail)
