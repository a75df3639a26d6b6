"""Average precision and intervals: of the scores that a label party sees, and absent elsewhere."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from securevfl.job import Job
from securevfl.models.ranking import ranking
from securevfl.reports.results import results
from securevfl.reports.trained import train_page, training_row
from securevfl.training import TrainingResult, train
from tests.end_to_end.commands import example, rows_from
from tests.jobs import breast_cancer, digits, run_job

Capture = pytest.CaptureFixture[str]


def trained(scheme: str = "plain", parties: int = 2, **job: object) -> TrainingResult:
    sections: dict[str, Any] = {"job": {"rounds": 3, **job}, "exchange": {"scheme": scheme}}
    if scheme == "dp":
        sections["privacy"] = {"noise_multiplier": 0.1}
    return train(Job.of(**sections), breast_cancer(parties))


@pytest.mark.parametrize("scheme", ["plain", "masked", "bfv", "dp"])
def test_rankings_are_of_what_the_label_party_sees(scheme: str) -> None:
    result = trained(scheme, 3)
    row, joint = training_row(result, result.data), result.label.joint
    assert joint is not None
    own = result.alone["party1"]
    expected = ranking(joint[:, 0], result.test_labels, own.predictions[:, 0])
    assert result.ranking == expected
    assert row["ranking"] == expected
    assert expected["auc_gain"] == pytest.approx((row["auc"] or 0) - own.score.auc)
    ones = int(result.test_labels.sum())
    assert (expected["rows"], expected["positives"]) == (len(result.test_labels), ones)
    found = average_precision_score(result.test_labels, joint[:, 0])
    assert expected["average_precision"] == pytest.approx(found)
    assert row["alone"]["party2"]["average_precision"] == pytest.approx(
        average_precision_score(result.test_labels, result.alone["party2"].predictions[:, 0])
    )
    # Under noise nobody sees exact predictions.
    assert np.allclose(joint, result.predictions, atol=1e-3) == (scheme != "dp")
    assert all(each.joint is None for name, each in result.outcomes.items() if name != "party1")


@pytest.mark.parametrize("exchange", [{"scheme": "blind"}, {"scheme": "bfv", "hide": "both"}])
def test_there_are_none_where_nobody_sees_a_held_out_score(exchange: dict[str, Any]) -> None:
    job = {"rounds": 2, "loss": "taylor-logistic"}
    result = train(Job.of(job=job, exchange=exchange), breast_cancer(2))
    row = training_row(result, result.data)
    assert row["ranking"] is None
    assert row["alone"]["party1"]["average_precision"] is None
    page = train_page(results(command="train", seed=0, settings={}, rows=[row]))
    assert "nobody sees a held-out score" in page
    assert "interval of the AUC" not in page


def test_several_classes_have_none() -> None:
    result = run_job(digits(2), "plain", rounds=1)
    row = training_row(result, result.data)
    assert (result.label.joint, row["ranking"]) == (None, None)
    page = train_page(results(command="train", seed=0, settings={}, rows=[row]))
    assert "average precision" not in page


@pytest.mark.usefixtures("clean_place")
def test_processes_say_the_same_and_so_do_terminal_and_page(capsys: Capture) -> None:
    start = 'seed = 0\nstart = "seeded"\nallow_feature_leak = true'
    job = example(("rounds = 100", "rounds = 5"), ("seed = 0", start), ('"bfv"', '"plain"'))
    (row,) = rows_from("train", job, "--html", "page.html")
    printed, page = capsys.readouterr().out, Path("page.html").read_text(encoding="utf-8")
    found = row["ranking"]
    assert found["average_precision"] > 0.5
    for text in (
        f"95 % interval of the AUC: {found['auc_interval'][0]:.4f} to",
        f"AUC above the label party alone: {found['auc_gain']:+.4f}, 95 %",
        f"{found['average_precision']:.4f}",
        "average precision",
    ):
        assert text in printed
        assert text in page
    # Beneath the table that they explain.
    assert page.index("interval of the AUC") < page.index("As training went on")
    (apart,) = rows_from("train", job, "--force", "--processes")
    assert apart["ranking"] == found
