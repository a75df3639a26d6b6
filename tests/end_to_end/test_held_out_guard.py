"""Jobs that would tell held-out rows are refused, across jobs and restarts."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securevfl import files
from securevfl.data.tables import VerticalDataset
from securevfl.errors import DataError, FeatureLeakRefused, LabelLeakRefused
from securevfl.protocols.guards import row_record
from securevfl.protocols.guards.row_record import RowRecord
from securevfl.protocols.session.scoring import GatheredScoring
from securevfl.training import TrainingResult
from tests.guarded import BOTH, run, written
from tests.jobs import Killed, Settings, breast_cancer, picked
from tests.scoring_jobs import features_of, scored, trained

# Eight of the fifteen columns' effective rank of ten.
HALF: dict[str, Any] = {"eval_every": 1, "rounds": 8}


def show(
    directory: Path | None,
    dataset: VerticalDataset | None = None,
    exchange: str | Settings = "bfv",
    watched: Settings | None = None,
    /,
    **settings: object,
) -> TrainingResult:
    """Two rounds of full batches, scored as often as the exchange has it."""
    common = {"learning_rate": 0.1, "batch_size": "full", "eval_every": None}
    common["allow_feature_leak"] = False
    return run(directory, dataset, exchange, watched, **{**common, **settings})


def record(directory: Path) -> dict[int, int]:
    """Columns shown by scorings, by digest."""
    kept = RowRecord.load(directory / "rows.safetensors")
    return {int(name): int(n) for name, n in zip(kept.digests, kept.scored, strict=True) if n}


def test_one_scoring_at_the_end_passes_and_is_written_down(tmp_path: Path) -> None:
    assert len(show(tmp_path).scores) == 1
    assert set(record(tmp_path).values()) == {1}
    assert len(record(tmp_path)) == 2 * 113  # values and ids


def test_a_scoring_every_round_is_refused_before_it_starts_and_written_down_nowhere(
    tmp_path: Path,
) -> None:
    with pytest.raises(FeatureLeakRefused, match=r"this job would show 10 numbers \(10 sco"):
        show(tmp_path, eval_every=1, rounds=10)
    assert {Path(each).name for each in written(tmp_path)} <= {"commitment.key"}
    show(tmp_path, eval_every=1, rounds=9)


def test_a_target_asks_for_scorings_and_all_of_them_count(tmp_path: Path) -> None:
    with pytest.raises(FeatureLeakRefused, match="19 scorings"):
        show(tmp_path, target_auc=0.6, rounds=19)


def test_a_second_job_adds_up(tmp_path: Path) -> None:
    """The same held-out rows; training rows have a count of their own."""
    parts = (slice(0, 228), slice(228, 456))
    half: dict[str, Any] = {**HALF, "rounds": 8, "local_steps": 1, "allow_label_leak": True}
    show(tmp_path, picked(breast_cancer(), parts[0]), **half)
    show(tmp_path, picked(breast_cancer(), parts[1]), seed=1, rounds=1, allow_label_leak=True)
    with pytest.raises(FeatureLeakRefused, match=r"up to 9 numbers .* show 8 more numbers"):
        show(tmp_path, picked(breast_cancer(), parts[1]), **half)
    unscored: dict[str, Any] = {"eval_every": "never", "rounds": 1, "allow_label_leak": True}
    assert show(tmp_path, **unscored, seed=2).scores == []
    assert set(record(tmp_path).values()) == {9}


def test_a_row_more_or_less_is_no_other_data_set(tmp_path: Path) -> None:
    half: dict[str, Any] = {**HALF, "allow_label_leak": True}
    whole = picked(breast_cancer(), slice(0, 228))
    fewer = picked(breast_cancer(), slice(228, 456), slice(1, None))
    show(tmp_path, fewer, **half)
    with pytest.raises(FeatureLeakRefused, match="of each person scored"):
        show(tmp_path, whole, **half)
    others = replace(
        whole,
        parties=tuple(replace(each, test=each.train[:113], people=None) for each in whole.parties),
        test_labels=whole.train_labels[:113],
    )
    assert len(show(tmp_path, others, **half).scores) == 8
    # What others have shown since is remembered beside it.
    tables = (replace(each, train=each.train + 1.0, people=None) for each in fewer.parties)
    strangers = replace(fewer, parties=tuple(tables), row_digests=fewer.row_digests + np.uint64(1))
    with pytest.raises(FeatureLeakRefused, match="of each person scored"):
        show(tmp_path, strangers, **half)


def test_a_job_may_say_that_it_shows_rows_and_is_remembered(tmp_path: Path) -> None:
    scores = show(tmp_path, eval_every=1, rounds=15, allow_feature_leak=True).scores
    assert len(scores) == 15
    assert set(record(tmp_path).values()) == {15}
    with pytest.raises(FeatureLeakRefused):
        show(tmp_path)


def test_scorings_of_a_job_that_is_killed_have_been_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def killed(*_: object, **__: object) -> bool:
        raise Killed

    monkeypatch.setattr(GatheredScoring, "stops", killed)
    with pytest.raises(Killed):
        show(tmp_path)
    assert set(record(tmp_path).values()) == {1}


def test_sums_count_at_every_feature_party(tmp_path: Path) -> None:
    """By columns as the file has them: other training rows scale the same rows in another way."""
    tables = (replace(table, people=None, source="") for table in breast_cancer(3).parties)
    three = replace(breast_cancer(3), parties=tuple(tables))
    show(tmp_path, three, "masked")
    assert set(record(tmp_path).values()) == {1}
    for dataset in (three, picked(three, slice(50, None))):
        with pytest.raises(FeatureLeakRefused):
            show(tmp_path, dataset, "masked", seed=1)


def test_dbcd_counts_its_scorings_as_well(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"algorithm": "dbcd", "l1": 0.01, "eval_every": 0}
    settings["allow_feature_leak"] = False
    run(tmp_path, breast_cancer(3), "masked", **settings)
    with pytest.raises(FeatureLeakRefused):
        run(tmp_path, breast_cancer(3), "masked", **settings, seed=1)


def test_what_another_job_has_written_down_since_the_first_check_counts(tmp_path: Path) -> None:
    three, own, checked = breast_cancer(3), tmp_path / "own", set[str]()
    show(tmp_path / "other", three, "masked")

    def written_meanwhile(sender: str, _to: str, data: bytes) -> bytes:
        checked.add(sender)
        if {"party2", "party3"} <= checked and not own.exists():
            shutil.copytree(tmp_path / "other", own)
        return data

    with pytest.raises(FeatureLeakRefused, match="showed up to 1 number of"):
        show(own, three, "masked", {"tamper": written_meanwhile}, seed=1)


def test_it_is_written_down_while_nobody_else_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[bool] = []
    write = files.replace_file

    def watched(path: Path, data: bytes, what: str) -> None:
        monkeypatch.setattr(files, "PATIENCE_SECONDS", 0.01)
        try:
            with files.only_one(path, "record"):
                held.append(False)
        except DataError:
            held.append(True)
        write(path, data, what)

    monkeypatch.setattr(row_record, "replace_file", watched)
    show(tmp_path)
    result, dataset = trained(3, guard=tmp_path, exchange={"scheme": "masked"})
    fresh = {name: values + 1.0 for name, values in features_of(dataset).items()}
    scored(result, dataset, features=fresh, guard_directory=tmp_path)
    # What is planned, what has been shown, and which model has scored; at the label party two.
    assert held == [True] * 13


def test_sums_by_class_of_two_show_no_row_and_sums_of_three_do(tmp_path: Path) -> None:
    settings = {"eval_every": 1, "loss": "taylor-logistic"}
    for _ in range(2):
        assert len(show(tmp_path, None, BOTH, **settings).scores) == 2
    assert not (tmp_path / "rows.safetensors").exists()
    with pytest.raises(FeatureLeakRefused):
        show(tmp_path, breast_cancer(3), {**BOTH, "scores": "rows"}, **settings)


def test_noisy_predictions_are_not_counted(tmp_path: Path) -> None:
    scores = show(tmp_path, None, "dp", privacy={"noise_multiplier": 5.0}).scores
    assert {each.rounds for each in scores} == {1, 2}  # the first again, where noise made it best
    assert list(tmp_path.iterdir()) == []


def test_plain_scorings_count_like_rounds(tmp_path: Path) -> None:
    """One job may show all held-out rows, as it shows all others; two together may not."""
    parts = (slice(0, 228), slice(228, 456))
    once: dict[str, Any] = {"eval_every": 1, "rounds": 16, "tolerance": 0.0}
    assert len(show(tmp_path / "once", None, "plain", **once).scores) == 16
    guard = tmp_path / "twice"
    jobs = [picked(breast_cancer(), part) for part in parts]
    assert len(show(guard, jobs[0], "plain", eval_every=1, rounds=4).scores) == 4
    said = (
        r"4 columns of predictions of held-out rows .* score at most 5 times: .*; or take scheme = "
        r"'bfv' with hide = 'both' and loss = 'taylor-logistic', or scheme = 'blind'"
    )
    with pytest.raises(FeatureLeakRefused, match=said):
        show(guard, jobs[1], "plain", eval_every=1, rounds=9)
    assert set(record(guard).values()) == {4}
    show(guard, jobs[1], "plain", rounds=9)
    assert set(record(guard).values()) == {4 + 5}  # rounds 1, 2, 4, 8 and 9


@pytest.mark.parametrize(
    "way", [("blind", {}), (BOTH, {"loss": "taylor-logistic"})], ids=["blind", "both"]
)
def test_what_is_refused_after_plain_names_ways_that_pass(
    way: tuple[str | Settings, Settings], tmp_path: Path
) -> None:
    """Other training rows, so that only scorings add up."""
    first, other = (picked(breast_cancer(), each) for each in (slice(0, 228), slice(228, 456)))
    show(tmp_path, first, "plain", rounds=10, eval_every=1)
    said = (
        r"already showed up to 10 numbers .* do not score \(.*\); or take hide = 'both' and loss = "
        "'taylor-logistic', or scheme = 'blind', .* compares exchanges"
    )
    with pytest.raises(FeatureLeakRefused, match=said):
        show(tmp_path, other, allow_label_leak=True)
    exchange, settings = way
    assert show(tmp_path, other, exchange, **settings, allow_label_leak=True).scores


def test_a_job_that_another_guard_refuses_uses_nothing_up(tmp_path: Path) -> None:
    with pytest.raises(LabelLeakRefused):
        show(tmp_path, batch_size=32, rounds=60)
    assert list(tmp_path.rglob("*.json")) == []
