"""A job whose gradients would tell the labels is refused, across jobs and restarts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securevfl import files
from securevfl.data.partition import fixed_partition
from securevfl.data.tables import PartyTable, VerticalDataset
from securevfl.errors import DataError, LabelLeakRefused, PeerViolation
from securevfl.job import ExchangeSettings, Job, JobSettings
from securevfl.protocols.vertical import runner
from securevfl.training import Environment, TrainingResult, train
from tests.jobs import SmallKeys, breast_cancer
from tests.made_data import dataset_of


def run(
    directory: Path | None,
    scheme: str = "paillier",
    dataset: VerticalDataset | None = None,
    **settings: object,
) -> TrainingResult:
    common: dict[str, object] = {"rounds": 2, "eval_every": "never"}
    job = Job(
        job=JobSettings.model_validate(common | settings), exchange=ExchangeSettings(scheme=scheme)
    )
    environment = Environment(keys=SmallKeys(), guard_directory=directory)
    return train(job, dataset or breast_cancer(), environment)


def with_columns(dataset: VerticalDataset, columns: slice) -> VerticalDataset:
    """Some columns of the feature party alone."""
    label, table = dataset.parties
    chosen = PartyTable(
        table.name, table.columns[columns], table.train[:, columns], table.test[:, columns]
    )
    return replace(dataset, parties=(label, chosen))


def without_first_row(dataset: VerticalDataset) -> VerticalDataset:
    return replace(
        dataset,
        parties=tuple(replace(each, train=each.train[1:]) for each in dataset.parties),
        train_labels=dataset.train_labels[1:],
        row_digests=dataset.row_digests[1:],
    )


def test_full_batches_pass_however_often(tmp_path: Path) -> None:
    for seed in range(5):
        assert run(tmp_path, seed=seed).label_guard_ratio == pytest.approx(15 / 456)


@pytest.mark.parametrize("settings", [{"batch_size": 128}, {"batch_size": 200}])
def test_minibatches_of_a_small_set_are_refused(tmp_path: Path, settings: dict[str, Any]) -> None:
    with pytest.raises(LabelLeakRefused, match='batch_size = "full"'):
        run(tmp_path, **settings)


def test_batches_of_200_rows_for_a_column_and_unit_of_variance_pass(tmp_path: Path) -> None:
    generator = np.random.default_rng(3)
    blocks = [generator.standard_normal((4000, 1)) for _ in range(2)]
    large = dataset_of(blocks, (generator.random(4000) < 0.5).astype(np.int64))
    settings: dict[str, Any] = {"rounds": 40, "learning_rate": 0.1}
    run(tmp_path / "passes", "bfv", large, batch_size=1000, **settings)
    # The smallest size that parts 4000 rows in four, not five, whose smallest would have too few.
    with pytest.raises(LabelLeakRefused, match=r"batch_size = 801 is the smallest"):
        run(tmp_path / "not", "bfv", large, batch_size=700, **settings)


def test_reshuffled_batches_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LabelLeakRefused):
        run(tmp_path, batch_size=200, sampling="shuffle")


def test_other_columns_of_the_same_number_are_other_equations(tmp_path: Path) -> None:
    whole = breast_cancer()
    for first in range(4):
        run(tmp_path, dataset=with_columns(whole, slice(first, first + 12)))
    with pytest.raises(LabelLeakRefused, match=r"those of earlier jobs .* take fewer columns"):
        run(tmp_path, dataset=with_columns(whole, slice(3, 15)), standardize=False)


def test_the_same_columns_are_known_again_by_their_commitment_alone(tmp_path: Path) -> None:
    for _ in range(6):
        run(tmp_path)
    for _ in range(2):
        (tmp_path / "party2" / "commitment.key").unlink()
        run(tmp_path)
    (tmp_path / "party2" / "commitment.key").unlink()
    with pytest.raises(LabelLeakRefused, match="fewer columns"):
        run(tmp_path)


def test_changed_labels_are_other_unknowns(tmp_path: Path) -> None:
    whole = breast_cancer()
    for changed in range(3):
        labels = whole.train_labels.copy()
        labels[:changed] = 1 - labels[:changed]
        run(tmp_path, dataset=replace(whole, train_labels=labels))
    with pytest.raises(LabelLeakRefused):
        run(tmp_path, dataset=replace(whole, train_labels=1 - whole.train_labels))


def test_one_row_less_is_refused_on_a_small_set(tmp_path: Path) -> None:
    run(tmp_path)
    with pytest.raises(LabelLeakRefused, match="other rows than before"):
        run(tmp_path, dataset=without_first_row(breast_cancer()))


def test_a_row_less_in_a_large_set_tells_its_label(tmp_path: Path) -> None:
    rows = 4000
    generator = np.random.default_rng(5)
    blocks = [generator.standard_normal((rows, 1)) for _ in range(2)]
    labels = (blocks[0][:, 0] + generator.standard_normal(rows) > 0).astype(np.int64)
    large = dataset_of(blocks, labels)
    run(tmp_path, "bfv", large)
    with pytest.raises(LabelLeakRefused, match="1 rows would be trained on in other company"):
        run(tmp_path, "bfv", without_first_row(large))


def test_commitments_of_another_length_are_no_commitments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "commitments", lambda *_: b"short")
    with pytest.raises(PeerViolation, match="commits to its columns in 5 bytes, expected 16"):
        run(tmp_path)


def test_every_visit_counts_where_the_job_asks_for_it(tmp_path: Path) -> None:
    with pytest.raises(LabelLeakRefused, match="at most 3 rounds pass"):
        run(tmp_path, rounds=4, label_guard="visits")
    run(tmp_path, rounds=3, label_guard="visits")
    with pytest.raises(LabelLeakRefused, match="not even one round passes"):
        run(tmp_path, rounds=1, label_guard="visits")


def test_a_start_at_zero_is_refused_wherever_gradients_are_revealed() -> None:
    with pytest.raises(LabelLeakRefused, match="start = 'zero' tells labels"):
        run(None, start="zero")
    run(None, start="zero", allow_label_leak=True, rounds=1)
    run(None, "plain", start="zero")


def test_a_refused_job_leaves_no_trace(tmp_path: Path) -> None:
    with pytest.raises(LabelLeakRefused):
        run(tmp_path, batch_size=32)
    assert run(tmp_path).rounds == 2


def test_a_job_may_say_that_it_allows_the_leak_and_is_remembered(tmp_path: Path) -> None:
    run(tmp_path, batch_size=64, allow_label_leak=True)
    with pytest.raises(LabelLeakRefused):
        run(tmp_path)


def test_a_job_that_is_killed_has_been_remembered(tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    def kill(rounds: int) -> None:
        raise Killed

    job = Job(
        job=JobSettings(rounds=20, batch_size=200, eval_every=0, allow_label_leak=True),
        exchange=ExchangeSettings(scheme="paillier"),
    )
    environment = Environment(keys=SmallKeys(), guard_directory=tmp_path, progress=kill)
    with pytest.raises(Killed):
        train(job, breast_cancer(), environment)
    with pytest.raises(LabelLeakRefused):
        run(tmp_path)


def test_residuals_in_clear_have_no_ratio(tmp_path: Path) -> None:
    assert run(tmp_path, scheme="plain", batch_size=64).label_guard_ratio is None
    assert list(tmp_path.iterdir()) == []


def test_benchmarks_report_the_ratio_without_refusing() -> None:
    batches = len(fixed_partition(breast_cancer().row_digests, 64))
    ratio = run(None, batch_size=64, rounds=60).label_guard_ratio
    assert ratio == pytest.approx(batches * 15 / 456)


def test_where_both_sides_are_hidden_every_key_owner_guards_its_own(tmp_path: Path) -> None:
    """Two columns at the label party: few equations for it, 28 for the other's predictions."""
    whole = breast_cancer()
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
        job=JobSettings(rounds=2, eval_every=0, loss="taylor-logistic"),
        exchange=ExchangeSettings(scheme="paillier", hide="both"),
    )
    environment = Environment(keys=SmallKeys(), guard_directory=tmp_path)
    for _ in range(2):
        train(job, lopsided, environment)
    # Nobody's columns have changed, but the feature party no longer knows those of the label party,
    # 29 with its intercept, and these tell of its predictions.
    for _ in range(16):
        (tmp_path / "label" / "commitment.key").unlink()
        try:
            train(job, lopsided, environment)
        except LabelLeakRefused:
            return
    pytest.fail("the feature party counts nothing")


