"""Groups in jobs of their own, and groups that jobs leave out: read in controls alone."""

from typing import Any

import pytest

from securevfl.auditing.judging import Finding, NotRun
from securevfl.auditing.measuring import known_attacks
from securevfl.auditing.subject import Subject
from securevfl.data.tables import some_rows
from securevfl.job import Job
from tests.made_data import made
from tests.unit.auditing.cells import finding, reason
from tests.unit.auditing.test_labels_across_jobs import people

ATTACKS = known_attacks()


def subject(
    scheme: str = "bfv",
    rows: int = 640,
    **settings: Any,  # noqa: ANN401
) -> Subject:
    job = Job.of(job=settings, exchange={"scheme": scheme})
    return Subject(job, some_rows(people(), rows), 0)


def outcomes(name: str, attacked: Subject) -> tuple[Finding, Finding]:
    """As the guard permits, and the control without it."""
    permitted, control = ATTACKS[name](attacked)
    assert not permitted.control
    assert control.control
    return finding(permitted), finding(control)


def test_gradients_of_groups_that_the_guard_permits_add_nothing_to_models_and_smaller_ones_do() -> (
    None
):
    found, without = outcomes("labels_of_groups", subject())
    assert found.within
    assert (found.detail["jobs"], found.detail["people_a_job"]) == (3, 214)
    assert not found.detail["refused"]
    assert without.detail["people_a_job"] == 7
    assert not without.within
    assert without.value > 0.9


@pytest.mark.parametrize("scheme", ["bfv", "plain"])
def test_who_is_left_out_is_read_without_the_guard_alone(scheme: str) -> None:
    job = Job.of(exchange={"scheme": scheme})
    attacked = Subject(job, made(1, rows=1200, columns=8), 0)  # one column passes from 800 rows on
    found, without = outcomes("labels_by_difference", attacked)
    assert without.value == 1
    assert not without.within
    if scheme == "plain":  # nothing guards residuals in clear
        assert found.value == 1
        return
    assert found.value <= (found.model_alone or 0)
    assert "4 rows would be in other sets than all others" in found.detail["refused"]


@pytest.mark.parametrize("name", ["labels_of_groups", "labels_by_difference"])
@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"model": "mlp", "hidden": [2]}, "linear models"),
        ({"loss": "squared-hinge"}, "d = s(H) - y"),
    ],
)
def test_what_the_attacks_do_not_support_is_not_run(
    name: str, settings: dict[str, Any], why: str
) -> None:
    (only,) = ATTACKS[name](subject("plain", **settings))
    assert why in reason(only)


def test_three_classes_are_not_run() -> None:
    (only,) = ATTACKS["labels_of_groups"](Subject(Job.of(), made(0, classes=3), 0))
    assert "two classes" in reason(only)


def test_too_few_rows_are_no_groups() -> None:
    permitted, _ = ATTACKS["labels_of_groups"](subject("plain", rows=300))
    assert permitted.outcome == NotRun("300 rows are no two groups of 200")
