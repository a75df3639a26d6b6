"""Two organizations' files as they come, trained on at once."""

import json
import os
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from securevfl.models.storage import load_model
from tests.end_to_end.commands import refused, rows_of, run

Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("clean_place")

JOB = """
[job]
rounds = 30
[[party]]
name = "bank"
role = "label"
data = "bank.csv"
label_column = "default"
[[party]]
name = "shop"
role = "feature"
data = "shop.csv"
id_column = "customer"
[exchange]
scheme = "bfv"
"""


def write_files() -> None:
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


def test_without_preprocess_all_obstacles_are_named_in_one_line(capsys: Capture) -> None:
    write_files()
    Path("job.toml").write_text(JOB)
    assert run("train", "job.toml", "--quiet") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    for column in ("'income'", "'city'", "'member'", "'since'"):
        assert f"column {column}" in error
    assert "[preprocess]" in error


def test_with_it_raw_files_train_under_encryption(capsys: Capture) -> None:
    write_files()
    Path("job.toml").write_text(JOB + '[preprocess]\nmissing = ["k. A."]\n')
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
    record = Path(os.environ["XDG_STATE_HOME"], "securevfl", "label-guard", "shop", "held-out.json")
    counted = json.loads(record.read_text())
    assert run("predict", "job.toml", "--out", "again.csv", "--quiet") == 0
    after = json.loads(record.read_text())
    assert counted.items() <= after.items()
    assert len(after) == pl.read_csv("again.csv").height
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


def test_a_copied_label_is_warned_of_even_where_little_is_reported(capsys: Capture) -> None:
    write_files()
    text = Path("bank.csv").read_bytes().decode("cp1252")
    lines = [f"{line};{line[-1] == 'a'}" for line in text.split("\r\n")[2:]]
    head = "id;income;city;unit;default;paid"
    Path("bank.csv").write_text("\n".join([head, *lines]), "utf-8")
    Path("job.toml").write_text(
        JOB.replace('"bfv"', '"plain"') + '[preprocess]\nmissing = ["k. A."]\n'
    )
    assert run("train", "job.toml", "--quiet") == 0
    error = capsys.readouterr().err
    assert "warning: party 'bank': column 'paid=True' is a copy of the label" in error