@pytest.mark.parametrize("record", ["labels.safetensors", "party2/held-out.json"])
def test_a_record_that_another_job_is_writing_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: str
) -> None:
    monkeypatch.setattr(files, "PATIENCE_SECONDS", 0.05)
    with (
        files.only_one(tmp_path / record, "record"),
        pytest.raises(DataError, match="another job holds it"),
    ):
        run(tmp_path, eval_every=0)


def test_another_name_of_the_label_party_is_no_other_record(tmp_path: Path) -> None:
    whole = breast_cancer()
    run(tmp_path, dataset=whole, batch_size=64, allow_label_leak=True)
    renamed = replace(
        whole,
        parties=(replace(whole.parties[0], name="bank"), whole.parties[1]),
        label_party="bank",
    )
    with pytest.raises(LabelLeakRefused):
        run(tmp_path, dataset=renamed)


def test_every_party_remembers_for_itself(tmp_path: Path) -> None:
    run(tmp_path)
    everything = (path for path in tmp_path.rglob("*") if path.is_file())
    there = {str(path.relative_to(tmp_path)) for path in everything if path.suffix != ".lock"}
    assert there == {"labels.safetensors", "party2/commitment.key"}
    assert (tmp_path / "party2" / "commitment.key").stat().st_mode & 0o077 == 0
