"""Two views of the same things, one a party, and binary tasks on them as transfer learning has.

They stand in for NUS-WIDE, whose image features are not to be had: text and image of Wikipedia
articles (Rasiwasia et al. 2010), and two of six views of handwritten numerals (UCI Multiple
Features, Duin). The label party holds the view that tells most of the labels, as tags do there.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securevfl.data.icu2012 import load_arrays
from securevfl.data.locations import Content
from securevfl.data.splits import JointTable, first_fifth

WIKIPEDIA_LABELS = (
    *("art", "biology", "geography", "history", "literature"),
    *("media", "music", "royalty", "sport", "warfare"),
)
MFEAT_VIEWS = ("pix", "fou")


def wikipedia(name: str, files: Mapping[str, Content]) -> JointTable:
    """Ten topic shares of an article's text, then 128 visual words of its image.

    Classes are ten categories, or under wikipedia-biology that one against the others.

    Raises:
        DataError: a damaged file.
    """
    (file,) = files.values()
    arrays = load_arrays(file.data, file.path)
    train, test = (
        np.hstack([arrays[f"X_text_{split}"], arrays[f"X_image_{split}"]]).astype(np.float64)
        for split in ("train", "test")
    )
    train_labels, test_labels = (
        arrays[f"y_{split}"].astype(np.int64) for split in ("train", "test")
    )
    names: tuple[str, ...] = WIKIPEDIA_LABELS
    if name == "wikipedia-biology":
        train_labels, test_labels = (
            (labels == WIKIPEDIA_LABELS.index("biology")).astype(np.int64)
            for labels in (train_labels, test_labels)
        )
        names = ("others", "biology")
    topics, words = (arrays[f"X_{view}_train"].shape[1] for view in ("text", "image"))
    return JointTable(
        (*(f"topic{i}" for i in range(topics)), *(f"word{i}" for i in range(words))),
        *(train, test, train_labels, test_labels),
        train_ids=np.arange(len(train)),
        label_names=names,
        party_columns=(topics, words),
    )


def mfeat(name: str, files: Mapping[str, Content]) -> JointTable:
    """240 averages of pixels, then 76 Fourier coefficients, of numerals.

    Classes are the digits, or under mfeat-even-odd whether a digit is odd.

    Raises:
        DataError: a damaged file.
    """
    (file,) = files.values()
    arrays = load_arrays(file.data, file.path)
    views = _views(arrays)
    digits = arrays["y"].astype(np.int64)
    even_odd = name == "mfeat-even-odd"
    values, labels = np.hstack(list(views.values())), digits % 2 if even_odd else digits
    test = first_fifth(labels.size)
    return JointTable(
        tuple(f"{view}{i}" for view, block in views.items() for i in range(block.shape[1])),
        *(values[~test], values[test], labels[~test], labels[test]),
        train_ids=np.flatnonzero(~test),
        label_names=("even", "odd") if even_odd else tuple(map(str, range(10))),
        party_columns=tuple(block.shape[1] for block in views.values()),
    )


def _views(arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float64]]:
    names = arrays["view_names"].tolist()
    return {
        view: arrays["X"][:, arrays["view_index"] == names.index(view)].astype(np.float64)
        for view in MFEAT_VIEWS
    }
