"""A job whose scorings would tell held-out rows is refused by the party whose rows they are."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from securevfl import files
from securevfl.data.tables import VerticalDataset
from securevfl.errors import DataError, HeldOutLeakRefused, LabelLeakRefused
from securevfl.job import Job
from securevfl.protocols.guards import held_out_guard
from securevfl.protocols.session.scoring import GatheredScoring
from securevfl.training import Environment, TrainingResult, train
from tests.jobs import SmallKeys, breast_cancer
from tests.scoring_jobs import features_of, scored, trained

# Eight of the fifteen columns' rank; and one that hides what training rows predict.
HALF: dict[str, Any] = {"eval_every": 1, "rounds": 8}
MASKED: dict[str, Any] = {"exchange": {"scheme": "masked"}}
BOTH: dict[str, Any] = {"exchange": {"scheme": "bfv", "hide": "both"}}


def run(
    directory: Path | None,
    dataset: VerticalDataset | None = None,
    *,
    exchange: dict[str, Any] | None = None,
    **settings: object,
) -> TrainingResult:
    job = Job.of(
        job={"rounds": 2, "learning_rate": 0.1, "batch_size": "full", **settings},
        exchange=exchange or {"scheme": "bfv"},
    )
    environment = Environment(keys=SmallKeys(), guard_directory=directory)
    return train(job, dataset or breast_cancer(), environment)


def record(directory: Path, party: str = "party2") -> dict[str, int]:
    shown: dict[str, int] = json.loads((directory / party / "held-out.json").read_bytes())
    return shown


def test_one_scoring_at_the_end_passes_and_is_written_down(tmp_path: Path) -> None:
    assert len(run(tmp_path).scores) == 1
    assert set(record(tmp_path).values()) == {1}
    assert len(record(tmp_path)) == 113
    assert not (tmp_path / "party1" / "held-out.json").exists()


def test_a_scoring_every_round_is_refused_before_it_starts(tmp_path: Path) -> None:
    with pytest.raises(HeldOutLeakRefused, match="15 scorings x 1 outputs show 15 columns"):
        run(tmp_path, eval_every=1, rounds=15)
    run(tmp_path, eval_every=1, rounds=14)


def test_a_target_asks_for_scorings_and_all_of_them_count(tmp_path: Path) -> None:
    with pytest.raises(HeldOutLeakRefused, match="19 scorings"):
        run(tmp_path, target_auc=0.6, rounds=19)


def test_a_second_job_adds_up(tmp_path: Path) -> None:
    run(tmp_path, **HALF)
    run(tmp_path, seed=1)
    with pytest.raises(HeldOutLeakRefused, match="after 9 of earlier jobs show 17"):
        run(tmp_path, **HALF)
    assert run(tmp_path, eval_every="never").scores == []
    assert set(record(tmp_path).values()) == {9}


def test_a_row_more_or_less_is_no_other_data_set(tmp_path: Path) -> None:
    whole = breast_cancer()
    fewer = replace(
        whole,
        parties=tuple(replace(each, test=each.test[1:]) for each in whole.parties),
        test_labels=whole.test_labels[1:],
    )
    run(tmp_path, fewer, **HALF)
    with pytest.raises(HeldOutLeakRefused):
        run(tmp_path, whole, **HALF)
    others = replace(
        whole,
        parties=tuple(replace(each, test=each.train[:113]) for each in whole.parties),
        test_labels=whole.train_labels[:113],
    )
    assert len(run(tmp_path, others, **HALF).scores) == 8
    # What others have shown since is remembered beside it.
    with pytest.raises(HeldOutLeakRefused):
        run(tmp_path, fewer, **HALF)


def test_a_job_may_say_that_it_allows_the_leak_and_is_remembered(tmp_path: Path) -> None:
    scores = run(tmp_path, eval_every=1, rounds=15, allow_feature_leak=True).scores
    assert len(scores) == 15
    assert set(record(tmp_path).values()) == {15}
    with pytest.raises(HeldOutLeakRefused):
        run(tmp_path)


def test_a_job_that_is_killed_has_been_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    async def killed(*_: object, **__: object) -> bool:
        raise Killed

    monkeypatch.setattr(GatheredScoring, "stops", killed)
    with pytest.raises(Killed):
        run(tmp_path)
    assert set(record(tmp_path).values()) == {1}


def test_a_damaged_record_ends_the_job(tmp_path: Path) -> None:
    (tmp_path / "party2").mkdir()
    (tmp_path / "party2" / "held-out.json").write_text("{", encoding="utf-8")
    with pytest.raises(DataError, match="damaged"):
        run(tmp_path)


def test_sums_count_at_every_feature_party(tmp_path: Path) -> None:
    three = breast_cancer(3)
    run(tmp_path, three, **MASKED)
    assert record(tmp_path, "party2").keys().isdisjoint(record(tmp_path, "party3"))
    with pytest.raises(HeldOutLeakRefused):
        run(tmp_path, three, **MASKED)


def test_rows_are_known_by_their_columns_as_the_file_has_them(tmp_path: Path) -> None:
    """Other training rows scale the same held-out rows in another way."""
    three = breast_cancer(3)
    fewer = replace(
        three,
        parties=tuple(replace(each, train=each.train[50:]) for each in three.parties),
        train_labels=three.train_labels[50:],
        row_digests=three.row_digests[50:],
    )
    run(tmp_path, three, **MASKED)
    with pytest.raises(HeldOutLeakRefused):
        run(tmp_path, fewer, **MASKED)


def test_dbcd_counts_its_scorings_as_well(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"algorithm": "dbcd", "l1": 0.01, "eval_every": 0}
    job = Job.of(job={"rounds": 2, **settings}, exchange={"scheme": "masked"})
    three, environment = breast_cancer(3), Environment(guard_directory=tmp_path)
    train(job, three, environment)
    with pytest.raises(HeldOutLeakRefused):
        train(job, three, environment)


def test_what_another_job_has_written_down_since_the_first_check_counts(tmp_path: Path) -> None:
    three = breast_cancer(3)
    run(tmp_path / "other", three, **MASKED)

    checked = set()

    def written_meanwhile(sender: str, _to: str, data: bytes) -> bytes:
        checked.add(sender)
        if {"party2", "party3"} <= checked and not (tmp_path / "own").exists():
            shutil.copytree(tmp_path / "other", tmp_path / "own")
        return data

    job = Job.of(job={"rounds": 2, "learning_rate": 0.1}, exchange=MASKED["exchange"])
    guarded = Environment(guard_directory=tmp_path / "own", tamper=written_meanwhile)
    with pytest.raises(HeldOutLeakRefused, match="after 1 of earlier jobs"):
        train(job, three, guarded)


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

    monkeypatch.setattr(held_out_guard, "replace_file", watched)
    run(tmp_path)
    result, dataset = trained(3, guard=tmp_path, exchange={"scheme": "masked"})
    fresh = {name: values + 1.0 for name, values in features_of(dataset).items()}
    scored(result, dataset, features=fresh, guard_directory=tmp_path)
    # Twice each: what is planned, and which model has scored.
    assert held == [True] * 10


def test_where_scoring_shows_no_row_nothing_is_counted(tmp_path: Path) -> None:
    for _ in range(2):
        result = run(tmp_path, eval_every=1, loss="taylor-logistic", **BOTH)
        assert len(result.scores) == 2
    assert not (tmp_path / "party2" / "held-out.json").exists()


def test_among_three_parties_sums_show_where_both_sides_are_hidden(tmp_path: Path) -> None:
    three = breast_cancer(3)
    with pytest.raises(HeldOutLeakRefused):
        run(tmp_path, three, eval_every=1, loss="taylor-logistic", **BOTH)


@pytest.mark.parametrize("scheme", ["plain", "dp"])
def test_where_rounds_show_as_much_of_training_rows_nothing_is_counted(
    tmp_path: Path, scheme: str
) -> None:
    privacy = {"noise_multiplier": 5.0} if scheme == "dp" else {}
    job = Job.of(
        job={"rounds": 2, "learning_rate": 0.1}, exchange={"scheme": scheme}, privacy=privacy
    )
    environment = Environment(guard_directory=tmp_path)
    assert len(train(job, breast_cancer(), environment).scores) == 2
    assert list(tmp_path.iterdir()) == []


def test_benchmarks_score_as_often_as_they_say() -> None:
    assert len(run(None, eval_every=1).scores) == 2


def test_a_job_that_another_guard_refuses_uses_nothing_up(tmp_path: Path) -> None:
    with pytest.raises(LabelLeakRefused):
        run(tmp_path, batch_size=32, rounds=60)
    assert list(tmp_path.rglob("*.json")) == []


def test_a_job_that_is_refused_here_is_written_down_nowhere(tmp_path: Path) -> None:
    with pytest.raises(HeldOutLeakRefused):
        run(tmp_path, eval_every=1, rounds=15)
    written = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert {name for name in written if not name.endswith(".lock")} <= {"commitment.key"}
