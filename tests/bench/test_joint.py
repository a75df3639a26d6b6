from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bench.in_one_place import score_in_one_place
from bench.joint import __main__ as module
from bench.joint.__main__ import JointSettings, joint
from securevfl.benchmarks.progress import silent
from securevfl.data import load
from securevfl.models.scores import auc
from tests.end_to_end.commands import two_organizations


def rows(**changes: Any) -> list[dict[str, Any]]:  # noqa: ANN401
    settings = {"parties": (2,), "repeats": 2, "max_rounds": 15, **changes}
    return list(joint(JointSettings(**settings), silent))


def test_one_place_is_scikit_learns_pipeline_whoever_holds_the_columns() -> None:
    dataset = load("breast_cancer", parties=3)
    train = np.hstack([table.train for table in dataset.parties])
    test = np.hstack([table.test for table in dataset.parties])
    pipeline = make_pipeline(StandardScaler(), LogisticRegression(max_iter=10_000))
    odds = pipeline.fit(train, dataset.train_labels).decision_function(test)
    expected = auc(odds[:, None], dataset.test_labels)
    name, score = score_in_one_place(dataset)
    assert name == "auc"
    assert score == pytest.approx(expected)
    assert score_in_one_place(load("breast_cancer", parties=17))[1] == pytest.approx(expected)
    assert score_in_one_place(replace(dataset, standardize=False))[1] != expected


def test_beyond_two_classes_accuracy_counts() -> None:
    name, score = score_in_one_place(load("digits"))
    assert name == "accuracy"
    assert score > 0.9


def test_rounds_are_counted_to_the_first_score_near_enough() -> None:
    found = rows(dataset="digits", parties=(2, 4), within=0.02)
    assert [row["parties"] for row in found] == [2, 4]
    for row in found:
        counts = [run["rounds_to"] for run in row["runs"]]
        assert [run["seed"] for run in row["runs"]] == [0, 1]
        assert all(
            count is not None and count <= run["rounds"]
            for count, run in zip(counts, row["runs"], strict=True)
        )
        assert (row["rounds_to"], row["most_rounds_to"]) == (median(counts), max(counts))
        assert row["score"] >= row["joint_score"] - 0.02


@pytest.mark.parametrize(
    ("counts", "median", "most"),
    [((3, 7, 5), 5, 7), ((3, None, 5), 5, None), ((None, None, 5), None, None)],
)
def test_a_run_that_never_comes_near_counts_as_the_most(
    monkeypatch: pytest.MonkeyPatch,
    counts: tuple[int | None, ...],
    median: int | None,
    most: int | None,
) -> None:
    left = iter(counts)
    monkeypatch.setattr(module, "rounds_to", lambda *_: next(left))
    (row,) = rows(repeats=3, max_rounds=1)
    assert (row["rounds_to"], row["most_rounds_to"]) == (median, most)
    assert row["ended"] == "rounds"
    assert any("never came near" in note for note in module.notes([row])) == (most is None)


def test_an_encrypted_job_costs_more_and_has_a_label_guard() -> None:
    (plain,) = rows(max_rounds=3, repeats=1)
    (bfv,) = rows(max_rounds=3, repeats=1, exchange="bfv")
    assert (plain["label_guard_ratio"], plain["exchange"]) == (None, "plain")
    assert bfv["label_guard_ratio"] is not None
    assert bfv["bytes_sent"] > plain["bytes_sent"]
    assert bfv["total_s"] > 0
    assert all(row["offline_compute_s"] == row["offline_bytes"] == 0 for row in (plain, bfv))


@pytest.mark.usefixtures("clean_place")
def test_the_parties_of_a_job_file_take_the_place_of_a_data_set() -> None:
    (row,) = rows(job=two_organizations(), max_rounds=2)
    assert (row["dataset"], row["parties"], len(row["runs"])) == ("job", 2, 2)


def test_notes_say_whether_costs_include_what_was_made_offline() -> None:
    row = {"parties": 2, "score_name": "auc", "within": 0.001, "most_rounds_to": 5, "ended": "x"}
    told = "sent and total include what was made before the rounds"
    assert told in module.notes([row, {**row, "offline_bytes": 1000}])
    assert told not in module.notes([row])
