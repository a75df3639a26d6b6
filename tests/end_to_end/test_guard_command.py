"""`securevfl guard show`, `forget` and `trust`, as typed."""

import io
import json
from pathlib import Path

import pytest

from securevfl.protocols.guards import failed_checks
from securevfl.protocols.guards.person_record import PersonRecord
from tests.end_to_end.commands import run

Capture = pytest.CaptureFixture[str]

JOB = """
[job]
dataset = "breast_cancer"
rounds = 10
eval_every = 0
seed = {seed}
[exchange]
scheme = "bfv"
"""


def train(seed: int = 0) -> int:
    Path("job.toml").write_text(JOB.format(seed=seed))
    return run("train", "job.toml", "--quiet", "--force")


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def test_what_is_remembered_is_shown_and_can_be_forgotten(capsys: Capture) -> None:
    assert run("guard", "show") == 0
    assert "no job has been counted" in capsys.readouterr().out
    assert train() == 0
    assert train() == 0  # the very same job
    assert train(1) == 2
    refused = capsys.readouterr().err
    assert "feature guard: earlier jobs (the last: job 'job' of 20" in refused
    assert "bench tradeoff JOB.toml --exchange plain,bfv` compares exchanges" in refused
    assert run("bench", "tradeoff", "job.toml", "--exchange", "plain,bfv", "--quiet") == 0
    assert run("guard", "show", "--json", "show.json") == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    assert "rows: 456 people of population 'breast_cancer'" in printed
    assert "10 columns of predictions by rounds, 1 by scorings" in printed
    rows = json.loads(Path("show.json").read_text())["rows"]
    assert [(row["counts"], row["party"], row["people"], row["jobs"]) for row in rows] == [
        ("labels", None, 456, 1),
        ("rows", None, 456, 1),
    ]
    assert "28% of what gradients of all rows may" in rows[0]["shown"]
    assert run("guard", "forget", "breast_cancer", "--yes") == 0
    assert "as if they\nhad shown nothing" in capsys.readouterr().out
    assert train(1) == 0


def test_other_names_of_a_population_are_shown(capsys: Capture) -> None:
    assert train() == 0
    path = Path("state", "securevfl", "label-guard", "labels.safetensors")
    with PersonRecord.changed(path) as record:
        record.populations[0].also.append("march.csv")
    assert run("guard", "show") == 0
    assert "also known as: 'march.csv'" in capsys.readouterr().out


def test_forgetting_asks_and_names_what_there_is(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert train() == 0
    before = {path: path.read_bytes() for path in Path("state").rglob("*.safetensors")}
    assert run("guard", "forget", "breast_cancr") == 2
    assert "is in no record; known: 'breast_cancer'" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert run("guard", "forget", "breast_cancer") != 0
    assert {path: path.read_bytes() for path in Path("state").rglob("*.safetensors")} == before


@pytest.mark.parametrize("record", ["labels.safetensors", "rows.safetensors"])
def test_a_damaged_record_is_named(capsys: Capture, record: str) -> None:
    assert train() == 0
    path = Path("state", "securevfl", "label-guard", record)
    path.write_bytes(path.read_bytes()[:-3])
    for words in (("guard", "show"), ("guard", "forget", "breast_cancer", "--yes")):
        assert run(*words) == 2
        assert f"{record} is damaged" in capsys.readouterr().err.replace("\n", "")


def test_a_peer_whose_replies_failed_is_shown_and_trusted_again(capsys: Capture) -> None:
    folder = Path("state", "securevfl", "label-guard")
    folder.mkdir(parents=True)
    job = {"name": "credit", "hash": "0" * 16, "day": "2026-11-28"}
    (folder / failed_checks.NAME).write_text(
        json.dumps([{"peer": "party1", "job": job, "failed": True}])
    )
    assert run("guard", "show") == 0
    shown = capsys.readouterr().out.replace("\n", " ")
    assert "party1: failed a check of encrypted replies in job 'credit' of 2026-11-28" in shown
    Path("job.toml").write_text(JOB.format(seed=0))
    assert run("train", "job.toml", "--quiet", "--force") == 2
    assert "find out why, then say `securevfl guard trust party1`" in capsys.readouterr().err
    Path("blind.toml").write_text(JOB.format(seed=0).replace("bfv", "blind"))
    assert run("train", "blind.toml", "--quiet", "--offline") == 2
    assert "find out why, then say `securevfl guard trust party1`" in capsys.readouterr().err
    assert run("guard", "trust", "party2") == 2
    assert "no check of 'party2' is on record" in capsys.readouterr().err
    assert run("guard", "trust", "party1", "--yes") == 0
    assert run("train", "job.toml", "--quiet", "--force") == 0
