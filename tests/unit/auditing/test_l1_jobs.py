"""What the audit says of jobs whose steps are more than gradients."""

from typing import Any

import pytest

from securevfl.auditing.judging import Finding, NotShown
from securevfl.auditing.measures.features import anchors, gram
from securevfl.auditing.measures.labels import residual_labels
from securevfl.auditing.measures.rotation import rotation_twins
from securevfl.auditing.subject import Subject
from securevfl.data.sources import load
from securevfl.job import Job


def subject(**sections: Any) -> Subject:  # noqa: ANN401
    job = {"l1": 0.01, "rounds": 5, **sections.pop("job", {})}
    return Subject(Job.of(job=job, **sections), load("breast_cancer"), seed=0, with_curves=False)


@pytest.mark.parametrize("algorithm", ["dbcd", "fedbcd-p"])
def test_attacks_that_undo_gradient_steps_are_not_shown(algorithm: str) -> None:
    for attack in (gram, anchors):
        for found in attack(subject(job={"algorithm": algorithm})):
            assert isinstance(found.outcome, NotShown)
            assert "L1 is more" in found.outcome.reason


def test_residuals_tell_labels() -> None:
    (found,) = residual_labels(subject(job={"algorithm": "dbcd"}))
    assert isinstance(found.outcome, Finding)
    assert found.outcome.value == 1


def test_twins_of_noisy_jobs_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("securevfl.auditing.measures.rotation.ROUNDS", 100)
    noisy = subject(
        job={"algorithm": "dbcd"},
        exchange={"scheme": "dp"},
        privacy={"noise_multiplier": 1.0},
    )
    found = next(iter(rotation_twins(noisy)))
    assert isinstance(found.outcome, Finding)
    # L1 is not the same for turned data.
    assert found.outcome.value > 1e-3
