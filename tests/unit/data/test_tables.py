import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from securevfl.data import VerticalDataset, check, fingerprint, load
from securevfl.data.tables import as_array, as_classes, some_rows, some_test_rows, without_rows
from securevfl.errors import ConfigError, DataError
from securevfl.job import Job
from securevfl.training import train
from tests.sparse_data import sparse_rows

COLUMN = load("breast_cancer").parties[1].columns[2]


def dataset(**changes: Any) -> VerticalDataset:  # noqa: ANN401
    return replace(load("breast_cancer"), **changes)


def with_party(**changes: Any) -> VerticalDataset:  # noqa: ANN401
    good = load("breast_cancer")
    return replace(good, parties=(good.parties[0], replace(good.parties[1], **changes)))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("split", "word"), [("train", "training"), ("test", "test")])
def test_features_that_are_not_finite_are_counted_by_party_and_column(
    split: str, word: str, value: float
) -> None:
    values = getattr(load("breast_cancer").parties[1], split).copy()
    values[3:5, 2] = value
    expected = f"party 'party2': column {COLUMN!r} has 2 NaN or infinite {word}"
    with pytest.raises(DataError, match=re.escape(expected)):
        check(with_party(**{split: values}))


def test_names_that_no_model_file_may_have_are_refused_before_training() -> None:
    columns = load("breast_cancer").parties[1].columns[1:]
    train(Job.of(job={"rounds": 1}), with_party(columns=("größe\n\t", *columns)))
    with pytest.raises(DataError, match=r"'party2': column 'a\\rb' has control characters"):
        train(Job.of(job={"rounds": 1}), with_party(columns=("a\rb", *columns)))
    with pytest.raises(DataError, match=r"class '\\x1b\[1m' has control characters"):
        train(Job.of(job={"rounds": 1}), dataset(label_names=("no", "\x1b[1m")))


@pytest.mark.parametrize(("split", "rows"), [("train", 456), ("test", 113)])
def test_parties_with_different_row_counts_are_refused(split: str, rows: int) -> None:
    values = getattr(load("breast_cancer").parties[1], split)[:-1]
    with pytest.raises(DataError, match=f"'party2': {rows - 1} .* rows and {rows} labels"):
        check(with_party(**{split: values}))


@pytest.mark.parametrize("split", ["train", "test"])
def test_one_class_only_is_refused(split: str) -> None:
    labels = getattr(load("breast_cancer"), f"{split}_labels")
    with pytest.raises(DataError, match="one class only"):
        check(dataset(**{f"{split}_labels": np.zeros_like(labels)}))


@pytest.mark.parametrize("shift", [-1, 1])
def test_labels_out_of_range_are_refused(shift: int) -> None:
    labels = load("breast_cancer").train_labels + shift
    with pytest.raises(DataError, match=r"training labels span .*, expected 0\.\.1"):
        check(dataset(train_labels=labels))


def test_a_table_without_training_rows_is_refused_and_one_without_held_out_rows_is_not() -> None:
    good = load("breast_cancer")
    check(good)
    untrained = tuple(replace(party, train=party.train[:0], people=None) for party in good.parties)
    with pytest.raises(DataError, match="no training rows"):
        check(replace(good, parties=untrained, train_labels=good.train_labels[:0]))
    unscored = tuple(replace(party, test=party.test[:0], people=None) for party in good.parties)
    check(replace(good, parties=unscored, test_labels=good.test_labels[:0]))
    with pytest.raises(DataError, match="0 test rows and"):
        check(replace(good, parties=unscored))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"parties": load("breast_cancer").parties[:1]}, r"parties: 1 .* expected at least 2"),
        ({"parties": load("breast_cancer").parties[:1] * 2}, "not all different"),
        ({"label_party": "bank"}, "label_party: 'bank'"),
    ],
)
def test_parties_that_cannot_be_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check(dataset(**wrong))


