"""Jobs that would tell labels are refused, across jobs and restarts.

And what a refusal says would pass does pass, and one less does not.
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securevfl import files
from securevfl.data.features import encoded
from securevfl.data.partition import fixed_partition
from securevfl.data.tables import VerticalDataset, as_classes
from securevfl.errors import DataError, FeatureLeakRefused, LabelLeakRefused, PeerViolation
from securevfl.protocols.guards.person_record import label_variance
from securevfl.protocols.vertical import runner
from securevfl.recipe import Preprocessing
from tests.guarded import run, written
from tests.jobs import Killed, Settings, breast_cancer, picked
from tests.made_data import dataset_of


def one_column_each(seed: int, *, told: bool = True) -> VerticalDataset:
    """4000 rows, whose labels the label party's column tells something of, or nothing does."""
    generator = np.random.default_rng(seed)
    blocks = [generator.standard_normal((4000, 1)) for _ in range(2)]
    if told:
        labels = blocks[0][:, 0] + generator.standard_normal(4000) > 0
    else:
        labels = generator.random(4000) < 0.5
    return dataset_of(blocks, labels.astype(np.int64))


def with_columns(columns: slice) -> VerticalDataset:
    label, table = breast_cancer().parties
    train, test = (each[:, columns] for each in (table.train, table.test))
    chosen = replace(table, columns=table.columns[columns], train=train, test=test)
    return replace(breast_cancer(), parties=(label, chosen))


def test_full_batches_pass_however_often(tmp_path: Path) -> None:
    for seed in range(5):
        assert run(tmp_path, seed=seed).label_guard_ratio == pytest.approx(15 / 456)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"batch_size": 128}, 'batch_size = "full"'),
        ({"batch_size": 200}, 'batch_size = "full"'),
        ({"batch_size": 200, "sampling": "shuffle"}, "labels"),
        ({"start": "zero"}, "start = 'zero' reveals labels"),
    ],
)
def test_small_or_reshuffled_batches_and_a_known_start_are_refused_without_a_trace(
    tmp_path: Path, settings: Settings, told: str
) -> None:
    with pytest.raises(LabelLeakRefused, match=told):
        run(tmp_path, **settings)
    assert run(tmp_path).rounds == 2


def test_a_start_at_zero_is_allowed_where_asked_for_and_where_no_gradient_is_revealed() -> None:
    with pytest.raises(LabelLeakRefused, match="start = 'zero' reveals labels"):
        run(None, start="zero")
    run(None, start="zero", allow_label_leak=True, rounds=1)
    run(None, None, "plain", start="zero")


def test_batches_of_200_rows_for_a_column_and_unit_of_variance_pass(tmp_path: Path) -> None:
    large, settings = one_column_each(3, told=False), {"rounds": 40, "learning_rate": 0.1}
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


def relabelled(changed: int) -> VerticalDataset:
    labels = breast_cancer().train_labels.copy()
    labels[:changed] = 1 - labels[:changed]
    return replace(breast_cancer(), train_labels=labels)


@pytest.mark.parametrize("exchange", ["bfv", "blind"])
def test_few_changed_labels_would_name_their_people(tmp_path: Path, exchange: str) -> None:
    run(tmp_path, None, exchange)
    for changed in (1, 119):
        with pytest.raises(LabelLeakRefused, match=f"over jobs: {changed}; .* at least 120"):
            run(tmp_path, relabelled(changed), exchange)
    run(tmp_path, None, exchange)
    run(tmp_path, relabelled(1), exchange, allow_label_leak=True)
    with pytest.raises(LabelLeakRefused, match="over jobs: 1;"):
        run(tmp_path, None, exchange)


def test_as_many_labels_have_to_change_in_every_batch(tmp_path: Path) -> None:
    first = with_columns(slice(10))
    other = replace(first, train_labels=relabelled(100).train_labels)
    for size in ("full", 228):
        run(tmp_path / str(size), first, "blind", batch_size=size)
    run(tmp_path / "full", other, "blind")
    with pytest.raises(LabelLeakRefused, match=r"over jobs: 100; .* at least 80"):
        run(tmp_path / "228", other, "blind", batch_size=228)


