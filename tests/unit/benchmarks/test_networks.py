"""What `bench networks` is told, and which held-out rows are scored."""

import numpy as np
import pytest

from securevfl.benchmarks import tuning
from securevfl.benchmarks.networks import networks
from securevfl.benchmarks.settings.networks import NetworksSettings
from securevfl.benchmarks.tuning import tune, validation_split
from securevfl.data.sources import load
from securevfl.data.tables import VerticalDataset, some_test_rows
from securevfl.errors import ConfigError
from securevfl.job import Job
from securevfl.training import TrainingResult, train


@pytest.mark.parametrize(
    ("steps", "told"),
    [("fedbcd-p:x", "expected an algorithm, or one with Q"), ("fedbcd", "nearest is 'fedbcd-")],
)
def test_steps_that_are_none_are_refused(steps: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        next(networks(NetworksSettings(steps=(steps,)), load("breast_cancer")))


def test_some_held_out_rows_are_of_all_classes_evenly() -> None:
    dataset = load("breast_cancer")
    some = some_test_rows(dataset, 20)
    shares = [float(np.mean(each.test_labels)) for each in (some, dataset)]
    assert len(some.test_labels) == 20
    assert abs(shares[0] - shares[1]) <= 0.05
    assert all(len(party.test) == 20 for party in some.parties)
    np.testing.assert_array_equal(some.train_labels, dataset.train_labels)
    assert len(some_test_rows(dataset, 10**6).test_labels) == len(dataset.test_labels)
    with pytest.raises(ConfigError, match="rows = 1"):
        some_test_rows(dataset, 1)


def test_a_tuner_scores_as_many_validation_rows_as_it_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dataset, scored = load("breast_cancer"), list[int]()
    job = Job.of(job={"rounds": 1, "learning_rate": 0.1})

    def counted(job: Job, held_out: VerticalDataset) -> TrainingResult:
        scored.append(len(held_out.test_labels))
        return train(job, held_out)

    monkeypatch.setattr(tuning, "train", counted)
    tune(job, dataset, (0.1,))
    tune(job, dataset, (0.1,), scored_rows=30)
    assert scored == [len(validation_split(dataset).test_labels), 30]
