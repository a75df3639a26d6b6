"""`hide = "both"` is named as the first thing to do where nothing that the job sets excludes it."""

import pytest

from securevfl.job import Job
from securevfl.protocols.resolving import resolve
from securevfl.reports.training import to_do_first
from tests.jobs import Settings
from tests.plans import plan_of


@pytest.mark.parametrize("scheme", ["bfv", "ckks", "paillier"])
@pytest.mark.parametrize("parties", [2, 3])
def test_what_is_named_runs(scheme: str, parties: int) -> None:
    (line,) = to_do_first(plan_of(parties=parties, exchange={"scheme": scheme}))
    assert "hide = 'both' with loss = 'taylor-logistic'" in line
    assert "AUC up to 0.007 lower" in line
    exchange = {"scheme": scheme, "hide": "both"}
    both = plan_of(parties=parties, exchange=exchange, job={"loss": "taylor-logistic"})
    assert both.learns.predictions == "hidden"
    assert to_do_first(both) == []


def test_a_loss_that_fits_stays_and_costs_no_accuracy() -> None:
    (line,) = to_do_first(plan_of(exchange={"scheme": "bfv"}, job={"loss": "squared"}))
    assert "loss" not in line
    assert "AUC" not in line


def test_it_is_named_for_a_job_as_it_was_resolved() -> None:
    plan = plan_of(parties=3, exchange={"scheme": "bfv"})
    assert plan.job.job.eval_every == 0
    assert to_do_first(plan)
    assert to_do_first(resolve(Job.of(**dict(plan.job)), plan.facts))


@pytest.mark.parametrize(
    ("exchange", "sections", "classes"),
    [
        ({"scheme": "plain"}, {}, 2),
        ({"scheme": "blind"}, {}, 2),
        ({"scheme": "bfv"}, {}, 3),
        ({"scheme": "bfv", "round_trips": 1}, {}, 2),
        ({"scheme": "bfv", "predictions": "masked"}, {"parties": 3}, 2),
        ({"scheme": "bfv"}, {"parties": 3, "job": {"target_auc": 0.9}}, 2),
        ({"scheme": "bfv"}, {"job": {"loss": "squared-hinge"}}, 2),
        (
            {"scheme": "bfv", "he_per_step": True},
            {"job": {"learning_rate": 0.1, "local_steps": 2}},
            2,
        ),
    ],
)
def test_it_is_not_named_where_the_job_excludes_it(
    exchange: Settings, sections: Settings, classes: int
) -> None:
    assert to_do_first(plan_of(exchange=exchange, classes=classes, **sections)) == []
