"""Average precision, bootstrap intervals and cut-offs, against what is known of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from securevfl.arrays import FloatArray, IntArray
from securevfl.models.ranking import Cutoffs, ranking, resampled_aucs
from securevfl.models.scores import auc_difference, auc_error


def people(rows: int, share: float, seed: int = 0) -> tuple[FloatArray, IntArray]:
    chance = np.random.default_rng(seed)
    labels = (chance.random(rows) < share).astype(np.int64)
    return labels + chance.standard_normal(rows), labels


@given(
    st.lists(st.tuples(st.booleans(), st.integers(-3, 3)), min_size=2, max_size=30).filter(
        lambda rows: any(positive for positive, _ in rows)
    )
)
def test_average_precision_is_that_of_scikit_learn(rows: list[tuple[bool, int]]) -> None:
    labels = np.array([int(positive) for positive, _ in rows])
    scores = np.array([float(score) for _, score in rows])
    expected = average_precision_score(labels, scores)
    assert Cutoffs(scores, labels).average_precision == pytest.approx(expected)


def test_every_resample_has_an_auc_of_rows_drawn_with_replacement() -> None:
    scores, labels = people(60, 0.4)
    scores = scores.round()  # ties
    other = -scores
    ones, zeros = labels == 1, labels == 0
    drawn = resampled_aucs([scores, other], labels)
    assert drawn.shape == (1000, 2)
    assert np.allclose(drawn.sum(axis=1), 1)  # the same rows for both
    assert len(np.unique(drawn[:, 0])) > 300
    area = roc_auc_score(labels, scores)
    assert drawn[:, 0].mean() == pytest.approx(area, abs=0.01)
    # Multiples of half a pair, as the AUC of any sample of these sizes.
    pairs = 2 * drawn * ones.sum() * zeros.sum()
    assert np.allclose(pairs, pairs.round())


@pytest.mark.parametrize("share", [0.5, 0.05])
def test_intervals_are_as_wide_as_standard_errors_say(share: float) -> None:
    scores, labels = people(4000, share)
    beside = scores + np.random.default_rng(1).standard_normal(4000)
    found = ranking(scores, labels, beside)
    area = roc_auc_score(labels, scores)
    assert found["auc_interval"] is not None
    assert found["auc_gain_interval"] is not None
    low, high = found["auc_interval"]
    assert low < area < high
    assert high - low == pytest.approx(2 * 1.96 * auc_error(labels, area), rel=0.2)
    gain, error = auc_difference(scores, beside, labels)
    low, high = found["auc_gain_interval"]
    assert found["auc_gain"] == pytest.approx(gain)
    assert low < gain < high
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.15)


def test_intervals_hold_the_true_auc_nineteen_times_in_twenty() -> None:
    true, held = 0.7602, 0  # Φ(1/√2)
    for seed in range(60):
        interval = ranking(*people(300, 0.3, seed))["auc_interval"]
        assert interval is not None
        held += interval[0] <= true <= interval[1]
    assert 52 <= held <= 60


def test_intervals_repeat_and_take_ten_rows_of_either_class() -> None:
    scores, labels = people(200, 0.2)
    assert ranking(scores, labels, -scores) == ranking(scores, labels, -scores)
    few = np.zeros(200, np.int64)
    few[:9] = 1
    assert ranking(scores, few)["auc_interval"] is None
    few[9] = 1
    assert ranking(scores, few)["auc_interval"] is not None
    # No resample could tell how sure a perfect order is.
    assert ranking(labels.astype(np.float64), labels)["auc_interval"] is None


def test_cut_offs_have_the_figures_of_the_rows_that_they_flag() -> None:
    scores, labels = people(500, 0.1)
    scores = scores.round(1)  # ties
    every = Cutoffs(scores, labels)
    by_cost, by_share = every.by_cost(1, 10), every.by_share(0.05)
    for found in (by_cost, by_share):
        flagged = scores >= (found["cutoff"] or 0)
        assert found["flagged"] == flagged.mean()
        assert found["precision"] == pytest.approx(labels[flagged].mean())
        assert found["recall"] == pytest.approx(flagged[labels == 1].mean())
    costs = [
        (labels[scores >= at] == 0).sum() + 10 * (labels[scores < at] == 1).sum()
        for at in [*np.unique(scores), np.inf]
    ]
    assert by_cost["cost"] == pytest.approx(min(costs) / 500)
    assert by_share["flagged"] <= 0.05
    one_more = scores >= scores[scores < (by_share["cutoff"] or 0)].max()
    assert one_more.mean() > 0.05


def test_a_cut_off_is_no_row_s_own_score_where_numbers_lie_between() -> None:
    labels = np.array([1, 0, 1])
    assert Cutoffs(np.array([0.9, 0.5, 0.1]), labels).by_share(0.4)["cutoff"] == 0.7
    near = np.array([np.nextafter(1.0, 2), 1.0, 0.0])
    assert Cutoffs(near, labels).by_share(0.4)["cutoff"] == near[0]


def test_a_cut_off_has_as_many_digits_as_flag_the_same_rows() -> None:
    scores = 1 - np.geomspace(1e-9, 0.5, 200)  # of four digits many are 1
    every = Cutoffs(scores, np.arange(200) % 2)
    for flagged in range(1, 201):
        cutoff = every.by_share(flagged / 200)["cutoff"]
        assert cutoff is not None
        assert (scores >= cutoff).sum() == flagged
    assert Cutoffs(np.array([0.98765, 0.12345]), np.array([1, 0])).by_share(0.5)["cutoff"] == 0.6


def test_nobody_is_flagged_where_that_costs_least() -> None:
    scores, labels = np.array([0.9, 0.5, 0.1]), np.array([0, 0, 1])
    found = Cutoffs(scores, labels).by_cost(5, 1)
    assert (found["cutoff"], found["flagged"], found["precision"], found["recall"]) == (
        None,
        0,
        None,
        0,
    )
    assert found["cost"] == pytest.approx(1 / 3)
    assert Cutoffs(np.ones(3), labels).by_share(0.5)["cutoff"] is None  # all are tied


@pytest.mark.parametrize("rows", [10, 100, 999, 1000])
def test_a_share_of_rows_flags_as_many_as_it_says(rows: int) -> None:
    every = Cutoffs(np.arange(float(rows)), np.arange(rows) % 2)
    for flagged in range(rows + 1):  # 0.29 · 100 is less than 29
        assert every.by_share(flagged / rows)["flagged"] == flagged / rows
