"""`securevfl predict` and `securevfl model show` as a person runs them."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from securevfl.data import load
from securevfl.data.ids import is_held_out
from securevfl.errors import ConfigError
from securevfl.models.ranking import Cutoffs
from securevfl.models.scores import auc
from securevfl.models.storage import load_model
from securevfl.runtime.costs import Costs, JobCosts, job_costs
from securevfl.scoring import load_models
from tests.end_to_end.commands import example, refused, rows_of, run

Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("clean_place")

JOB = """
[job]
rounds = 20
[[party]]
name = "bank"
role = "label"
data = "bank.csv"
label_column = "status"
id_format = "folded"
new_data = "bank-new.csv"
[[party]]
name = "shop"
role = "feature"
data = "shop.csv"
id_column = "customer"
id_format = "folded"
new_data = "shop-new.csv"
"""


def write(path: str, columns: dict[str, Any]) -> None:
    pl.DataFrame(columns).write_csv(path)


@pytest.fixture
def job(clean_place: None) -> str:
    """A trained job, with new rows in other orders of columns; 3 of them at the bank alone."""
    generator = np.random.default_rng(3)
    values = generator.standard_normal((160, 4))
    noisy = values.sum(axis=1) + generator.logistic(size=160)
    status = np.where(noisy > 0, "late", "paid")
    ids = [f"c{number:03}" for number in range(160)]
    old, new = slice(0, 120), slice(120, 160)
    upper = [each.upper() for each in ids]
    bank: dict[str, Any] = {"id": upper, "income": values[:, 0], "debt": values[:, 1]}
    bank["status"] = status
    shop: dict[str, Any] = {"customer": ids, "visits": values[:, 2] * 9, "spent": values[:, 3] + 7}
    write("bank.csv", {name: column[old] for name, column in bank.items()})
    write("shop.csv", {name: column[old] for name, column in shop.items()})
    write("bank-new.csv", {name: bank[name][new][::-1] for name in ("debt", "id", "income")})
    later = slice(123, 160)
    names = ("spent", "visits", "customer")
    write("shop-new.csv", {"note": ids[later]} | {name: shop[name][later] for name in names})
    # Two have no label yet.
    labels = np.where(np.arange(160) < 158, status, "")
    write("labelled.csv", {n: c[new][::-1] for n, c in (bank | {"status": labels}).items()})
    Path("job.toml").write_text(JOB, encoding="utf-8")
    assert run("train", "job.toml", "--quiet") == 0
    return "job.toml"


def test_new_rows_come_out_with_their_ids_probabilities_and_class_names(
    job: str, capsys: Capture
) -> None:
    assert run("predict", job, "--out", "scores.csv", "--json", "out.json") == 0
    scores = pl.read_csv("scores.csv")
    assert scores.columns == ["id", "probability", "class"]
    # As the label party's file has them, and in its order.
    assert scores["id"].to_list() == [f"C{number:03}" for number in range(159, 122, -1)]
    chosen = np.where(scores["probability"] > 0.5, "paid", "late")
    assert scores["class"].to_list() == chosen.tolist()
    output = capsys.readouterr()
    assert "probability: of class 'paid', not 'late'" in output.out
    assert "any exchange, so it was sent in clear" in output.out
    assert "shop: columns that the model does not use: note" in output.out
    assert "rows that not every party has are not scored: 3 of bank" in output.err
    (row,) = rows_of("out.json", "predict")
    assert (row["rows"], row["origin"], row["trained_on"]) == (37, "new_data", 0)
    assert row["dropped_rows"] == {"bank": 3, "shop": 0}
    assert (row["auc"], row["labelled"], row["same_job"]) == (None, 0, True)
    assert row["compute_s"] + row["communication_s"] == pytest.approx(row["total_s"])
    assert (row["messages"], row["bytes_sent"] > 37 * 8) == (1, True)

    # One place that has all parts and all rows finds the same.
    model = load_models("models")
    assert (model.classes_, model.label_party) == (("late", "paid"), "bank")
    bank, shop = (pl.read_csv(f"{name}-new.csv") for name in ("bank", "shop"))
    frames = {"bank": bank[:-3], "shop": shop[::-1]}
    shares = model.predict_proba(frames)
    np.testing.assert_allclose(shares[:, 1], scores["probability"], atol=1e-12)
    assert (
        model.predict({**frames, "bank": pd.DataFrame(bank[:-3].to_dict(as_series=False))})
        == scores["class"].to_list()
    )
    linear = model.intercept_ + sum(
        frames[name]
        .select(load_model(Path(f"models/{name}.safetensors")).header.columns)
        .to_numpy()
        @ model.coef_[name].T
        for name in frames
    )
    np.testing.assert_allclose(linear[:, 0], model.decision_function(frames), atol=1e-9)


def test_what_was_made_offline_stands_below_what_scoring_took(
    job: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_some(ledgers: Mapping[str, Costs], rounds: int) -> JobCosts:
        return replace(job_costs(ledgers, rounds), offline_compute_s=0.25, offline_bytes=4000)

    assert run("predict", job, "--out", "scores.csv") == 0
    assert "offline" not in capsys.readouterr().out
    monkeypatch.setattr("securevfl.scoring.running.job_costs", with_some)
    assert run("predict", job, "--out", "scores.csv", "--force", "--json", "out.json") == 0
    output = capsys.readouterr().out
    assert "made before rounds" in output
    assert ["plain", "250", "ms", "-", "250", "ms", "4", "kB"] in map(
        str.split, output.splitlines()
    )
    assert max(map(len, output.splitlines())) <= 80
    assert rows_of("out.json", "predict")[0]["offline_bytes"] == 4000


COSTS = ("--cost-false-positive", "1", "--cost-false-negative", "10")


def test_cut_offs_are_those_of_the_labelled_scores(job: str, capsys: Capture) -> None:
    new = ("--rows", "bank=labelled.csv", "--json", "out.json")
    assert run("predict", job, "--out", "scores.csv", *new, *COSTS, "--flag", "0.3") == 0
    (row,) = rows_of("out.json", "predict")
    scores, known = pl.read_csv("scores.csv"), pl.read_csv("labelled.csv")
    labelled = scores.join(known.filter(pl.col("status") != ""), on="id")
    shares = labelled["probability"].to_numpy()
    labels = (labelled["status"] == "paid").to_numpy().astype(np.int64)
    every = Cutoffs(shares, labels)
    by_cost, by_share = row["cutoffs"]
    assert by_cost == every.by_cost(1, 10)
    assert by_share == every.by_share(0.3)
    assert row["ranking"]["average_precision"] == pytest.approx(every.average_precision)
    printed = " ".join(capsys.readouterr().out.split())
    assert f"cut-off {by_cost['cutoff']} (lowest cost at 1 : 10): " in printed
    assert (
        f"(at most 30 % flagged): {by_share['flagged']:.1%} of 35 rows flagged, precision"
        in printed
    )
    assert "the class in the scores is still the more probable one" in printed
    assert "so it looks better on them than on others" in printed


def test_a_given_cut_off_flags_rows_from_it_on(job: str, capsys: Capture) -> None:
    out = ("--out", "scores.csv", "--force")
    assert run("predict", job, *out) == 0
    at = pl.read_csv("scores.csv")["probability"].median()
    capsys.readouterr()
    assert run("predict", job, *out, "--cut-off", repr(at)) == 0
    scores = pl.read_csv("scores.csv")
    assert scores.columns == ["id", "probability", "class", "flagged"]
    assert scores["flagged"].to_list() == [int(p >= at) for p in scores["probability"]]
    flagged = scores["flagged"].sum()
    assert 0 < flagged < len(scores)
    assert f"flagged: {flagged} of {len(scores)} rows\n" in capsys.readouterr().out
    for wrong in ("nan", "inf", "-0.1", "21"):
        assert "expected 0 to 1" in refused(capsys, "predict", job, *out, "--cut-off", wrong)


def test_cut_offs_take_labelled_rows_that_the_model_was_not_trained_on(
    job: str, capsys: Capture
) -> None:
    out = ("--out", "scores.csv", "--force")
    assert "give both" in refused(capsys, "predict", job, *out, *COSTS[:2])
    for wrong in ("nan", "inf", "0", "-1"):
        costs = (COSTS[0], wrong, *COSTS[2:])
        assert "each above 0" in refused(capsys, "predict", job, *out, *costs)
    for wrong in ("nan", "0", "10"):
        assert "a share above 0" in refused(capsys, "predict", job, *out, "--flag", wrong)
    assert "with labels of both classes" in refused(capsys, "predict", job, *out, "--flag", "0.1")
    # Its own file: only the fifth that was held out counts.
    path = Path("job.toml")
    path.write_text(path.read_text("utf-8").replace("new_data", "#"), encoding="utf-8")
    assert run("predict", job, *out, *COSTS, "--json", "out.json") == 0
    (row,) = rows_of("out.json", "predict")
    scores, known = pl.read_csv("scores.csv"), pl.read_csv("bank.csv")
    held_out = known.filter(pl.col("id").map_elements(lambda i: is_held_out(i.lower()), pl.Boolean))
    assert len(held_out) == row["rows"] - row["trained_on"] > 10
    rows = scores.join(held_out, on="id")
    labels = (rows["status"] == "paid").to_numpy().astype(np.int64)
    expected = Cutoffs(rows["probability"].to_numpy(), labels).by_cost(1, 10)
    assert row["cutoffs"] == [expected]
    assert row["labelled"] == len(held_out)
    assert row["auc"] == pytest.approx(auc(rows["probability"].to_numpy()[:, None], labels))
    assert "a label and that the model was not trained on" in " ".join(
        capsys.readouterr().out.split()
    )


def test_labels_that_are_there_are_mentioned_and_parquet_and_standard_output_work(
    job: str, capsys: Capture
) -> None:
    new = ["--rows", "bank=labelled.csv", "--json", "out.json"]
    assert run("predict", job, *new, "--out", "scores.parquet", "--quiet") == 0
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == "securevfl: rows that not every party has are not scored: 3 of bank\n"
    (row,) = rows_of("out.json", "predict")
    scores = pl.read_parquet("scores.parquet")
    truth = pl.read_csv("labelled.csv")["status"][2:-3]
    assert row["accuracy"] == pytest.approx((scores["class"][2:] == truth).mean())
    assert row["auc"] > 0.6
    assert (row["origin"], row["labelled"]) == ("rows", 35)
    assert run("predict", job, "--out", "-") == 0
    printed = capsys.readouterr()
    assert pl.read_csv(printed.out.encode()).equals(scores)
    assert "probability: of class" in printed.err


def test_ids_that_a_spreadsheet_would_execute_are_warned_of(job: str, capsys: Capture) -> None:
    for path in ("bank-new.csv", "shop-new.csv"):
        text = Path(path).read_text(encoding="utf-8")
        Path(path).write_text(re.sub(r"(?m)^(.*)[Cc]159", r"\1=cmd159", text), encoding="utf-8")
    assert run("predict", job, "--out", "scores.parquet", "--quiet") == 0
    assert "formulas" not in capsys.readouterr().err
    assert run("predict", job, "--out", "scores.csv", "--quiet") == 0
    assert "ids such as '=cmd159' are formulas to a spreadsheet" in capsys.readouterr().err


def test_an_existing_file_is_kept_and_replaced_only_by_force(job: str, capsys: Capture) -> None:
    Path("scores.csv").write_text("mine", encoding="utf-8")
    assert "exists: name another file" in refused(capsys, "predict", job, "--out", "scores.csv")
    assert Path("scores.csv").read_text(encoding="utf-8") == "mine"
    assert run("predict", job, "--out", "scores.csv", "--force", "--quiet") == 0
    assert pl.read_csv("scores.csv").height == 37


def test_without_new_rows_the_jobs_own_are_scored_and_said_to_be_known(
    job: str, capsys: Capture
) -> None:
    Path(job).write_text(
        "\n".join(line for line in JOB.splitlines() if "new_data" not in line), encoding="utf-8"
    )
    assert run("predict", job, "--out", "scores.csv", "--json", "out.json") == 0
    (row,) = rows_of("out.json", "predict")
    trained_on = load_model(Path("models/bank.safetensors")).header.rows
    assert (row["rows"], row["origin"], row["trained_on"]) == (120, "data", trained_on)
    assert f"the model was trained on {trained_on} of these rows" in (capsys.readouterr().out)
    named = ("--rows", "bank=bank.csv", "--rows", "shop=shop.csv", "--json", "out.json", "--force")
    assert run("predict", job, "--out", "scores.csv", *named) == 0
    (again,) = rows_of("out.json", "predict")
    assert (again["origin"], again["trained_on"]) == ("rows", trained_on)
    assert (again["labelled"], again["auc"]) == (row["labelled"], row["auc"])


@pytest.mark.parametrize("key", ["allow_feature_leak", "allow_label_leak"])
def test_a_job_that_lets_a_guard_pass_more_has_the_same_model(job: str, key: str) -> None:
    Path(job).write_text(JOB.replace("rounds = 20", f"rounds = 20\n{key} = true"), encoding="utf-8")
    assert run("predict", job, "--out", "scores.csv", "--json", "out.json", "--quiet") == 0
    (row,) = rows_of("out.json", "predict")
    assert row["same_job"] is True


def test_the_model_of_another_job_scores_only_where_it_is_named(job: str, capsys: Capture) -> None:
    Path(job).write_text(JOB.replace("rounds = 20", "rounds = 21"), encoding="utf-8")
    message = refused(capsys, "predict", job, "--out", "scores.csv")
    assert "models holds a model of another job than job.toml describes" in message
    assert not Path("scores.csv").exists()
    assert run("predict", job, "--out", "scores.csv", "--models", "models") == 0
    assert "the model of --models is of another job" in capsys.readouterr().out
    Path(job).write_text(JOB.replace('"shop"', '"store"'), encoding="utf-8")
    assert "no model file models/store.safetensors" in refused(
        capsys, "predict", job, "--out", "others.csv"
    )


def test_a_data_set_by_name_has_its_test_rows_scored() -> None:
    job = example(('"bfv"', '"plain"'), ("rounds = 100", "rounds = 3"))
    assert run("train", job, "--quiet", "--json", "train.json") == 0
    assert run("predict", job, "--out", "scores.csv", "--quiet", "--json", "out.json") == 0
    (trained,), (row,) = rows_of("train.json", "train"), rows_of("out.json", "predict")
    assert (row["auc"], row["origin"]) == (trained["auc"], "dataset")
    assert row["brier"] == pytest.approx(trained["brier"])
    assert row["log_loss"] == pytest.approx(trained["log_loss"])
    assert len(row["reliability"]) == len(trained["reliability"])
    scores = pl.read_csv("scores.csv")
    assert scores.columns[0] == "row"
    assert set(scores["class"]) == {"malignant", "benign"}


def test_real_targets_come_out_in_their_own_units(capsys: Capture) -> None:
    job = example(
        ('"bfv"', '"plain"'),
        ("rounds = 100", 'rounds = 3\nloss = "squared"'),
        ("breast_cancer", "diabetes"),
    )
    assert run("train", job, "--quiet", "--json", "train.json") == 0
    assert run("predict", job, "--out", "scores.csv", "--json", "out.json") == 0
    assert "R²" in capsys.readouterr().out
    (trained,), (row,) = rows_of("train.json", "train"), rows_of("out.json", "predict")
    assert row["r2"] == pytest.approx(trained["r2"])
    assert (row["rmse"], row["mae"]) == pytest.approx((trained["rmse"], trained["mae"]))
    assert (row["auc"], row["accuracy"]) == (None, None)
    scores, dataset, model = pl.read_csv("scores.csv"), load("diabetes"), load_models("models")
    assert scores.columns == ["row", "prediction"]
    rows = {table.name: table.test for table in dataset.parties}
    np.testing.assert_allclose(model.decision_function(rows), scores["prediction"], rtol=1e-9)
    linear = model.intercept_ + sum(rows[name] @ model.coef_[name].T for name in rows)
    np.testing.assert_allclose(linear[:, 0], scores["prediction"], rtol=1e-9)
    with pytest.raises(ConfigError, match="no probabilities"):
        model.predict_proba(rows)


@pytest.fixture
def unscored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may be scored, as it would be sent and counted."""

    def score(*_: object, **__: object) -> None:
        raise AssertionError("rows were scored")

    monkeypatch.setattr("securevfl.scoring.running.score", score)


