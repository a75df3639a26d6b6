"""No truth reaches an attack: changed after the recording, it changes the score alone."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from securevfl.arrays import FloatArray
from securevfl.attacks import LabelEstimate
from securevfl.auditing.figures import gram_error, label_finding, own_models
from securevfl.auditing.judging import Finding
from securevfl.auditing.measures import features as measure_features
from securevfl.auditing.measures import labels
from securevfl.auditing.measures import transfer as transfer_rows
from securevfl.auditing.measures.features import gram
from securevfl.auditing.measuring import Attack
from securevfl.auditing.subject import Recording, Subject
from securevfl.data.sources import load
from securevfl.data.tables import some_rows
from securevfl.job import Job

ROWS = 120


def subject(scheme: str, **settings: object) -> Subject:
    job = Job.of(
        job={"batch_size": 40, "learning_rate": 0.1, **settings}, exchange={"scheme": scheme}
    )
    return Subject(job, some_rows(load("breast_cancer", parties=3), ROWS), 0, with_curves=False)


def with_other_labels(recording: Recording) -> Recording:
    """The same run, as if its labels had been in another order."""
    others = np.random.default_rng(11).permutation(recording.labels)
    return replace(recording, dataset=replace(recording.dataset, train_labels=others))


@pytest.mark.parametrize("algorithm", ["fedbcd-p", "fdml"])
def test_a_feature_partys_view_holds_no_label(algorithm: str) -> None:
    recording = subject("plain", algorithm=algorithm, rounds=2).record()
    other = with_other_labels(recording)
    for table in recording.dataset.parties:
        adversary, same = recording.adversary(table.name), other.adversary(table.name)
        holds_labels = table.name == recording.dataset.label_party
        if holds_labels:
            np.testing.assert_array_equal(adversary.labels, recording.dataset.train_labels)
            np.testing.assert_array_equal(same.labels, other.dataset.train_labels)
        else:
            assert adversary.labels is None
            assert same.labels is None
        # Whatever else it holds is its own and does not follow the labels.
        assert recording.view(table.name) is other.view(table.name)
        assert adversary.inputs.shape == (ROWS, len(table.columns) + holds_labels)
        np.testing.assert_allclose(same.inputs, adversary.inputs, rtol=1e-12)
        np.testing.assert_allclose(same.model.weights, adversary.model.weights, rtol=1e-12)


def transfer() -> Subject:
    job: dict[str, Any] = {
        "algorithm": "ftl", "batch_size": 20, "learning_rate": 0.3, "local_steps": 2, "rounds": 9
    }  # fmt: skip
    own = {"units": 32, "overlap": 60}
    return Subject(Job.of(job=job, ftl=own), some_rows(load("breast_cancer"), 160), 0)


CASES: dict[str, tuple[ModuleType, Attack, Callable[[], Subject], int]] = {
    "residuals in clear": (labels, labels.residual_labels, partial(subject, "plain"), 1),
    "residuals under masks": (labels, labels.residual_labels, partial(subject, "masked"), 1),
    "gradients in clear": (labels, labels.gradient_labels, partial(subject, "plain"), 4),
    "gradients under encryption": (labels, labels.gradient_labels, partial(subject, "bfv"), 4),
    "components": (transfer_rows, transfer_rows.component_labels, transfer, 1),
    "gradients of units": (transfer_rows, transfer_rows.unit_labels, transfer, 1),
}


@pytest.mark.parametrize("case", CASES)
def test_labels_that_change_after_the_recording_change_no_estimate(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, attack, attacked_by, cells = CASES[case]
    attacked, estimates = attacked_by(), list[LabelEstimate]()

    def watched(estimate: LabelEstimate, *others: Any) -> Finding:  # noqa: ANN401
        estimates.append(estimate)
        return label_finding(estimate, *others)

    truth = attacked.record(rounds=1).labels
    # The best model of its columns is granted, and follows labels: here the first ones.
    monkeypatch.setattr(module, "own_models", lambda inputs, _: own_models(inputs, truth))
    monkeypatch.setattr(module, "label_finding", watched)
    found = list(attack(attacked))
    honest, record = list(estimates), Subject.record
    estimates.clear()

    def recorded_before(self: Subject, **changes: object) -> Recording:
        return with_other_labels(record(self, **changes))

    monkeypatch.setattr(Subject, "record", recorded_before)
    again = list(attack(attacked))
    assert len(honest) == len(estimates) == len(found) == len(again) == cells
    for one, other in zip(honest, estimates, strict=True):
        np.testing.assert_array_equal(other.rows, one.rows)
        np.testing.assert_allclose(other.scores, one.scores, rtol=1e-9, atol=1e-12)
    for right, wrong in zip(found, again, strict=True):
        assert isinstance(right.outcome, Finding)
        assert isinstance(wrong.outcome, Finding)
        # Against labels in another order an estimate is a guess: 0.5 ± 0.05.
        assert wrong.outcome.value < 0.75
        assert wrong.outcome.value < right.outcome.value


def test_features_that_change_after_the_recording_change_no_factor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """XXᵀ is found from the label party's view: the feature party's X is for the score alone."""
    factors: list[FloatArray] = []

    def watched(factor: FloatArray, features: FloatArray) -> float:
        factors.append(factor)
        return gram_error(factor, features)

    monkeypatch.setattr(measure_features, "gram_error", watched)
    job = Job.of(job={"batch_size": 30, "learning_rate": 0.1})
    narrow = some_rows(load("breast_cancer", parties=5), 60)  # 6 columns each
    attacked = Subject(job, narrow, 0, with_curves=False)
    found, record = [each.outcome for each in gram(attacked)], Subject.record

    def recorded_before(self: Subject, **changes: object) -> Recording:
        recording = record(self, **changes)
        tables = {table.name: table for table in recording.dataset.parties}
        victim = tables[self.feature_party]
        order = np.random.default_rng(12).permutation(len(victim.train))
        tables[victim.name] = replace(victim, train=victim.train[order])
        dataset = replace(recording.dataset, parties=tuple(tables.values()))
        return replace(recording, dataset=dataset)

    monkeypatch.setattr(Subject, "record", recorded_before)
    again = [each.outcome for each in gram(attacked)]
    assert len(factors) == len(found) + len(again) == 4
    for one, other in zip(factors[:2], factors[2:], strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-9, atol=1e-12)
    for right, wrong in zip(found, again, strict=True):
        assert isinstance(right, Finding)
        assert isinstance(wrong, Finding)
        assert right.value < 0.1
        assert wrong.value > 0.5