def test_a_changed_target_would_name_its_person(tmp_path: Path) -> None:
    columns = breast_cancer().parties[0]
    targets, held_out = columns.train[:, 0].copy(), columns.test[:, 0]
    regression = replace(breast_cancer(), train_labels=targets, test_labels=held_out, classes=0)
    run(tmp_path, regression, "blind", loss="squared")
    run(tmp_path, replace(regression, train_labels=targets + 1e-9), "blind", loss="squared")
    other = targets + 1e-9
    other[3] += 1
    with pytest.raises(LabelLeakRefused, match=r"over jobs: 1; .* at least 120"):
        run(tmp_path, replace(regression, train_labels=other), "blind", loss="squared")


def test_small_targets_that_hardly_move_hide_nobody(tmp_path: Path) -> None:
    large = one_column_each(3)
    targets = large.parties[0].train[:, 0].copy()  # some hundred of them below 0.03
    held_out = large.parties[0].test[:, 0]
    first = replace(large, train_labels=targets, test_labels=held_out, classes=0)
    run(tmp_path, first, "bfv", loss="squared")
    other = targets + 1e-9 + 0.5 * (np.arange(len(targets)) == 3)
    run(tmp_path, replace(first, train_labels=targets + 1e-9), "bfv", loss="squared")
    with pytest.raises(LabelLeakRefused, match=r"over jobs: 1; .* alike: 1, expected at least 8"):
        run(tmp_path, replace(first, train_labels=other), "bfv", loss="squared")


def test_classes_as_numbers_are_the_same_labels(tmp_path: Path) -> None:
    run(tmp_path, None, "blind")
    labels = relabelled(1).train_labels.astype(np.float64)
    held_out = breast_cancer().test_labels.astype(np.float64)
    numbers = replace(relabelled(1), train_labels=labels, test_labels=held_out, classes=0)
    with pytest.raises(LabelLeakRefused, match=r"over jobs: 1; .* at least 120"):
        run(tmp_path, numbers, "blind", loss="squared")


def test_many_changed_labels_are_other_unknowns(tmp_path: Path) -> None:
    for changed in (0, 150, 300):
        run(tmp_path, relabelled(changed))
    with pytest.raises(LabelLeakRefused, match="gradients of all rows"):
        run(tmp_path, relabelled(456))


@pytest.mark.parametrize(
    ("dataset", "scheme", "told"),
    [
        (breast_cancer(), "paillier", "other rows than before"),
        (one_column_each(5), "bfv", "1 rows would be in other sets"),
    ],
    ids=["small", "large"],
)
def test_one_row_less_tells_its_label(
    tmp_path: Path, dataset: VerticalDataset, scheme: str, told: str
) -> None:
    run(tmp_path, dataset, scheme)
    with pytest.raises(LabelLeakRefused, match=told):
        run(tmp_path, picked(dataset, slice(1, None)), scheme)
    with pytest.raises(LabelLeakRefused, match="joined since an earlier job: 1, at"):
        run(tmp_path, picked(dataset, slice(1, None)), "blind")


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


def test_a_job_that_allows_the_leak_is_remembered_under_any_name_of_the_label_party(
    tmp_path: Path,
) -> None:
    whole = breast_cancer()
    run(tmp_path, batch_size=64, allow_label_leak=True)
    parties = (replace(whole.parties[0], name="bank"), whole.parties[1])
    for dataset in (whole, replace(whole, parties=parties, label_party="bank")):
        with pytest.raises(LabelLeakRefused):
            run(tmp_path, dataset)


def test_a_job_that_is_killed_has_been_remembered(tmp_path: Path) -> None:
    def kill(rounds: int) -> None:
        raise Killed

    allowed: dict[str, Any] = {"eval_every": 0, "allow_label_leak": True}
    with pytest.raises(Killed):
        run(tmp_path, None, "paillier", {"progress": kill}, rounds=20, batch_size=200, **allowed)
    with pytest.raises(LabelLeakRefused):
        run(tmp_path)


