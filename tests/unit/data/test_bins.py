"""`[preprocess] bins`: 0/1 columns for thresholds, fitted to training rows, kept for new ones."""

from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from securevfl.blocks import BlockedRows
from securevfl.data import FileSource, features, load, load_files
from securevfl.data.features import fit_recipe
from securevfl.errors import ConfigError, DataError
from securevfl.job import Job
from securevfl.parties.own_data import NamedRows
from securevfl.recipe import Preprocessing, Recipe
from securevfl.scoring.sources import read_new_rows

FEW = {"rare_count": 10, "rare_share": 0.0}


def fitted(frame: pl.DataFrame, **settings: Any) -> tuple[Recipe, list[str]]:  # noqa: ANN401
    given = Preprocessing(**{**FEW, **settings})
    recipe, notes = fit_recipe("bank", frame, frame.columns, np.arange(frame.height), given)
    return recipe, [note.line for note in notes]


def edges(values: Any, **settings: Any) -> list[float]:  # noqa: ANN401
    return [*fitted(pl.DataFrame({"x": values}), **settings)[0].parts[0].edges]


def test_a_column_keeps_itself_and_gets_a_column_for_each_threshold() -> None:
    frame = pl.DataFrame({"age": np.arange(100.0), "k": np.tile([0, 1], 50)})
    recipe, notes = fitted(frame, bins=4)
    assert recipe.columns == ("age", "age>=25", "age>=50", "age>=75", "k")
    made = recipe.apply(pl.DataFrame({"age": [-1e9, 24.5, 25, 75, 1e9, None], "k": [0] * 6}))
    assert made[:, 0].tolist() == [-1e9, 24.5, 25, 75, 1e9, 49.5]
    assert made[:, 1:4].tolist() == [
        *([0, 0, 0], [0, 0, 0], [1, 0, 0], [1, 1, 1], [1, 1, 1], [1, 0, 0]),
    ]
    assert notes == [
        "party 'bank': bins: 3 thresholds of 1 column as 0/1 columns; 2 columns of the file become "
        "5, and guards count each of them; rows are few for so many columns, and bins may overfit: "
        "'auto' would take none"
    ]


def test_a_value_that_many_rows_have_does_not_hide_the_edge_above_it() -> None:
    values = [0.0] * 60 + [*np.arange(1.0, 41)]
    assert edges(values, bins=4) == [1, 16]
    assert edges([*range(5)] * 20, bins=8) == [1, 2, 3, 4]
    # A value that most rows have is parted from both sides.
    assert edges([1.0] * 10 + [5.0] * 70 + [7.0, 8.0] * 10, bins=3) == [5, 7]


def test_edges_have_few_digits_and_part_the_same_rows(generator: np.random.Generator) -> None:
    values = np.sort(generator.standard_normal(1000))
    found = edges(values, bins=10)
    counts = np.histogram(values, [-np.inf, *found, np.inf])[0]
    assert counts.tolist() == [100] * 10
    assert max(len(repr(each)) for each in found) < 10
    assert not np.isin(found, values).any()


def test_bins_of_the_same_width(generator: np.random.Generator) -> None:
    values = np.concatenate([generator.uniform(0, 100, 5000), [0.0, 100.0]])
    found = edges(values, bins=5, bin_by="width")
    np.testing.assert_allclose(found, [20, 40, 60, 80], atol=0.1)


def test_no_bin_has_few_rows(generator: np.random.Generator) -> None:
    values = generator.exponential(size=1000).round(2)
    for few in (1, 10, 100, 400, 600):
        for settings in ({"bins": 30}, {"bins": 30, "bin_by": "width"}, {"bins": (0.01, 3, 5, 90)}):
            found = edges(values, rare_count=few, rare_share=0, **settings)
            counts = np.histogram(values, [-np.inf, *found, np.inf])[0]
            assert counts.min() >= few
            assert len(found) <= 1000 / few - 1
    assert edges(values, rare_count=1, rare_share=0.2, bins=30) == edges(
        values, rare_count=200, bins=30
    )


def test_a_rare_bin_is_joined_to_the_smaller_neighbour() -> None:
    values = [0.0] * 40 + [1.0] * 5 + [2.0] * 30 + [3.0] * 20 + [4.0] * 5
    _, notes = fitted(pl.DataFrame({"x": values}), bins=(1, 2, 3, 4, 5))
    assert edges(values, bins=(1, 2, 3, 4, 5)) == [1, 3]
    assert "3 bins with few rows are joined to a neighbour (of 'x')" in notes[0]


