from importlib.machinery import ModuleSpec

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_digits

from securevfl.data import load, sources
from securevfl.data.sources import digits
from securevfl.data.splits import block_sizes, first_fifth, stratified_fifth
from securevfl.errors import ConfigError, DataError


def test_breast_cancer_has_two_parties_of_fifteen_and_the_first_holds_the_labels() -> None:
    data = load("breast_cancer")
    assert [(party.name, party.train.shape) for party in data.parties] == [
        ("party1", (456, 15)),
        ("party2", (456, 15)),
    ]
    assert (data.label_party, data.standardize, data.classes) == ("party1", True, 2)


def test_the_test_rows_are_the_first_fifth_of_the_documented_permutation() -> None:
    order = np.random.default_rng(0).permutation(569)
    data = load("breast_cancer")
    everything = np.vstack([data.parties[0].train, data.parties[0].test])
    assert len(data.parties[0].test) == 113
    # Row 0 of the source has mean radius 17.99.
    assert (0 in order[:113]) == (17.99 in data.parties[0].test[:, 0])
    assert np.unique(everything, axis=0).shape[0] == 569


def test_digits_part_into_the_left_and_right_half_of_the_image() -> None:
    data = load("digits")
    left, right = data.parties
    assert (left.name, right.name, data.label_party) == ("left", "right", "right")
    assert [party.name for party in load("digits", parties=2).parties] == ["left", "right"]
    assert {name.partition("_column")[2] for name in left.columns} == set("0123")
    assert {name.partition("_column")[2] for name in right.columns} == set("4567")
    assert left.train.max() == 1.0
    assert not data.standardize
    images = load_digits().images
    pixel = right.columns.index("row2_column5")
    everywhere = np.concatenate([right.train[:, pixel], right.test[:, pixel]])
    assert np.array_equal(np.sort(everywhere), np.sort(images[:, 2, 5] / 16))


@pytest.mark.parametrize(("parties", "sizes"), [(3, [10] * 3), (4, [7, 7, 8, 8]), (30, [1] * 30)])
def test_columns_part_into_contiguous_nearly_equal_blocks(parties: int, sizes: list[int]) -> None:
    data, two = load("breast_cancer", parties=parties), load("breast_cancer")
    assert [party.train.shape[1] for party in data.parties] == sizes
    assert [party.name for party in data.parties] == [f"party{k + 1}" for k in range(parties)]
    for split in ("train", "test"):
        one, other = (np.hstack([getattr(p, split) for p in d.parties]) for d in (data, two))
        assert np.array_equal(one, other)
    assert data.label_party == "party1"
    # The last one where the default is the last.
    assert load("digits", parties=4).label_party == "party4"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (None, "scikit-learn is not installed"),
        (ModuleSpec("sklearn", None, origin="/nowhere/sklearn/__init__.py"), "No such file"),
    ],
)
def test_embedded_data_that_are_not_there_are_reported(
    monkeypatch: pytest.MonkeyPatch, spec: ModuleSpec | None, message: str
) -> None:
    monkeypatch.setattr(sources, "find_spec", lambda _: spec)
    with pytest.raises(DataError, match=message):
        load("digits")


@pytest.mark.parametrize("parties", [-1, 0, 1, 31])
def test_a_number_of_parties_that_cannot_be_is_refused(parties: int) -> None:
    with pytest.raises(ConfigError, match=f"parties: {parties}, expected 2 to 30"):
        load("breast_cancer", parties=parties)


def test_blocks_of_seventeen_variables_are_those_of_the_papers() -> None:
    assert block_sizes(17, 2) == (8, 9)
    assert block_sizes(17, 5) == (3, 3, 3, 4, 4)
    assert block_sizes(17, 17) == (1,) * 17


def test_the_partition_of_rows_does_not_depend_on_the_number_of_parties() -> None:
    assert load("digits").fingerprint == load("digits", parties=5).fingerprint
    assert load("digits").fingerprint != load("breast_cancer").fingerprint


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("brest_cancer", "unknown 'brest_cancer'; did you mean breast_cancer.*icu2012-714"),
        ("mnist-8v3", "unknown 'mnist-8v3'; did you mean mnist-3v8"),
        ("digits-3v8", "unknown 'digits-3v8'"),
        ("xyz", "unknown 'xyz'; known:"),
    ],
)
def test_an_unknown_name_names_the_nearest_and_the_known(name: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load(name)


def test_a_stratified_fifth_takes_a_fifth_of_every_class() -> None:
    labels = np.array([0] * 50 + [1] * 13)
    test = stratified_fifth(labels)
    assert np.bincount(labels[test]).tolist() == [10, 3]


def test_embedded_sets_are_what_scikit_learn_loads() -> None:
    values, labels = digits()
    bunch = load_digits()
    assert np.array_equal(values, bunch.data)
    assert np.array_equal(labels, bunch.target)
    data, bunch = load("breast_cancer"), load_breast_cancer()
    test = first_fifth(569)
    for split, rows in (("train", ~test), ("test", test)):
        table = np.hstack([getattr(party, split) for party in data.parties])
        assert np.array_equal(table, bunch.data[rows])
        assert np.array_equal(getattr(data, f"{split}_labels"), bunch.target[rows])
    columns = [column for party in data.parties for column in party.columns]
    assert columns == bunch.feature_names.tolist()
    assert list(data.label_names) == bunch.target_names.tolist()