def test_residuals_in_clear_have_no_ratio(tmp_path: Path) -> None:
    assert run(tmp_path, None, "plain", batch_size=64).label_guard_ratio is None
    assert not (tmp_path / "labels.safetensors").exists()


def test_benchmarks_report_the_ratio_and_score_without_refusing() -> None:
    batches = len(fixed_partition(breast_cancer().row_digests, 64))
    ratio = run(None, batch_size=64, rounds=60).label_guard_ratio
    assert ratio == pytest.approx(batches * 15 / 456)
    settings = {"eval_every": 1, "rounds": 15, "batch_size": "full", "learning_rate": 0.1}
    shown = run(None, None, "bfv", **settings, allow_feature_leak=False)
    assert len(shown.scores) == 15


def test_where_both_sides_are_hidden_every_key_owner_guards_its_own(tmp_path: Path) -> None:
    """Two columns at the feature party: few equations on labels, 28 on its own predictions."""
    columns = np.hstack([table.train for table in breast_cancer().parties])
    labels = as_classes(breast_cancer().train_labels)
    lopsided = dataset_of([columns[:, 2:], columns[:, :2]], labels, standardize=True)
    both = {"scheme": "paillier", "hide": "both"}
    settings = {"eval_every": 0, "loss": "taylor-logistic"}
    for _ in range(2):
        run(tmp_path, lopsided, both, **settings)
    # Nobody's columns have changed, but the feature party no longer knows those of the label party,
    # 29 with its intercept, and these tell of its predictions.
    for _ in range(16):
        (tmp_path / "party0" / "commitment.key").unlink()
        try:
            run(tmp_path, lopsided, both, **settings)
        except LabelLeakRefused:
            return
    pytest.fail("the feature party counts nothing")


@pytest.mark.parametrize("record", ["labels.safetensors", "rows.safetensors"])
def test_a_record_that_another_job_is_writing_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: str
) -> None:
    monkeypatch.setattr(files, "PATIENCE_SECONDS", 0.05)
    with (
        files.only_one(tmp_path / record, "record"),
        pytest.raises(DataError, match="another job holds it"),
    ):
        run(tmp_path, eval_every=0)


def test_every_party_remembers_for_itself(tmp_path: Path) -> None:
    run(tmp_path)
    keys = {"commitment.key", "party2/commitment.key"}
    assert written(tmp_path) == {"labels.safetensors", "rows.safetensors", *keys}
    for key in keys:
        assert (tmp_path / key).stat().st_mode & 0o077 == 0


# --------------------------------------------------------------------------------- remedies

ROWS, MANY_ROWS = 3000, 7000


class Passed(Exception):
    """The guards have written the job down and a round is done."""


def rows_of(columns: int = 1, rows: int = ROWS, rare: float = 0.5) -> VerticalDataset:
    """Labels of which so many are of one class, one column at their party."""
    generator = np.random.default_rng(4)
    blocks = [generator.standard_normal((rows, width)) for width in (1, columns)]
    return dataset_of(blocks, (generator.random(rows) < rare).astype(np.int64))


def begin(directory: Path, dataset: VerticalDataset, settings: Settings) -> None:
    def stop(done: int) -> None:
        assert done == 1
        raise Passed

    run(directory, dataset, "bfv", {"progress": stop}, **{"rounds": 1, **settings})


def passes(directory: Path, dataset: VerticalDataset, **settings: object) -> None:
    with pytest.raises(Passed):
        begin(directory, dataset, settings)


def refused(directory: Path, dataset: VerticalDataset, **settings: object) -> str:
    with pytest.raises((LabelLeakRefused, FeatureLeakRefused)) as caught:
        begin(directory, dataset, settings)
    return str(caught.value)


def number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    assert found, text
    return int(found[1])