def test_a_table_that_does_not_fit_its_columns_or_has_none_is_refused() -> None:
    with pytest.raises(DataError, match="expected rows x 2 columns"):
        check(with_party(columns=("a", "b")))
    with pytest.raises(DataError, match="at least 1"):
        check(with_party(columns=(), train=np.empty((456, 0)), test=np.empty((113, 0))))


def test_the_fingerprint_follows_ids_and_order_but_not_the_name() -> None:
    assert fingerprint(["1", "23"]) == fingerprint([1, 23])
    others = (["12", "3"], ["23", "1"], ["1"], ["1", "23", ""])
    assert len({fingerprint(ids) for ids in (["1", "23"], *others)}) == 5


def test_party_tables_are_frozen() -> None:
    with pytest.raises(AttributeError):
        load("breast_cancer").parties[0].name = "b"  # type: ignore[misc]


def test_rows_left_out_leave_the_others_in_their_order() -> None:
    whole = load("breast_cancer")
    gone = np.array([7, 2])
    left = without_rows(whole, gone)
    kept = [row for row in range(456) if row not in gone]
    for one, other in zip(whole.parties, left.parties, strict=True):
        np.testing.assert_array_equal(other.train, one.train[kept])
        np.testing.assert_array_equal(other.test, one.test)
    np.testing.assert_array_equal(left.train_labels, whole.train_labels[kept])
    assert left.fingerprint == without_rows(whole, gone[::-1]).fingerprint
    assert (
        len({whole.fingerprint, left.fingerprint, without_rows(whole, gone[:1]).fingerprint}) == 3
    )


@pytest.mark.parametrize(
    ("make", "told"),
    [
        *(
            (lambda data, gone=gone: without_rows(data, np.array(gone)), "without")
            for gone in ([456], [3, 3], list(range(455)))
        ),
        (lambda data: some_rows(data, 1), "rows = 1: expected 2 to 456"),
        (lambda data: some_rows(data, 457), "rows = 457: expected 2 to 456"),
        (lambda _: as_classes(load("diabetes").train_labels), "real targets, expected classes"),
    ],
)
def test_what_cannot_be_taken_or_left_out_is_refused(
    make: Callable[[VerticalDataset], object], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        make(load("breast_cancer"))


@pytest.mark.parametrize("split", ["training", "test"])
def test_labels_are_classes_or_finite_targets_as_the_data_set_says(split: str) -> None:
    key = "train_labels" if split == "training" else "test_labels"
    classes, diabetes = load("breast_cancer"), load("diabetes")
    with pytest.raises(DataError, match=f"{split} labels are float64, with 2 classes"):
        check(replace(classes, **{key: getattr(classes, key).astype(np.float64)}))
    targets = getattr(diabetes, key).copy()
    targets[:3] = np.nan, np.inf, -np.inf
    with pytest.raises(DataError, match=f"3 NaN or infinite {split} targets"):
        check(replace(diabetes, **{key: targets}))


def test_sparse_rows_that_are_too_many_for_an_array_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = sparse_rows(np.eye(8))
    assert np.array_equal(as_array(rows, "shop"), np.eye(8))
    monkeypatch.setattr("securevfl.data.tables.MOST_CELLS", 63)
    with pytest.raises(ConfigError, match="shop: 8 rows of 8 sparse columns need"):
        as_array(rows, "shop")


def test_some_held_out_rows_are_of_all_classes_evenly() -> None:
    data = load("breast_cancer")
    some = some_test_rows(data, 20)
    shares = [float(np.mean(each.test_labels)) for each in (some, data)]
    assert len(some.test_labels) == 20
    assert abs(shares[0] - shares[1]) <= 0.05
    assert all(len(party.test) == 20 for party in some.parties)
    np.testing.assert_array_equal(some.train_labels, data.train_labels)
    assert len(some_test_rows(data, 10**6).test_labels) == len(data.test_labels)
    with pytest.raises(ConfigError, match="rows = 1"):
        some_test_rows(data, 1)
