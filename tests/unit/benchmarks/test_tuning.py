import numpy as np
import pytest

from securevfl.benchmarks.tuning import (
    chosen,
    step_settings,
    tune,
    validation_split,
)
from securevfl.data import load
from securevfl.errors import TrainingDiverged
from securevfl.job import Job


def test_validation_rows_are_a_fifth_of_the_training_rows_and_no_test_row() -> None:
    dataset = load("breast_cancer")
    split = validation_split(dataset)
    whole = {row.tobytes() for row in dataset.parties[0].train}
    kept = {row.tobytes() for row in split.parties[0].train}
    held_out = {row.tobytes() for row in split.parties[0].test}
    assert len(split.test_labels) == len(dataset.train_labels) // 5 == len(held_out)
    assert kept | held_out == whole
    assert not kept & held_out


def test_all_parties_hold_out_the_same_rows_every_time() -> None:
    dataset = load("breast_cancer")
    first, second = validation_split(dataset), validation_split(dataset)
    for one, other, source in zip(first.parties, second.parties, dataset.parties, strict=True):
        assert np.array_equal(one.test, other.test)
        where = [int(np.flatnonzero((source.train == row).all(axis=1))[0]) for row in one.test]
        assert np.array_equal(dataset.train_labels[where], first.test_labels)
    assert first.fingerprint != dataset.fingerprint


def test_the_rate_with_the_fewest_rounds_on_validation_rows_is_taken() -> None:
    job = Job.of(job={"rounds": 30, "batch_size": 64, "target_auc": 0.985})
    tuned = tune(job, load("breast_cancer"), grid=(1e-4, 0.1))
    assert tuned.learning_rate == 0.1
    assert "Q = 5" in tuned.how


def test_a_rate_that_diverges_is_passed_over() -> None:
    job = Job.of(job={"rounds": 5, "batch_size": 64, "loss": "squared", "target_auc": 0.9999})
    dataset = load("breast_cancer")
    assert tune(job, dataset, grid=(0.01, 1e200)).learning_rate == 0.01
    with pytest.raises(TrainingDiverged, match="every learning rate"):
        tune(job, dataset, grid=(1e200,))


def test_exact_steps_take_all_rows_and_have_nothing_to_tune() -> None:
    assert step_settings("exact", 64, 0.3) == {
        "local_steps": "exact", "batch_size": "full", "learning_rate": "auto",
    }  # fmt: skip
    assert step_settings(5, 64, 0.3) == {
        "local_steps": 5, "batch_size": 64, "learning_rate": 0.3,
    }  # fmt: skip
    job = Job.of(job=step_settings("exact", 64, 0.3))
    assert chosen(job, load("breast_cancer"), 0.3).learning_rate is None
    by_number = Job.of(job=step_settings(5, 64, 0.3))
    assert chosen(by_number, load("breast_cancer"), 0.3).how == "given"
