"""Attacks of a feature party on the labels of groups whom jobs tell apart, measured.

*Groups alone.* Each of many groups has a job of its own. The label guard counts each as a first
whole population, and permits P/(S·v) up to ½, as most of what a job shows of so few is the model.
The first gradient gives the least-squares fit of a group's labels to the attacker's columns. The
bars are models of these columns over all groups, the attacker's final parts of the groups' models,
and both together: what gradients add to models is a leak.

*Groups left out.* One column a job, on everybody and on everybody but a few. From the same θ⁰ the
first gradients differ by what concerns those few, and there are as many differences as columns.

In the controls there is no guard, and groups alone have as many people as the attacker has columns.
"""

from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np

from securevfl.arrays import FloatArray, IntArray
from securevfl.attacks import LabelEstimate
from securevfl.attacks.adversary_view import Visit
from securevfl.attacks.factored_features import spread_anchors
from securevfl.attacks.labels_from_gradients import (
    KNOWN,
    fit_from_one_round,
    label_part,
    solve_labels,
)
from securevfl.attacks.row_spaces import RowSpace
from securevfl.auditing.figures import OwnModel, best, label_finding, own_models, score
from securevfl.auditing.judging import Finding, NotRun
from securevfl.auditing.measures.labels import (
    gradients_hidden,
    gradients_seen,
    least_batch_size,
)
from securevfl.auditing.measures.labels_of_jobs import ROWS, quickened
from securevfl.auditing.measuring import CANNOT_RUN, Attack, AttackCase, add_attack
from securevfl.auditing.subject import Subject, table_of, with_columns
from securevfl.data.tables import as_classes, without_rows
from securevfl.errors import ConfigError, LabelLeakRefused
from securevfl.protocols.guards.person_record import LEAST_ROWS, MODEL_LIMIT

MOST_GROUPS = 256
LEFT_OUT, MOST_COLUMNS = 3, 24  # groups, with a person for every two columns


def _cases(measure: "partial[Finding | NotRun]", subject: Subject) -> Iterable[AttackCase]:
    as_classes(subject.dataset.train_labels)
    loss, plan = subject.plan.loss, subject.plan
    if plan.networks or loss.outputs > 1 or loss.label_change != 1:
        raise ConfigError("this attack supports two classes, linear models and d = s(H) - y")
    small = quickened(subject.with_rows(ROWS))
    for guarded, name in ((True, "as the guard permits"), (False, "without the guard")):
        yield AttackCase(partial(measure, small, guarded=guarded), name, control=not guarded)


def _alone(subject: Subject, *, guarded: bool) -> Finding | NotRun:
    dataset, party, loss = subject.dataset, subject.feature_party, subject.plan.loss
    labels, inputs = dataset.train_labels, table_of(dataset, party).train
    size = inputs.shape[1]
    if guarded:
        size = max(least_batch_size(subject, MODEL_LIMIT), LEAST_ROWS)
    if 2 * size > len(labels):
        raise ConfigError(f"{len(labels)} rows are no two groups of {size}")
    fits, parts, people, refused = [], [], [], ""
    with subject.jobs(guarded=guarded) as run:
        for group in _groups(subject, size):
            others = np.setdiff1d(np.arange(len(labels)), group)
            try:
                recording = run(without_rows(dataset, others), batch_size="full")
            except CANNOT_RUN as error:
                refused = str(error)
                break
            adversary = recording.adversary(party)
            known = label_part(loss, adversary.model.predict(adversary.inputs))
            gradient = gradients_seen(recording, party)[0]
            fits.append(fit_from_one_round(gradient, adversary.inputs, known))
            parts.append(adversary.inputs @ recording.result.outcomes[party].model.weights)
            people.append(group)
    if not people:
        return NotRun(refused)
    rows = np.concatenate(people)
    seen, final = labels[rows], label_part(loss, np.vstack(parts))
    alone = own_models(inputs[rows], seen)
    own = best(alone).probabilities
    estimate = LabelEstimate(np.arange(len(rows)), own + np.vstack(fits) - 0.5)
    ends = [_as_model(each, seen) for each in (final - 0.5, own + final - 1.0)]
    detail = {"jobs": len(people), "people_a_job": len(people[0]), "refused": refused}
    return label_finding(estimate, seen, [*alone, *ends], detail)


