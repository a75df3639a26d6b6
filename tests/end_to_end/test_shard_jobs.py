"""A job whose parties' data are shards, from converting to scoring, by the command line."""

from pathlib import Path

import polars as pl
import pytest

from securevfl.data import tables
from tests.end_to_end.commands import rows_of, run, two_organizations


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two organizations' CSV files and shards of them, and a job on each."""
    folder = tmp_path_factory.mktemp("jobs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        text = Path(two_organizations()).read_text().replace("ckks", "plain")
        Path("files.toml").write_text(text)
        convert = ("data", "convert", "--quiet")
        bank = ("bank.csv", "--to", "bank", "--label-column", "default")
        assert run(*convert, *bank) == 0
        assert run(*convert, "shop.csv", "--to", "shop", "--id-column", "customer") == 0
        named = text.replace('"bank.csv"', '"bank"').replace('"shop.csv"', '"shop"')
        kept = [
            line for line in named.splitlines() if not line.strip().startswith(("label_c", "id_c"))
        ]
        Path("shards.toml").write_text("\n".join(kept))
        for job in ("files", "shards"):
            assert run("train", f"{job}.toml", "--quiet", "--json", f"{job}.json", "--force") == 0
            score = ("--out", f"{job}.csv", "--json", f"{job}-scored.json")
            assert run("predict", f"{job}.toml", "--quiet", *score) == 0
    return folder


def test_shards_train_the_model_of_their_files(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    files, shards = (rows_of(f"{job}.json", "train")[0] for job in ("files", "shards"))
    assert shards["rounds"] == files["rounds"]
    # Rows stand in other orders, and the random start goes with them.
    assert shards["auc"] == pytest.approx(files["auc"], abs=0.02)


def test_shards_are_scored_as_their_files_are(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    files, shards = (pl.read_csv(f"{job}.csv") for job in ("files", "shards"))
    assert set(shards[shards.columns[0]]) == set(files[files.columns[0]])
    scored = rows_of("shards-scored.json", "predict")[0]
    assert scored["auc"] > 0.9


@pytest.mark.slow
def test_an_audit_takes_few_rows_as_arrays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    audit = ("audit", "shards.toml", "--quick", "--attack", "labels_from_residuals")
    assert run(*audit, "--quiet", "--json", "audit.json") == 0
    assert rows_of("audit.json", "audit")


@pytest.mark.parametrize("command", ["audit", "predict"])
def test_rows_that_are_too_many_as_arrays_are_refused(
    folder: Path, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(tables, "MOST_CELLS", 100)
    out = ("--out", "scored.csv") if command == "predict" else ("--quick",)
    assert run(command, "shards.toml", *out) == 2
    assert "sparse columns need" in capsys.readouterr().err
