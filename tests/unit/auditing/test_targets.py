"""What a feature party reads of real targets, and that the bars are what its own columns say."""

import numpy as np
import pytest

from securevfl.auditing.figures import target_finding
from securevfl.auditing.judging import Finding, NotShown
from securevfl.auditing.measures.labels import gradient_labels, read_labels, residual_labels
from securevfl.auditing.measures.labels_of_jobs import labels_of_jobs
from securevfl.auditing.subject import Subject
from securevfl.data.sources import load
from securevfl.job import Job


@pytest.fixture(scope="module")
def subject() -> Subject:
    job = Job.of(job={"loss": "squared", "rounds": 12})
    return Subject(job, load("diabetes"), 0, with_curves=True)


def test_residuals_in_clear_tell_targets(subject: Subject) -> None:
    (measured,) = residual_labels(subject)
    assert isinstance(measured.outcome, Finding)
    assert measured.outcome.metric.name == "correlation"
    assert measured.outcome.value > 0.85
    assert measured.outcome.model_alone == pytest.approx(0.61, abs=0.02)
    assert not measured.outcome.keeps


def test_gradients_of_all_rows_tell_no_more_than_the_own_model(subject: Subject) -> None:
    job = next(iter(gradient_labels(subject)))
    assert isinstance(job.outcome, Finding)
    assert job.outcome.keeps
    assert job.outcome.detail["batch_size"] == "full"


def test_gradients_of_few_rows_tell_targets(subject: Subject) -> None:
    recording = subject.record(rounds=120, batch_size=8, sampling="shuffle")
    assert not read_labels(recording, subject.feature_party).keeps


def test_what_is_about_classes_says_so(subject: Subject) -> None:
    outcomes = [each.outcome for each in labels_of_jobs(subject)]
    assert all(isinstance(each, NotShown) for each in outcomes)
    reasons = [each.reason for each in outcomes if isinstance(each, NotShown)]
    assert any("the labels are real targets" in each for each in reasons)


def test_what_says_nothing_resists(generator: np.random.Generator) -> None:
    inputs, targets = generator.standard_normal((300, 3)), generator.standard_normal(300)
    assert target_finding(np.zeros(300), inputs, targets, {}).value == 0
    assert target_finding(generator.standard_normal(300), inputs, targets, {}).keeps
    assert not target_finding(targets, inputs, targets, {}).keeps
