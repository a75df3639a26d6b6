"""Several jobs over the same people, each permitted by itself."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from securevfl.arrays import FloatArray
from securevfl.attacks import LabelEstimate
from securevfl.attacks.labels_from_gradients import SeenJob, labels_from_gradients
from securevfl.auditing.figures import OwnModel, best, label_finding, own_models, score
from securevfl.auditing.judging import Finding, NotRun
from securevfl.auditing.measures import labels_of_jobs as measure
from securevfl.auditing.measures.labels import gradients_seen
from securevfl.auditing.measures.labels_of_jobs import labels_of_jobs
from securevfl.auditing.subject import Recording, Subject
from securevfl.data.sources import load
from securevfl.data.tables import VerticalDataset
from securevfl.errors import ConfigError, FeatureLeakRefused, LabelLeakRefused
from securevfl.job import Job
from tests.made_data import dataset_of
from tests.unit.auditing.cells import cells_of, finding

ROWS, COLUMNS = 640, 6


def people(parties: int = 2) -> VerticalDataset:
    """Labels of which a peer's columns tell little."""
    generator = np.random.default_rng(4)
    values = generator.standard_normal((ROWS, COLUMNS * parties))
    odds = values @ np.r_[np.full(COLUMNS, 1.0), np.full(COLUMNS * (parties - 1), 0.1)]
    labels = (generator.random(len(values)) < 1 / (1 + np.exp(-odds))).astype(np.int64)
    return dataset_of(np.split(values, parties, axis=1), labels)


def subject(parties: int = 2, scheme: str = "bfv", **settings: object) -> Subject:
    steps = {"batch_size": 96, "learning_rate": 0.1, "local_steps": 1, **settings}
    return Subject(Job.of(job=steps, exchange={"scheme": scheme}), people(parties), 0)


def permitted(
    monkeypatch: pytest.MonkeyPatch,
    refuse_from: int,
    refusal: type[ConfigError] = LabelLeakRefused,
) -> tuple[Subject, list[tuple[Path, VerticalDataset, dict[str, object]]]]:
    """A subject whose guard refuses from some job on; jobs run in clear."""
    asked: list[tuple[Path, VerticalDataset, dict[str, object]]] = []

    def recorded(
        self: Subject, guard: Path, dataset: VerticalDataset, **changes: object
    ) -> Recording:
        asked.append((guard, dataset, changes))
        if len(asked) > refuse_from:
            raise refusal("label guard: enough")
        clear = Subject(self.job.without_protection, dataset, self.seed)
        return clear.record(**changes)

    monkeypatch.setattr(Subject, "record_guarded", recorded)
    return subject(), asked


def test_jobs_add_up_to_what_none_of_them_tells() -> None:
    attacked = subject(scheme="plain", batch_size=48)
    labels = attacked.dataset.train_labels
    inputs = attacked.dataset.parties[1].train
    own = best(own_models(inputs, labels))
    jobs = []
    for number in range(8):
        varied = measure._other_batches(attacked, (), number)
        recording = Subject(attacked.job, varied.dataset, 0).record(rounds=13, **varied.settings)
        gradients = gradients_seen(recording, "party1")
        jobs.append(SeenJob(gradients, recording.adversary("party1"), varied.people))

    def read(chosen: list[SeenJob]) -> float:
        return score(labels_from_gradients(chosen, own.probabilities), labels).auc

    one, all_of_them = fmean(read([job]) for job in jobs), read(jobs)
    assert one < own.score.auc + 0.15
    assert all_of_them > one + 0.1
    assert all_of_them > 0.9
    # The same job twice is no news, and no more certain: the equations are the same.
    alone = labels_from_gradients(jobs[:1], own.probabilities)
    twice = labels_from_gradients(jobs[:1] * 2, own.probabilities)
    np.testing.assert_allclose(twice.scores, alone.scores, atol=1e-12)
    # People mixed up are nobody.
    wrong = [replace(job, people=job.people[::-1].copy()) for job in jobs]
    assert read(wrong) < own.score.auc + 0.03


def test_jobs_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match="0 jobs"):
        labels_from_gradients([], np.zeros((3, 1)))


@pytest.mark.parametrize("refusal", [LabelLeakRefused, FeatureLeakRefused, ConfigError])
def test_guards_decide_and_one_directory_remembers(
    monkeypatch: pytest.MonkeyPatch, refusal: type[ConfigError]
) -> None:
    attacked, asked = permitted(monkeypatch, 2, refusal)
    variation = measure._fewer_rows
    found = finding(measure._measured(attacked, variation, ("party1",), guarded=True))
    assert found.detail["jobs"] == 2
    assert found.detail["refused"] == "label guard: enough"
    assert len(asked) == 3
    assert len({guard for guard, _, _ in asked}) == 1
    assert [len(dataset.train_labels) for _, dataset, _ in asked] == [640, 639, 638]
    assert not asked[0][0].exists()


def test_a_first_job_that_is_refused_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    attacked, _ = permitted(monkeypatch, refuse_from=0)
    found = cells_of(labels_of_jobs(attacked))
    job = found["one row fewer each job"]
    assert job.outcome == NotRun("label guard: enough")
    assert not job.what_if
    assert isinstance(found["one row fewer, S = 8P"].outcome, Finding)


