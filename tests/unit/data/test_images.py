from pathlib import Path

import numpy as np
import pytest

from securevfl.data.images import ImageSet, load_images
from securevfl.errors import ConfigError, DataError


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
