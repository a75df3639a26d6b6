import gzip
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from securevfl.data import FileSource, VerticalDataset, load_files, read, read_party
from securevfl.data.ids import is_held_out
from securevfl.data.join import own_keys
from securevfl.errors import ConfigError, DataError
from securevfl.recipe import Preprocessing

IDS = [f"p{number:03}" for number in range(60)]


@pytest.fixture
def bank(tmp_path: Path) -> FileSource:
    path = tmp_path / "bank.csv"
    rows = [f"{row_id},{n},{n % 7},{'yes' if n % 3 else 'no'}" for n, row_id in enumerate(IDS)]
    path.write_text("\n".join(["id,age,income,default", *rows]) + "\n")
    return FileSource("bank", path, "id", label_column="default")


@pytest.fixture
def shop(tmp_path: Path) -> FileSource:
    path = tmp_path / "shop.parquet"
    spend = [float(n) / 2 for n in range(60)]
    frame = pl.DataFrame(
        {"customer": IDS, "spend": spend, "member": [n % 2 == 0 for n in range(60)]}
    )
    frame.sample(fraction=1, shuffle=True, seed=1).write_parquet(path)
    return FileSource("shop", path, "customer")


def edit(source: FileSource, old: str, new: str) -> FileSource:
    text = Path(source.path).read_text()
    assert old in text
    Path(source.path).write_text(text.replace(old, new))
    return source


def joined(data: VerticalDataset) -> dict[tuple[float, ...], int]:
    """Every row's features of all parties, and its label."""
    rows = [np.hstack([getattr(p, s) for p in data.parties]) for s in ("train", "test")]
    labels = np.concatenate([data.train_labels, data.test_labels])
    return {tuple(x.tolist()): int(y) for x, y in zip(np.vstack(rows), labels, strict=True)}


def test_rows_join_by_id_whatever_their_order(bank: FileSource, shop: FileSource) -> None:
    data = load_files([bank, shop])
    assert joined(data) == {(n, n % 7, n / 2, float(n % 2 == 0)): int(n % 3 > 0) for n in range(60)}
    assert [party.columns for party in data.parties] == [("age", "income"), ("spend", "member")]
    assert (data.label_party, data.label_names, data.classes) == ("bank", ("no", "yes"), 2)
    assert data.dropped == {"bank": 0, "shop": 0}
    assert (np.diff(data.parties[0].train[:, 0]) > 0).all()
    assert data.own_rows is None


def test_rows_that_not_every_party_holds_are_dropped_and_counted(
    bank: FileSource, shop: FileSource
) -> None:
    frame = pl.read_parquet(shop.path)
    other = pl.DataFrame({"customer": ["z1", "z2"], "spend": [1.0, 2.0], "member": [True, False]})
    pl.concat([frame.filter(pl.col("customer") > "p004"), other]).write_parquet(shop.path)
    data = load_files([bank, shop])
    assert data.dropped == {"bank": 5, "shop": 2}
    assert len(joined(data)) == 55


def test_labelled_rows_that_others_lack_stay_at_the_label_party(
    bank: FileSource, shop: FileSource
) -> None:
    frame = pl.read_parquet(shop.path).filter(pl.col("customer") > "p009")
    frame.write_parquet(shop.path)
    data = load_files([edit(bank, "p003,3,3,no", "p003,3,3,perhaps"), shop])
    assert data.own_rows is not None
    kept = [n for n in range(10) if n != 3]  # of a class that no common row has
    np.testing.assert_array_equal(data.own_rows.features, [(n, n % 7) for n in kept])
    np.testing.assert_array_equal(data.own_rows.labels, [int(n % 3 > 0) for n in kept])
    assert data.dropped == {"bank": 10, "shop": 0}


def test_labels_of_own_rows_are_compared_by_value(bank: FileSource, shop: FileSource) -> None:
    for old, new in ((",yes", ",1"), (",no", ",0"), ("p000,0,0,0", "p000,0,0,0.0")):
        edit(bank, old, new)
    frame = pl.read_parquet(shop.path).filter(pl.col("customer") > "p001")
    frame.write_parquet(shop.path)
    own = load_files([bank, shop]).own_rows
    assert own is not None
    np.testing.assert_array_equal(own.labels, [0, 1])


