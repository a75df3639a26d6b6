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

from collections.abc import Callable, Iterable
from functools import partial

import numpy as np

from securevfl.arrays import FloatArray
from securevfl.attacks import LabelEstimate
from securevfl.attacks.factored_features import spread_anchors
from securevfl.attacks.labels_from_gradients import (
    fit_from_one_round,
    label_part,
    labels_from_one_round,
)
from securevfl.auditing.figures import OwnModel, best, label_finding, own_models, score
from securevfl.auditing.judging import Finding, NotRun
from securevfl.auditing.measures.labels import gradients_hidden, gradients_seen, least_batch_size
from securevfl.auditing.measures.labels_of_jobs import ROWS, Variation, quickened, ran
from securevfl.auditing.measuring import Attack, AttackCase, add_attack
from securevfl.auditing.subject import Recording, Subject, table_of, with_columns
from securevfl.data.tables import as_classes, without_rows
from securevfl.errors import ConfigError
from securevfl.protocols.guards.person_record import LEAST_ROWS, MODEL_LIMIT

MOST_GROUPS = 256
LEFT_OUT, MOST_COLUMNS = 3, 24  # groups, with a person for every two columns


def _cases(measure: Callable[..., Finding | NotRun], subject: Subject) -> Iterable[AttackCase]:
    as_classes(subject.dataset.train_labels)
    loss = subject.plan.loss
    if subject.plan.networks or loss.outputs > 1 or loss.label_change != 1:
        raise ConfigError("this attack supports two classes, linear models and d = s(H) - y")
    small = quickened(subject.with_rows(ROWS))
    for guarded, name in ((True, "as the guard permits"), (False, "without the guard")):
        yield AttackCase(partial(measure, small, guarded=guarded), name, control=not guarded)


def _alone(subject: Subject, *, guarded: bool) -> Finding | NotRun:
    dataset, party, loss = subject.dataset, subject.feature_party, subject.plan.loss
    labels, inputs = as_classes(dataset.train_labels), table_of(dataset, party).train
    least = max(least_batch_size(subject, MODEL_LIMIT), LEAST_ROWS)
    size = least if guarded else inputs.shape[1]
    if 2 * size > len(labels):
        raise ConfigError(f"{len(labels)} rows are no two groups of {size}")
    # Each group has its share of the rarer class.
    order = np.random.default_rng([subject.seed, 10]).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    count = min(len(labels) // size, int(np.bincount(labels).min()))
    groups = [np.sort(order[place::count]) for place in range(min(count, MOST_GROUPS))]
    full = {"batch_size": "full"}
    jobs = (
        Variation(without_rows(dataset, np.setdiff1d(order, group)), group, full)
        for group in groups
    )
    fits, parts = [], []
    found, refused = ran(subject, jobs, guarded=guarded)
    if not found:
        return NotRun(refused)
    for recording, _ in found:
        adversary = recording.adversary(party)
        known = label_part(loss, adversary.model.predict(adversary.inputs))
        gradient = gradients_seen(recording, party)[0]
        fits.append(fit_from_one_round(gradient, adversary.inputs, known))
        parts.append(adversary.inputs @ recording.result.outcomes[party].model.weights)
    rows = np.concatenate(groups[: len(fits)])
    seen, final = labels[rows], label_part(loss, np.vstack(parts))
    models = own_models(inputs[rows], seen)
    own = best(models).probabilities

    def estimate(centred: FloatArray) -> LabelEstimate:
        return LabelEstimate(np.arange(len(rows)), centred)

    ends = [estimate(each) for each in (final - 0.5, own + final - 1)]
    bars = [*models, *(OwnModel(each, score(each, seen), each.scores) for each in ends)]
    detail = {"jobs": len(fits), "people_a_job": len(groups[0]), "refused": refused}
    return label_finding(estimate(own + np.vstack(fits) - 0.5), seen, bars, detail)


def _left_out(subject: Subject, *, guarded: bool) -> Finding | NotRun:
    dataset, party, loss = subject.dataset, subject.feature_party, subject.plan.loss
    labels, inputs = dataset.train_labels, table_of(dataset, party).train
    # Columns in which few people stand out tell the others apart least.
    chosen = np.argsort(np.mean(inputs**4, axis=0))[:MOST_COLUMNS]
    # Those who differ most, as many of either class.
    half = max(len(chosen) // 4, 1)
    order = spread_anchors(inputs[:, chosen], len(labels), np.random.default_rng(subject.seed))
    drawn = [order[labels[order] == each][: LEFT_OUT * half] for each in (0, 1)]
    groups = [
        np.concatenate([each[place::LEFT_OUT] for each in drawn]) for place in range(LEFT_OUT)
    ]
    nobody, settings = order[:0], {"batch_size": "full", "rounds": 1}
    jobs = (
        Variation(without_rows(with_columns(dataset, party, [column]), group), group, settings)
        for column in chosen.tolist()
        for group in (nobody, *groups)
    )
    found, refused = ran(subject, jobs, guarded=guarded)
    if not found:
        return NotRun(refused)
    alone, rows = own_models(inputs, labels), np.concatenate(groups)
    scores = best(alone).estimate.scores[rows]
    if not refused:
        differences: list[list[FloatArray]] = [[] for _ in groups]
        for first in range(0, len(found), LEFT_OUT + 1):
            (everybody, _), *others = found[first : first + LEFT_OUT + 1]
            adversary = everybody.adversary(party)
            known = label_part(loss, adversary.model.predict(adversary.inputs))
            for (recording, one), sums in zip(others, differences, strict=True):
                part = adversary.inputs[one.people].T @ known[one.people]
                moved = _summed(everybody, party) - _summed(recording, party) - part
                sums.append(moved[0])
        read = [
            labels_from_one_round(
                np.array(sums) / len(group), inputs[group][:, chosen], np.zeros((len(group), 1))
            )
            for group, sums in zip(groups, differences, strict=True)
        ]
        scores = np.vstack([each.scores for each in read])
    detail = {"groups": len(groups), "people_left_out": len(groups[0]), "refused": refused}
    return label_finding(LabelEstimate(rows, scores), labels, alone, detail)


def _summed(recording: Recording, party: str) -> FloatArray:
    return len(recording.labels) * gradients_seen(recording, party)[0]


for _name, _measure, _knows, _place in (
    ("labels_of_groups", _alone, "its columns, theta0, its parts of all models", 136),
    ("labels_by_difference", _left_out, "its columns, theta0, who was left out", 137),
):
    add_attack(
        Attack(
            _name,
            "feature party",
            f"{_knows}; the best model of its columns",
            partial(_cases, _measure),
            immune=gradients_hidden,
            place=_place,
            cost=3.0,
            quick=False,
        )
    )