def _groups(subject: Subject, size: int) -> list[IntArray]:
    """Disjoint groups of at least so many people, each with its share of the rarer class."""
    labels = subject.dataset.train_labels
    order = np.random.default_rng([subject.seed, 10]).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    count = min(len(labels) // size, int(np.bincount(labels).min()))
    return [np.sort(order[place::count]) for place in range(min(count, MOST_GROUPS))]


def _as_model(scores: FloatArray, labels: IntArray) -> OwnModel:
    estimate = LabelEstimate(np.arange(len(labels)), scores)
    return OwnModel(estimate, score(estimate, labels), scores)


def _left_out(subject: Subject, *, guarded: bool) -> Finding:
    dataset, party, loss = subject.dataset, subject.feature_party, subject.plan.loss
    labels, inputs = dataset.train_labels, table_of(dataset, party).train
    alone, refused = own_models(inputs, labels), ""
    # Columns in which few people stand out tell the others apart least.
    chosen = np.argsort(np.mean(inputs**4, axis=0))[:MOST_COLUMNS]
    groups = _few(subject, inputs[:, chosen], max(len(chosen) // 4, 1))
    seen = np.zeros((len(groups), len(chosen)))
    settings = {"batch_size": "full", "rounds": 1}
    with subject.jobs(guarded=guarded) as run:
        try:
            for number, column in enumerate(chosen.tolist()):
                narrow = with_columns(dataset, party, [column])
                everybody = run(narrow, **settings)
                adversary = everybody.adversary(party)
                known = label_part(loss, adversary.model.predict(adversary.inputs))
                total = len(labels) * gradients_seen(everybody, party)[0]
                for place, group in enumerate(groups):
                    others = run(without_rows(narrow, group), **settings)
                    rest = (len(labels) - len(group)) * gradients_seen(others, party)[0]
                    part = adversary.inputs[group].T @ known[group]
                    seen[place, number] = (total - rest - part).item()
        except LabelLeakRefused as error:
            refused = str(error)
    rows = np.concatenate(groups)
    scores = best(alone).estimate.scores[rows]
    if not refused:
        known = best(alone).probabilities
        scores = np.vstack(
            [
                _solved(inputs[group][:, chosen], sums, known[group])
                for group, sums in zip(groups, seen, strict=True)
            ]
        )
    detail = {"people_left_out": len(groups[0]), "groups": len(groups), "refused": refused}
    return label_finding(LabelEstimate(rows, scores), labels, alone, detail)


def _few(subject: Subject, columns: FloatArray, half: int) -> Sequence[IntArray]:
    """Disjoint groups with so many people of either class, who differ most in these columns."""
    labels = subject.dataset.train_labels
    order = spread_anchors(columns, len(labels), np.random.default_rng([subject.seed, 12]))
    drawn = [order[labels[order] == each] for each in (0, 1)]
    count = min(LEFT_OUT, *(len(each) // half for each in drawn))
    if not count:
        raise ConfigError(f"a class has fewer than {half} rows")
    return [
        np.sort(np.concatenate([each[place::count][:half] for each in drawn]))
        for place in range(count)
    ]


def _solved(inputs: FloatArray, sums: FloatArray, own: FloatArray) -> FloatArray:
    """Labels from -Xᵀy, shape (P,), near the own model's, shape (n, 1)."""
    space, nobody = RowSpace.of(inputs), np.zeros_like(own)
    visit = Visit(np.arange(len(own)), space, space.coordinates(sums[:, None]), nobody)
    return solve_labels([visit], [nobody], own, KNOWN).scores


for _name, _measure, _knows, _place, _cost in (
    (
        "labels_of_groups",
        _alone,
        "its columns, theta0, its parts of all models; the best of these",
        136,
        4.0,
    ),
    (
        "labels_by_difference",
        _left_out,
        "its columns, theta0, who was left out; the best model of its columns",
        137,
        2.0,
    ),
):
    add_attack(
        Attack(
            _name,
            "feature party",
            _knows,
            partial(_cases, _measure),
            immune=gradients_hidden,
            place=_place,
            cost=_cost,
            quick=False,
        )
    )
