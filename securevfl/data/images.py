"""Images with a class each, as clients of a horizontal job hold them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import FloatArray
from securevfl.data import embedded
from securevfl.data.catalog import CATALOG, CIFAR10
from securevfl.data.formats import parse_idx
from securevfl.data.icu2012 import load_arrays
from securevfl.data.locations import Content, open_entry
from securevfl.data.splits import first_fifth
from securevfl.errors import ConfigError

NAMES = ("cifar10", "mnist", "digits")
ENLARGED = 4  # digits of 8 × 8 fill the 32 × 32 that LeNet-5 takes


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images and their classes.

    Attributes:
        name: of the set.
        train: shape (N, channels, height, width), uint8.
        train_labels: shape (N,), 0..classes-1.
        test: as `train`.
        test_labels: as `train_labels`.
        classes: how many.
    """

    name: str
    train: NDArray[np.uint8]
    train_labels: NDArray[np.int64]
    test: NDArray[np.uint8]
    test_labels: NDArray[np.int64]
    classes: int

    def first(self, rows: int) -> "ImageSet":
        """So many training images at most, the first of every class, in their order.

        Raises:
            ConfigError: fewer than one a class.
        """
        if rows >= len(self.train):
            return self
        if rows < self.classes:
            raise ConfigError(f"images = {rows}: expected one a class, {self.classes}, or more")
        shares = np.full(self.classes, rows // self.classes)
        shares[: rows % self.classes] += 1
        of_class = [np.flatnonzero(self.train_labels == number) for number in range(self.classes)]
        kept = [rows[:share] for rows, share in zip(of_class, shares, strict=True)]
        chosen = np.sort(np.concatenate(kept))
        return replace(self, train=self.train[chosen], train_labels=self.train_labels[chosen])

    def for_tuning(self, generator: np.random.Generator) -> "ImageSet":
        """The training images alone: four fifths to train on, one fifth to score on."""
        order = generator.permutation(len(self.train))
        held_out, kept = np.sort(order[: len(order) // 5]), np.sort(order[len(order) // 5 :])
        return ImageSet(
            self.name,
            *(self.train[kept], self.train_labels[kept]),
            *(self.train[held_out], self.train_labels[held_out]),
            self.classes,
        )

    def scaled(self) -> tuple[FloatArray, FloatArray]:
        """Training and test images as float32, every channel with mean 0 and deviation 1.

        Means and deviations are those of all training images, which clients come by as sums.
        """
        values = self.train.astype(np.float32)
        mean = values.mean(axis=(0, 2, 3), dtype=np.float64)
        deviation = values.std(axis=(0, 2, 3), dtype=np.float64)
        shift, scale = (each[:, None, None].astype(np.float32) for each in (mean, 1 / deviation))
        return (values - shift) * scale, (self.test.astype(np.float32) - shift) * scale


def load_images(name: str, *, data_dir: Path | None = None) -> ImageSet:
    """A set of images: `cifar10` (15,000 and 3,000 of it), `mnist`, or scikit-learn's `digits`.

    Args:
        name: of the set.
        data_dir: looked in before $SECUREVFL_DATA and the per-user cache.

    Raises:
        ConfigError: an unknown name.
        DataError: files missing, changed or malformed.
    """
    if name == "digits":
        return _digits()
    if name == "mnist":
        return _mnist(open_entry(CATALOG[name], data_dir=data_dir))
    if name == "cifar10":
        return _cifar10(open_entry(CIFAR10, data_dir=data_dir))
    raise ConfigError(f"images: unknown {name!r}; known: {', '.join(NAMES)}")


def _digits() -> ImageSet:
    values, labels = embedded.digits()
    small = np.round(values * (255 / values.max())).astype(np.uint8).reshape(-1, 1, 8, 8)
    images = np.kron(small, np.ones((ENLARGED, ENLARGED), dtype=np.uint8))
    test = first_fifth(labels.size)
    return ImageSet("digits", images[~test], labels[~test], images[test], labels[test], 10)


def _mnist(files: Mapping[str, Content]) -> ImageSet:
    def read(part: str) -> NDArray[np.uint8]:
        return parse_idx(files[part].data, files[part].path)

    (train, train_labels), (test, test_labels) = (
        (
            read(f"{split}-images-idx3-ubyte")[:, None],
            read(f"{split}-labels-idx1-ubyte").astype(np.int64),
        )
        for split in ("train", "t10k")
    )
    return ImageSet("mnist", train, train_labels, test, test_labels, classes=10)


def _cifar10(files: Mapping[str, Content]) -> ImageSet:
    (file,) = files.values()
    arrays = load_arrays(file.data, file.path)
    train, test = (
        np.ascontiguousarray(arrays[name].transpose(0, 3, 1, 2)) for name in ("X_train", "X_test")
    )
    labels = [arrays[name].astype(np.int64) for name in ("y_train", "y_test")]
    return ImageSet("cifar10", train, labels[0], test, labels[1], classes=10)