def swap_models() -> None:
    bank, shop = Path("models/bank.safetensors"), Path("models/shop.safetensors")
    shop.write_bytes(bank.read_bytes())


def drop_columns() -> None:
    pl.read_csv("shop-new.csv").select("customer", "note").write_csv("shop-new.csv")


def mix_models() -> None:
    old = Path("models/shop.safetensors").read_bytes()
    assert run("train", "job.toml", "--quiet", "--seed", "1", "--force") == 0
    Path("models/shop.safetensors").write_bytes(old)


def nobody_in_common() -> None:
    new = pl.read_csv("shop-new.csv").with_columns(customer="x" + pl.col("customer"))
    new.write_csv("shop-new.csv")


def no_such_class() -> None:
    pl.read_csv("labelled.csv").with_columns(status=pl.lit("lost")).write_csv("labelled.csv")


OUT = ("--out", "scores.csv")


@pytest.mark.parametrize(
    ("spoil", "arguments", "told"),
    [
        (swap_models, OUT, "the part of 'bank', not of 'shop'"),
        (drop_columns, OUT, "lacks 2 columns of the model: 'visits', 'spent'"),
        (mix_models, OUT, "parts of different models: 'bank' is of job"),
        (nobody_in_common, OUT, "no common ids among the new rows ('bank' 40, 'shop' 37 ids)"),
        (no_such_class, (*OUT, "--rows", "bank=labelled.csv"),
         "37 are not classes of the model, the first is 'lost'"),
        (None, ("--out", "scores.xls"), "expected .csv, .parquet"),
        (None, (*OUT, "--rows", "bank"), "expected NAME=FILE"),
        (None, (*OUT, "--rows", "store=a.csv"), "rows of store: parties are bank, shop"),
        (None, (*OUT, "--models", "nowhere"), "securevfl train"),
        (None, (), "--out"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("unscored")
def test_what_does_not_belong_together_and_a_mistake_get_one_line(
    job: str,
    capsys: Capture,
    spoil: Callable[[], None] | None,
    arguments: tuple[str, ...],
    told: str,
) -> None:
    if spoil is not None:
        spoil()
    error = refused(capsys, "predict", job, *arguments, "--quiet")
    assert told in error
    assert error.count("\n") == 1
    assert not Path("scores.csv").exists()


@pytest.mark.usefixtures("unscored")
@pytest.mark.parametrize("option", ["--out", "--json"])
def test_places_that_cannot_be_written_are_found_before_scoring(
    job: str, capsys: Capture, option: str
) -> None:
    Path("taken").write_text("a file, and no folder", encoding="utf-8")
    places = {"--out": "scores.csv", "--json": "out.json", option: "taken/it.csv"}
    words = (word for pair in places.items() for word in pair)
    assert "taken cannot be written to" in refused(capsys, "predict", job, *words)


def test_a_model_is_shown_with_its_coefficients_by_name(job: str, capsys: Capture) -> None:
    assert run("model", "show", "models/bank.safetensors") == 0
    output = capsys.readouterr().out
    assert max(map(len, output.splitlines())) <= 80
    for word in ("bank (label party)", "classes: late, paid", "income", "debt", "(constant)"):
        assert word in output
    files = ["models/bank.safetensors", "models/shop.safetensors"]
    assert run("model", "show", *files, "--json", "out.json") == 0
    lines = capsys.readouterr().out.splitlines()
    bank, shop = rows_of("out.json", "model show")
    assert bank["class_names"] == ["late", "paid"]
    assert shop["class_names"] is None
    assert (bank["intercept"] is not None, shop["intercept"]) == (True, [0.0])
    every = {each["column"]: each for row in (bank, shop) for each in row["columns"]}
    for each in every.values():
        assert each["per_unit"][0] == pytest.approx(each["standardized"][0] / each["scale"])
    largest = sorted(every, key=lambda name: -abs(every[name]["standardized"][0]))
    shown = [line.split()[1] for line in lines if line.split()[:1] in (["bank"], ["shop"])]
    assert shown[2:] == [*largest, "(constant)", "(constant)"]  # after a line of each part
    assert json.loads(Path("out.json").read_text())["settings"] == {"files": files}
