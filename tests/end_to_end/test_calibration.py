"""Calibration of a finished job: from what the label party sees of held-out rows."""

import pytest
from scipy.special import expit
from sklearn.metrics import brier_score_loss, log_loss

from securevfl.data.tables import VerticalDataset
from securevfl.job import Job
from securevfl.models.scores import Calibration
from securevfl.training import train
from tests.end_to_end.commands import example, rows_of, run
from tests.jobs import breast_cancer


def calibration_of(dataset: VerticalDataset, **sections: object) -> Calibration | None:
    given = {"job": {"rounds": 8, "eval_every": 0}, **sections}
    return train(Job.of(**given), dataset).calibration


def test_a_job_reports_scikit_learns_figures() -> None:
    result = train(Job.of(job={"rounds": 8, "eval_every": 0}), breast_cancer())
    given = expit(result.predictions[:, 0])
    assert result.calibration is not None
    assert result.calibration.brier == pytest.approx(brier_score_loss(result.test_labels, given))
    assert result.calibration.log_loss == pytest.approx(log_loss(result.test_labels, given))


@pytest.mark.parametrize(
    "sections",
    [
        {"exchange": {"scheme": "dp"}, "privacy": {"noise_multiplier": 0.1}},
        {
            "job": {"rounds": 2, "loss": "taylor-logistic"},
            "exchange": {"scheme": "bfv", "hide": "both"},
        },
        {"job": {"rounds": 2, "loss": "hinge", "learning_rate": 0.1, "local_rule": "frozen"}},
        {"job": {"rounds": 2, "eval_every": "never"}},
    ],
    ids=["noise", "sums over classes", "no probabilities", "no scoring"],
)
def test_there_is_none_where_nobody_has_seen_it(sections: dict[str, object]) -> None:
    assert calibration_of(breast_cancer(), **sections) is None


@pytest.mark.usefixtures("clean_place")
def test_the_row_of_a_job_has_it() -> None:
    path = example(('scheme = "bfv"', 'scheme = "plain"'), ("rounds = 100", "rounds = 8"))
    assert run("train", path, "--quiet", "--json", "out.json") == 0
    (row,) = rows_of("out.json", "train")
    assert 0 < row["brier"] < 0.1
    assert 0 < row["log_loss"] < 0.2
    assert 0 < row["calibration_error"] < 0.1
    assert sum(each["rows"] for each in row["reliability"]) == 113
    assert row["r2"] is None
