"""`[preprocess]`: fitted on a party's own training rows, the same for new rows."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from securevfl.data import FileSource, load_files
from securevfl.data.features import fit_recipe
from securevfl.data.ids import is_held_out
from securevfl.errors import DataError
from securevfl.protocols.guards.people import digests_of_values
from securevfl.recipe import MISSING, ColumnRecipe, Preprocessing, Recipe, days_of, numbers_of
from securevfl.scoring.sources import read_new_rows

SETTINGS = Preprocessing(rare_count=3)
FRAME = pl.DataFrame(
    {
        "age": [30.0, None, 50.0, 40.0] * 5,
        "city": ["Berlin"] * 8 + ["Köln"] * 6 + ["Ulm", "Jena", "?", "Bonn", "Ulm", ""],
        "member": ["yes", "no"] * 10,
        "same": [7.0] * 20,
        "opened": ["1970-01-02", "1970-01-04", None, "1970-01-02"] * 5,
    }
)


def fitted(
    frame: pl.DataFrame = FRAME, settings: Preprocessing = SETTINGS, rows: int | None = None
) -> Recipe:
    chosen = np.arange(frame.height if rows is None else rows)
    return fit_recipe("bank", frame, frame.columns, chosen, settings)[0]


def test_columns_become_numbers_categories_and_days() -> None:
    recipe = fitted()
    assert recipe.columns == (
        *("age", "city=Berlin", "city=Köln", "city=(other)", "member=yes", "opened"),
    )
    features = recipe.apply(FRAME)
    assert features[:4, 0].tolist() == [30, 40, 50, 40]
    np.testing.assert_array_equal(features[:, 1:4].sum(axis=1), np.ones(20))
    assert features[14:, 3].tolist() == [1] * 6
    assert features[:4, 4].tolist() == [1, 0, 1, 0]
    assert features[:4, 5].tolist() == [1, 3, 1, 1]


def test_what_is_left_out_or_pooled_is_reported() -> None:
    frame = FRAME.with_columns(name=pl.Series([f"customer {n}" for n in range(20)]))
    recipe, notes = fit_recipe("bank", frame, frame.columns, np.arange(20), SETTINGS)
    assert recipe == fitted()
    message = {note.column: note.line for note in notes}
    assert "is left out: the same in all training rows" in message["same"]
    assert "is left out: 20 different values in 20 training rows, like an id or" in message["name"]
    assert "3 rare categories are pooled in '(other)'" in message["city"]
    assert message["member"] == "party 'bank': column 'member' becomes 1 column"
    assert "days since 1970-01-01" in message["opened"]


def test_no_feature_of_categories_has_few_ones_or_few_zeros(generator: np.random.Generator) -> None:
    for few in (1, 5, 20, 40):
        text = generator.choice(list("abcdefgh?"), 200, p=[0.5, 0.2, 0.1, *[0.2 / 6] * 6])
        frame = pl.DataFrame({"x": text})
        ones = fitted(frame, Preprocessing(rare_count=few)).apply(frame).sum(axis=0)
        assert ones.size
        assert ones.min() >= few
        assert few == 1 or ones.max() <= 200 - few


def test_a_pool_that_would_be_rare_itself_takes_the_next_smallest_category() -> None:
    frame = pl.DataFrame({"x": ["a"] * 50 + ["b"] * 40 + ["c"] * 30 + ["d"] * 2 + ["e"]})
    recipe = fitted(frame, Preprocessing(rare_count=10))
    assert recipe.columns == ("x=a", "x=b", "x=(other)")
    assert recipe.apply(frame).sum(axis=0).tolist() == [50, 40, 33]


def test_a_category_never_seen_in_training_goes_to_the_pool_and_is_counted() -> None:
    recipe = fitted()
    new = FRAME.head(1).with_columns(city=pl.lit("Rom"))
    assert recipe.apply(new)[0, 1:4].tolist() == [0, 0, 1]
    assert recipe.unknown(new) == {"city": 1}
    without = fitted(FRAME.head(14))  # no pool
    assert without.columns[1:2] == ("city=Köln",)
    assert without.apply(new)[0, 1] == 0
    assert recipe.unknown(FRAME.head(10)) == {}


def test_missing_values_may_have_columns_of_their_own() -> None:
    frame = pl.DataFrame({"age": [1.0, None] * 10, "city": ["A", "B", None, "B"] * 5})
    recipe = fitted(frame, Preprocessing(rare_count=3, missing_indicator=True))
    assert recipe.columns[:2] == ("age", "age=(missing)")
    assert recipe.columns[2:] == ("city=A", "city=B", "city=(missing)")
    features = recipe.apply(frame)
    assert features[:2, 1].tolist() == [0, 1]
    assert features[:4, 4].tolist() == [0, 0, 1, 0]
    few = Preprocessing(rare_count=11, missing_indicator=True)
    assert fitted(frame.with_columns(k=pl.int_range(20)), few).columns == ("k",)


def test_markers_of_missing_values_count_as_such() -> None:
    frame = pl.DataFrame(
        {"age": ["1", "NA", "3", "-999", " ? ", "null"], "n": [1, 2, 3, -999, 5, 6]}
    )
    recipe = fitted(frame, Preprocessing(missing=("-999",)))
    assert recipe.apply(frame)[:, 0].tolist() == [1, 2, 3, 2, 2, 2]
    assert recipe.apply(frame)[:, 1].tolist() == [1, 2, 3, 3, 5, 6]


def test_numbers_can_be_names() -> None:
    frame = pl.DataFrame({"zip": [10115, 20095] * 10, "k": np.arange(20)})
    recipe = fitted(frame, Preprocessing(categories=("zip",)))
    assert recipe.columns == ("zip=20095", "k")
    as_floats = recipe.apply(frame.with_columns(pl.col("zip").cast(pl.Float64)))
    np.testing.assert_array_equal(as_floats, recipe.apply(frame))


def test_only_training_rows_have_a_say() -> None:
    recipe = fitted(rows=12)
    changed = pl.concat([FRAME.head(12), FRAME.tail(8).with_columns(age=1e6, city=pl.lit("Rom"))])
    assert fitted(changed, rows=12) == recipe
    assert fitted(changed) != recipe


def test_the_order_of_rows_decides_nothing(generator: np.random.Generator) -> None:
    mixed = FRAME[generator.permutation(20)]
    assert fitted(mixed) == fitted()


def test_new_rows_that_do_not_fit_are_refused_all_at_once() -> None:
    recipe = fitted()
    with pytest.raises(DataError, match=r"columns missing: 'age', 'opened'"):
        recipe.apply(FRAME.drop("age", "opened"))
    wrong = FRAME.with_columns(age=pl.lit("old"), opened=pl.lit("3.4.2020"))
    with pytest.raises(DataError) as caught:
        recipe.apply(wrong)
    assert "column 'age' has 20 values that are not numbers, such as 'old'" in str(caught.value)
    assert "column 'opened' has 20 values that are not dates" in str(caught.value)
    longer = FRAME.with_columns(
        opened=pl.Series(["1970-01-02 23:59", "1970-01-02T00", None] * 6 + [None] * 2)
    )
    assert recipe.apply(longer)[:2, -1].tolist() == [1, 1]
    with pytest.raises(DataError, match="'opened' has 20 values that are not dates"):
        recipe.apply(FRAME.with_columns(opened=pl.lit("1970-01-022")))


def test_nothing_left_and_names_twice_are_refused() -> None:
    with pytest.raises(DataError, match="no column varies"):
        fitted(FRAME.select("same"))
    double = FRAME.select("member", pl.col("age").alias("member=yes"))
    with pytest.raises(DataError, match="two features would have the name 'member=yes'"):
        fitted(double)


@pytest.fixture
def sources(tmp_path: Path) -> list[FileSource]:
    ids = [f"p{n:03}" for n in range(120)]
    bank = [
        f"{row_id};{n % 7},5;{'NA' if n % 9 == 4 else n};{n % 2}" for n, row_id in enumerate(ids)
    ]
    shop = [f"{row_id},{'ABC'[n % 3]},{n % 4 == 0}" for n, row_id in enumerate(ids)]
    (tmp_path / "bank.csv").write_text("\n".join(["id;rate;age;default", *bank]))
    (tmp_path / "shop.csv").write_text("\n".join(["id,kind,member", *shop]))
    return [
        FileSource("bank", tmp_path / "bank.csv", "id", "default", preprocess=Preprocessing()),
        FileSource("shop", tmp_path / "shop.csv", "id", preprocess=Preprocessing()),
    ]


def test_files_come_as_features_with_each_partys_own_recipe(sources: list[FileSource]) -> None:
    data = load_files(sources)
    bank, shop = data.parties
    assert bank.columns == ("rate", "age")
    assert shop.columns == ("kind=A", "kind=B", "kind=C", "member=True")
    assert bank.recipe is not None
    assert shop.recipe is not None
    assert set(bank.recipe.raw_columns) == {"rate", "age"}
    assert set(shop.recipe.raw_columns) == {"kind", "member"}
    raw = {n: float(n) for n in range(120) if n % 9 != 4}
    assert set(bank.train[:, 1]) <= {*raw.values(), bank.recipe.parts[1].fill}
    in_training = [value for value in raw.values() if value in set(bank.train[:, 1])]
    assert bank.recipe.parts[1].fill == np.median(in_training)


def test_held_out_rows_are_known_by_what_they_were_whatever_was_fitted(
    sources: list[FileSource],
) -> None:
    before = load_files(sources).parties
    for source in sources:
        head, *lines = source.path.read_text().splitlines()
        kept = [line for n, line in enumerate(lines) if n >= 60 or is_held_out(line[:4])]
        source.path.write_text("\n".join([head, *kept, ""]))
    after = load_files(sources).parties
    assert not np.array_equal(before[0].test, after[0].test)
    recipes = {table.name: table.recipe for table in before if table.recipe is not None}
    asked = [
        replace(source, features=recipes[source.name].raw_columns, preprocess=None)
        for source in sources
    ]
    new = read_new_rows(asked, "bank", recipes)
    held_out = [place for place, row_id in enumerate(new.ids) if is_held_out(row_id)]
    for old, table in zip(before, after, strict=True):
        columns = old.held_out_columns
        known = digests_of_values(old.held_out_rows, columns)
        assert table.held_out_columns == columns
        np.testing.assert_array_equal(digests_of_values(table.held_out_rows, columns), known)
        again = digests_of_values(new.raw[table.name][held_out], columns)
        np.testing.assert_array_equal(again, known)
        assert len(np.unique(known)) > 1


def test_a_changed_test_row_changes_no_recipe(sources: list[FileSource]) -> None:
    before = load_files(sources).parties
    held_out = before[0].test[:, 1]
    n = int(next(value for value in held_out if value % 1 == 0 and value % 9 != 4))
    path = sources[0].path
    path.write_text(path.read_text().replace(f";{n};{n % 2}", f";99999;{n % 2}"))
    after = load_files(sources).parties
    assert after[0].recipe == before[0].recipe
    np.testing.assert_array_equal(after[0].train, before[0].train)
    assert 99999 in after[0].test[:, 1]


def test_all_bad_columns_of_all_parties_are_named_at_once(sources: list[FileSource]) -> None:
    plain = [replace(source, preprocess=None) for source in sources]
    with pytest.raises(DataError) as caught:
        load_files(plain)
    message = str(caught.value)
    assert message.startswith("3 columns cannot be used: ")
    for part in (
        "party 'bank': column 'age' has 13 missing values",
        "party 'shop': column 'kind' has 120 values that are not numbers, such as 'A'",
        "party 'shop': column 'member' has 120 values that are not numbers, such as 'True'",
        "a [preprocess] section in the job file",
        "drop = [...]",
    ):
        assert part in message
    assert "\n" not in message


def test_many_bad_columns_are_counted(tmp_path: Path, sources: list[FileSource]) -> None:
    names = [f"c{n}" for n in range(14)]
    frame = pl.DataFrame({"id": [f"p{n:03}" for n in range(120)], **dict.fromkeys(names, "x")})
    frame.write_csv(tmp_path / "shop.csv")
    with pytest.raises(DataError, match=re.escape("14 columns cannot be used")) as caught:
        load_files([sources[0], replace(sources[1], preprocess=None)])
    assert "; and 4 more; a [preprocess] section" in str(caught.value)


def test_a_column_of_numbers_with_a_few_words_is_no_category(sources: list[FileSource]) -> None:
    path = sources[0].path
    path.write_text(path.read_text().replace(";5;", ";many;"))
    with pytest.raises(DataError) as caught:
        load_files(sources)
    assert "column 'age' has 1 value that is no number, such as 'many' and 13 missing" in str(
        caught.value
    )
    assert "`missing = ['many']` or `categories = [\"age\"]` in [preprocess]" in str(caught.value)
    assert "a [preprocess] section" not in str(caught.value)
    given = Preprocessing(missing=("many",))
    assert load_files([replace(sources[0], preprocess=given), sources[1]]).parties[0].recipe


def test_dropped_columns_are_not_looked_at(sources: list[FileSource]) -> None:
    bank = replace(sources[0], drop=("age",), preprocess=None)
    assert load_files([bank, sources[1]]).parties[0].columns == ("rate",)
    with pytest.raises(DataError, match=r"has no column 'aeg'; it has .*age"):
        load_files([replace(bank, drop=("aeg",)), sources[1]])


def test_a_test_file_is_read_as_the_training_file(
    sources: list[FileSource], tmp_path: Path
) -> None:
    (tmp_path / "b.csv").write_text("id;rate;age;default\nq1;1,5;;0\nq2;2,5;7;1\n")
    (tmp_path / "s.csv").write_text("id,kind,member\nq1,1,False\nq2,2,True\n")
    both = [
        replace(source, test_path=tmp_path / name)
        for source, name in zip(sources, ("b.csv", "s.csv"), strict=True)
    ]
    bank, shop = load_files(both).parties
    assert bank.recipe is not None
    assert bank.test.tolist() == [[1.5, bank.recipe.parts[1].fill], [2.5, 7]]
    assert shop.test.tolist() == [[0, 0, 0, 0], [0, 0, 0, 1]]
    (tmp_path / "b.csv").write_text("id;rate;age;default\nq1;low;;0\nq2;2,5;7;1\n")
    with pytest.raises(DataError, match="party 'bank': column 'rate' has "):
        load_files(both)


def test_a_recipe_is_data() -> None:
    part = ColumnRecipe("x", "category", levels=("a", "b"), missing_level=True)
    assert part.columns == ("x=a", "x=b", "x=(missing)")
    assert Recipe((part,)).text_columns == {"x"}


def test_whole_numbers_that_float64_would_round_are_refused() -> None:
    read = numbers_of(pl.Series("n", [(1 << 53) - 1, -5], dtype=pl.Int64), MISSING)
    assert read.to_list() == [2.0**53 - 1, -5.0]
    for beyond in (pl.Series([(1 << 63) + 7], dtype=pl.UInt64), pl.Series([-(1 << 60) - 1])):
        with pytest.raises(ValueError, match=r"1 integer of 2\^53 or more"):
            numbers_of(beyond, MISSING)


@pytest.mark.parametrize("kind", [pl.Int64, pl.Time, pl.Duration])
def test_what_is_no_date_is_not_read_as_one(kind: type[pl.DataType]) -> None:
    with pytest.raises(ValueError, match="expected dates"):
        days_of(pl.Series("n", [None], dtype=kind()), MISSING)
