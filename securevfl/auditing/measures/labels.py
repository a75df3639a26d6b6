"""What a feature party reads of the labels in one job, as rows of the audit."""

from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.attacks.gradient_visits import TrainingKnowledge
from securevfl.attacks.label_estimate import LabelEstimate
from securevfl.attacks.labels_from_gradients import (
    SIGN_LOSSES,
    OneRoundKnowledge,
    label_part,
    labels_from_gradients,
    labels_from_one_round,
)
from securevfl.attacks.labels_from_residuals import ScheduleKnowledge, labels_from_residuals
from securevfl.attacks.targets import targets_from_gradients, targets_from_residuals
from securevfl.auditing.advice import advise
from securevfl.auditing.judging import Finding
from securevfl.auditing.label_figures import label_finding
from securevfl.auditing.measuring import Case, attack, attack_in_cases
from securevfl.auditing.own_model import OwnModel, best, own_models
from securevfl.auditing.seats import Recording, Seat, table_of
from securevfl.auditing.subject import Subject
from securevfl.auditing.target_figures import own_estimate, target_finding
from securevfl.auditing.views import gradients_of, residuals_of
from securevfl.errors import ConfigError

EPOCHS = 3
HINGES = {"hinge", "squared-hinge"}
# A full batch is one round an epoch; exact steps take so many.
ROUNDS = 20
# What-ifs run on so many rows: their figures depend on batch sizes, not on how many batches.
WHAT_IF_ROWS, WHAT_IF_BATCH = 4096, 64


def gradients_hidden(subject: Subject) -> str:
    """Why feature parties see nothing of d; empty where they see gradients or residuals."""
    seen = subject.learns.gradients or subject.in_clear
    return "" if seen else "feature parties see neither gradients nor residuals"


@attack(
    "labels_from_residuals",
    "feature party",
    "the schedule of batches",
    immune=lambda subject: "" if subject.in_clear else "residuals travel encrypted or in shares",
    takes_head=True,
)
def residual_labels(subject: Subject) -> Finding:
    """Signs of residuals in clear; of real targets their values."""
    if subject.plan.facts.real_targets:
        return _targets_in_clear(_epochs(subject, EPOCHS), subject.feature_party)
    loss = subject.job.job.loss
    if loss not in SIGN_LOSSES | HINGES:
        raise ConfigError(f"residuals of {loss} loss do not tell classes by sign")
    recording = _epochs(subject, EPOCHS)
    seat = recording.seat(subject.feature_party)
    knowledge = ScheduleKnowledge(
        len(seat.inputs), recording.batches, zeros_tell=loss in SIGN_LOSSES
    )
    estimate = labels_from_residuals(residuals_of(seat.view), knowledge)
    return _finding(estimate, recording, _alone(recording, seat))


@attack_in_cases(
    "labels_from_gradients",
    "feature party",
    "its columns, theta0, the schedule, the plan; the best model of its columns",
    immune=gradients_hidden,
)
def gradient_labels(subject: Subject) -> Iterable[Case]:
    """Aggregated gradients: of the job as it is, and of jobs that the guard would refuse."""
    yield Case(partial(_this_job, subject), "this job's batches")
    small = subject.with_rows(WHAT_IF_ROWS)
    size = min(WHAT_IF_BATCH, len(small.dataset.train_labels))
    for epochs in (1, EPOCHS):
        name = f"reshuffled {size}, {epochs} epoch{'s' if epochs > 1 else ''}"
        yield Case(partial(_reshuffled, small, size, epochs), name, what_if=True)
    if subject.job.job.loss in SIGN_LOSSES:
        yield Case(partial(_one_round, small), "theta0 = 0, S = P, once", what_if=True)


def _this_job(subject: Subject) -> Finding:
    finding = read_labels(_visits(subject), subject.feature_party)
    # The curves are of classes.
    if subject.with_curves and not subject.plan.facts.real_targets:
        advice = advise(subject, partial(read_labels, party=subject.feature_party), EPOCHS)
        finding.detail.update(curves=advice.curves, advice=advice.row())
    return finding


def _reshuffled(subject: Subject, size: int, epochs: int) -> Finding:
    recording = _epochs(subject, epochs, batch_size=size, sampling="shuffle")
    return read_labels(recording, subject.feature_party)


