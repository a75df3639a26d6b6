"""A party from its own file and the ids that all hold, without anyone else's data."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from securevfl.data import FileSource, OwnData, load_files, row_digests
from securevfl.data.ids import is_held_out
from securevfl.data.join import load_own
from securevfl.data.tables import check, some_test_rows
from securevfl.errors import DataError

IDS = [f"p{number:02}" for number in range(40)]
TRAIN, TEST = ("p03", "p01"), ("p00", "p02")


def own_part(
    source: FileSource, train: Sequence[str] = TRAIN, test: Sequence[str] = TEST
) -> OwnData:
    return load_own(source, train, test, regression=False)


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


def test_parties_one_by_one_are_those_of_the_joint_data_set(
    bank: FileSource, shop: FileSource
) -> None:
    joint = load_files([bank, shop])
    train, test = ([each for each in IDS[2:] if is_held_out(each) == out] for out in (False, True))
    np.testing.assert_array_equal(row_digests(train), joint.row_digests)
    for source, table in zip((bank, shop), joint.parties, strict=True):
        own = own_part(source, train, test)
        source.path.unlink()  # no party reads another one's file
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


def test_rows_stand_in_the_order_in_common(bank: FileSource) -> None:
    own = own_part(bank)
    assert own.table.train.tolist() == [[3], [1]]
    assert own.table.test.tolist() == [[0], [2]]
    assert own.train_labels is not None
    assert own.train_labels.tolist() == [0, 1]


def test_test_rows_may_stand_in_a_file_of_their_own(bank: FileSource) -> None:
    path = bank.path.with_name("test.csv")
    path.write_text("id,default,age\nq1,yes,7\nq2,no,8\n")
    own = own_part(replace(bank, test_path=path), test=("q2", "q1"))
    assert own.table.test.tolist() == [[8], [7]]
    assert own.test_labels is not None
    assert own.test_labels.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"train": ("p03", "zz", "zy")}, "2 of 3 ids in common are missing in 'id', the first is"),
        ({"test": ("p00", "zz")}, "1 of 2 ids in common are missing in 'id', the first is 'zz'"),
        ({"train": ("p00", "p03"), "test": ("p01", "p02")}, "'default': 1 class occurs"),
    ],
)
def test_a_file_that_lacks_ids_or_classes_is_refused(
    bank: FileSource, wanted: dict[str, Sequence[str]], message: str
) -> None:
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        own_part(bank, **wanted)
    assert "party 'bank'" in str(caught.value)


def test_files_without_rows_to_score_are_refused(bank: FileSource, shop: FileSource) -> None:
    kept = [n for n, row_id in enumerate(IDS) if not is_held_out(row_id)]
    rows = [f"{IDS[n]},{n},{'yes' if n % 3 else 'no'}" for n in kept]
    bank.path.write_text("\n".join(["id,age,default", *rows]) + "\n")
    with pytest.raises(DataError, match="no test rows, expected at least 1"):
        load_files([bank, shop])


def test_some_held_out_rows_keep_who_they_are(bank: FileSource, shop: FileSource) -> None:
    whole = load_files([bank, shop])
    some = some_test_rows(whole, 2)
    check(some)
    digests = [{party.rows_digest for party in each.parties} for each in (whole, some)]
    assert [len(each) for each in digests] == [1, 1]
    assert digests[0] != digests[1]
