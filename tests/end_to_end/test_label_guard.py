"""A job whose gradients would tell the labels is refused, across jobs and restarts."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from securevfl.data.sources import load
from securevfl.data.tables import PartyTable
from securevfl.errors import LabelLeakRefused
from securevfl.job import ExchangeSettings, Job, JobSettings
from securevfl.training import Environment, TrainingResult, train
from tests.end_to_end.conftest import SmallKeys


def run(directory: Path | None, scheme: str = "paillier", **settings: object) -> TrainingResult:
    common: dict[str, object] = {"rounds": 12, "batch_size": 128, "eval_every": "never"}
    job = Job(
        job=JobSettings.model_validate(common | settings),
        exchange=ExchangeSettings(scheme=scheme),
    )
    environment = Environment(keys=SmallKeys(), guard_directory=directory)
    return train(job, load("breast_cancer"), environment)


def test_large_batches_of_a_fixed_partition_pass_however_often(tmp_path: Path) -> None:
    for seed in range(3):
        assert run(tmp_path, seed=seed).label_guard_ratio == pytest.approx(3 * 15 / 456)


def test_small_batches_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LabelLeakRefused, match="7 distinct batches x 15 peer columns"):
        run(tmp_path, batch_size=64, rounds=60)


def test_reshuffled_batches_are_refused_where_the_partition_passes(tmp_path: Path) -> None:
    with pytest.raises(LabelLeakRefused, match="12 distinct batches"):
        run(tmp_path, sampling="shuffle")


def test_another_batch_size_on_the_same_rows_adds_up_across_jobs(tmp_path: Path) -> None:
    run(tmp_path)
    with pytest.raises(LabelLeakRefused, match="5 distinct batches"):
        run(tmp_path, batch_size=200)


def test_a_refused_job_leaves_no_trace(tmp_path: Path) -> None:
    with pytest.raises(LabelLeakRefused):
        run(tmp_path, batch_size=32, rounds=60)
    assert run(tmp_path).rounds == 12


def test_a_job_may_say_that_it_allows_the_leak_and_is_remembered(tmp_path: Path) -> None:
    run(tmp_path, batch_size=64, rounds=60, allow_label_leak=True)
    with pytest.raises(LabelLeakRefused):
        run(tmp_path)


def test_a_job_that_is_killed_has_been_remembered(tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    def kill(rounds: int) -> None:
        raise Killed

    job = Job(
        job=JobSettings(rounds=20, batch_size=200, eval_every=0),
        exchange=ExchangeSettings(scheme="paillier"),
    )
    environment = Environment(keys=SmallKeys(), guard_directory=tmp_path, progress=kill)
    with pytest.raises(Killed):
        train(job, load("breast_cancer"), environment)
    with pytest.raises(LabelLeakRefused):
        run(tmp_path)


def test_residuals_in_clear_have_no_ratio(tmp_path: Path) -> None:
    assert run(tmp_path, scheme="plain", batch_size=64).label_guard_ratio is None
    assert list(tmp_path.iterdir()) == []


def test_benchmarks_report_the_ratio_without_refusing() -> None:
    ratio = run(None, batch_size=64, rounds=60).label_guard_ratio
    assert ratio == pytest.approx(7 * 15 / 456)


def test_where_both_sides_are_hidden_every_key_owner_guards_its_own(tmp_path: Path) -> None:
    """Two columns at the label party: few equations for it, 28 for the other's predictions."""
    whole = load("breast_cancer")
    label, feature = whole.parties
    columns = np.hstack([label.train, feature.train]), np.hstack([label.test, feature.test])
    names = label.columns + feature.columns
    lopsided = replace(
        whole,
        parties=(
            PartyTable("label", names[2:], columns[0][:, 2:], columns[1][:, 2:]),
            PartyTable("feature", names[:2], columns[0][:, :2], columns[1][:, :2]),
        ),
        label_party="label",
    )
    job = Job(
        job=JobSettings(rounds=12, batch_size=128, eval_every=0, loss="taylor-logistic"),
        exchange=ExchangeSettings(scheme="paillier", hide="both"),
    )
    environment = Environment(keys=SmallKeys(), guard_directory=tmp_path)
    # The label party's own guard passes: 3 batches x 2 columns. The other's does not: 3 x 29.
    with pytest.raises(LabelLeakRefused, match="x 29 peer columns"):
        train(job, lopsided, environment)


def test_every_party_remembers_for_itself(tmp_path: Path) -> None:
    run(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["party1"]
