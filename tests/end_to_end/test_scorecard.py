"""Scorecards and contributions, held against the scores that they stand for."""

import csv
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from securevfl.data.features import encoded
from securevfl.errors import ConfigError, DataError
from securevfl.job import Job, read_job
from securevfl.models.storage import load_model
from securevfl.recipe import Preprocessing
from securevfl.scoring.explanation import explained, term
from securevfl.scoring.joint_model import load_models
from securevfl.scoring.running import scoring_plan
from securevfl.scoring.sources import RowsToScore, rows_to_score
from securevfl.sparse import SparseRows
from securevfl.training import train
from tests.end_to_end.commands import refused, result_in, rows_of, run, write_job
from tests.jobs import Settings
from tests.made_data import made
from tests.scoring_jobs import parts_of

Capture = pytest.CaptureFixture[str]
Row = Mapping[str, Any]
pytestmark = pytest.mark.usefixtures("clean_place")
BANK, SHOP = PARTS = ("models/bank.safetensors", "models/shop.safetensors")
FIRST = date(1970, 1, 1)
KINDS: dict[str, Settings] = {
    "steps and slopes": {"bins": 6},
    "steps": {"bins": 6, "bin_raw": False},
    "lines": {},
}


def write_people(seed: int, rows: int, prefix: str = "") -> None:
    """A curve, a line, a date, a flag and a category, with gaps and a rare one."""
    draw = np.random.default_rng(seed)
    income, debt, spent = (
        draw.exponential(3, rows),
        draw.normal(50, 9, rows),
        draw.normal(0, 4, rows),
    )
    days = draw.integers(15_000, 19_000, rows).tolist()
    city = draw.choice(["Bern", "Graz", "Linz", "Ulm"], rows, p=[0.4, 0.3, 0.295, 0.005])
    flag = draw.integers(0, 2, rows)
    risk = np.abs(income - 3) + 0.05 * debt + (city == "Graz") + flag - 0.1 * spent
    late = np.where(risk + draw.logistic(size=rows) > 5, "late", "paid")

    def some(values: Sequence[Any]) -> list[Any]:
        return [each if draw.random() > 0.06 else None for each in values]

    if prefix:  # as training had none
        income[0], city[1] = 60, "Rome"
    bank: dict[str, Any] = {
        "id": range(rows),
        "income": income,
        "debt": some(debt.tolist()),
        "default": late,
    }
    shop: dict[str, Any] = {
        "id": range(rows),
        "spent": some(spent.tolist()),
        "city": some(city.tolist()),
    }
    shop |= {"since": [FIRST + timedelta(each) for each in days], "flag": flag}
    for name, table in (("bank", bank), ("shop", shop)):
        pl.DataFrame(table).write_csv(f"{prefix}{name}.csv")


def trained(
    job: Settings | None = None, bounds: Settings | None = None, **preprocess: object
) -> str:
    """A model of 600 people, and 80 new ones."""
    write_people(0, 600)
    write_people(1, 80, "new-")
    settings: Settings = {"rounds": 15, "allow_feature_leak": True, **(job or {})}
    sections: dict[str, Settings] = {"exchange": {"scheme": "plain"}, "preprocess": preprocess}
    sections |= {"job.bounds": bounds} if bounds else {}
    path = write_job(settings, "id", **sections)
    assert run("train", path, "--quiet") in {0, 4}
    return path


def new_rows() -> dict[str, pl.DataFrame]:
    return {name: pl.read_csv(f"new-{name}.csv") for name in ("bank", "shop")}


def points_of(card: Sequence[Row], party: str, row: Row, *, rounded: bool = False) -> float:
    """A person's points, as somebody with the CSV file alone computes them."""
    total = 0.0
    for column, bins in itertools.groupby(card, key=lambda each: each["column"]):
        every = list(bins)
        assert {each["party"] for each in every} == {party}
        own = _of_column(every, row.get(column))
        total += round(own) if rounded else own
    return total


