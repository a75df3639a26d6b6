"""FDML under noise: what is sent, what it promises, and whose noise a step has in it."""

from collections import Counter

import numpy as np
import pytest

from securevfl.benchmarks.objective import LOSS, Objective, Trail
from securevfl.errors import BudgetExhausted
from securevfl.job import OwnPrediction
from securevfl.models.local_model import LocalModel
from securevfl.protocols.vertical.fdml import SERVER, PulledSums, PushedPredictions
from tests.end_to_end.fdml_jobs import run
from tests.jobs import breast_cancer


def test_pushes_carry_noise_and_are_counted() -> None:
    quiet = run(breast_cancer(), privacy={"noise_multiplier": 0, "clip": 0.1})
    view = quiet.views[SERVER].received(PushedPredictions)
    assert (
        max(
            np.abs(e.message.values).max() for e in view if isinstance(e.message, PushedPredictions)
        )
        == 0.1
    )
    loud = run(breast_cancer(), privacy={"noise_multiplier": 1, "clip": 0.1})
    account = loud.plan.account
    assert account is not None
    released: Counter[int] = Counter()
    pushed = []
    for entry in loud.views[SERVER].received(PushedPredictions):
        assert isinstance(entry.message, PushedPredictions)
        if entry.sender == breast_cancer().label_party:
            released.update(account.batch(entry.message.step).tolist())
        pushed.append(entry.message.values)
    assert loud.privacy is not None
    assert loud.privacy.releases == max(released.values())
    assert loud.privacy.held_out_releases == 1
    assert loud.privacy.label_releases == 0
    # Within ±0.1 without noise, of deviation 0.2 with: 5,120 draws give 0.2 to 0.224, and
    # more than 6 deviations beyond once in 10^9.
    assert 0.187 < np.std(np.vstack(pushed)) < 0.24


@pytest.mark.parametrize("own", ["exact", "noisy"])
def test_steps_are_those_that_the_description_says(own: OwnPrediction) -> None:
    """Replayed from what was sent: a mean over the batch, η0/√t, and whose noise is in it."""
    trails: dict[str, Trail] = {}

    def keep(name: str, model: LocalModel) -> LocalModel:
        trails[name] = Trail(model)
        return trails[name]

    result = run(
        breast_cancer(),
        {"start": "random"},
        {"noise_multiplier": 0.5, "clip": 1},
        {"own_prediction": own, "staleness": 3},
        wrap_model=keep,
    )
    pushed = {
        (entry.sender, entry.message.step): entry.message.values
        for entry in result.views[SERVER].received(PushedPredictions)
        if isinstance(entry.message, PushedPredictions)
    }
    schedule, labels = result.plan.schedule, breast_cancer().train_labels
    blocks = Objective.of(breast_cancer()).blocks
    for table, block in zip(breast_cancer().parties, blocks, strict=True):
        past = trails[table.name].past
        for entry in result.views[table.name].received(PulledSums):
            message = entry.message
            assert isinstance(message, PulledSums)
            rows, before = schedule.batch(message.step), past[message.step]
            exact = block[rows] @ before
            mine = {"exact": exact, "noisy": pushed[table.name, message.step]}
            assert not np.allclose(mine["exact"], mine["noisy"], atol=0.1)
            gradient = block[rows].T @ LOSS.residuals(message.values + mine[own], labels[rows])
            step = 0.5 / np.sqrt(message.step + 1) * gradient / len(rows)
            np.testing.assert_allclose(past[message.step + 1], before - step, atol=1e-12)


def test_both_own_predictions_promise_the_same_and_differ_by_noise_alone() -> None:
    privacy = {
        "noise_multiplier": 1,
        "gradient_clip": 1,
        "gradient_noise_multiplier": 2,
        "noise_seed": 0,
    }
    exact, noisy = (
        run(breast_cancer(), None, privacy, {"own_prediction": own}) for own in ("exact", "noisy")
    )
    assert exact.privacy == noisy.privacy
    for name, outcome in exact.outcomes.items():
        assert not np.allclose(outcome.model.weights, noisy.outcomes[name].model.weights)
    same = [run(breast_cancer(), fdml={"own_prediction": own}) for own in ("exact", "noisy")]
    for name, outcome in same[0].outcomes.items():
        np.testing.assert_array_equal(outcome.model.weights, same[1].outcomes[name].model.weights)


def test_noisy_steps_are_noisy_at_all_parties() -> None:
    def weights(multiplier: float) -> list[np.ndarray]:
        privacy = {
            "noise_multiplier": 0,
            "noise_seed": 1,
            "gradient_clip": 100,
            "gradient_noise_multiplier": multiplier,
        }
        result = run(breast_cancer(), {"rounds": 1}, privacy)
        return [outcome.model.weights for outcome in result.outcomes.values()]

    for exact, noisy in zip(weights(0), weights(1), strict=True):
        assert not np.any(exact == noisy)


def test_a_budget_is_kept() -> None:
    with pytest.raises(BudgetExhausted):
        run(breast_cancer(), privacy={"noise_multiplier": 1, "release_budget": 2})
