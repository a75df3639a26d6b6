"""Rows over two jobs: read without the feature guard, and not with it."""

import pytest

from securevfl.auditing.judging import Finding
from securevfl.auditing.measuring import known_attacks
from securevfl.auditing.subject import Subject, scaled
from securevfl.job import Job
from tests.jobs import breast_cancer


@pytest.mark.parametrize("exchange", ["plain", "bfv"])
def test_two_jobs_give_all_rows_and_the_guard_permits_one(exchange: str) -> None:
    job, dataset = scaled(Job.of(exchange={"scheme": exchange}), breast_cancer())
    attack = known_attacks()["features_across_jobs"]
    permitted, control = attack(Subject(job, dataset, 0))
    assert control.control
    found, without = permitted.outcome, control.outcome
    assert isinstance(found, Finding)
    assert isinstance(without, Finding)
    assert without.value < 1e-6
    assert without.detail["jobs"] == 2
    assert found.value > 0.5
    assert found.detail["jobs"] == 1
    assert "feature guard: earlier jobs" in found.detail["refused"]
