"""Transfer learning with noise: what leaves has it, and what is counted is what left."""

from typing import Any

import numpy as np
import pytest

from securevfl.errors import BudgetExhausted
from securevfl.protocols.session.gathering import HeldOutPredictions
from securevfl.protocols.transfer.sides import FeatureComponents, LabelComponents, ScoreVector
from securevfl.training import Environment, TrainingResult, plan_for, train
from tests.transfer_data import GAMMA, UNITS, job_of, made

DP = {"scheme": "dp"}


def noisy(multiplier: float, rounds: int = 3, **settings: Any) -> TrainingResult:  # noqa: ANN401
    privacy = {"noise_multiplier": multiplier, "clip": 1.0, "noise_seed": 3}
    job = job_of(exchange=DP, privacy=privacy, rounds=rounds, **settings)
    return train(job, made(), Environment(record_views=True))


def received(result: TrainingResult, party: str, kind: type[Any]) -> list[Any]:
    return [each.message for each in result.views[party].received(kind)]


def test_without_noise_it_is_plain() -> None:
    twin, found = train(job_of(rounds=3), made()), noisy(0.0)
    for name, outcome in twin.outcomes.items():
        ours = found.outcomes[name].model.weights
        np.testing.assert_allclose(ours, outcome.model.weights, rtol=0, atol=1e-12)


def test_units_and_phi_have_the_noise_that_is_accounted_for() -> None:
    # At a step size of nothing all rounds give the same, but for noise.
    still: dict[str, Any] = {"learning_rate": 1e-300, "batch_size": "full", "rounds": 400}
    result, exact = noisy(0.5, **still), noisy(0.0, **{**still, "rounds": 1})
    units = np.stack([each.rows for each in received(result, "bank", FeatureComponents)])
    phis = np.stack([each.phi for each in received(result, "shop", LabelComponents)])
    (true_units,) = received(exact, "bank", FeatureComponents)
    (true_phi,) = received(exact, "shop", LabelComponents)
    rows = 40 + 17
    for found, truth, deviation in (
        (units, true_units.rows, 0.5 * 2 * np.sqrt(UNITS)),
        (phis, true_phi.phi, 0.5 * 2 * np.sqrt(UNITS) / rows),
    ):
        spread = (found - truth).std()
        assert 0.9 * deviation < spread < 1.1 * deviation
    # Rows of the label party: ½ y Φ + 2γ u, from the same noisy Φ and from noisy u.
    message = received(result, "shop", LabelComponents)[0]
    signs = 2.0 * made().train_labels - 1
    of_units = (message.rows - np.outer(signs / 2, message.phi)) / (2 * GAMMA)
    assert 0.7 < of_units.std() / (0.5 * 2 * np.sqrt(UNITS)) < 1.3


def test_phi_counts_in_every_round_and_scorings_take_none_of_it() -> None:
    result = noisy(2.0, rounds=6, batch_size=20, eval_every=2)
    visits = np.zeros(40, int)
    for index in range(6):
        visits[result.plan.schedule.batch(index)] += 1
    assert result.privacy is not None
    assert result.privacy.releases == visits.max() + 6
    assert result.privacy.held_out_releases == 3
    assert result.privacy.epsilon_end_to_end is None
    assert result.privacy.epsilon_label is None
    given = [each.phi for each in received(result, "shop", LabelComponents)]
    scored = [each.phi for each in received(result, "shop", ScoreVector)]
    for index, phi in zip((1, 3, 5), scored, strict=True):
        np.testing.assert_array_equal(phi, given[index])
    first, second, _ = (each.values for each in received(result, "bank", HeldOutPredictions))
    assert (first != second).all()


def test_a_budget_of_releases_is_kept_with_phi_among_them() -> None:
    budget = {"release_budget": 8.0, "clip": 1.0}
    plan = plan_for(job_of(exchange=DP, privacy=budget, batch_size="full", rounds=10), made())
    assert plan.account is not None
    assert 7.9 < plan.account.after(10).epsilon_release <= 8.0  # type: ignore[operator]
    assert plan.account.after(10).releases == 20
    with pytest.raises(BudgetExhausted):
        train(
            job_of(exchange=DP, privacy={**budget, "noise_multiplier": 1.0}, batch_size="full"),
            made(),
        )