def test_a_third_class_of_hardly_any_row_is_warned_of(bank: FileSource, shop: FileSource) -> None:
    def warned() -> list[str]:
        return [note.line for note in load_files([bank, shop]).notes if note.warning]

    assert warned() == []
    trained = [n for n in range(60) if not is_held_out(f"p{n:03}")]
    for n in trained[:4]:
        edit(bank, f"p{n:03},{n},{n % 7},{'yes' if n % 3 else 'no'}", f"p{n:03},{n},{n % 7},?!")
    (line,) = warned()
    assert f"'default' has 3 classes, and of {len(trained)} training rows hardly any are of" in line
    assert "'?!' (4): if that is no class, take its rows out of the file" in line
    n = trained[4]
    edit(bank, f"p{n:03},{n},{n % 7},{'yes' if n % 3 else 'no'}", f"p{n:03},{n},{n % 7},?!")
    assert warned() == []


def test_about_a_fifth_of_the_rows_are_test_rows_and_stay_so(
    bank: FileSource, shop: FileSource
) -> None:
    data = load_files([bank, shop])
    held_out = set(data.parties[0].test[:, 0].tolist())
    assert 4 <= len(held_out) <= 22
    edit(bank, "p000,0,0,no\n", "")
    fewer = set(load_files([bank, shop]).parties[0].test[:, 0].tolist())
    assert fewer == held_out - {0.0}


def test_the_fingerprint_is_that_of_the_training_ids(bank: FileSource, shop: FileSource) -> None:
    before = load_files([bank, shop]).fingerprint
    assert replace(load_files([bank, shop]), name="other").fingerprint == before
    edit(bank, "p000,0,0,no\np001,1,1,yes\np002,2,2,yes\np003,3,3,no\np004,4,4,yes\n", "")
    assert load_files([bank, shop]).fingerprint != before


def test_a_test_file_at_every_party_is_the_test_set(bank: FileSource, shop: FileSource) -> None:
    folder = Path(bank.path).parent
    (folder / "b.csv").write_text("id,age,income,default\nq1,1,2,yes\nq2,3,4,no\nq3,1,1,no\n")
    (folder / "s.csv").write_text("customer,member,spend\nq2,0,9\nq1,1,8\n")
    sources = [replace(bank, test_path=folder / "b.csv"), replace(shop, test_path=folder / "s.csv")]
    data = load_files(sources)
    assert data.parties[0].test.tolist() == [[1, 2], [3, 4]]
    assert data.parties[1].test.tolist() == [[8, 1], [9, 0]]
    assert data.test_labels.tolist() == [1, 0]
    assert data.train_labels.size == 60
    assert data.dropped == {"bank": 1, "shop": 0}
    (folder / "s.csv").write_text("customer,spend,member\np001,9,0\nq1,8,1\n")
    edit(sources[0], "p000,0,0,no\n", "")
    (folder / "b.csv").write_text("id,age,income,default\nq1,1,2,yes\np001,3,4,no\n")
    with pytest.raises(DataError, match="test_data: ids also among the training rows: 1"):
        load_files(sources)


def test_labels_are_numbered_in_the_order_of_numbers(bank: FileSource, shop: FileSource) -> None:
    edit(edit(bank, "yes", "10"), "no", "9.0")
    data = load_files([bank, shop])
    assert data.label_names == ("9", "10")
    assert joined(data)[(0.0, 0.0, 0.0, 1.0)] == 0


def test_chosen_features_keep_their_order(bank: FileSource, shop: FileSource) -> None:
    data = load_files([replace(bank, features=["income", "age"]), shop])
    assert data.parties[0].columns == ("income", "age")
    assert (data.parties[0].train[:, 0] <= 6).all()


def test_gzipped_csv_and_a_byte_order_mark_are_read(bank: FileSource, shop: FileSource) -> None:
    path = Path(str(bank.path) + ".gz")
    path.write_bytes(gzip.compress(b"\xef\xbb\xbf" + Path(bank.path).read_bytes()))
    assert joined(load_files([replace(bank, path=path), shop])) == joined(load_files([bank, shop]))


def test_integer_ids_of_parquet_meet_text_ids_of_csv(tmp_path: Path) -> None:
    numbers = list(range(50))
    pl.DataFrame({"id": numbers, "x": numbers, "y": [n % 2 for n in numbers]}).write_parquet(
        tmp_path / "a.parquet"
    )
    (tmp_path / "b.csv").write_text("id,z\n" + "".join(f"{n},{n}\n" for n in numbers))
    a = FileSource("a", tmp_path / "a.parquet", "id", label_column="y")
    data = load_files([a, FileSource("b", tmp_path / "b.csv", "id")])
    assert data.dropped == {"a": 0, "b": 0}
    assert np.array_equal(data.parties[0].train, data.parties[1].train)


