"""The benchmark sets against their reference figures (scikit-learn logistic regression)."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from securevfl.data import PartyTable, Scaling, VerticalDataset, load, where

Load = Callable[..., VerticalDataset]
EMBEDDED = ("breast_cancer", "digits")


def auc(data: VerticalDataset, parties: Sequence[PartyTable], c: float = 1.0) -> float:
    train, test = [], []
    for party in parties:
        scaling = Scaling.fit(party.train) if data.standardize else None
        train.append(scaling.apply(party.train) if scaling else party.train)
        test.append(scaling.apply(party.test) if scaling else party.test)
    model = LogisticRegression(C=c, max_iter=2000).fit(np.hstack(train), data.train_labels)
    return float(roc_auc_score(data.test_labels, model.decision_function(np.hstack(test))))


Party = tuple[str, int, float | None]
# Regularization, tolerance of the parts, AUC of all and by party.
REFERENCES: list[tuple[str, float, float, float | None, list[Party]]] = [
    ("a9a", 1.0, 2e-4, 0.9022, [("first", 67, 0.8856), ("second", 56, 0.7684)]),
    ("credit", 1.0, 2e-4, 0.7203, [("A", 18, 0.7144), ("B", 15, 0.6311)]),
    ("icu2012", 0.003, 1e-3, 0.8685, [("bedside", 95, 0.8461), ("labs", 132, 0.7762)]),
    ("icu2012-714", 0.001, 1e-3, 0.8464, [("party1", 336, None), ("party2", 378, None)]),
    ("mnist-3v8", 0.1, 2e-4, 0.9935, [("left", 392, 0.9835), ("right", 392, None)]),
    ("mfeat-even-odd", 0.1, 1e-3, None, [("pix", 240, 0.9916), ("fou", 76, 0.9066)]),
    ("wikipedia-biology", 1.0, 1e-3, None, [("text", 10, 0.987), ("image", 128, None)]),
]


@pytest.mark.parametrize("reference", REFERENCES, ids=lambda each: each[0])
def test_a_set_has_the_reference_auc_jointly_and_locally(
    real_data: Load, reference: tuple[str, float, float, float | None, list[Party]]
) -> None:
    name, c, near, joint, parties = reference
    data = real_data(name)
    held = [(party.name, len(party.columns)) for party in data.parties]
    assert held == [(party, columns) for party, columns, _ in parties]
    assert data.label_party == held[name in ("icu2012-714", "mnist-3v8")][0]
    assert joint is None or auc(data, data.parties, c) == pytest.approx(joint, abs=2e-4)
    for table, (_, _, alone) in zip(data.parties, parties, strict=True):
        assert alone is None or auc(data, [table], c) == pytest.approx(alone, abs=near)
    if name == "mnist-3v8":
        assert data.label_names == ("3", "8")


def test_credit_swapped_has_the_same_rows_with_the_labels_beside_demographics(
    real_data: Load,
) -> None:
    swapped, data = real_data("credit-swapped"), real_data("credit")
    assert [table.name for table in swapped.parties] == ["A", "B"]
    assert swapped.label_party == "A"
    for one, other in zip(swapped.parties, reversed(data.parties), strict=True):
        assert one.columns == other.columns
        assert np.array_equal(one.train, other.train)
        assert np.array_equal(one.test, other.test)
    assert np.array_equal(swapped.train_labels, data.train_labels)


def test_wikipedia_has_text_and_labels_at_one_party_and_images_at_the_other(
    real_data: Load, real_file: Callable[[str], str]
) -> None:
    data = real_data("wikipedia")
    text, image = data.parties
    assert (len(text.columns), len(image.columns), data.label_party) == (10, 128, "text")
    with np.load(real_file("multiview/wikipedia_image_text.npz"), allow_pickle=False) as arrays:
        assert np.array_equal(image.test, arrays["X_image_test"])
        assert np.array_equal(text.train, arrays["X_text_train"])
        assert np.array_equal(data.train_labels, arrays["y_train"])


def test_wikipedia_biology_is_one_category_against_the_others(real_data: Load) -> None:
    data = real_data("wikipedia-biology")
    assert np.bincount(data.train_labels).tolist() == [1901, 272]
    assert auc(data, [data.parties[1]], 0.01) == pytest.approx(0.767, abs=1e-3)


def test_mfeat_even_odd_has_two_views_of_a_digit(real_data: Load) -> None:
    data, digits = real_data("mfeat-even-odd"), real_data("mfeat")
    assert np.array_equal(data.train_labels, digits.train_labels % 2)


def test_credit_is_split_as_the_reference_file(
    real_data: Load, real_file: Callable[[str], str]
) -> None:
    data = real_data("credit")
    with np.load(real_file("credit/credit.npz"), allow_pickle=False) as reference:
        train = reference["split"] == 0
        limit, labels = reference["X"][:, 0], reference["y"]
    assert np.array_equal(data.train_labels, labels[train])
    assert np.array_equal(data.test_labels, labels[~train])
    b = data.parties[1]
    assert np.array_equal(b.train[:, b.columns.index("LIMIT_BAL")], limit[train])
    one_hot = b.train[:, [i for i, name in enumerate(b.columns) if "=" in name]]
    assert (one_hot.sum(axis=1) == 3).all()


@pytest.mark.parametrize(
    ("parties", "columns"), [(5, [126, 126, 126, 168, 168]), (17, [42] * 17), (3, [210, 252, 252])]
)
def test_icu2012_714_parts_by_whole_variables(
    real_data: Load, parties: int, columns: list[int]
) -> None:
    data = real_data("icu2012-714", parties=parties)
    assert [len(party.columns) for party in data.parties] == columns
    assert data.label_party == f"party{parties}"
    held = [{name.partition("_")[0] for name in party.columns} for party in data.parties]
    assert [len(variables) * 42 for variables in held] == columns
    assert sum(map(len, held)) == len(set.union(*held)) == 17


def test_even_and_odd_digits_keep_all_rows(real_data: Load) -> None:
    data = real_data("mnist-even-odd")
    assert np.bincount(data.train_labels).tolist() == [29492, 30508]
    assert data.label_names == ("even", "odd")


@pytest.mark.parametrize(
    "name",
    [
        *("a9a", "credit", "credit-swapped", "icu2012", "icu2012-714", "mnist", "mnist-4v9"),
        *("wikipedia", "wikipedia-biology", "mfeat", "mfeat-even-odd", *EMBEDDED),
    ],
)
def test_the_catalog_tells_the_truth(real_data: Load, name: str) -> None:
    data, entry = (load if name in EMBEDDED else real_data)(name), where(name).entry
    assert entry.rows == (data.train_labels.size, data.test_labels.size)
    assert entry.columns == sum(len(party.columns) for party in data.parties)
    assert entry.classes == data.classes
    assert entry.parties == tuple(party.name for party in data.parties)
