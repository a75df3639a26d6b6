"""What the audit says of a job with a head over representations."""

from typing import Any

import pytest

from securevfl.auditing.judging import Finding, NotShown
from securevfl.auditing.measuring import UNDER_A_HEAD, known_attacks
from securevfl.auditing.subject import Subject
from securevfl.data.sources import load
from securevfl.job import Job


def subject(algorithm: str = "fedbcd-p", parties: int = 2, **settings: object) -> Subject:
    job: dict[str, Any] = {
        "head": "logistic",
        "representation": 16,
        "model": "mlp",
        "rounds": 12,
        "learning_rate": 0.1,
        "algorithm": algorithm,
        **settings,
    }
    return Subject(Job.of(job=job), load("breast_cancer", parties=parties), 0, with_curves=False)


def test_residuals_beside_a_head_are_labels() -> None:
    (found,) = known_attacks()["labels_from_residuals"](subject())
    assert isinstance(found.outcome, Finding)
    assert found.outcome.value == 1


@pytest.mark.parametrize(("algorithm", "parties"), [("fedbcd-p", 2), ("fedbcd-s", 3)])
def test_representations_tell_features_to_who_knows_some_rows(algorithm: str, parties: int) -> None:
    wide, narrow = (
        next(
            iter(known_attacks()["anchors"](subject(algorithm, parties, representation=each)))
        ).outcome
        for each in (32, 1)
    )
    assert isinstance(wide, Finding)
    assert isinstance(narrow, Finding)
    assert wide.model_alone is not None
    assert wide.value < 0.8 * wide.model_alone
    assert wide.value < 0.9 * narrow.value


def test_attacks_on_summed_predictions_are_not_shown() -> None:
    attacked = subject()
    for name in ("gram", "components", "rotation_twin", "held_out_features", "equality_solving"):
        (found,) = known_attacks()[name](attacked)
        assert found.outcome == NotShown(UNDER_A_HEAD)