def _of_column(bins: Sequence[Row], value: Any) -> float:  # noqa: ANN401
    if not bins[0]["kind"]:
        return float(bins[0]["points"])
    named = {each["bin"]: float(each["points"]) for each in bins}
    if value is None:
        return named["(missing)"]
    if bins[0]["kind"] == "category":
        return named.get(value, named["(other)"])
    if bins[0]["kind"] == "date":
        value = (date.fromisoformat(value) - FIRST).days
    (own,) = (
        each
        for each in bins
        if each["at"] and float(each["low"] or -math.inf) <= value < float(each["high"] or math.inf)
    )
    slope, at = float(own["per_unit"]), float(own["at"])
    return float(own["points"]) + slope * (float(value) - at)


def card(*parts: str, options: Sequence[str] = ()) -> list[Row]:
    """The rows of a CSV file of a scorecard."""
    arguments = ("--scorecard", "--csv", "card.csv", "--quiet", *options)
    assert run("model", "show", *parts, *arguments) == 0
    with Path("card.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("kind", KINDS)
def test_points_of_each_partys_own_file_sum_to_the_score_of_predict(kind: str) -> None:
    job = trained(**KINDS[kind])
    cards = {"bank": card(BANK), "shop": card(SHOP)}
    given = [f"--rows={name}=new-{name}.csv" for name in cards]
    assert run("predict", job, *given, "--out", "scores.csv", "--quiet") == 0
    people = {name: rows.to_dicts() for name, rows in new_rows().items()}
    likely = pl.read_csv("scores.csv").sort("id")["probability"].to_numpy()
    of_paid = load_models("models").decision_function(new_rows())
    np.testing.assert_allclose(likely, 1 / (1 + np.exp(-of_paid)), rtol=1e-12)
    columns = 7
    for number, log_odds in enumerate(of_paid):  # of "paid", the second class
        rows = {name: each[number] for name, each in people.items()}
        total = sum(points_of(cards[name], name, row) for name, row in rows.items())
        odds = math.exp(-log_odds)  # of "late", the first
        assert total == pytest.approx(600 + 20 * math.log2(odds / 50), abs=1e-9)
        whole = sum(points_of(cards[name], name, row, rounded=True) for name, row in rows.items())
        assert abs(whole - total) <= columns / 2
    has_slopes = any(float(each["per_unit"]) for each in cards["shop"])
    assert has_slopes == (kind != "steps")
    together = card(*PARTS)
    assert together == cards["bank"] + cards["shop"]


def test_more_points_speak_for_the_class_that_is_asked_for() -> None:
    trained(bins=4)
    by_default = card(*PARTS)
    other = card(*PARTS, options=("--good", "paid", "--base", "0", "--odds", "1", "--pdo", "10"))
    constant, *rest = zip(by_default, other, strict=True)
    intercept = load_model(Path(BANK)).weights[-1, 0]
    assert float(constant[1]["points"]) == pytest.approx(10 / math.log(2) * intercept)
    for late, paid in rest:
        assert float(late["points"]) == pytest.approx(-2 * float(paid["points"]))
    assert card(SHOP) == [each for each in by_default if each["party"] == "shop"]
    of_shop = card(SHOP, options=("--good", "1"))  # which knows classes by number
    assert float(of_shop[0]["points"]) == -float(card(SHOP)[0]["points"])


def test_a_bounded_column_has_no_slope_beyond_its_bounds() -> None:
    trained(bounds={"debt": [40, 60]}, missing_indicator=True)
    own = [each for each in card(BANK) if each["column"] == "debt"]
    assert [each["bin"] for each in own[:3]] == ["below 40", "from 40 to < 60", "from 60"]
    assert [bool(float(each["per_unit"])) for each in own[:3]] == [False, True, False]
    (above,) = load_models("models").decision_function(_person(debt=1e4))
    (at_most,) = load_models("models").decision_function(_person(debt=60.0))
    assert above == at_most
    _check_points(_person(debt=1e4), above)
    _check_points(
        _person(debt=52.5), load_models("models").decision_function(_person(debt=52.5))[0]
    )


def _person(**changes: object) -> dict[str, pl.DataFrame]:
    bank = {"income": 2.0, "debt": 50.0} | changes
    shop = {"spent": 1.0, "since": "2020-02-02", "city": "Graz", "flag": 1}
    return {"bank": pl.DataFrame([bank]), "shop": pl.DataFrame([shop])}


def _check_points(person: Mapping[str, pl.DataFrame], log_odds: float) -> None:
    parts = {"bank": card(BANK), "shop": card(SHOP)}
    total = sum(points_of(parts[n], n, each.row(0, named=True)) for n, each in person.items())
    assert total == pytest.approx(600 + 20 * math.log2(math.exp(-log_odds) / 50), abs=1e-9)


def test_a_column_without_its_number_has_bins_alone() -> None:
    trained(bins=4, bin_raw=False)
    recipe = load_model(Path(SHOP)).header.recipe
    assert recipe is not None
    columns = {part.name: part.columns for part in recipe.parts}
    assert columns["flag"] == ("flag>=1",)
    assert len(columns["spent"]) == 4  # three edges, and whether it is missing
    assert not any(name in each for name, each in columns.items() if name != "city")


def test_rows_of_a_set_by_name_are_scored_without_the_columns_that_its_recipe_leaves_out() -> None:
    dataset = made([0], 2, rows=80, columns=3, standardize=True)
    bank, shop = dataset.parties
    flags = [(rows[:, :1] > 0).astype(float) for rows in (shop.train, shop.test)]
    train_rows, test_rows = (
        np.hstack([rows, flag, 1 - flag])
        for rows, flag in zip((shop.train, shop.test), flags, strict=True)
    )
    columns = (*shop.columns, "flag", "twin")
    shop = replace(shop, columns=columns, train=train_rows, test=test_rows)
    dataset = replace(dataset, parties=(bank, shop))
    job = Job.of(job={"rounds": 2}, exchange={"scheme": "plain"})
    binned = encoded(dataset, Preprocessing(bins=2, bin_raw=False))
    parts = parts_of(train(job, binned))
    header = parts[shop.name].header
    assert header.recipe is not None
    assert header.recipe.raw_columns == columns[:-1]
    found = rows_to_score(job, parts, Path(), given={}, dataset=dataset)
    assert found.features[shop.name].tolist() == binned.parties[1].test.tolist()
    other = replace(dataset, parties=(bank, replace(shop, columns=("other", *columns[1:]))))
    with pytest.raises(DataError, match="was not trained on these columns"):
        rows_to_score(job, parts, Path(), given={}, dataset=other)


def test_files_and_tables_hold_the_same_points(capsys: Capture) -> None:
    trained(bins=4)
    capsys.readouterr()
    files = ("--json", "out.json", "--html", "card.html", "--csv", "card.csv")
    assert run("model", "show", *PARTS, "--scorecard", *files) == 0
    printed = capsys.readouterr().out
    rows = rows_of("out.json", "model show")
    with Path("card.csv").open(encoding="utf-8", newline="") as file:
        for given, row in zip(csv.DictReader(file), rows, strict=True):
            assert float(given["points"]) == row["points"]
            assert round(row["points"]) == row["rounded"]
    assert result_in()["settings"] == {
        **{"files": [*PARTS], "base": 600, "odds": 50, "pdo": 20, "good": "late"}
    }
    page = Path("card.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 5  # one for each column of numbers
    for text in (page, printed):
        assert "600 points at odds of 50 : 1 for class" in text
        assert all(f"{row['points']:.3f}" in text for row in rows)


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ({"loss": "squared"}, "'bank' has 2 classes and squared loss"),
        ({"model": "mlp"}, "the part of 'bank' is a network (mlp), which has no coefficients"),
    ],
)
def test_a_model_without_log_odds_is_refused_in_a_line(
    job: Settings, said: str, capsys: Capture
) -> None:
    trained(job)
    error = refused(capsys, "model", "show", *PARTS, "--scorecard")
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--scorecard", "--good", "maybe"), "--good maybe: expected one of late, paid"),
        (("--scorecard", "--pdo", "0"), "--pdo 0: expected a number above 0"),
        (("--scorecard", "--odds", "inf"), "--odds inf: expected a number above 0"),
        (("--scorecard", "--base", "nan"), "--base nan: expected a number"),
        (("--html", "card.html"), "only with --scorecard"),
        (("--pdo", "10"), "only with --scorecard"),
        ((SHOP, "--scorecard"), "0 of the parts shop are a label party's"),
    ],
)
def test_what_makes_no_scorecard_is_refused(
    options: tuple[str, ...], said: str, capsys: Capture
) -> None:
    trained()
    parts = (SHOP,) if options[0] == SHOP else PARTS
    assert said in refused(capsys, "model", "show", *parts, *options)


