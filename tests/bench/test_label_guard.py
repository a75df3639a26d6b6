from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
from pydantic import ValidationError

from bench.label_guard.__main__ import LabelGuardSettings, label_guard
from bench.label_guard.planted import Planted, planted
from securevfl.data.tables import check

Kind = Literal["gaussian", "one-hot", "heavy"]
SMALL = Planted(positives=0.12, rows=4000, columns=10, signal=0.5)


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    settings = LabelGuardSettings(planted=SMALL, ratios=(0.1, 1.0), epochs=2)
    return list(label_guard(settings))


def test_the_first_row_is_the_full_batch_which_tells_no_more_than_a_model(
    found: list[dict[str, Any]],
) -> None:
    full = found[0]
    assert full["batch_size"] == full["rows"] == 4000
    assert full["ratio"] == pytest.approx(10 / (4000 * full["rarest"] * (1 - full["rarest"])))
    for figure in (full["auc"], full["bound_auc"]):
        assert figure == pytest.approx(full["own_auc"], abs=0.01)


def test_batches_of_a_ratio_are_as_small_as_it_allows(found: list[dict[str, Any]]) -> None:
    for row, ratio in zip(found[1:], (0.1, 1.0), strict=True):
        assert row["ratio"] == pytest.approx(ratio, rel=0.02)
        assert row["rounds"] == 2 * (4000 // row["batch_size"])


def test_the_bound_grows_with_the_ratio_and_passes_every_margin(
    found: list[dict[str, Any]],
) -> None:
    assert found[1]["bound_auc"] > found[0]["bound_auc"]
    assert found[2]["bound_auc"] > found[1]["bound_auc"] + 0.05
    assert found[2]["auc"] > found[2]["own_auc"] + 0.05
    assert found[2]["bound_true_positives"] > 1.5 * found[2]["own_true_positives"]


def test_another_partition_every_epoch_adds_up() -> None:
    fixed = LabelGuardSettings(planted=SMALL, ratios=(0.5,), epochs=2)
    _, shuffled = label_guard(fixed.model_copy(update={"sampling": "shuffle"}))
    _, parted = label_guard(fixed)
    assert shuffled["batch_size"] == pytest.approx(2 * parted["batch_size"], abs=1)
    assert shuffled["bound_auc"] == pytest.approx(parted["bound_auc"], abs=0.03)


def test_batches_that_leave_no_two_of_them_are_left_out() -> None:
    (row,) = label_guard(LabelGuardSettings(ratios=(1 / 200,)))
    assert row["batch_size"] == row["rows"]


@pytest.mark.parametrize("kind", ["gaussian", "one-hot", "heavy"])
@pytest.mark.parametrize("positives", [0.01, 0.5])
def test_made_data_have_the_share_that_was_asked_for(kind: Kind, positives: float) -> None:
    what = Planted(positives, rows=10_000, columns=7, kind=kind)
    made = planted(what)
    check(made)
    assert np.mean(made.train_labels) == pytest.approx(positives, abs=4 * 0.5 / 100)
    assert made.parties[1].train.shape == (10_000, 7)
    assert np.array_equal(planted(what).train_labels, made.train_labels)
    assert not np.array_equal(planted(what, seed=1).train_labels, made.train_labels)
    assert planted(replace(what, signal=0.0)).fingerprint != made.fingerprint


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sampling": "random"}, "sampling"),
        ({"planted": {"positives": 0.1, "kind": "cauchy"}}, "kind"),
        ({"planted": {"positives": 1.0}}, "less than 1"),
    ],
)
def test_what_cannot_be_made_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        LabelGuardSettings(**settings)
