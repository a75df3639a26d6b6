"""What a party's own θ_k tells it of labels when a job is over, as rows of the audit.

Every exchange gives θ_k to its owner, and `blind` gives nothing else. So this is what is left of
the label guard's question there, and for all others a floor: one job is P equations and tells what
the own model does; jobs on the same people that leave out other rows add up. These are recorded in
clear with the end rounded as `blind` rounds it, since what hides the rounds plays no part.
"""

from collections.abc import Iterable
from functools import partial
from math import ceil

import numpy as np

from securevfl.arrays import IntArray
from securevfl.attacks.labels_from_parameters import EndKnowledge, labels_from_parameters
from securevfl.auditing.judging import Finding
from securevfl.auditing.label_figures import label_finding
from securevfl.auditing.measuring import Case, attack_in_cases
from securevfl.auditing.own_model import best, own_models
from securevfl.auditing.seats import Recording, table_of
from securevfl.auditing.subject import Subject
from securevfl.data.tables import as_classes, without_rows
from securevfl.errors import ConfigError
from securevfl.protocols.blind.fixed_point import REVEALED_BITS

# Jobs are of half of so many people, until all ends together are this many times the people.
PEOPLE, EQUATIONS_A_PERSON, MOST_JOBS = 160, 1.0, 32
ROUNDS = 12


@attack_in_cases(
    "labels_from_parameters",
    "feature party",
    "its columns and parameters, l2; the best model of its columns",
)
def parameter_labels(subject: Subject) -> Iterable[Case]:
    """The end of this job, and of many jobs on other rows."""
    as_classes(subject.dataset.train_labels)
    if subject.plan.networks or subject.job.job.l1:
        raise ConfigError("ends are read of linear models without l1")
    yield Case(partial(_this_job, subject), "this job")
    clear = Subject(subject.job.without_protection, subject.dataset, subject.seed)
    yield Case(partial(_other_rows, clear.with_rows(PEOPLE)), "other rows each job", what_if=True)


def _this_job(subject: Subject) -> Finding:
    recording = subject.record()
    rows = np.arange(len(subject.dataset.train_labels))
    return _finding(subject, [_end(recording, subject.feature_party, rows)])


def _other_rows(subject: Subject) -> Finding:
    rows = len(subject.dataset.train_labels)
    columns = len(table_of(subject.dataset, subject.feature_party).columns)
    found = []
    for number in range(min(MOST_JOBS, ceil(EQUATIONS_A_PERSON * rows / columns))):
        order = np.random.default_rng([subject.seed, 8, number]).permutation(rows)
        kept = np.sort(order[: rows // 2])
        dataset = without_rows(subject.dataset, np.setdiff1d(order, kept))
        settings = {"batch_size": "full", "rounds": min(subject.job.job.rounds, ROUNDS)}
        job = subject.job.with_settings(**settings)
        recording = Subject(job, dataset, subject.seed).record()
        found.append(_end(recording, subject.feature_party, kept))
    return _finding(subject, found)


def _end(recording: Recording, party: str, people: IntArray) -> EndKnowledge:
    """What the party holds of a job on these people."""
    seat, plan = recording.seat(party), recording.plan
    model = recording.result.outcomes[party].model
    penalty = np.full(len(model.weights), plan.l2)
    if seat.model.intercept:
        penalty[-1] = 0.0
    rounded = np.ldexp(np.floor(np.ldexp(model.weights, REVEALED_BITS)), -REVEALED_BITS)
    return EndKnowledge(seat.inputs, rounded, penalty, people)


def _finding(subject: Subject, ends: list[EndKnowledge]) -> Finding:
    labels = subject.dataset.train_labels
    alone = own_models(table_of(subject.dataset, subject.feature_party).train, labels)
    estimate = labels_from_parameters(ends, best(alone).probabilities)
    equations = sum(each.inputs.shape[1] for each in ends)
    detail = {"jobs": len(ends), "equations_over_people": equations / len(labels)}
    return label_finding(estimate, labels, alone, detail)
