"""Images with a class each, and how clients of a horizontal job hold them."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from securevfl.arrays import FloatArray, IntArray
from securevfl.data.catalog import CATALOG, CatalogEntry, SourceFile, load_arrays, open_files
from securevfl.data.sources import digits, parse_idx
from securevfl.data.splits import first_fifth
from securevfl.errors import ConfigError

_CIFAR10_SHA256 = "2728d4b5df315dc4d727e03713346f181ba41929a22f5c25994dcba2369822ad"
CIFAR10 = CatalogEntry(
    *("cifar10", (15000, 3000), 3072, 10, (), "none stated by the publisher"),
    "Krizhevsky (2009): every third of its images, from JPEG copies",
    ((SourceFile("cifar10/cifar10_15k3k.npz", _CIFAR10_SHA256),),),
)
"""No party of a vertical job holds columns of them, so that the catalog has none of it."""
NAMES = ("cifar10", "mnist", "digits")
ENLARGED = 4  # digits of 8 × 8 fill the 32 × 32 that LeNet-5 takes


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images of shape (N, channels, height, width), uint8, and their classes 0..classes-1, (N,)."""

    name: str
    train: NDArray[np.uint8]
    train_labels: NDArray[np.int64]
    test: NDArray[np.uint8]
    test_labels: NDArray[np.int64]
    classes: int

    def first(self, rows: int) -> "ImageSet":
        """So many training images at most, the first of every class, one or more, in order."""
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

    Files are looked for in `data_dir`, then in $SECUREVFL_DATA and the per-user cache.

    Raises:
        ConfigError: an unknown name.
        DataError: files missing, changed or malformed.
    """
    if name == "digits":
        values, labels = digits()
        small = np.round(values * (255 / values.max())).astype(np.uint8).reshape(-1, 1, 8, 8)
        images = np.kron(small, np.ones((ENLARGED, ENLARGED), dtype=np.uint8))
        kept = ~first_fifth(labels.size)
        return ImageSet(name, images[kept], labels[kept], images[~kept], labels[~kept], 10)
    if name == "mnist":
        files = open_files(CATALOG[name], data_dir=data_dir)
        train, train_labels, test, test_labels = (
            parse_idx(files[f"{split}-{kind}-ubyte"])
            for split in ("train", "t10k")
            for kind in ("images-idx3", "labels-idx1")
        )
        train, test = train[:, None], test[:, None]
    elif name == "cifar10":
        (file,) = open_files(CIFAR10, data_dir=data_dir).values()
        arrays = load_arrays(file.data, file.path)
        train, test = (
            np.ascontiguousarray(arrays[f"X_{split}"].transpose(0, 3, 1, 2))
            for split in ("train", "test")
        )
        train_labels, test_labels = arrays["y_train"], arrays["y_test"]
    else:
        raise ConfigError(f"images: unknown {name!r}; known: {', '.join(NAMES)}")
    classes, test_classes = train_labels.astype(np.int64), test_labels.astype(np.int64)
    return ImageSet(name, train, classes, test, test_classes, 10)


def dirichlet_split(
    labels: NDArray[np.int64], clients: int, concentration: float, generator: np.random.Generator
) -> list[IntArray]:
    """Every row at one client, as many at each; how often which class, by a Dirichlet draw.

    Every client draws a mix of classes from Dir(D, …, D); small D: few classes a client. Then all
    clients in turn, in an order drawn anew for each turn, take a row of a class drawn from their
    mix, until no rows are left; of classes that have run out nobody draws any more. That is the
    split of Hsu, Qi, Brown (arXiv:1909.06335), which FedDyn's and FedDC's code has too; sizes that
    differ between clients would be another kind of difference beside that of classes.

    Returns:
        The rows of each client, ascending; numbers of rows differ by one at most.

    Raises:
        ConfigError: more clients than rows, none, or D that is not positive.
    """
    if not 1 <= clients <= len(labels):
        raise ConfigError(f"clients = {clients}: expected 1 to {len(labels)}, a row for each")
    if not concentration > 0:
        raise ConfigError(f"dirichlet = {concentration}: expected a positive number")
    classes, places = np.unique(labels, return_inverse=True)
    mixes = generator.dirichlet(np.full(len(classes), concentration), clients)
    left = [
        generator.permutation(np.flatnonzero(places == number)).tolist()
        for number in range(len(classes))
    ]
    taken: list[list[int]] = [[] for _ in range(clients)]
    while any(left):
        for client in generator.permutation(clients):
            there = np.array([len(rows) > 0 for rows in left])
            if not there.any():
                break
            mix = np.where(there, mixes[client], 0.0)
            # A mix of nothing but what has run out: whatever there is.
            mix = mix / mix.sum() if mix.sum() > 0 else there / there.sum()
            taken[client].append(left[generator.choice(len(classes), p=mix)].pop())
    return [np.array(sorted(rows), dtype=np.int64) for rows in taken]