@pytest.mark.parametrize("kind", KINDS)
def test_contributions_sum_to_the_score_and_are_shapley_values(kind: str) -> None:
    job = trained(**KINDS[kind])
    given = [f"--rows={name}=new-{name}.csv" for name in ("bank", "shop")]
    files = ("--out", "scores.csv", "--explain", "why.csv", "--json", "out.json")
    assert run("predict", job, *given, *files, "--quiet") == 0
    why = pl.read_csv("why.csv")
    assert why.columns[:3] == ["id", "(base)", "bank.income"]
    likely = pl.read_csv("scores.csv")
    assert why["id"].equals(likely["id"])
    values = why.drop("id", "(base)").to_numpy()
    log_odds = load_models("models").decision_function(new_rows())
    np.testing.assert_allclose(why["(base)"].to_numpy() + values.sum(axis=1), log_odds, atol=1e-9)
    model = load_model(Path(SHOP))
    recipe = model.header.recipe
    assert recipe is not None
    features = recipe.apply(new_rows()["shop"])[:5]
    places = dict(recipe.places())
    for part, place in places.items():
        marginal = _shapley(
            model, features, place, [each for each in places.values() if each != place]
        )
        np.testing.assert_allclose(why[f"shop.{part.name}"].to_numpy()[:5], marginal, atol=1e-9)
    (row,) = rows_of("out.json", "predict")
    sizes = {each["column"]: each for each in row["importance"]}
    for name, own in zip(why.columns[2:], np.abs(values).T, strict=True):
        low, high = sizes[name]["interval"]
        mean, error = own.mean(), own.std() / math.sqrt(len(own))
        assert sizes[name]["mean"] == pytest.approx(mean)
        assert low < mean < high
        assert high - low == pytest.approx(2 * 1.96 * error, rel=0.25)
    means = [each["mean"] for each in row["importance"]]
    assert means == sorted(means, reverse=True)


