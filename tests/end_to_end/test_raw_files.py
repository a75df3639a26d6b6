"""Two organizations' files as they come, and as shards of them, trained on at once."""

import json
import os
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from securevfl.data import tables
from securevfl.models.storage import load_model
from securevfl.protocols.guards.row_record import RowRecord
from tests.end_to_end.commands import refused, rows_of, run, two_organizations, write_job
from tests.jobs import Settings

Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("clean_place")


def write_files(scheme: str = "bfv", **preprocess: Settings) -> None:
    """Semicolons, decimal commas, Windows-1252, a byte order mark, text, gaps; ids partly alike."""
    generator = np.random.default_rng(0)
    income, spent = generator.normal(2000, 500, 400), generator.normal(50, 9, 400)
    city = generator.choice(["Köln", "Berlin", "Ulm"], 400, p=[0.6, 0.39, 0.01])
    default = income / 500 + spent / 9 + 2 * (city == "Köln") + generator.normal(0, 0.7, 400) > 11

    def comma(value: float) -> str:
        return f"{value:.2f}".replace(".", ",")

    bank = ["sep=;", "id;income;city;unit;default"]
    bank += [
        f"{n:05};{'k. A.' if n % 17 == 0 else comma(income[n])};{city[n]};7;{'ja' if y else 'nein'}"
        for n, y in enumerate(default)
    ]
    shop = ["customer,spent,member,since"]
    shop += [
        f'{n:05},"{comma(spent[n])}",{"" if n % 13 == 0 else n % 2 == 0},2020-01-{1 + n % 28:02}'
        for n in generator.permutation(450)[:430]
        if n < 400
    ]
    Path("bank.csv").write_bytes("\r\n".join(bank).encode("cp1252"))
    Path("shop.csv").write_bytes("\n".join([*shop, ""]).encode("utf-8-sig"))
    write_job({"rounds": 30}, exchange={"scheme": scheme}, **preprocess)


def test_without_preprocess_all_obstacles_are_named_in_one_line(capsys: Capture) -> None:
    write_files()
    error = refused(capsys, "train", "job.toml", "--quiet")
    assert error.count("\n") == 1
    for column in ("'income'", "'city'", "'member'", "'since'"):
        assert f"column {column}" in error
    assert "[preprocess]" in error


def test_with_it_raw_files_train_under_encryption(capsys: Capture) -> None:
    write_files(preprocess={"missing": ["k. A."]})
    assert run("train", "job.toml", "--json", "out.json") == 0
    printed = capsys.readouterr()
    output = " ".join(printed.err.split())
    assert max(map(len, (printed.err + printed.out).splitlines())) <= 80
    assert "bank.csv: semicolon-separated, decimal ',', windows-1252" in output
    assert "shop.csv: comma-separated, decimal ',', utf-8" in output
    (row,) = rows_of("out.json", "train")
    assert row["auc"] > 0.9
    assert any("windows-1252" in note for note in row["notes"])
    bank, shop = (load_model(Path(f"models/{name}.safetensors")) for name in ("bank", "shop"))
    # Of Ulm there are too few for a column, and for a pool without Berlin.
    assert bank.header.columns == ("income", "city=Köln")
    assert shop.header.columns[0] == "spent"
    assert shop.header.recipe is not None
    held = json.dumps([part.name for part in shop.header.recipe.parts])
    assert "income" not in held
    assert "city" not in held
    # The same rows are scored again by the same model, which is no more than training showed.
    record = Path(os.environ["XDG_STATE_HOME"], "securevfl", "label-guard", "rows.safetensors")
    counted = RowRecord.load(record)
    assert run("predict", "job.toml", "--out", "again.csv", "--quiet") == 0
    after = RowRecord.load(record)
    assert set(counted.digests[counted.scored > 0]) < set(after.digests[after.scored > 0])
    assert set(after.scored) == {0, 1}
    assert np.count_nonzero(after.scored) == 2 * pl.read_csv("again.csv").height  # values and ids
    Path("new_bank.csv").write_text("id;city;income\nq1;Rom;\nq2;Köln;2000,5\n", "utf-8")
    Path("new_shop.csv").write_text(
        "since,spent,member,customer\n2020-01-03,50.5,True,q2\n,?,,q1\n", "utf-8"
    )
    given = ["--rows", "bank=new_bank.csv", "--rows", "shop=new_shop.csv"]
    assert run("predict", "job.toml", "--out", "scores.csv", *given) == 0
    assert (
        "bank: values that were absent or rare in training: 1 of 'city'" in capsys.readouterr().err
    )
    # Under the exchange as in one place: each party's raw rows through its own recipe.
    scores = pl.read_csv("scores.csv")
    new = {"income": ["2000.5"], "city": ["Köln"]}, {
        "spent": ["50.5"], "member": ["True"], "since": ["2020-01-03"],
    }  # fmt: skip
    total = sum(
        float(model.predict(model.header.recipe.apply(pl.DataFrame(rows)))[0, 0])
        for model, rows in zip((bank, shop), new, strict=True)
        if model.header.recipe is not None
    )
    assert scores.filter(pl.col("id") == "q2")[:, 1].item() == pytest.approx(
        1 / (1 + np.exp(-total)), abs=1e-3
    )
    # Numbers of training rows that are dates in new ones.
    pl.read_csv("new_shop.csv").with_columns(
        spent=pl.lit("2020-01-03").str.to_date()
    ).write_parquet("new_shop.parquet")
    given[-1] = "shop=new_shop.parquet"
    assert "party 'shop': column 'spent' is Date, expected numbers" in refused(
        capsys, "predict", "job.toml", "--out", "dates.csv", *given
    )


