"""Attacks of a feature party on the labels in one job, measured.

The figures come with advice: which batches protect labels, measured for the job's data, model and
sampling. Runs in clear stand in for encrypted ones, as their gradients are the same up to rounding.
The smallest batch size that the advice names is the label guard's.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import partial
from math import ceil
from typing import Any

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.attacks import LabelEstimate
from securevfl.attacks.adversary_view import replay, rounds_of
from securevfl.attacks.labels_from_gradients import (
    SIGN_LOSSES,
    SeenJob,
    label_part,
    labels_from_gradients,
    labels_from_one_round,
    targets_from_gradients,
    targets_from_residuals,
)
from securevfl.attacks.labels_from_hinges import labels_from_hinges
from securevfl.attacks.labels_in_clear import labels_from_residuals
from securevfl.attacks.row_spaces import LEVERAGE_ONE, Exposure, exposure
from securevfl.auditing.figures import best, label_finding, own_estimate, own_models, target_finding
from securevfl.auditing.judging import Finding, NotRun
from securevfl.auditing.measuring import Attack, AttackCase, add_attack
from securevfl.auditing.subject import Recording, Subject, local_part, table_of
from securevfl.auditing.views import gradients_of, predictions_of, residuals_of
from securevfl.errors import ConfigError, LabelLeakRefused
from securevfl.protocols.guards.person_record import OTHERS_LIMIT, label_variance
from securevfl.shown import curve

EPOCHS = 3
HINGES = {"hinge", "squared-hinge"}
ROUNDS = 20  # of full batches and exact steps, which have one round per epoch
# Figures of what-ifs depend on the batch size, but hardly on the number of batches.
WHAT_IF_ROWS, WHAT_IF_BATCH = 4096, 64
SAMPLINGS = {"partition": "fixed batches", "shuffle": "reshuffled"}
BATCH_SIZES, MOST_EPOCHS = 7, 5
RANK_FLAG = 0.5


def gradients_hidden(subject: Subject) -> str:
    """Why feature parties see nothing of d; empty if they see gradients or residuals."""
    seen = subject.learns.gradients or subject.in_clear
    return "" if seen else "feature parties see neither gradients nor residuals"


@add_attack
@partial(
    Attack,
    "labels_from_residuals",
    "feature party",
    "the schedule of batches",
    immune=lambda subject: "" if subject.in_clear else "residuals travel encrypted or in shares",
    takes_head=True,
    place=70,
)
def residual_labels(subject: Subject) -> Finding:
    """Read labels off the signs of residuals in clear, real targets off their values."""
    party = subject.feature_party
    if subject.plan.facts.real_targets:
        recording = _epochs(subject, EPOCHS)
        adversary, own = recording.adversary(party), _own_estimate(recording, party)
        seen = residuals_of(recording.view(party))
        found = targets_from_residuals(seen, gradients_seen(recording, party), adversary, own)
        return _target_finding(found, recording, party)
    loss = subject.job.job.loss
    if loss not in SIGN_LOSSES | HINGES:
        raise ConfigError(f"{loss} loss: the signs of its residuals do not reveal classes")
    recording = _epochs(subject, EPOCHS)
    estimate = labels_from_residuals(
        residuals_of(recording.view(party)),
        recording.batches,
        len(recording.labels),
        zeros_tell=loss in SIGN_LOSSES,
    )
    return _finding(estimate, recording, party)


@add_attack
@partial(
    Attack,
    "labels_from_gradients",
    "feature party",
    "its columns, theta0, the schedule, the plan; the best model of its columns",
    immune=gradients_hidden,
    place=80,
    cost=3.0,
)
def gradient_labels(subject: Subject) -> Iterable[AttackCase]:
    """Aggregated gradients of the job as it is, and of jobs that the label guard would refuse."""
    if subject.plan.loss.weighs_labels:
        small = subject.with_rows(WHAT_IF_ROWS)
        granted = "all columns, all predictions; the best model of its own columns"
        yield AttackCase(partial(_permitted_hinge, small), "as the guard permits", granted)
        yield AttackCase(partial(_hinge, small), "without the guard", granted, what_if=True)
        return
    yield AttackCase(partial(_this_job, subject), "this job's batches")
    small = subject.with_rows(WHAT_IF_ROWS)
    size = min(WHAT_IF_BATCH, len(small.dataset.train_labels))
    for epochs in (1, EPOCHS):
        name = f"reshuffled {size}, {epochs} epoch{'s' if epochs > 1 else ''}"
        yield AttackCase(partial(_at, small, "shuffle", size, epochs), name, what_if=True)
    if subject.job.job.loss in SIGN_LOSSES:
        yield AttackCase(partial(_one_round, small), "theta0 = 0, S = P, once", what_if=True)


def _this_job(subject: Subject) -> Finding:
    rounds = max(EPOCHS * subject.plan.schedule.batches, min(subject.job.job.rounds, ROUNDS))
    finding = read_labels(subject.record(rounds=rounds), subject.feature_party)
    if subject.with_curves and not subject.plan.facts.real_targets:
        finding.detail.update(advise(subject, EPOCHS))
    return finding


def _epochs(subject: Subject, epochs: int, **changes: object) -> Recording:
    rows = len(subject.dataset.train_labels)
    size = changes.get("batch_size", subject.plan.batch_size)
    rounds = 1 if size == "full" else rows // int(str(size))
    return subject.record(rounds=epochs * rounds, **changes)


def read_labels(recording: Recording, party: str) -> Finding:
    """Labels from all gradients that a feature party learned in a run."""
    adversary, gradients = recording.adversary(party), gradients_seen(recording, party)
    if recording.plan.facts.real_targets:
        found = targets_from_gradients(gradients, adversary, _own_estimate(recording, party))
        return _target_finding(found, recording, party)
    own = best(own_models(adversary.inputs, recording.labels)).probabilities
    everyone = np.arange(len(recording.labels))
    estimate = labels_from_gradients([SeenJob(gradients, adversary, everyone)], own)
    return _finding(estimate, recording, party)


def _permitted_hinge(subject: Subject) -> Finding | NotRun:
    with subject.jobs(guarded=True) as run:
        try:
            run(subject.dataset)
        except LabelLeakRefused as error:
            return NotRun(str(error))
    return _hinge(subject)


def _hinge(subject: Subject) -> Finding:
    """Labels by an attacker that knows the predictions of every round, from a run in clear."""
    clear = Subject(subject.job.without_protection, subject.dataset, subject.seed)
    recording, party = clear.record(), subject.feature_party
    adversary, label_party = recording.adversary(party), clear.dataset.label_party
    view, names = recording.view(label_party), recording.plan.facts.names
    others = {name: predictions_of(view, name) for name in names if name != label_party}
    visits, _ = replay(gradients_seen(recording, party), adversary)
    rounds = rounds_of(others, recording.adversary(label_party), party)
    answered = [
        each
        for each, decision in zip(rounds, recording.decisions, strict=True)
        if not (decision.backtrack or decision.stop)
    ]
    summed = [each.summed for each in answered[: len(visits)]]
    own = best(own_models(adversary.inputs, recording.labels)).probabilities
    estimate = labels_from_hinges(visits, summed, recording.plan.loss, own)
    return _finding(estimate, recording, party)


def _one_round(subject: Subject) -> Finding:
    party = subject.feature_party
    size = min(table_of(subject.dataset, party).train.shape)
    recording = subject.record(rounds=1, batch_size=size, start="zero")
    rows, loss = recording.batches[0], recording.plan.rule.loss
    predicted = label_part(loss, np.zeros((len(rows), loss.outputs)))
    gradients = gradients_seen(recording, party)
    if not gradients:
        raise ConfigError("gradients: 0 rounds, expected 1")
    found = labels_from_one_round(gradients[0], recording.adversary(party).inputs[rows], predicted)
    return _finding(LabelEstimate(rows, found.scores), recording, party)


def gradients_seen(recording: Recording, party: str) -> Sequence[FloatArray]:
    """The gradients in a view or, if it holds residuals in clear, Xᵀd/S computed from them."""
    view, adversary = recording.view(party), recording.adversary(party)
    learned = gradients_of(view)
    if learned:
        return learned
    pairs = zip(adversary.answered, residuals_of(view), strict=False)
    return [adversary.inputs[rows].T @ residuals / len(rows) for rows, residuals in pairs]


def _own_estimate(recording: Recording, party: str) -> FloatArray:
    return own_estimate(recording.adversary(party).inputs, recording.labels)


def _finding(estimate: LabelEstimate, recording: Recording, party: str) -> Finding:
    alone = own_models(recording.adversary(party).inputs, recording.labels)
    return label_finding(estimate, recording.labels, alone, recording.described)


def _target_finding(estimate: FloatArray, recording: Recording, party: str) -> Finding:
    inputs = recording.adversary(party).inputs
    return target_finding(estimate, inputs, recording.labels, recording.described)


def advise(subject: Subject, epochs: int) -> dict[str, Any]:
    """Measured advice on how to protect labels, on some rows, with the exposure of all rows.

    `curves` are AUC by batch size and by epochs. `advice` has the smallest S of fixed batches that
    the label guard permits, which may exceed the number of rows, and flags what exposes labels.
    """
    clear = subject.job.without_protection
    small = Subject(clear, subject.with_rows(WHAT_IF_ROWS).dataset, subject.seed)
    rows = len(small.dataset.train_labels)
    inputs = table_of(subject.dataset, subject.feature_party).train
    least = min(inputs.shape[1], rows)
    sizes = np.unique(np.geomspace(least, rows, BATCH_SIZES).astype(int)).tolist()
    size = subject.plan.batch_size
    at_hand = rows if size == "full" else min(size, rows)
    all_epochs = list(range(1, MOST_EPOCHS + 1))
    by_size = {
        name: [_at(small, sampling, each, EPOCHS) for each in sizes]
        for sampling, name in SAMPLINGS.items()
    }
    by_epoch = {
        name: [_at(small, sampling, at_hand, each) for each in all_epochs]
        for sampling, name in SAMPLINGS.items()
    }
    reference = next(iter(by_size.values()))[0]
    bars = {"own model": reference.model_alone or 0.0, "chance": reference.chance or 0.0}
    shown = exposure(inputs, subject.plan.schedule, epochs)
    zero_start = subject.job.job.start == "zero"
    return {
        "curves": [
            _curve(f"Labels by batch size, {EPOCHS} epochs", "rows a batch", sizes, by_size, bars),
            _curve(f"Labels by epochs, S = {at_hand}", "epochs", all_epochs, by_epoch, bars),
        ],
        "advice": {
            "exposure": asdict(shown),
            "zero_start": zero_start,
            "least_batch_size": least_batch_size(subject),
            "rows": len(subject.dataset.train_labels),
            "flags": _flags(shown, zero_start),
        },
    }


def least_batch_size(subject: Subject, limit: float = OTHERS_LIMIT) -> int:
    """The smallest S that the label guard permits: P/(S·v) has a limit, by default that of batches.

    P counts the columns of all feature parties.
    """
    peers = [name for name in subject.plan.facts.names if name != subject.dataset.label_party]
    parts = (local_part(subject.plan, subject.dataset, name) for name in peers)
    columns = sum(part.parameters or part.inputs.shape[1] for part in parts)
    return ceil(columns / (limit * label_variance(subject.dataset.train_labels)))


def _flags(shown: Exposure, zero_start: bool) -> list[str]:
    found = []
    if shown.max_leverage > LEVERAGE_ONE:
        found.append(
            f"{shown.exposed_rows} rows have leverage 1 in a batch: one gradient reveals "
            "their residuals, at any guard ratio"
        )
    if shown.rank_share > RANK_FLAG:
        found.append(
            f"gradients span {shown.rank_share:.2f} of the labels' space after "
            f"{shown.epochs} epochs"
        )
    if zero_start:
        found.append("theta0 = 0: residuals of the first round are known except for the label")
    return found


def _at(subject: Subject, sampling: str, size: int, epochs: int) -> Finding:
    recording = _epochs(subject, epochs, batch_size=size, sampling=sampling)
    return read_labels(recording, subject.feature_party)


def _curve(
    title: str, x_label: str, x: list[int], found: dict[str, list[Finding]], bars: dict[str, float]
) -> dict[str, Any]:
    series = {name: [each.value for each in findings] for name, findings in found.items()}
    log_x = ceil(x[-1] / x[0]) > 2 * MOST_EPOCHS
    return curve(title, x_label, "AUC", x, series, lines=bars, log_x=log_x)
