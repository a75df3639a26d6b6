from dataclasses import replace
from pathlib import Path

import pandas as pd
import polars as pl
import pytest

import securevfl
from securevfl.data.sources import load
from securevfl.errors import ConfigError, DataError
from securevfl.interactive.jobs import AuditResult
from securevfl.job import Job

JOB = {"job": {"dataset": "breast_cancer", "rounds": 2, "seed": 3}}


def test_a_job_is_trained_from_a_file_a_mapping_or_itself_and_on_data_at_hand(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.toml"
    path.write_text('[job]\ndataset = "breast_cancer"\nrounds = 2\nseed = 3\n', encoding="utf-8")
    dataset = load("breast_cancer")
    without_data = {"job": {"rounds": 2, "seed": 3}}
    results = [
        securevfl.train(path, verbose=True),
        securevfl.train(JOB),
        securevfl.train(Job.of(**JOB)),
        securevfl.train(without_data, dataset),
    ]
    assert len({each.scores[-1].auc for each in results}) == 1
    assert capsys.readouterr().err.endswith("round 2 of at most 2\n")
    with pytest.raises(ConfigError, match="no data"):
        securevfl.train(without_data)


def test_own_files_are_found_beside_the_job_file(tmp_path: Path) -> None:
    rows = range(40)
    bank = "".join(f"{row},{row % 7},{int(row % 7 > 3)}\n" for row in rows)
    shop = "".join(f"{row},{row % 5}\n" for row in rows)
    (tmp_path / "bank.csv").write_text("id,age,late\n" + bank, encoding="utf-8")
    (tmp_path / "shop.csv").write_text("id,visits\n" + shop, encoding="utf-8")
    path = tmp_path / "job.toml"
    path.write_text(
        '[[party]]\nname = "bank"\nrole = "label"\ndata = "bank.csv"\nlabel_column = "late"\n'
        '[[party]]\nname = "shop"\nrole = "feature"\ndata = "shop.csv"\n',
        encoding="utf-8",
    )
    assert securevfl.train(str(path)).outcomes.keys() == {"bank", "shop"}


def test_data_frames_of_either_kind_and_paths_stand_for_files(tmp_path: Path) -> None:
    rows = [f"{row:03d}" for row in range(80)]
    ages = [float(row % 7) for row in range(80)]
    bank = pd.DataFrame({"id": rows, "age": ages, "late": [int(age > 3) for age in ages]})
    shop = pl.DataFrame({"id": rows, "visits": [row % 5 for row in range(80)]})
    parties = [
        {"name": "bank", "role": "label", "label_column": "late"},
        {"name": "shop", "role": "feature"},
    ]
    job = {"job": {"rounds": 3}, "party": parties}
    shop.write_csv(tmp_path / "shop.csv")
    by_frame = securevfl.train(job, {"bank": bank, "shop": shop})
    by_path = securevfl.train(job, {"bank": bank, "shop": tmp_path / "shop.csv"})
    assert by_frame.scores[-1].auc == by_path.scores[-1].auc
    with pytest.raises(DataError, match=r"'age'.* 1 missing"):
        securevfl.train(job, {"bank": bank.assign(age=[float("nan"), *ages[1:]]), "shop": shop})
    with pytest.raises(ConfigError, match="data of 'shoe'"):
        securevfl.train(job, {"bank": bank, "shoe": shop})
    with pytest.raises(ConfigError, match="a list, expected a data frame"):
        securevfl.train(job, {"bank": [1, 2]})


def test_an_audit_gives_verdicts_and_what_breaks_the_policy() -> None:
    job = Job.of(**JOB, audit={"must_resist": ["binary_columns", "jacobi_symbol"]})
    found = securevfl.audit(job, attacks=["binary_columns", "jacobi_symbol"], repeats=2)
    assert found.verdicts == {"binary_columns": "not_run", "jacobi_symbol": "immune"}
    assert [each.attack for each in found.broken] == ["binary_columns"]
    assert "binary_columns" in repr(found)
    assert "X has no column of two values" in repr(found)


def test_an_audit_takes_held_out_rows() -> None:
    dataset = load("breast_cancer")
    parties = tuple(replace(party, test=party.test[:0]) for party in dataset.parties)
    unscored = replace(dataset, parties=parties, test_labels=dataset.test_labels[:0])
    with pytest.raises(ConfigError, match="needs held-out rows"):
        securevfl.audit({"job": {"rounds": 2}}, unscored)


def test_what_a_notebook_shows_of_an_audit_is_escaped() -> None:
    row = {
        "attack": "<img src=x>",
        "exchange": "plain",
        "metric": None,
        "value": None,
        "verdict": "immune",
        "detail": {"case": "", "control": False, "what_if": False, "reason": "<b>none</b>"},
    }
    page = AuditResult(Job.of(job={"name": "<i>job</i>"}), [row])._repr_html_()
    assert "<img" not in page
    assert "<i>" not in page
    assert "<b>" not in page
    assert "&lt;img src=x&gt;" in page
