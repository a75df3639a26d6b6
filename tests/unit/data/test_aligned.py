"""A party from its own file and the aligned ids, without anyone else's data."""

import json
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from securevfl.data import (
    AlignedIds,
    FileSource,
    align_files,
    load_files,
    load_party,
    read_aligned,
    row_digests,
    write_aligned,
)
from securevfl.data.tables import check, some_test_rows
from securevfl.errors import DataError

IDS = [f"p{number:02}" for number in range(40)]
ALIGNED = AlignedIds(("p03", "p01"), ("p00", "p02"), 2)


@pytest.fixture
def bank(tmp_path: Path) -> FileSource:
    path = tmp_path / "bank.csv"
    rows = [f"{row_id},{n},{'yes' if n % 3 else 'no'}" for n, row_id in enumerate(IDS)]
    path.write_text("\n".join(["id,age,default", *rows]) + "\n")
    return FileSource("bank", path, "id", label_column="default")


@pytest.fixture
def shop(tmp_path: Path) -> FileSource:
    path = tmp_path / "shop.csv"
    rows = [f"{n / 2},{row_id}" for n, row_id in reversed(list(enumerate(IDS[2:])))]
    path.write_text("\n".join(["spend,customer", *rows, "9,other"]) + "\n")
    return FileSource("shop", path, "customer")


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    path = tmp_path / "aligned.json"
    write_aligned(path, ALIGNED)
    return path


def test_parties_one_by_one_are_those_of_the_joint_data_set(
    bank: FileSource, shop: FileSource, tmp_path: Path
) -> None:
    joint = load_files([bank, shop])
    write_aligned(tmp_path / "ids.json", align_files([bank, shop]))
    aligned = read_aligned(tmp_path / "ids.json")
    np.testing.assert_array_equal(row_digests(aligned.train), joint.row_digests)
    assert aligned.classes == joint.classes
    assert {*aligned.train, *aligned.test} == set(IDS[2:])
    for source, table in zip((bank, shop), joint.parties, strict=True):
        own = load_party(source, aligned)
        assert (own.table.name, own.table.columns) == (table.name, table.columns)
        assert np.array_equal(own.table.train, table.train)
        assert np.array_equal(own.table.test, table.test)
        if source is bank:
            assert own.train_labels is not None
            assert own.test_labels is not None
            assert np.array_equal(own.train_labels, joint.train_labels)
            assert np.array_equal(own.test_labels, joint.test_labels)
            assert own.label_names == ("no", "yes")
        else:
            assert own.train_labels is own.test_labels is None


def test_rows_stand_in_the_manifests_order(bank: FileSource) -> None:
    own = load_party(bank, ALIGNED)
    assert own.table.train.tolist() == [[3], [1]]
    assert own.table.test.tolist() == [[0], [2]]
    assert own.train_labels is not None
    assert own.train_labels.tolist() == [0, 1]


def test_a_party_reads_no_other_partys_file(bank: FileSource, shop: FileSource) -> None:
    aligned = align_files([bank, shop])
    bank.path.unlink()
    load_party(shop, aligned)


def test_test_rows_may_stand_in_a_file_of_their_own(bank: FileSource) -> None:
    path = bank.path.with_name("test.csv")
    path.write_text("id,default,age\nq1,yes,7\nq2,no,8\n")
    own = load_party(replace(bank, test_path=path), replace(ALIGNED, test=("q2", "q1")))
    assert own.table.test.tolist() == [[8], [7]]
    assert own.test_labels is not None
    assert own.test_labels.tolist() == [0, 1]


def test_a_manifest_holds_ids_and_the_number_of_classes_only(manifest: Path) -> None:
    assert read_aligned(manifest) == ALIGNED
    assert json.loads(manifest.read_text()) == {
        "format": 1,
        "fingerprint": ALIGNED.fingerprint,
        "classes": 2,
        "train": ["p03", "p01"],
        "test": ["p00", "p02"],
    }


@pytest.mark.parametrize(
    ("aligned", "message"),
    [
        ({"train": ("p03", "zz", "zy")}, "2 of 3 aligned ids missing in 'id', the first is 'zz'"),
        ({"test": ("p00", "zz")}, "1 of 2 aligned ids missing in 'id', the first is 'zz'"),
        ({"classes": 3}, "2 classes in 'default', the aligned ids say 3"),
        ({"test": ("p01", "p02"), "train": ("p00", "p03")}, "'default': 1 class occurs"),
        ({"test": ("p00", "p06")}, "one class only among 2 test rows"),
    ],
)
def test_a_file_that_does_not_fit_the_manifest_is_refused(
    bank: FileSource, aligned: dict[str, object], message: str
) -> None:
    fits = AlignedIds(**{**asdict(ALIGNED), **aligned})
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        load_party(bank, fits)
    assert "party 'bank'" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("p03", "p04"), "its ids do not match its fingerprint"),
        (lambda text: text.replace('"p02"', '"p01"'), "aligned ids: 1 of 4 are duplicates"),
        (lambda text: text.replace('"format": 1', '"format": 2'), "format 2, expected 1"),
        (lambda text: text.replace('"classes": 2', '"classes": 1'), "1 classes, expected"),
        (lambda text: text.replace('"classes": 2', '"classes": "2"'), "no aligned ids (classes: "),
        (lambda text: text.replace('"format"', '"age": 3, "format"'), "no aligned ids (age: "),
        (lambda text: text.replace('"p02"', "2"), "no aligned ids (test.1: "),
        (lambda text: text[:-9], "no aligned ids (file: "),
        (lambda text: "", "no aligned ids (file: "),
    ],
)
def test_a_damaged_manifest_is_refused(
    manifest: Path, change: Callable[[str], str], message: str
) -> None:
    manifest.write_text(change(manifest.read_text()))
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        read_aligned(manifest)
    assert "\n" not in str(caught.value)


def test_a_missing_manifest_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.json: cannot be read"):
        read_aligned(tmp_path / "none.json")


@pytest.mark.parametrize(("split", "split_name"), [("train", "training"), ("test", "test")])
def test_a_split_without_rows_is_refused(split: str, split_name: str) -> None:
    with pytest.raises(DataError, match=f"no {split_name} rows"):
        AlignedIds(**{**asdict(ALIGNED), split: ()})


def test_some_held_out_rows_keep_who_they_are(bank: FileSource, shop: FileSource) -> None:
    whole = load_files([bank, shop])
    some = some_test_rows(whole, 2)
    check(some)
    digests = [{party.rows_digest for party in each.parties} for each in (whole, some)]
    assert [len(each) for each in digests] == [1, 1]
    assert digests[0] != digests[1]
