"""Labels from gradients of hinge losses: the guard refuses them, and without it they are read."""

import pytest

from securevfl.auditing.judging import Finding, NotRun
from securevfl.auditing.measures.labels import gradient_labels
from securevfl.auditing.measuring import Measurement
from securevfl.auditing.subject import Subject
from securevfl.job import Job
from tests.unit.auditing.test_labels_across_jobs import people

HINGE = {"loss": "hinge", "local_rule": "frozen", "local_steps": 1, "learning_rate": 0.3}


def measured(**settings: object) -> list[Measurement]:
    job = Job.of(job={"rounds": 30, **settings}, exchange={"scheme": "bfv"})
    return list(gradient_labels(Subject(job, people(), 0)))


@pytest.mark.parametrize("settings", [HINGE, {"loss": "squared-hinge"}])
def test_every_round_of_a_hinge_counts_and_would_be_read_without_the_guard(
    settings: dict[str, object],
) -> None:
    permitted, unguarded = measured(**settings)
    assert isinstance(permitted.outcome, NotRun)
    assert f"every gradient of the {settings['loss']} loss" in permitted.outcome.reason
    assert "take loss = 'logistic'" in permitted.outcome.reason
    found = unguarded.outcome
    assert isinstance(found, Finding)
    assert unguarded.what_if
    assert found.value > (found.model_alone or 1) + 0.1


def test_a_loss_whose_labels_have_one_weight_stays_with_what_full_batches_reveal() -> None:
    found = measured()[0].outcome
    assert isinstance(found, Finding)
    assert found.within