def test_a_copied_label_is_warned_of_even_where_little_is_told(capsys: Capture) -> None:
    write_files("plain", preprocess={"missing": ["k. A."]})
    text = Path("bank.csv").read_bytes().decode("cp1252")
    lines = [f"{line};{line[-1] == 'a'}" for line in text.split("\r\n")[2:]]
    head = "id;income;city;unit;default;paid"
    Path("bank.csv").write_text("\n".join([head, *lines]), "utf-8")
    assert run("train", "job.toml", "--quiet") == 0
    error = capsys.readouterr().err
    assert "warning: party 'bank': column 'paid=True' is a copy of the label" in error


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two organizations' CSV files and shards of them, and a job on each."""
    folder = tmp_path_factory.mktemp("jobs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        text = Path(two_organizations()).read_text().replace("ckks", "plain")
        # Two models of two columns show all rows that both score.
        text = text.replace("[job]", "[job]\nallow_feature_leak = true")
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


@pytest.fixture
def shards(clean_place: None, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made)


@pytest.mark.usefixtures("shards")
def test_shards_train_and_score_as_their_files_do() -> None:
    files, shards = (rows_of(f"{job}.json", "train")[0] for job in ("files", "shards"))
    assert shards["rounds"] == files["rounds"]
    # Rows stand in other orders, and the random start goes with them.
    assert shards["auc"] == pytest.approx(files["auc"], abs=0.02)
    scores, others = (pl.read_csv(f"{job}.csv") for job in ("files", "shards"))
    assert set(scores[scores.columns[0]]) == set(others[others.columns[0]])
    assert rows_of("shards-scored.json", "predict")[0]["auc"] > 0.9


@pytest.mark.slow
@pytest.mark.usefixtures("shards")
def test_an_audit_takes_few_rows_as_arrays() -> None:
    audit = ("audit", "shards.toml", "--quick", "--attack", "labels_from_residuals")
    assert run(*audit, "--quiet", "--json", "audit.json") == 0
    assert rows_of("audit.json", "audit")


@pytest.mark.usefixtures("shards")
@pytest.mark.parametrize("command", ["audit", "predict"])
def test_rows_that_are_too_many_as_arrays_are_refused(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(tables, "MOST_CELLS", 100)
    out = ("--out", "scored.csv") if command == "predict" else ("--quick",)
    assert "sparse columns need" in refused(capsys, command, "shards.toml", *out)