def test_one_party_can_read_its_own_file_alone(shop: FileSource) -> None:
    rows = read_party(shop)
    assert sorted(rows.ids) == IDS
    assert rows.labels is None
    spent = dict(zip(rows.ids, rows.frame["spend"], strict=True))
    assert [spent[row_id] for row_id in IDS[:3]] == [0, 0.5, 1]
    with pytest.raises(ConfigError, match="test_path: party 'shop' has none"):
        read_party(shop, test=True)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("p003,3,3", "p003,,3", "party 'bank': column 'age' has 1 missing value"),
        ("p003,3,3", "p003,x,3", "party 'bank': column 'age' has 1 value that is no number"),
        ("p003,3,3", "p003,nan,3", "party 'bank': column 'age' has 1 missing value"),
        ("p003,3,3", "p003,-inf,3", "party 'bank': column 'age' has 1 infinite value"),
        ("p003,", ",", "party 'bank': column 'id' has 1 missing value"),
        ("p003,", '"",', "party 'bank': column 'id' has 1 missing value"),
        ("p003,", "p004,", "party 'bank': 1 duplicate id in 'id', the first is 'p004'"),
        (
            "3,3,no",
            "3,3,",
            "bank': rows need labels: column 'default' has 1 missing",
        ),
        ("yes", "no", "one class only"),
        (
            "id,age",
            "key,age",
            "party 'bank': bank.csv has no column 'id'; it has key, age, income, default: name one",
        ),
        (
            ",default",
            ",churn",
            "bank.csv has no column 'default'; it has id, age, income, churn: name one",
        ),
        ("age,income", "age,age", "bank.csv: column 'age' is repeated"),
        ("p003,3,3", "p003,3,3,3", "is empty or malformed"),
        ("p003,3,3", "p003,3", "malformed (1 line of fewer than 4 fields, the first is line 5"),
        ("\np", "\nq", r"no common ids among the parties ('bank' 60, 'shop' 60 ids)"),
    ],
)
def test_bad_files_are_refused_by_party_column_and_count(
    bank: FileSource, shop: FileSource, old: str, new: str, message: str
) -> None:
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        load_files([edit(bank, old, new), shop])
    assert "\n" not in str(caught.value)


def test_labels_that_are_not_finite_are_refused(bank: FileSource, shop: FileSource) -> None:
    edit(edit(edit(bank, "yes", "1"), "no", "0"), "3,3,0", "3,3,nan")
    with pytest.raises(DataError, match="column 'default' has 1 NaN or infinite labels"):
        load_files([bank, shop])


def test_a_class_among_the_test_rows_only_is_refused(bank: FileSource, shop: FileSource) -> None:
    held_out = int(load_files([bank, shop]).parties[0].test[0, 0])
    text = Path(bank.path).read_text()
    Path(bank.path).write_text(re.sub(rf"(p{held_out:03},.*),\w+", r"\1,maybe", text))
    with pytest.raises(
        DataError, match="'default': 1 class occurs among the test rows only: maybe"
    ):
        load_files([bank, shop])


@pytest.mark.parametrize("text", ["", "id,age,income,default\n"])
def test_an_empty_file_is_refused(bank: FileSource, shop: FileSource, text: str) -> None:
    Path(bank.path).write_text(text)
    with pytest.raises(DataError, match=r"party 'bank': .* (is empty|has no rows)"):
        load_files([bank, shop])


def test_a_damaged_parquet_file_is_refused(bank: FileSource, shop: FileSource) -> None:
    Path(shop.path).write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"party 'shop': .* malformed"):
        load_files([bank, shop])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("id,age", "id,a\x1b[2Jge", r"column 'a\x1b[2Jge' has control characters in its name"),
        ("3,3,no", "3,3,n\x1bo", r"has the class 'n\x1bo', whose name has control characters"),
        ("p003,3,3", "p003,\x9b3,3", r"feature 'age=\x9b3' would have control characters"),
    ],
)
def test_names_that_could_steer_a_terminal_are_refused(
    bank: FileSource, shop: FileSource, old: str, new: str, message: str
) -> None:
    preprocess = Preprocessing(categories=("age",), rare_count=1, rare_share=0.0)
    changed = edit(replace(bank, preprocess=preprocess if "\x9b" in new else None), old, new)
    with pytest.raises(DataError, match=re.escape(message)):
        load_files([changed, shop])


