from dataclasses import replace
from statistics import median

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from securevfl.benchmarks.in_one_place import score_in_one_place
from securevfl.benchmarks.joint import joint
from securevfl.benchmarks.settings.joint import JointSettings
from securevfl.data import load
from securevfl.models.scores import auc

SETTINGS = JointSettings(repeats=2, max_rounds=15)


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
    datasets = [load("digits", parties=2), load("digits", parties=4)]
    settings = replace(SETTINGS, within=0.02)
    rows = list(joint(settings, datasets))
    assert [row["parties"] for row in rows] == [2, 4]
    for row in rows:
        counts = [run["rounds_to"] for run in row["runs"]]
        assert [run["seed"] for run in row["runs"]] == [0, 1]
        assert all(
            count is not None and count <= run["rounds"]
            for count, run in zip(counts, row["runs"], strict=True)
        )
        assert row["rounds_to"] == median(count for count in counts if count is not None)
        assert row["most_rounds_to"] == max(count for count in counts if count is not None)
        assert row["score"] >= row["joint_score"] - settings.within


def test_a_run_that_never_comes_near_leaves_no_median() -> None:
    (row,) = joint(replace(SETTINGS, max_rounds=1, within=0.0), [load("digits")])
    assert (row["rounds_to"], row["most_rounds_to"]) == (None, None)
    assert row["ended"] == "rounds"


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
    monkeypatch.setattr("securevfl.benchmarks.joint.rounds_to", lambda *_: next(left))
    (row,) = joint(replace(SETTINGS, repeats=3, max_rounds=1), [load("breast_cancer")])
    assert (row["rounds_to"], row["most_rounds_to"]) == (median, most)


def test_each_exchange_is_a_row_and_costs_its_own() -> None:
    settings = replace(SETTINGS, exchanges=("plain", "bfv"), max_rounds=3, repeats=1)
    plain, bfv = joint(settings, [load("breast_cancer")])
    assert (plain["label_guard_ratio"], plain["exchange"]) == (None, "plain")
    assert bfv["label_guard_ratio"] is not None
    assert bfv["bytes_sent"] > plain["bytes_sent"]
    assert bfv["total_s"] > 0
    assert all(row["offline_compute_s"] == row["offline_bytes"] == 0 for row in (plain, bfv))