def test_columns_may_have_bins_of_their_own() -> None:
    frame = pl.DataFrame({name: np.arange(100) for name in "abc"})
    recipe, _ = fitted(frame.with_columns(c=pl.col("c") % 10), bins={"a": 2, "c": (3.5, 8)})
    assert recipe.columns == ("a", "a>=50", "b", "c", "c>=3.5", "c>=8")


def test_auto_follows_rows_and_columns_and_never_takes_bins_for_few_rows(
    generator: np.random.Generator,
) -> None:
    for rows, columns, bins in (
        *((2999, 1, 0), (3000, 1, 3), (5000, 2, 5), (5000, 4, 4), (5000, 5, 3), (5000, 6, 0)),
        *((30_000, 2, 8), (450, 30, 0)),
    ):
        values = generator.standard_normal((rows, columns))
        frame = pl.DataFrame(values, [f"c{number}" for number in range(columns)])
        recipe, (note,) = fitted(
            frame.with_columns(c0=frame["c0"].set(frame["c0"] > 2, None)), bins="auto"
        )
        assert {len(part.edges) + 1 for part in recipe.parts} == {bins or 1}
        assert recipe.parts[0].indicator == (bins > 0)
        assert ("bins: none by auto" in note) == (not bins)
        assert (f"bins = {bins} by auto: " in note) == (bins > 0)
        _, (note,) = fitted(frame, bins=8)
        assert note.endswith("'auto' would take none") == (not bins)


def test_a_missing_number_is_a_bin_of_its_own_unless_it_is_rare() -> None:
    frame = pl.DataFrame({"x": [None] * 20 + [*range(80)]})
    recipe, _ = fitted(frame, bins=2)
    assert recipe.columns == ("x", "x=(missing)", "x>=40")
    new = pl.DataFrame({"x": [None, float("nan"), 1, 70]})
    assert recipe.apply(new).tolist() == [[39.5, 1, 0], [39.5, 1, 0], [1, 0, 0], [70, 0, 1]]
    rare, _ = fitted(frame, bins=2, rare_count=21)
    assert rare.columns == ("x", "x>=40")
    assert fitted(frame, bins={"y": 2})[0].columns == ("x",)


def test_columns_that_double_another_are_left_out_and_counted() -> None:
    x = np.arange(100)
    frame = pl.DataFrame({"old": x >= 50, "x": x, "minus": -x.astype(float), "y": x % 9})
    frame = frame.with_columns(old=pl.col("old").cast(pl.Int8))
    recipe, notes = fitted(frame, bins=4)
    assert recipe.columns == ("old", "x", "x>=25", "x>=75", "minus", "y", "y>=2", "y>=4", "y>=7")
    assert "4 0/1 columns that double another are left out (of 'x', 'minus')" in notes[0]
    gaps = pl.DataFrame({"x": [None] * 20 + [*range(80)], "y": [None] * 20 + [*range(80)] * 1})
    assert fitted(gaps, bins=2)[0].columns == ("x", "x=(missing)", "x>=40", "y")


def test_dates_have_bins_with_dates_as_names() -> None:
    days = [date(2020, 1, 1) + timedelta(days=number) for number in range(100)]
    recipe, _ = fitted(pl.DataFrame({"opened": days}), bins=2)
    (name,) = recipe.columns[1:]
    new = [date.fromisoformat(name.removeprefix("opened>=")) + timedelta(n) for n in (-1, 0)]
    assert recipe.apply(pl.DataFrame({"opened": new}))[:, 1].tolist() == [0, 1]
    assert recipe.apply(pl.DataFrame({"opened": days}))[:, 1].sum() == 50


def test_categories_stay_as_they_are() -> None:
    frame = pl.DataFrame({"city": ["a", "b", "c", "a"] * 10, "zip": [1, 2, 3, 4] * 10})
    recipe, notes = fitted(frame, bins=8, categories=("zip",))
    assert recipe == replace(fitted(frame, categories=("zip",))[0])
    assert "bins: 0 thresholds" not in notes[-1]
    with pytest.raises(DataError, match=r"preprocess\.bins: column 'city' is a category"):
        fitted(frame, bins={"city": 3})


def test_the_order_of_rows_and_held_out_rows_decide_nothing(
    generator: np.random.Generator,
) -> None:
    frame = pl.DataFrame({"x": generator.standard_normal(300), "y": generator.integers(0, 9, 300)})
    mixed = frame[generator.permutation(300)]
    assert fitted(mixed, bins=8)[0] == fitted(frame, bins=8)[0]
    settings = Preprocessing(bins=8)
    recipe, _ = fit_recipe("bank", frame, frame.columns, np.arange(200), settings)
    other = pl.concat([frame.head(200), frame.tail(100).with_columns(x=pl.col("x") * 1000)])
    assert fit_recipe("bank", other, frame.columns, np.arange(200), settings)[0] == recipe