def test_a_doubled_quote_in_a_header_is_one(bank: FileSource, shop: FileSource) -> None:
    edit(bank, "id,age", 'id,"a""ge"')
    assert load_files([bank, shop]).parties[0].columns[0] == 'a"ge'


def test_categories_that_no_party_has_are_refused(bank: FileSource, shop: FileSource) -> None:
    shared = Preprocessing(categories=("age", "zip"))
    both = [replace(bank, preprocess=shared), replace(shop, preprocess=shared)]
    message = "no column 'zip' to train on; 'bank' has age, income; 'shop' has "
    with pytest.raises(ConfigError, match=message):
        load_files(both)
    load_files([replace(each, preprocess=Preprocessing(categories=("age",))) for each in both])
    own = replace(shop, preprocess=Preprocessing(categories=("age",)))
    with pytest.raises(ConfigError, match="no column 'age' to train on; 'shop' has "):
        load_files([bank, own])
    with pytest.raises(ConfigError, match="no column 'age' to train on; 'shop' has "):
        own_keys(own, by_id=True)
    own_keys(own, by_id=True, shared=True)


def test_too_many_columns_are_refused_before_they_are_read(
    bank: FileSource, shop: FileSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "MOST_COLUMNS", 1)
    with pytest.raises(DataError, match=r"bank\.csv has 2 columns, at most 1 can be read: name"):
        load_files([bank, shop])
    load_files(
        [
            replace(each, features=[each_column])
            for each, each_column in ((bank, "age"), (shop, "spend"))
        ]
    )


@pytest.mark.parametrize("values", [["2020-01-01"], [[1, 2]]])
def test_columns_that_are_not_numeric_are_refused(
    bank: FileSource, shop: FileSource, values: list[object]
) -> None:
    column = pl.Series("when", values * 60)
    if column.dtype == pl.String:
        column = column.str.to_date()
    pl.read_parquet(shop.path).with_columns(column).write_parquet(shop.path)
    with pytest.raises(DataError, match=r"party 'shop': column 'when' is \S+, expected numbers"):
        load_files([bank, shop])


@pytest.mark.parametrize(
    ("of_bank", "of_shop", "message"),
    [
        (
            {"test_path": Path("t.csv")},
            {},
            "test_data is missing at 'shop': give it at every party",
        ),
        ({"path": Path("none.csv")}, {}, "none.csv: cannot be read"),
        ({}, {"id_column": "spend"}, "ids in 'spend' are Float64, expected text or integers"),
        ({"features": []}, {}, "party 'bank': no feature columns"),
        ({}, {"label_column": "member"}, "label_column: given at ['bank', 'shop']"),
        ({"label_column": None}, {}, "label_column: given at no party"),
        ({}, {"name": "bank"}, "not all different"),
        *(
            ({"features": ["age", twice]}, {}, f"column '{twice}' of party 'bank' is used twice")
            for twice in ("id", "default", "age")
        ),
    ],
)
def test_sources_that_cannot_be_are_refused(
    bank: FileSource,
    shop: FileSource,
    of_bank: dict[str, Any],
    of_shop: dict[str, Any],
    message: str,
) -> None:
    with pytest.raises((ConfigError, DataError), match=re.escape(message)):
        load_files([replace(bank, **of_bank), replace(shop, **of_shop)])


def test_one_party_and_another_suffix_are_refused(bank: FileSource, shop: FileSource) -> None:
    with pytest.raises(ConfigError, match="parties: 1, expected at least 2"):
        load_files([bank])
    path = bank.path.rename(bank.path.with_suffix(".xls"))
    with pytest.raises(ConfigError, match=r"expected \.csv, \.csv\.gz or \.parquet"):
        load_files([replace(bank, path=path), shop])


def test_real_files_of_two_parties_join(real_file: Callable[[str], Path]) -> None:
    guest = FileSource("guest", real_file("fate/breast_hetero_guest.csv.gz"), "id", "y")
    host = FileSource("host", real_file("fate/breast_hetero_host.csv.gz"), "id")
    data = load_files([guest, host])
    assert [len(party.columns) for party in data.parties] == [10, 20]
    assert data.train_labels.size + data.test_labels.size == 569
    assert data.label_names == ("0", "1")