def _shapley(model: Any, features: Any, own: slice, others: Sequence[slice]) -> Any:  # noqa: ANN401
    """By definition: what a column adds on average, whichever others are known before it.

    Those that are not known have their training means.
    """
    total = np.zeros(len(features))
    for size in range(len(others) + 1):
        for known in itertools.combinations(others, size):
            rows = np.tile(model.mean, (len(features), 1))
            for place in known:
                rows[:, place] = features[:, place]
            before = model.predict(rows)[:, 0]
            rows[:, own] = features[:, own]
            weight = math.factorial(size) * math.factorial(len(others) - size)
            total += weight / math.factorial(len(others) + 1) * (model.predict(rows)[:, 0] - before)
    return total


def test_real_targets_are_explained_in_their_own_units() -> None:
    write_people(0, 600)
    rows = pl.read_csv("bank.csv").with_columns(default=1000 + 50 * pl.col("income"))
    rows.write_csv("bank.csv")
    job = write_job(
        {"rounds": 9, "loss": "squared"}, "id", exchange={"scheme": "plain"}, preprocess={}
    )
    assert run("train", job, "--quiet") in {0, 4}
    assert run("predict", job, "--out", "scores.csv", "--explain", "why.parquet", "--quiet") == 0
    total = pl.read_parquet("why.parquet").drop("id").to_numpy().sum(axis=1)
    np.testing.assert_allclose(total, pl.read_csv("scores.csv")["prediction"], rtol=1e-9)


