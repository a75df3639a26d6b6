from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.label_guard.planted import FEATURE_PARTY, Planted, planted
from securevfl.arrays import FloatArray
from securevfl.attacks import LabelEstimate
from securevfl.attacks.adversary_view import replay
from securevfl.attacks.labels_from_gradients import SeenJob, labels_from_gradients
from securevfl.auditing.figures import own_model, score
from securevfl.auditing.judging import verdict_of
from securevfl.auditing.measures.labels import advise, least_batch_size, read_labels
from securevfl.auditing.subject import Recording, Subject
from securevfl.auditing.views import gradients_of, residuals_of
from securevfl.data.sources import load
from securevfl.data.tables import PartyTable, VerticalDataset, some_rows
from securevfl.errors import ConfigError, LabelLeakRefused
from securevfl.job import Job
from tests.made_data import dataset_of


@pytest.fixture(scope="module")
def a9a(real_data: Callable[..., VerticalDataset]) -> VerticalDataset:
    """The 67 columns attack: of both parties' they have the higher rank."""
    return replace(real_data("a9a"), label_party="second")


def run(dataset: VerticalDataset, scheme: str = "plain", **settings: object) -> Recording:
    job = Job.of(
        job={"batch_size": 115, "learning_rate": 0.1, **settings}, exchange={"scheme": scheme}
    )
    return Subject(job, dataset, 0).record()


def estimated(recording: Recording, gradients: list[FloatArray], party: str) -> LabelEstimate:
    """The attack on gradients, from the best logistic model of the party's columns."""
    adversary = recording.adversary(party)
    own = own_model(adversary.inputs, recording.labels).probabilities
    return labels_from_gradients([SeenJob(gradients, adversary, np.arange(len(own)))], own)


def accuracy(recording: Recording, party: str = "party2") -> float:
    return float(read_labels(recording, party).detail["accuracy"]["value"])


def test_reshuffled_batches_give_labels_within_an_epoch_or_three(a9a: VerticalDataset) -> None:
    rounds = len(a9a.train_labels) // 64
    one = run(a9a, sampling="shuffle", batch_size=64, rounds=rounds)
    three = run(a9a, sampling="shuffle", batch_size=64, rounds=3 * rounds)
    assert accuracy(one, "first") >= 0.95
    assert accuracy(three, "first") >= 0.99


def strangers(rows: int, columns: int, seed: int) -> VerticalDataset:
    """Data with 6 % positives; the label party's columns tell most of the labels."""
    generator = np.random.default_rng(seed)
    values = generator.standard_normal((rows, 10 + columns))
    weights = np.concatenate([np.full(10, 0.8), generator.normal(0, 1 / np.sqrt(columns), columns)])
    odds = values @ weights - 4.5
    labels = (generator.random(len(values)) < 1 / (1 + np.exp(-odds))).astype(np.int64)
    return dataset_of([values[:, :10], values[:, 10:]], labels, standardize=True)


def test_minibatches_leak_what_accuracy_does_not_see_and_full_batches_do_not() -> None:
    dataset = strangers(8000, 20, seed=3)
    sgd: dict[str, Any] = {"learning_rate": 0.1, "local_steps": 1, "rounds": 300}
    small = read_labels(run(dataset, batch_size=161, **sgd), "party1")
    exact: dict[str, Any] = {"learning_rate": "auto", "batch_size": "full", "tolerance": 0.0}
    full = read_labels(run(dataset, rounds=20, **exact), "party1")
    for finding in (small, full):
        read = finding.detail["accuracy"]
        assert abs(read["value"] - read["model_alone"]) < 0.02
    assert small.advantage > 0.05
    top = small.detail["top_precision"]
    assert top["value"] > 1.5 * top["model_alone"]
    assert verdict_of([small]) == "leaks"
    assert full.detail["rounds"] == 20
    assert full.advantage < 0.01
    assert verdict_of([full]) == "no_leak_found"


def test_a_full_batch_with_a_category_of_one_person_tells_that_person() -> None:
    dataset = strangers(600, 5, seed=0)
    place = int(np.flatnonzero(dataset.train_labels == 1)[0])
    table = dataset.parties[1]
    columns = [np.hstack([part, np.zeros((len(part), 1))]) for part in (table.train, table.test)]
    columns[0][place, -1] = 1
    changed = PartyTable("party1", (*table.columns, "rare"), columns[0], columns[1])
    dataset = replace(dataset, parties=(dataset.parties[0], changed), standardize=False)
    recording = run(dataset, learning_rate="auto", batch_size="full", rounds=10)
    inputs = recording.adversary("party1").inputs
    gradients = [inputs.T @ each / 600 for each in residuals_of(recording.view("party1"))]
    found = estimated(recording, gradients, "party1")
    assert found.scores[place, 0] == found.scores.max()