def test_the_recordings_are_of_guarded_jobs(tmp_path: Path) -> None:
    attacked = subject(batch_size=8)
    with pytest.raises(LabelLeakRefused):
        attacked.record_guarded(tmp_path, attacked.dataset, rounds=40)
    fine = subject(batch_size="full")
    recording = fine.record_guarded(tmp_path, fine.dataset, rounds=2)
    assert recording.job.job.allow_label_leak is False
    assert list(tmp_path.iterdir())


def test_what_ifs_leak_and_say_how_many_jobs_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    attacked, _ = permitted(monkeypatch, refuse_from=3 * 8)
    found = cells_of(labels_of_jobs(attacked))
    what_ifs = [finding(each) for each in found.values() if each.what_if]
    assert len(what_ifs) == 3
    assert not any(each.within for each in what_ifs)
    for each in map(finding, found.values()):
        assert each.detail["jobs"] == 8
        assert each.model_alone is not None
        assert each.detail["auc_of_first_job"] < each.detail["auc"]["value"]


def test_two_peers_pool_columns_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    wide: list[tuple[int, ...]] = []

    def watched(inputs: FloatArray, labels: NDArray[np.int64]) -> Sequence[object]:
        wide.append(inputs.shape)
        return own_models(inputs, labels)

    monkeypatch.setattr(measure, "own_models", watched)
    attacked = subject(parties=3, scheme="plain")
    cases_of = labels_of_jobs.measure(attacked)
    assert isinstance(cases_of, Iterable)
    names = [case.name for case in cases_of]
    assert [name for name in names if name.startswith("pooled peers")]
    peers = ("party1", "party2")
    unguarded = partial(measure._measured, attacked, measure._other_columns, guarded=False)
    found = finding(unguarded(peers))
    assert found.detail["attackers"] == list(peers)
    assert COLUMNS < wide[0][1] <= 2 * COLUMNS
    alone = finding(unguarded(peers[:1]))
    assert wide[1][1] <= COLUMNS
    assert alone.detail["batch_size"] == 8 * (COLUMNS // 2)


def test_variations_keep_who_is_who() -> None:
    attacked = subject(scheme="plain")
    table = attacked.dataset.parties[1]
    chosen = []
    for number in range(4):
        columns = measure._other_columns(attacked, ("party1",), number)
        changed = columns.dataset.parties[1]
        assert len(changed.columns) == COLUMNS // 2
        places = [table.columns.index(column) for column in changed.columns]
        np.testing.assert_array_equal(changed.train, table.train[:, places])
        assert columns.dataset.fingerprint == attacked.dataset.fingerprint
        chosen.append(changed.columns)
        rows = measure._fewer_rows(attacked, (), number)
        np.testing.assert_array_equal(rows.dataset.parties[1].train, table.train[rows.people])
        assert len(rows.people) == ROWS - number
        batches = measure._other_batches(attacked, (), number)
        assert batches.settings == {"seed": number, "sampling": "shuffle"}
    assert len(set(chosen)) > 1


def test_an_attack_of_one_column_says_so() -> None:
    dataset = load("breast_cancer", parties=30)
    attacked = Subject(Job.of(job={}), dataset, 0)
    with pytest.raises(ConfigError, match="one column"):
        measure._other_columns(attacked, (attacked.feature_party,), 0)


def test_slow_exchanges_are_stood_in_for_by_quick_ones_that_show_the_same() -> None:
    slow = measure.quickened(subject(scheme="paillier"))
    assert not slow.is_slow
    assert slow.exchange.encrypts
    assert slow.learns == subject(scheme="paillier").learns
    quick = subject(scheme="bfv")
    assert measure.quickened(quick) is quick


def test_labels_that_change_after_the_recordings_change_no_estimate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attacked = subject(scheme="plain", batch_size=48)
    truth = attacked.dataset.train_labels
    estimates: list[FloatArray] = []

    def watched(estimate: LabelEstimate, *others: Any) -> Finding:  # noqa: ANN401
        estimates.append(estimate.scores)
        return label_finding(estimate, *others)

    def granted(inputs: FloatArray, labels: NDArray[np.int64]) -> tuple[OwnModel, ...]:
        return own_models(inputs, truth)

    monkeypatch.setattr(measure, "label_finding", watched)
    monkeypatch.setattr(measure, "own_models", granted)
    found = []
    for number in range(4):
        one = measure._other_batches(attacked, (), number)
        recording = Subject(attacked.job, one.dataset, 0).record(rounds=40, **one.settings)
        found.append((recording, one))
    others = np.random.default_rng(1).permutation(truth)
    dataset = replace(attacked.dataset, train_labels=others)
    changed = [
        (
            replace(each, dataset=replace(each.dataset, train_labels=others[one.people])),
            replace(one, dataset=replace(one.dataset, train_labels=others[one.people])),
        )
        for each, one in found
    ]
    right = measure._finding(attacked, found, ("party1",), "")
    wrong = measure._finding(Subject(attacked.job, dataset, 0), changed, ("party1",), "")
    assert len(estimates) == 2
    np.testing.assert_allclose(estimates[1], estimates[0], rtol=1e-9, atol=1e-12)
    assert wrong.value < 0.6
    assert right.value > 0.75