def test_each_class_of_several_has_contributions() -> None:
    write_people(0, 600)
    city = pl.read_csv("shop.csv")["city"].fill_null("Linz")
    rows = pl.read_csv("bank.csv").with_columns(city.alias("default"))
    rows.write_csv("bank.csv")
    job = write_job({"rounds": 5}, "id", exchange={"scheme": "plain"}, preprocess={"rare_count": 1})
    assert run("train", job, "--quiet") in {0, 3, 4}
    assert run("predict", job, "--out", "scores.csv", "--explain", "why.csv", "--quiet") == 0
    why, scores = pl.read_csv("why.csv"), pl.read_csv("scores.csv")
    odds = np.column_stack(
        [
            np.exp(why.select(pl.col(rf"^.*\[{name}\]$")).to_numpy().sum(axis=1))
            for name in ("Bern", "Graz", "Linz", "Ulm")
        ]
    )
    shares = odds / odds.sum(axis=1)[:, None]
    np.testing.assert_allclose(scores["probability_Ulm"], shares[:, 3], atol=1e-9)


@pytest.mark.parametrize(
    ("job", "scheme", "options", "said"),
    [
        ({"model": "mlp"}, "plain", (), "'bank' is a network (mlp), which has no coefficients"),
        ({"rounds": 3}, "dp", (), "scores have noise"),
        ({}, "plain", ("--explain", "out.csv"), "--explain out.csv: scores go there"),
        ({}, "plain", ("--explain", "-"), "--explain -: expected .csv or .parquet"),
        ({}, "plain", ("--explain", "new-bank.csv"), "--explain new-bank.csv exists"),
    ],
)
def test_what_cannot_be_explained_is_refused_before_rows_are_scored(
    job: Settings, scheme: str, options: tuple[str, ...], said: str, capsys: Capture
) -> None:
    write_people(0, 600)
    write_people(1, 80, "new-")
    settings: Settings = {"rounds": 5, "allow_feature_leak": True, **job}
    noise: Settings = {"noise_multiplier": 1.0} if scheme == "dp" else {}
    path = write_job(settings, "id", exchange={"scheme": scheme}, preprocess={}, privacy=noise)
    assert run("train", path, "--quiet") in {0, 3, 4}
    asked = options or ("--explain", "why.csv")
    assert said in refused(capsys, "predict", path, "--out", "out.csv", *asked)
    assert not Path("out.csv").exists()


def test_a_file_has_no_two_columns_of_a_name_and_sparse_rows_are_refused() -> None:
    job = trained(bins=4)
    parts = load_models("models").parts
    plan = scoring_plan(read_job(Path(job)), parts)
    features = {name: np.zeros((2, len(each.header.columns))) for name, each in parts.items()}
    ids = ("a", "b")
    rows = RowsToScore(ids, ids, "id", features, (None, None), np.arange(2))
    assert len(explained(plan, parts, rows)[1]) == 6
    with pytest.raises(ConfigError, match="two columns would have the name"):
        explained(plan, parts, replace(rows, id_column="bank.income"))
    cells = np.zeros(0, np.uint16)
    empty: Any = SparseRows(np.zeros(3, np.int64), cells, None, len(features["shop"][0]))
    with pytest.raises(ConfigError, match="--explain of party 'shop' needs dense columns"):
        explained(plan, parts, replace(rows, features={**features, "shop": empty}))


def test_terms_are_of_one_column_alone() -> None:
    trained(bins=4)
    model = load_model(Path(SHOP))
    rows = np.random.default_rng(0).normal(size=(9, len(model.header.columns)))
    parts = [term(model, slice(at, at + 1), rows[:, at : at + 1]) for at in range(rows.shape[1])]
    np.testing.assert_allclose(np.sum(parts, axis=0), model.predict(rows), atol=1e-12)