def test_the_replayed_training_is_the_partys_own() -> None:
    recording = run(load("breast_cancer"), "bfv", rounds=12, eval_every=0)
    adversary = recording.adversary("party2")
    _, last = replay(gradients_of(recording.view("party2")), adversary)
    trained = adversary.inputs @ recording.result.outcomes["party2"].model.weights
    np.testing.assert_allclose(last, trained, atol=1e-12)


def test_gradients_that_do_not_fit_are_refused() -> None:
    recording = run(load("breast_cancer"), rounds=2)
    with pytest.raises(ConfigError, match="0 rounds"):
        replay([], recording.adversary("party2"))
    with pytest.raises(ConfigError, match="shape"):
        replay([np.zeros((3, 1))], recording.adversary("party2"))


def test_ten_classes_are_read_too() -> None:
    dataset = some_rows(load("digits"), 704)
    settings: dict[str, Any] = {"loss": "multinomial", "learning_rate": 0.001}
    small = run(dataset, batch_size=32, sampling="shuffle", rounds=22 * 3, **settings)
    finding = read_labels(small, "left")
    read = finding.detail["accuracy"]
    assert read["value"] > 0.95
    assert read["chance"] < 0.15


def test_the_score_knows_the_most_frequent_class() -> None:
    estimate = LabelEstimate(np.array([0, 2, 3]), np.array([[1.0], [-1.0], [1.0]]))
    scored = score(estimate, np.array([1, 1, 0, 0]))
    assert (scored.rows, scored.accuracy, scored.majority) == (3, 2 / 3, 2 / 3)
    assert scored.minority == pytest.approx(1 / 3)
    assert scored.top_precision == 0.5  # two rows share the first rank, one is of the rarest class
    with pytest.raises(ConfigError, match="all are class 1"):
        score(LabelEstimate(np.arange(2), np.zeros((2, 1))), np.ones(4, dtype=np.int64))


@pytest.mark.parametrize("turned", [False, True])
def test_the_top_of_a_ranking_is_of_the_rarest_class(turned: bool) -> None:
    labels = (np.arange(5000) < 40).astype(np.int64)
    values = np.zeros((5000, 1))
    values[:30], values[4990:] = 1, 1
    scored = score(
        LabelEstimate(np.arange(5000), -values if turned else values), abs(turned - labels)
    )
    # The class has 40 rows, and 40 rows share the first rank.
    assert scored.top_precision == pytest.approx(30 / 40)


def test_the_top_of_a_ranking_of_more_classes() -> None:
    labels = np.array([0] * 100 + [1] * 100 + [2] * 30)
    values = np.eye(3)[labels]
    assert score(LabelEstimate(np.arange(230), values), labels).top_precision == 1
    values[200:, 0] = 3
    assert score(LabelEstimate(np.arange(230), values), labels).top_precision == 0


def test_advice_is_about_batches_and_starts(a9a: VerticalDataset) -> None:
    dataset = some_rows(a9a, 1500)
    job = Job.of(job={"batch_size": 134, "learning_rate": 0.1, "start": "zero"})
    found = advise(Subject(job, dataset, 0), epochs=3)
    (by_size, by_epoch), advice = found["curves"], found["advice"]
    assert set(by_size["series"]) == {"fixed batches", "reshuffled"}
    assert by_size["series"]["reshuffled"][0] > 0.95
    assert advice["rows"] == 1500
    assert advice["least_batch_size"] > 1500
    assert by_epoch["x"] == [1, 2, 3, 4, 5]
    flags = " ".join(advice["flags"])
    assert "theta0 = 0" in flags
    assert "leverage 1" in flags
    assert advice["zero_start"] is True


def test_the_least_batch_size_is_the_one_that_the_guard_itself_permits(tmp_path: Path) -> None:
    generator = np.random.default_rng(8)
    rows = 4 * 799  # as many full batches of one row fewer
    values, labels = generator.standard_normal((rows, 2)), np.arange(rows) % 2
    dataset = dataset_of(np.split(values, 2, axis=1), labels)
    subject = Subject(Job.of(job={"learning_rate": 0.1}, exchange={"scheme": "bfv"}), dataset, 0)
    least = least_batch_size(subject)
    assert least == 800  # one column over 1/200 of a variance of 1/4
    settings = {"rounds": 2, "local_steps": 1, "sampling": "partition"}
    with pytest.raises(LabelLeakRefused):
        subject.record_guarded(tmp_path / "a", dataset, batch_size=least - 1, **settings)
    subject.record_guarded(tmp_path / "b", dataset, batch_size=least, **settings)


def test_a_guess_of_predictions_that_is_off_costs_little() -> None:
    # Far from the end of training, and of a rare class: did equations that disagree in the columns'
    # largest directions count as others do, the attack would end 0.07 below where it starts.
    dataset = planted(Planted(0.05, rows=8000, columns=30, signal=0.5, kind="one-hot"))
    job = {"batch_size": 1200, "local_steps": 1, "learning_rate": 1.0, "rounds": 6}
    found = read_labels(Subject(Job.of(job=job), dataset, 0).record(), FEATURE_PARTY)
    assert found.model_alone is not None
    assert found.value > found.model_alone
