"""Groups in jobs of their own, and groups that jobs leave out: read in controls alone."""

import pytest

from securevfl.auditing.judging import Finding, NotRun
from securevfl.auditing.measuring import known_attacks
from securevfl.auditing.subject import Subject
from securevfl.data.tables import some_rows
from securevfl.job import Job
from tests.unit.auditing.cells import finding, reason
from tests.unit.auditing.test_labels_across_jobs import people

ATTACKS = known_attacks()


def subject(scheme: str = "bfv", rows: int = 640, **settings: object) -> Subject:
    return Subject(Job.of(job=settings, exchange={"scheme": scheme}), some_rows(people(), rows), 0)


def outcomes(name: str, scheme: str = "bfv") -> tuple[Finding, Finding]:
    """As the guard permits, and the control without it."""
    permitted, control = ATTACKS[name](subject(scheme))
    assert not permitted.control
    assert control.control
    return finding(permitted), finding(control)


def test_gradients_of_groups_that_the_guard_permits_add_nothing_to_models_and_smaller_ones_do() -> (
    None
):
    found, without = outcomes("labels_of_groups")
    assert found.within
    assert (found.detail["jobs"], found.detail["people_a_job"]) == (3, 214)
    assert not found.detail["refused"]
    assert without.detail["people_a_job"] == 7
    assert not without.within
    assert without.value > 0.9


def test_who_is_left_out_is_read_without_the_guard_alone() -> None:
    found, without = outcomes("labels_by_difference")
    assert found.value == found.model_alone
    assert "rows would be in other sets than all others" in found.detail["refused"]
    assert without.value == 1
    assert without.value > (without.model_alone or 1) + 0.2


def test_nothing_guards_residuals_in_clear() -> None:
    found, without = outcomes("labels_by_difference", "plain")
    assert found.value == without.value


@pytest.mark.parametrize("name", ["labels_of_groups", "labels_by_difference"])
@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"model": "mlp", "hidden": [2]}, "linear models"),
        ({"loss": "multinomial"}, "two classes"),
        ({"loss": "squared-hinge"}, "d = s(H) - y"),
    ],
)
def test_what_the_attacks_do_not_support_is_not_run(
    name: str, settings: dict[str, object], why: str
) -> None:
    (only,) = ATTACKS[name](subject("plain", **settings))
    assert why in reason(only)


def test_too_few_rows_are_no_groups() -> None:
    permitted, _ = ATTACKS["labels_of_groups"](subject("plain", rows=300))
    assert permitted.outcome == NotRun("300 rows are no two groups of 200")
