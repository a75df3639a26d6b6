"""The benchmark sets against their reference figures (scikit-learn logistic regression)."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from securevfl.data import PartyTable, Scaling, VerticalDataset, where

Load = Callable[..., VerticalDataset]


def auc(data: VerticalDataset, parties: Sequence[PartyTable], c: float = 1.0) -> float:
    train, test = [], []
    for party in parties:
        scaling = Scaling.fit(party.train) if data.standardize else None
        train.append(scaling.apply(party.train) if scaling else party.train)
        test.append(scaling.apply(party.test) if scaling else party.test)
    model = LogisticRegression(C=c, max_iter=2000).fit(np.hstack(train), data.train_labels)
    return float(roc_auc_score(data.test_labels, model.decision_function(np.hstack(test))))


def test_a9a_has_the_reference_auc_jointly_and_locally(real_data: Load) -> None:
    data = real_data("a9a")
    first, second = data.parties
    assert (len(first.columns), len(second.columns), data.label_party) == (67, 56, "first")
    assert auc(data, data.parties) == pytest.approx(0.9022, abs=2e-4)
    assert auc(data, [first]) == pytest.approx(0.8856, abs=2e-4)
    assert auc(data, [second]) == pytest.approx(0.7684, abs=2e-4)


def test_credit_has_the_reference_auc_jointly_and_locally(real_data: Load) -> None:
    data = real_data("credit")
    a, b = data.parties
    assert (a.name, b.name, len(a.columns), len(b.columns)) == ("A", "B", 18, 15)
    assert auc(data, data.parties) == pytest.approx(0.7203, abs=2e-4)
    assert auc(data, [a]) == pytest.approx(0.7144, abs=2e-4)
    assert auc(data, [b]) == pytest.approx(0.6311, abs=2e-4)


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
    text, image = data.parties
    assert np.bincount(data.train_labels).tolist() == [1901, 272]
    assert auc(data, [text]) == pytest.approx(0.987, abs=1e-3)
    assert auc(data, [image], 0.01) == pytest.approx(0.767, abs=1e-3)


def test_mfeat_even_odd_has_two_views_of_a_digit(real_data: Load) -> None:
    data, digits = real_data("mfeat-even-odd"), real_data("mfeat")
    pix, fou = data.parties
    assert (len(pix.columns), len(fou.columns), data.label_party) == (240, 76, "pix")
    assert np.array_equal(data.train_labels, digits.train_labels % 2)
    assert auc(data, [pix], 0.1) == pytest.approx(0.9916, abs=1e-3)
    assert auc(data, [fou], 0.1) == pytest.approx(0.9066, abs=1e-3)


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


def test_icu2012_has_the_reference_auc_jointly_and_locally(real_data: Load) -> None:
    data = real_data("icu2012")
    bedside, labs = data.parties
    assert (len(bedside.columns), len(labs.columns), data.label_party) == (95, 132, "bedside")
    assert auc(data, data.parties, 0.003) == pytest.approx(0.8685, abs=2e-4)
    assert auc(data, [bedside], 0.003) == pytest.approx(0.8461, abs=1e-3)
    assert auc(data, [labs], 0.003) == pytest.approx(0.7762, abs=1e-3)


def test_icu2012_714_has_the_reference_auc(real_data: Load) -> None:
    data = real_data("icu2012-714")
    assert [len(party.columns) for party in data.parties] == [336, 378]
    assert data.label_party == "party2"
    assert auc(data, data.parties, 0.001) == pytest.approx(0.8464, abs=2e-4)


@pytest.mark.parametrize(
    ("parties", "columns"),
    [(5, [126, 126, 126, 168, 168]), (17, [42] * 17), (3, [210, 252, 252])],
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


def test_three_against_eight_has_the_reference_auc(real_data: Load) -> None:
    data = real_data("mnist-3v8")
    assert (data.label_names, data.label_party) == (("3", "8"), "right")
    assert auc(data, data.parties, 0.1) == pytest.approx(0.9935, abs=2e-4)
    assert auc(data, [data.parties[0]], 0.1) == pytest.approx(0.9835, abs=2e-4)


def test_even_and_odd_digits_keep_all_rows(real_data: Load) -> None:
    data = real_data("mnist-even-odd")
    assert np.bincount(data.train_labels).tolist() == [29492, 30508]
    assert data.label_names == ("even", "odd")


@pytest.mark.parametrize(
    "name",
    [
        *("a9a", "credit", "credit-swapped", "icu2012", "icu2012-714", "mnist", "mnist-4v9"),
        *("wikipedia", "wikipedia-biology", "mfeat", "mfeat-even-odd"),
    ],
)
def test_the_catalog_tells_the_truth(real_data: Load, name: str) -> None:
    data, entry = real_data(name), where(name).entry
    assert entry.rows == (data.train_labels.size, data.test_labels.size)
    assert entry.columns == sum(len(party.columns) for party in data.parties)
    assert entry.classes == data.classes
    assert entry.parties == tuple(party.name for party in data.parties)
