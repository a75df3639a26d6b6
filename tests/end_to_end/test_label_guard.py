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
from securevfl.protocols.vertical import runner
from securevfl.training import Environment, TrainingResult
from tests.jobs import Settings, SmallKeys, breast_cancer, fit
from tests.made_data import dataset_of


def run(
    directory: Path | None,
    dataset: VerticalDataset | None = None,
    exchange: str | Settings = "paillier",
    /,
    **settings: object,
) -> TrainingResult:
    common: dict[str, object] = {"rounds": 2, "eval_every": "never"}
    environment = Environment(keys=SmallKeys(), guard_directory=directory)
    return fit(dataset or breast_cancer(), exchange, environment, **common | settings)


def one_column_each(seed: int, *, known: bool = True) -> VerticalDataset:
    """4000 rows, whose labels the label party's column tells something of, or nothing does."""
    generator = np.random.default_rng(seed)
    blocks = [generator.standard_normal((4000, 1)) for _ in range(2)]
    if known:
        labels = blocks[0][:, 0] + generator.standard_normal(4000) > 0
    else:
        labels = generator.random(4000) < 0.5
    return dataset_of(blocks, labels.astype(np.int64))


def with_columns(columns: slice) -> VerticalDataset:
    """Some columns of the feature party alone."""
    label, table = breast_cancer().parties
    chosen = PartyTable(
        table.name, table.columns[columns], table.train[:, columns], table.test[:, columns]
    )
    return replace(breast_cancer(), parties=(label, chosen))


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


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 128}, 'batch_size = "full"'),
        ({"batch_size": 200}, 'batch_size = "full"'),
        ({"batch_size": 200, "sampling": "shuffle"}, "labels"),
        ({"start": "zero"}, "start = 'zero' reveals labels"),
    ],
)
def test_small_or_reshuffled_batches_and_a_known_start_are_refused(
    tmp_path: Path, settings: Settings, message: str
) -> None:
    with pytest.raises(LabelLeakRefused, match=message):
        run(tmp_path, **settings)


def test_a_start_at_zero_is_allowed_where_asked_for_and_where_no_gradient_is_revealed() -> None:
    with pytest.raises(LabelLeakRefused, match="start = 'zero' reveals labels"):
        run(None, start="zero")
    run(None, start="zero", allow_label_leak=True, rounds=1)
    run(None, None, "plain", start="zero")


def test_batches_of_200_rows_for_a_column_and_unit_of_variance_pass(tmp_path: Path) -> None:
    large, settings = one_column_each(3, known=False), {"rounds": 40, "learning_rate": 0.1}
    run(tmp_path / "passes", large, "bfv", batch_size=1000, **settings)
    # The smallest size that parts 4000 rows in four, not five, whose smallest would have too few.
    with pytest.raises(LabelLeakRefused, match=r"batch_size = 801 is the smallest"):
        run(tmp_path / "not", large, "bfv", batch_size=700, **settings)


def test_other_columns_of_the_same_number_are_other_equations(tmp_path: Path) -> None:
    for first in range(4):
        run(tmp_path, with_columns(slice(first, first + 12)))
    with pytest.raises(LabelLeakRefused, match=r"those of earlier jobs .* take fewer columns"):
        run(tmp_path, with_columns(slice(3, 15)), standardize=False)


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
        run(tmp_path, replace(whole, train_labels=labels))
    with pytest.raises(LabelLeakRefused):
        run(tmp_path, replace(whole, train_labels=1 - whole.train_labels))


@pytest.mark.parametrize(
    ("dataset", "scheme", "message"),
    [
        (breast_cancer(), "paillier", "other rows than before"),
        (one_column_each(5), "bfv", "1 rows would be in other sets"),
    ],
    ids=["small", "large"],
)
def test_one_row_less_tells_its_label(
    tmp_path: Path, dataset: VerticalDataset, scheme: str, message: str
) -> None:
    run(tmp_path, dataset, scheme)
    with pytest.raises(LabelLeakRefused, match=message):
        run(tmp_path, without_first_row(dataset), scheme)


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

    environment = Environment(keys=SmallKeys(), guard_directory=tmp_path, progress=kill)
    allowed: dict[str, Any] = {"eval_every": 0, "allow_label_leak": True}
    with pytest.raises(Killed):
        fit(breast_cancer(), "paillier", environment, rounds=20, batch_size=200, **allowed)
    with pytest.raises(LabelLeakRefused):
        run(tmp_path)


def test_residuals_in_clear_have_no_ratio(tmp_path: Path) -> None:
    assert run(tmp_path, None, "plain", batch_size=64).label_guard_ratio is None
    assert list(tmp_path.iterdir()) == []


def test_benchmarks_report_the_ratio_without_refusing() -> None:
    batches = len(fixed_partition(breast_cancer().row_digests, 64))
    ratio = run(None, batch_size=64, rounds=60).label_guard_ratio
    assert ratio == pytest.approx(batches * 15 / 456)


def test_where_both_sides_are_hidden_every_key_owner_guards_its_own(tmp_path: Path) -> None:
    """Two columns at the label party: few equations for it, 28 for the other's predictions."""
    label, feature = breast_cancer().parties
    train, test = (
        np.hstack([getattr(each, part) for each in (label, feature)]) for part in ("train", "test")
    )
    names = label.columns + feature.columns
    lopsided = replace(
        breast_cancer(),
        parties=(
            PartyTable("label", names[2:], train[:, 2:], test[:, 2:]),
            PartyTable("feature", names[:2], train[:, :2], test[:, :2]),
        ),
        label_party="label",
    )
    both = {"scheme": "paillier", "hide": "both"}
    settings = {"eval_every": 0, "loss": "taylor-logistic"}
    for _ in range(2):
        run(tmp_path, lopsided, both, **settings)
    # Nobody's columns have changed, but the feature party no longer knows those of the label party,
    # 29 with its intercept, and these tell of its predictions.
    for _ in range(16):
        (tmp_path / "label" / "commitment.key").unlink()
        try:
            run(tmp_path, lopsided, both, **settings)
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
    run(tmp_path, whole, batch_size=64, allow_label_leak=True)
    parties = (replace(whole.parties[0], name="bank"), whole.parties[1])
    with pytest.raises(LabelLeakRefused):
        run(tmp_path, replace(whole, parties=parties, label_party="bank"))


def test_every_party_remembers_for_itself(tmp_path: Path) -> None:
    run(tmp_path)
    everything = (path for path in tmp_path.rglob("*") if path.is_file())
    there = {str(path.relative_to(tmp_path)) for path in everything if path.suffix != ".lock"}
    assert there == {"labels.safetensors", "party2/commitment.key"}
    assert (tmp_path / "party2" / "commitment.key").stat().st_mode & 0o077 == 0