@pytest.mark.parametrize(
    "bins", [1, 0, 1001, "eight", 2.5, [], [3, 2], [1, 1], [1, "x"], {"a": 1}, {"a": []}, True]
)
def test_bins_that_mean_nothing_are_refused(bins: object) -> None:
    with pytest.raises(ConfigError, match=r"preprocess\.bins"):
        Job.of(preprocess={"bins": bins})


@pytest.mark.parametrize("settings", [{"bin_by": "width"}, {"bin_raw": False}])
def test_how_to_bin_is_refused_without_bins(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="bin_by and bin_raw take bins, as in bins = 8"):
        Job.of(preprocess=settings)
    Job.of(preprocess={**settings, "bins": 8})


def test_bins_in_a_job_file_are_as_in_python() -> None:
    given = {"income": 16, "age": [30, 45.5]}
    job = Job.of(preprocess={"bins": given, "bin_by": "width"})
    assert job.preprocess == Preprocessing(bins={"income": 16, "age": (30, 45.5)}, bin_by="width")


@pytest.fixture
def sources(tmp_path: Path, generator: np.random.Generator) -> list[FileSource]:
    ids = [f"p{number:03}" for number in range(400)]
    amounts = [None if n % 9 == 0 else float(v) for n, v in enumerate(generator.normal(size=400))]
    label = generator.integers(0, 2, 400)
    bank = pl.DataFrame({"id": ids, "age": generator.integers(18, 80, 400), "default": label})
    shop = pl.DataFrame({"id": ids, "spend": amounts, "town": ["a", "b"] * 200})
    bank.write_parquet(tmp_path / "bank.parquet")
    shop.write_parquet(tmp_path / "shop.parquet")
    given = Preprocessing(bins=8)
    return [
        FileSource("bank", tmp_path / "bank.parquet", "id", "default", preprocess=given),
        FileSource("shop", tmp_path / "shop.parquet", "id", preprocess=given),
    ]


def test_new_rows_are_binned_as_training_rows_were(sources: list[FileSource]) -> None:
    tables = load_files(sources).parties
    recipes = {table.name: table.recipe for table in tables if table.recipe is not None}
    asked = [
        replace(each, features=recipes[each.name].raw_columns, preprocess=None) for each in sources
    ]
    rows = read_new_rows(asked, "bank", recipes)
    for table in tables:
        made = rows.features[table.name]
        known = {row.tobytes() for row in np.concatenate([table.train, table.test])}
        assert known == {row.tobytes() for row in made}
        assert made.shape[1] == len(table.columns) >= 8
    assert "spend=(missing)" in tables[1].columns


def test_long_tables_hold_thresholds_in_a_byte_each(
    sources: list[FileSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    short = load_files(sources).parties
    monkeypatch.setattr(features, "LONG_CELLS", 100)
    for table, before in zip(load_files(sources).parties, short, strict=True):
        rows = table.train
        assert isinstance(rows, BlockedRows)
        assert {str(part.dtype): part.shape[1] for part in rows.parts} == {
            "float64": 1,
            "uint8": len(table.columns) - 1,
        }
        np.testing.assert_array_equal(rows.toarray(), before.train)


def test_columns_that_no_party_has_are_refused(sources: list[FileSource]) -> None:
    given = Preprocessing(bins={"age": 4, "agee": 4})
    with pytest.raises(ConfigError, match=r"preprocess\.bins: no column 'agee' to train on; "):
        load_files([replace(each, preprocess=given) for each in sources])
    with pytest.raises(ConfigError, match="no column 'agee' to train on in 'breast_cancer'"):
        load("breast_cancer", preprocess=Preprocessing(bins={"agee": 4}))


def test_sets_by_name_are_binned_for_everybody_alike() -> None:
    raw, made = load("breast_cancer"), load("breast_cancer", preprocess=Preprocessing(bins=4))
    job = Job.of(job={"dataset": "breast_cancer"}, preprocess={"bins": 4})
    for before, table in zip(raw.parties, made.parties, strict=True):
        assert len(table.columns) == 4 * len(before.columns)
        assert table.recipe is not None
        assert table.recipe.raw_columns == before.columns
        np.testing.assert_array_equal(table.train[:, ::4], before.train)
        np.testing.assert_array_equal(table.raw_test, before.test)
        own = NamedRows.read(job, table.name, None).own.table
        assert own.columns == table.columns
        np.testing.assert_array_equal(own.train, table.train)
