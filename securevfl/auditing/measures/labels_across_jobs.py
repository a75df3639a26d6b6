"""What feature parties read of the labels in several jobs on the same people, as rows of the audit.

Each job is a real run with one guard directory for all, so that the label guard itself decides
which of them are permitted: all of those are attacked together, up to the first that it refuses.
A quick homomorphic exchange stands in for a slow one: it reveals the same gradients, which are all
that the guard counts. What-ifs have no guard and small batches, in clear: gradients are the same up
to rounding.

The bar is the best model of all the columns that the attacker used, of all people.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from securevfl.arrays import FloatArray, IntArray
from securevfl.attacks.labels_across_jobs import JobKnowledge, labels_across_jobs
from securevfl.auditing.judging import Finding, NotShown
from securevfl.auditing.label_figures import label_finding
from securevfl.auditing.measures.labels import (
    EPOCHS,
    gradients_hidden,
    gradients_seen,
    training_knowledge,
)
from securevfl.auditing.measuring import Case, attack_in_cases
from securevfl.auditing.own_model import best, own_models
from securevfl.auditing.scoring import score
from securevfl.auditing.seats import Recording, table_of, with_table
from securevfl.auditing.subject import Subject
from securevfl.data.tables import VerticalDataset, as_classes, without_rows
from securevfl.errors import ConfigError, LabelLeakRefused
from securevfl.job import ExchangeSettings
from securevfl.protocols.catalogue import EXCHANGES

JOBS = 8
ROWS = 4096
# Of full batches: visits of the same rows add little to what the first few tell.
ROUNDS = 8
# What-ifs take batches of so many rows for each of a peer's columns, as 1/8 was once the limit.
ROWS_A_COLUMN = 8


@dataclass(frozen=True, eq=False)
class Variation:
    """How one job differs from the subject's.

    Attributes:
        dataset: its data.
        people: of each of its training rows the number among the subject's.
        settings: others in `[job]`.
    """

    dataset: VerticalDataset
    people: IntArray
    settings: Mapping[str, object] = field(default_factory=dict)


Vary = Callable[[Subject, Sequence[str], int], Variation]
"""The variation of a job by its number, for a subject and its attackers."""


@attack_in_cases(
    "labels_across_jobs",
    "feature party",
    f"its columns, theta0, schedules and plans of up to {JOBS} jobs; the best model of its columns",
    immune=gradients_hidden,
)
def labels_of_jobs(subject: Subject) -> Iterable[Case]:
    """Jobs that the guard permits, and what they would tell without one."""
    as_classes(subject.dataset.train_labels)
    small = subject.with_rows(ROWS)
    quick = _quick(small)
    for name, vary, attackers in _variations(quick):
        yield Case(partial(_permitted, quick, vary, attackers), f"{name} each job")
    clear = Subject(small.job.without_protection, small.dataset, small.seed)
    for name, vary, attackers in _variations(clear):
        measure = partial(_unguarded, clear, vary, attackers)
        yield Case(measure, f"{name}, S = {ROWS_A_COLUMN}P", what_if=True)


def _quick(subject: Subject) -> Subject:
    """The same under an exchange that shows the same and is not slow, where there is one."""
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
            raise ConfigError(f"{name} has one column: a job cannot take others")
        draw = np.random.default_rng([subject.seed, 5, place, number])
        chosen = np.sort(draw.permutation(len(table.columns))[: len(table.columns) // 2])
        names = tuple(table.columns[column] for column in chosen)
        changed = replace(
            table, columns=names, train=table.train[:, chosen], test=table.test[:, chosen]
        )
        dataset = with_table(dataset, changed)
    return Variation(dataset, np.arange(len(dataset.train_labels)))


def _fewer_rows(subject: Subject, _: Sequence[str], number: int) -> Variation:
    """A row more left out in every job."""
    rows = len(subject.dataset.train_labels)
    order = np.random.default_rng([subject.seed, 6]).permutation(rows)
    gone = order[:number]
    dataset = without_rows(subject.dataset, gone) if number else subject.dataset
    return Variation(dataset, np.setdiff1d(np.arange(rows), gone))


def _other_batches(subject: Subject, _: Sequence[str], number: int) -> Variation:
    """Another seed, by which rows are parted afresh; a full batch stays one."""
    settings = {"seed": subject.seed + number, "sampling": "shuffle"}
    return Variation(subject.dataset, np.arange(len(subject.dataset.train_labels)), settings)


def _permitted(subject: Subject, vary: Vary, attackers: Sequence[str]) -> Finding | NotShown:
    """All jobs of these settings up to the first that the guard refuses."""
    found: list[tuple[Recording, Variation]] = []
    refused = ""
    with TemporaryDirectory() as guard:
        for number in range(JOBS):
            one = vary(subject, attackers, number)
            settings = _length(subject, one, subject.plan.batch_size)
            try:
                recording = subject.record_guarded(Path(guard), one.dataset, **settings)
            except LabelLeakRefused as error:
                refused = str(error)
                break
            found.append((recording, one))
    if not found:
        return NotShown(refused)
    return _finding(subject, found, attackers, refused)


def _unguarded(subject: Subject, vary: Vary, attackers: Sequence[str]) -> Finding:
    """The same with small batches."""
    found = []
    for number in range(JOBS):
        one = vary(subject, attackers, number)
        columns = sum(len(table_of(one.dataset, name).columns) for name in attackers)
        settings = _length(subject, one, ROWS_A_COLUMN * columns)
        changed = Subject(subject.job, one.dataset, subject.seed)
        found.append((changed.record(**settings), one))
    return _finding(subject, found, attackers, "")


def _length(subject: Subject, one: Variation, size: object) -> dict[str, object]:
    """A job's settings with so many rows a batch, for some epochs, or some rounds of full ones."""
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
    """Attack some jobs together."""
    labels = subject.dataset.train_labels
    alone = own_models(_columns_used(subject, found, attackers), labels)
    own = best(alone)
    gradients: list[Sequence[FloatArray]] = []
    jobs: list[JobKnowledge] = []
    for recording, varied in found:
        for name in attackers:
            seat = recording.seat(name)
            training = training_knowledge(recording, seat, own.probabilities)
            training = replace(training, own_model=own.probabilities[varied.people])
            gradients.append(gradients_seen(recording, seat))
            jobs.append(JobKnowledge(training, varied.people))
    estimate = labels_across_jobs(gradients, jobs, own.probabilities)
    one = len(attackers)
    first = labels_across_jobs(gradients[:one], jobs[:one], own.probabilities)
    last = found[-1][0]
    detail = {
        "jobs": len(found),
        "auc_of_first_job": score(first, labels).auc,
        "refused": refused,
        "rounds": last.result.rounds,
        "batch_size": last.job.job.batch_size,
        "label_guard_ratio": last.result.label_guard_ratio,
        "attackers": list(attackers),
        "recorded_under": last.job.exchange.scheme,
    }
    return label_finding(estimate, labels, alone, detail)


def _columns_used(
    subject: Subject, found: Sequence[tuple[Recording, Variation]], attackers: Sequence[str]
) -> FloatArray:
    """All columns of the attackers that some job took, of all people, shape (N, P)."""
    parts = []
    for name in attackers:
        table = table_of(subject.dataset, name)
        used = {column for _, one in found for column in table_of(one.dataset, name).columns}
        parts.append(table.train[:, [column in used for column in table.columns]])
    return np.hstack(parts)
