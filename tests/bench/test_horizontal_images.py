from pathlib import Path

import numpy as np
import pytest

from bench.horizontal.images import ImageSet, dirichlet_split, load_images
from securevfl.errors import ConfigError, DataError

LABELS = np.repeat(np.arange(10), 63)


@pytest.fixture(scope="module")
def digits() -> ImageSet:
    return load_images("digits")


def test_digits_are_enlarged_and_need_no_files(digits: ImageSet) -> None:
    assert digits.train.shape == (1438, 1, 32, 32)
    assert digits.test.shape == (359, 1, 32, 32)
    assert digits.train.dtype == np.uint8
    assert digits.train.max() == 255
    squares = digits.train.reshape(-1, 8, 4, 8, 4)
    assert np.array_equal(squares, np.broadcast_to(squares[:, :, :1, :, :1], squares.shape))
    assert set(digits.test_labels) == set(range(10))


def test_fewer_images_are_the_first_of_every_class(digits: ImageSet) -> None:
    fewer = digits.first(103)
    counts = np.bincount(fewer.train_labels)
    assert (counts.sum(), counts.min(), counts.max()) == (103, 10, 11)
    for number in range(10):
        first = digits.train[digits.train_labels == number][: counts[number]]
        assert np.array_equal(fewer.train[fewer.train_labels == number], first)
    assert np.array_equal(fewer.test, digits.test)
    assert digits.first(10**6) is digits
    with pytest.raises(ConfigError, match="expected one a class"):
        digits.first(9)


def test_tuning_sees_training_images_alone(digits: ImageSet) -> None:
    tuned = digits.for_tuning(np.random.default_rng(0))
    assert (len(tuned.train), len(tuned.test)) == (1151, 287)
    whole = np.concatenate([tuned.train, tuned.test]).reshape(1438, -1)
    assert sorted(map(bytes, whole)) == sorted(map(bytes, digits.train.reshape(1438, -1)))


def test_channels_are_scaled_by_training_images(generator: np.random.Generator) -> None:
    train, test = (generator.integers(0, high, (50, 3, 4, 4)).astype(np.uint8) for high in (9, 90))
    labels = np.zeros(50, dtype=np.int64)
    scaled, scaled_test = ImageSet("made", train, labels, test, labels, 1).scaled()
    assert scaled.dtype == scaled_test.dtype == np.float32
    assert scaled.mean(axis=(0, 2, 3)) == pytest.approx(0, abs=1e-5)
    assert scaled.std(axis=(0, 2, 3)) == pytest.approx(1, abs=1e-5)
    assert scaled_test.mean() > 5


def test_unknown_and_missing_sets_are_refused_with_what_there_is(no_places: Path) -> None:
    del no_places
    with pytest.raises(ConfigError, match="unknown 'cifar'; known: cifar10, mnist, digits"):
        load_images("cifar")
    with pytest.raises(DataError, match=r"'cifar10' not found in .*cifar10/cifar10_15k3k\.npz"):
        load_images("cifar10")
    with pytest.raises(DataError, match="`securevfl data get mnist`"):
        load_images("mnist")


def split(concentration: float, seed: int = 0, clients: int = 20) -> list[np.ndarray]:
    return dirichlet_split(LABELS, clients, concentration, np.random.default_rng(seed))


@pytest.mark.parametrize("concentration", [1e-3, 0.1, 0.6, 1e4])
def test_every_row_is_at_one_client_and_clients_hold_as_many(concentration: float) -> None:
    held = split(concentration)
    assert np.array_equal(np.sort(np.concatenate(held)), np.arange(len(LABELS)))
    assert {len(rows) for rows in held} == {31, 32}
    assert all(np.all(np.diff(rows) > 0) for rows in held)


def test_the_smaller_the_concentration_the_fewer_classes_a_client() -> None:
    def largest_share(concentration: float) -> float:
        counts = [np.bincount(LABELS[rows], minlength=10) for rows in split(concentration)]
        return float(np.mean([each.max() / each.sum() for each in counts]))

    shares = [largest_share(each) for each in (0.01, 0.3, 1e4)]
    assert shares[0] > shares[1] + 0.1 > shares[2] + 0.2
    assert shares[2] < 0.3


def test_a_seed_decides_the_split() -> None:
    one, again, other = split(0.6), split(0.6), split(0.6, seed=1)
    assert all(np.array_equal(*pair) for pair in zip(one, again, strict=True))
    assert not all(np.array_equal(*pair) for pair in zip(one, other, strict=True))


def test_what_cannot_be_split_is_refused() -> None:
    with pytest.raises(ConfigError, match="clients = 0: expected 1 to 630"):
        split(0.6, clients=0)
    with pytest.raises(ConfigError, match="clients = 631"):
        split(0.6, clients=631)
    for wrong in (0.0, -1.0, float("nan")):
        with pytest.raises(ConfigError, match="dirichlet"):
            split(wrong)