def _visits(subject: Subject) -> Recording:
    """The job for some epochs, or for all its rounds up to twenty where that is more."""
    rounds = max(EPOCHS * subject.plan.schedule.batches, min(subject.job.job.rounds, ROUNDS))
    return subject.record(rounds=rounds)


def _epochs(subject: Subject, epochs: int, **changes: object) -> Recording:
    """A run of so many epochs: floor(N / S) rounds each."""
    rows = len(subject.dataset.train_labels)
    size = changes.get("batch_size", subject.plan.batch_size)
    rounds = 1 if size == "full" else rows // int(str(size))
    return subject.record(rounds=epochs * rounds, **changes)


def read_labels(recording: Recording, party: str) -> Finding:
    """Labels from all gradients of a run that a feature party learned."""
    seat = recording.seat(party)
    if recording.plan.facts.real_targets:
        knowledge = training_knowledge(recording, seat, _own_estimate(recording, seat))
        found = targets_from_gradients(gradients_seen(recording, seat), knowledge)
        return _target_finding(found, recording, seat)
    alone = _alone(recording, seat)
    knowledge = training_knowledge(recording, seat, best(alone).probabilities)
    return _finding(
        labels_from_gradients(gradients_seen(recording, seat), knowledge), recording, alone
    )


def _targets_in_clear(recording: Recording, party: str) -> Finding:
    seat = recording.seat(party)
    knowledge = training_knowledge(recording, seat, _own_estimate(recording, seat))
    seen = residuals_of(seat.view)
    found = targets_from_residuals(seen, gradients_seen(recording, seat), knowledge)
    return _target_finding(found, recording, seat)


def training_knowledge(
    recording: Recording, seat: Seat, own_model: FloatArray
) -> TrainingKnowledge:
    """What a feature party holds beside its view, and what the best model of its columns says."""
    return TrainingKnowledge(
        inputs=seat.inputs,
        batches=recording.batches,
        start=seat.model.weights,
        plan=recording.plan,
        columns=recording.columns,
        courses=recording.courses,
        own_model=own_model,
    )


def _one_round(subject: Subject) -> Finding:
    size = min(table_of(subject.dataset, subject.feature_party).train.shape)
    recording = subject.record(rounds=1, batch_size=size, start="zero")
    seat, rows = recording.seat(subject.feature_party), recording.batches[0]
    loss = recording.plan.rule.loss
    predicted = label_part(loss, np.zeros((len(rows), loss.outputs)))
    gradient = gradients_seen(recording, seat)[0]
    found = labels_from_one_round(gradient, OneRoundKnowledge(seat.inputs[rows], predicted))
    estimate = LabelEstimate(rows, found.scores)
    return _finding(estimate, recording, _alone(recording, seat))


def gradients_seen(recording: Recording, seat: Seat) -> Sequence[FloatArray]:
    """What the view holds, or, where residuals are in clear, Xᵀd/S made from them."""
    learned = gradients_of(seat.view)
    if learned:
        return learned
    batches = zip(recording.batches, recording.courses, strict=True)
    answered = [rows for rows, course in batches if not (course.back or course.stop)]
    pairs = zip(answered, residuals_of(seat.view), strict=False)
    return [seat.inputs[rows].T @ residuals / len(rows) for rows, residuals in pairs]


def _alone(recording: Recording, seat: Seat) -> tuple[OwnModel, ...]:
    return own_models(seat.inputs, recording.dataset.train_labels)


def _own_estimate(recording: Recording, seat: Seat) -> FloatArray:
    return own_estimate(seat.inputs, recording.dataset.train_labels)


def _finding(estimate: LabelEstimate, recording: Recording, alone: Sequence[OwnModel]) -> Finding:
    return label_finding(estimate, recording.dataset.train_labels, alone, _detail(recording))


def _target_finding(estimate: FloatArray, recording: Recording, seat: Seat) -> Finding:
    targets = recording.dataset.train_labels
    return target_finding(estimate, seat.inputs, targets, _detail(recording))


def _detail(recording: Recording) -> dict[str, object]:
    return {
        "rounds": recording.result.rounds,
        "batch_size": recording.job.job.batch_size,
        "label_guard_ratio": recording.result.label_guard_ratio,
    }
