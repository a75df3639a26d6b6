import asyncio
from math import inf, nan
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from securevfl.protocols.session.early_stopping import (
    FEWEST_SNAPSHOTS,
    MOST_NUMBERS,
    MOST_SNAPSHOTS,
    CheckpointSelection,
    SelectedState,
    TrainingHistory,
    snapshot_rounds,
)

EVERY_TENTH = range(10, 200, 10)


def selected(
    losses: list[float], window: int = 1, aucs: dict[int, float] | None = None
) -> SelectedState:
    history = TrainingHistory(baseline=0.7, window=window, chance=0.02)
    for loss in losses:
        history.add_loss(loss)
    history.figures = aucs or {}
    return history.select(EVERY_TENTH, len(losses))


def test_a_loss_that_falls_keeps_the_end() -> None:
    assert selected([0.7 / (1 + index) for index in range(50)]) == SelectedState(50, 50)


def test_a_loss_that_rises_clearly_goes_back_to_where_it_was_least() -> None:
    kept = selected([0.7 - 0.01 * index for index in range(25)] + [0.6] * 10)
    assert (kept.rounds, kept.done, kept.seen, kept.since) == (20, 35, "loss", 25)
    assert (kept.best, kept.last) == pytest.approx((0.5, 0.6))


@pytest.mark.parametrize(("rise", "goes_back"), [(0.03, False), (0.04, True)])
def test_a_rise_counts_from_five_percent_of_the_baseline_on(rise: float, goes_back: bool) -> None:
    kept = selected([0.5] * 25 + [0.5 + rise] * 10)
    assert (kept.rounds < kept.done) is goes_back


def test_a_rise_within_the_noise_of_batches_is_none() -> None:
    noise = np.random.default_rng(0).normal(0.0, 0.2, 60)
    losses = [0.4 + each for each in noise]
    assert selected(losses, window=5) == SelectedState(60, 60)
    wrecked = [*losses[:30], *(each + 2.0 for each in losses[30:])]
    assert selected(wrecked, window=5).rounds in {10, 20}


def test_what_was_learned_and_undone_counts_within_the_noise() -> None:
    noise = np.random.default_rng(1).normal(0.0, 0.1, 60)
    steady = [0.5 + each for each in noise[:30]] + [0.66 + each for each in noise[30:]]
    undone = [0.5 + each for each in noise[:30]] + [0.75 + each for each in noise[30:]]
    assert selected(steady, window=5).rounds == 60
    assert selected(undone, window=5).rounds < 60


@pytest.mark.parametrize("bad", [nan, inf])
def test_a_loss_that_is_not_finite_goes_back(bad: float) -> None:
    kept = selected([0.5] * 25 + [bad] * 3)
    assert (kept.rounds, kept.seen, kept.last) == (10, "loss", inf)


def test_where_no_loss_is_seen_scores_count() -> None:
    aucs = {rounds: 0.75 for rounds in range(10, 110, 10)} | {110: 0.55, 120: 0.6}
    history = TrainingHistory(baseline=0.7, window=5, chance=0.02, figures=aucs)
    kept = history.select(EVERY_TENTH, 120)
    assert (kept.rounds, kept.seen, kept.since) == (10, "score", 110)
    history.figures[120] = 0.7
    assert history.select(EVERY_TENTH, 120) == SelectedState(120, 120)


def test_a_better_score_is_not_given_up_for_a_loss_while_that_is_below_the_baseline() -> None:
    aucs = {10: 0.7, 20: 0.7, 35: 0.9}
    assert selected([0.5] * 25 + [0.6] * 10, aucs=aucs).rounds == 35
    assert selected([0.5] * 25 + [0.8] * 10, aucs=aucs).rounds == 10


@pytest.mark.parametrize("every", [0, 1, 3, 25])
def test_snapshots_are_few_early_and_at_scorings(every: int) -> None:
    rounds = sorted(snapshot_rounds(range(max(every, 1), 1001, max(every, 1)), numbers=100))
    unit = max(every, 1)
    # log2 of them and one are the bits of labels that SECURITY promises at most.
    assert len(rounds) <= MOST_SNAPSHOTS == 20
    assert all(each > 0 and each % unit == 0 for each in rounds)
    assert rounds[0] == unit
    assert rounds[1] <= 3 * unit
    assert max(np.diff(rounds)) <= 100 + unit


def test_large_networks_have_fewer_snapshots() -> None:
    assert len(snapshot_rounds(range(1, 1001), MOST_NUMBERS // 6)) <= 6
    assert len(snapshot_rounds(range(1, 1001), MOST_NUMBERS)) == FEWEST_SNAPSHOTS
    assert snapshot_rounds([5], 1) == {5}


def test_the_label_party_does_not_go_back_alone_where_it_may_not_say_so() -> None:
    model: Any = SimpleNamespace(weights=np.zeros(1))
    party: Any = SimpleNamespace(feature_parties=("other",))
    history = TrainingHistory(baseline=0.7, window=1, chance=0.02)
    selection = CheckpointSelection(party, model, {10}, announced=False, history=history)
    for rounds in range(1, 31):
        model.weights = np.full(1, float(rounds))
        selection.after(rounds, (), loss=0.5 if rounds < 20 else 5.0)
    kept = asyncio.run(selection.finish(30))
    assert (kept.rounds, kept.better, kept.seen is not None) == (30, 10, True)
    assert model.weights == 30.0