@pytest.mark.parametrize("rare", [0.5, 0.3])
def test_the_smallest_batch(tmp_path: Path, rare: float) -> None:
    dataset = rows_of(rare=rare)
    text = refused(tmp_path, dataset, batch_size=64)
    size = number(r"batch_size = (\d+) is the smallest that passes", text)
    # 200 rows for a column and unit of variance, and the smallest batch must have them.
    smallest = min(map(len, fixed_partition(dataset.row_digests, size)))
    assert smallest >= 200 / label_variance(dataset.train_labels)
    refused(tmp_path, dataset, batch_size=size - 1)
    passes(tmp_path, dataset, batch_size=size)


def test_other_batches_than_before_have_to_be_all_rows(tmp_path: Path) -> None:
    """Where two ways to part the rows cut across one another, few rows are in the same batches."""
    dataset, rounds = rows_of(rows=MANY_ROWS), 40
    passes(tmp_path, dataset, batch_size=1300, rounds=rounds)
    text = refused(tmp_path, dataset, batch_size=1000, rounds=rounds)
    assert 'batch_size = "full" passes' in text
    passes(tmp_path, dataset, batch_size="full", rounds=rounds)


def test_all_rows_where_no_part_of_them_passes(tmp_path: Path) -> None:
    dataset = rows_of(columns=4)
    text = refused(tmp_path, dataset, batch_size=ROWS // 2)
    assert 'batch_size = "full" passes' in text
    passes(tmp_path, dataset, batch_size="full")


@pytest.mark.parametrize("batch_size", ["full", 50])
def test_the_most_columns(tmp_path: Path, batch_size: object) -> None:
    text = refused(tmp_path, rows_of(40, rows=240), batch_size=batch_size)
    most = number(r"fewer columns \(at most (\d+) of peers pass\)", text)
    assert ('batch_size = "full"' in text) == (batch_size != "full")
    refused(tmp_path, rows_of(most + 1, rows=240))
    passes(tmp_path, rows_of(most, rows=240))


def test_the_most_bins(tmp_path: Path) -> None:
    def binned(bins: int) -> VerticalDataset:
        return encoded(rows_of(1, rows=240), Preprocessing(bins=bins, rare_count=1))

    bins = number(r"of peers pass, as with bins = (\d+)\)", refused(tmp_path, binned(60)))
    refused(tmp_path, binned(bins + 1))
    passes(tmp_path, binned(bins))


def test_the_most_rounds(tmp_path: Path) -> None:
    dataset, settings = rows_of(rows=240), {"label_guard": "visits"}
    text = refused(tmp_path, dataset, **settings, rounds=500)
    most = number(r"at most (\d+) rounds pass", text)
    refused(tmp_path, dataset, **settings, rounds=most + 1)
    passes(tmp_path, dataset, **settings, rounds=most)
    # Nothing is left of what was allowed.
    assert "not even one round passes" in refused(tmp_path, dataset, **settings)


def test_the_most_rounds_of_all_rows_where_no_batch_of_a_network_passes(tmp_path: Path) -> None:
    dataset = rows_of(rows=MANY_ROWS)
    network: dict[str, object] = {"model": "mlp", "hidden": [1]}
    text = refused(tmp_path, dataset, **network, rounds=90, batch_size=300)
    most = number(r'with batch_size = "full" at most (\d+) rounds pass', text)
    refused(tmp_path, dataset, **network, rounds=most + 1, batch_size="full")
    passes(tmp_path, dataset, **network, rounds=most, batch_size="full")


def test_the_most_scorings(tmp_path: Path) -> None:
    dataset, rounds = rows_of(6, rows=400), 23
    others = (replace(table, test=table.test + 9.0) for table in dataset.parties)
    dataset = replace(dataset, parties=tuple(others))
    counted: dict[str, object] = {"allow_feature_leak": False}
    text = refused(tmp_path, dataset, eval_every=1, rounds=rounds, **counted)
    every = number(r"at most 5 times: eval_every = (\d+) passes", text)
    refused(tmp_path, dataset, eval_every=every - 1, rounds=rounds, **counted)
    passes(tmp_path, dataset, eval_every=every, rounds=rounds, **counted)
    # After these five nothing is left.
    assert "eval_every = 'never'" in refused(tmp_path, dataset, eval_every=0, **counted)
    passes(tmp_path, dataset, **counted)
