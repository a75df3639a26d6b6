"""Calibration of a finished job: from what the label party sees of held-out rows."""

import pytest
from scipy.special import expit
from sklearn.metrics import brier_score_loss, log_loss

from securevfl.data.tables import VerticalDataset
from securevfl.job import Job
from securevfl.models.scores import Calibration
from securevfl.training import train
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
