"""The `dp` exchange in whole jobs: what is sent, how often, and what is promised of it."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from securevfl.data.sources import load
from securevfl.data.tables import VerticalDataset
from securevfl.models.local_model import LocalModel
from securevfl.privacy.accounting import spent
from securevfl.privacy.mechanisms import Mechanism
from securevfl.protocols.exchanges.plain import Residuals
from securevfl.protocols.session.gathering import HeldOutPredictions, Predictions
from securevfl.training import Environment, TrainingResult, train
from tests.end_to_end.dp_jobs import noisy
from tests.jobs import all_weights, breast_cancer


def predictions(result: TrainingResult, dataset: VerticalDataset) -> list[NDArray[np.float64]]:
    received = result.views[dataset.label_party].received(Predictions)
    return [e.message.values for e in received if isinstance(e.message, Predictions)]


def test_predictions_are_clipped_and_carry_noise_of_the_stated_scale() -> None:
    settings: dict[str, Any] = {"batch_size": "full", "rounds": 1}
    clipped = noisy(breast_cancer(), {"noise_multiplier": 0, "clip": 0.05}, **settings)
    exact = predictions(clipped, breast_cancer())[0]
    assert np.abs(exact).max() == 0.05
    found = predictions(
        noisy(breast_cancer(), {"noise_multiplier": 3, "clip": 0.05}, **settings), breast_cancer()
    )[0]
    # 456 draws of deviation 0.3: within 20 % but once in 10^8.
    assert abs(np.std(found - exact) / 0.3 - 1) < 0.2
    assert clipped.privacy is not None
    assert clipped.privacy.epsilon_release is None


@pytest.mark.parametrize("parties", [2, 3, 5])
def test_messages_are_those_of_the_exchange_in_clear(parties: int) -> None:
    dataset = breast_cancer(parties)
    result = noisy(dataset, {"noise_multiplier": 1, "label_noise_multiplier": 1})
    assert result.costs().messages == 6 * 2 * (parties - 1)
    for name, view in result.views.items():
        kinds = {type(e.message) for e in view.received() if e.message.stage == "round"}
        assert kinds == ({Predictions} if name == dataset.label_party else {Residuals})


def test_noise_is_fresh_unless_an_experiment_fixes_it() -> None:
    first, second = (noisy(breast_cancer(), {"noise_multiplier": 1}) for _ in range(2))
    assert not np.any(
        predictions(first, breast_cancer())[0] == predictions(second, breast_cancer())[0]
    )
    fixed = {"noise_multiplier": 1, "noise_seed": 4}
    one, same = (noisy(breast_cancer(), fixed) for _ in range(2))
    np.testing.assert_array_equal(all_weights(one), all_weights(same))
    assert first.privacy is not None
    assert one.privacy is not None
    assert first.privacy.noise.startswith("fresh")
    assert "promises nothing" in one.privacy.noise


@pytest.mark.parametrize("parties", [2, 3, 4])
@pytest.mark.parametrize("algorithm", ["fedsgd", "fedbcd-p", "fedbcd-s"])
def test_the_account_counts_what_views_show(algorithm: str, parties: int) -> None:
    dataset = breast_cancer(parties)
    result = noisy(
        dataset,
        {"noise_multiplier": 1, "label_noise_multiplier": 1},
        algorithm=algorithm,
        rounds=9,
        eval_every=2,
    )
    turns = parties if algorithm == "fedbcd-s" else 1
    account = result.plan.account
    assert account is not None
    view = result.views[dataset.label_party]
    releases: Counter[tuple[str, int]] = Counter()
    for entry in view.received(Predictions):
        assert isinstance(entry.message, Predictions)
        for row in account.batch(entry.message.step // turns):
            releases[entry.sender, int(row)] += 1
    scored = Counter(entry.sender for entry in view.received(HeldOutPredictions))
    assert result.privacy is not None
    assert result.privacy.releases == max(releases.values())
    assert result.privacy.held_out_releases == max(scored.values())
    residuals: Counter[int] = Counter()
    steps = {
        entry.message.step: entry.message.values
        for name, other in result.views.items()
        if name != dataset.label_party
        for entry in other.received(Residuals)
        if isinstance(entry.message, Residuals)
    }
    # In turns the label party steps from a noisy residual of its own that nobody is sent.
    own = range(0, 9 * turns, turns) if turns > 1 else []
    for step in {*steps, *own}:
        for row in account.batch(step // turns):
            residuals[int(row)] += 1
    assert result.privacy.label_releases == max(residuals.values())
    assert result.privacy.epsilon_release == pytest.approx(
        spent(Mechanism("gaussian", 1, 2.0), result.privacy.releases, 1e-5).release
    )


def test_all_receivers_get_the_same_noisy_residual() -> None:
    dataset = breast_cancer(3)
    result = noisy(dataset, {"noise_multiplier": 0, "label_noise_multiplier": 2, "clip": 100})
    others = [view for name, view in result.views.items() if name != dataset.label_party]
    received = [
        [e.message.values for e in view.received(Residuals) if isinstance(e.message, Residuals)]
        for view in others
    ]
    for first, second in zip(*received, strict=True):
        np.testing.assert_array_equal(first, second)
    # |d| < 1 without noise; of 684 draws of deviation 2 some pass 3.
    assert np.abs(np.vstack(received[0])).max() > 3
    # Noise of 2 on residuals of 0.3 or so: within 20 % but once in 10^9.
    assert np.std(np.vstack(received[0])) == pytest.approx(2, rel=0.2)


def test_the_label_party_steps_from_the_noisy_residual_itself() -> None:
    label, feature = breast_cancer().parties
    assert label.name == breast_cancer().label_party
    starts: dict[str, NDArray[np.float64]] = {}

    def keep(name: str, model: LocalModel) -> LocalModel:
        starts[name] = model.weights
        return model

    result = noisy(
        breast_cancer(),
        {"noise_multiplier": 0, "label_noise_multiplier": 5},
        Environment(record_views=True, wrap_model=keep),
        rounds=1,
        local_steps=1,
        batch_size="full",
        standardize=False,
        learning_rate=1e-6,
    )
    (entry,) = result.views[feature.name].received(Residuals)
    assert isinstance(entry.message, Residuals)
    account = result.plan.account
    assert account is not None
    columns = np.hstack([label.train, np.ones((len(label.train), 1))])[account.batch(0)]
    stepped = starts[label.name] - 1e-6 * columns.T @ entry.message.values / len(columns)
    np.testing.assert_allclose(result.outcomes[label.name].model.weights, stepped, rtol=1e-9)


def test_a_label_of_ten_moves_two_outputs() -> None:
    digits = load("digits")
    (feature,) = (t.name for t in digits.parties if t.name != digits.label_party)
    for mechanism, deviation in (("gaussian", np.sqrt(2)), ("laplace", 2 * np.sqrt(2))):
        privacy = {"noise_multiplier": 0, "label_noise_multiplier": 50, "mechanism": mechanism}
        result = noisy(digits, privacy, rounds=1, local_steps=1, batch_size="full")
        (entry,) = result.views[feature].received(Residuals)
        assert isinstance(entry.message, Residuals)
        # Residuals themselves are below 1, noise of 70 and 141; a Laplace deviates by √2 scales.
        # 14,370 draws: within 7 % but once in 10^13.
        assert np.std(entry.message.values) == pytest.approx(50 * deviation, rel=0.07)


def test_without_gradient_noise_the_end_to_end_promise_is_infinite_in_words() -> None:
    alone = noisy(breast_cancer(), {"noise_multiplier": 2}).privacy
    both = noisy(
        breast_cancer(), {"noise_multiplier": 2, "gradient_clip": 1, "gradient_noise_multiplier": 4}
    ).privacy
    assert alone is not None
    assert both is not None
    assert alone.epsilon_end_to_end is None
    assert alone.epsilon_end_to_end_text.startswith("infinite")
    assert both.epsilon_end_to_end is not None
    assert both.epsilon_release is not None
    assert both.epsilon_end_to_end > both.epsilon_release


def test_noise_on_gradients_moves_feature_parties_and_nobody_else() -> None:
    def weights(multiplier: float) -> dict[str, NDArray[np.float64]]:
        privacy = {
            "noise_multiplier": 0,
            "gradient_clip": 1e3,
            "gradient_noise_multiplier": multiplier,
            "noise_seed": 0,
        }
        result = noisy(breast_cancer(), privacy, rounds=1)
        return {name: outcome.model.weights for name, outcome in result.outcomes.items()}

    exact, moved = weights(0), weights(1)
    for name, before in exact.items():
        same = np.array_equal(before, moved[name])
        assert same == (name == breast_cancer().label_party)


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_a_clip_that_nothing_reaches_changes_nothing(model: str) -> None:
    def same_start(name: str, start: LocalModel) -> LocalModel:
        start.weights = np.random.default_rng(5).standard_normal(start.weights.shape) / 10
        return start

    environment = Environment(wrap_model=same_start)
    loose = {
        "noise_multiplier": 0,
        "clip": 1e6,
        "gradient_clip": 1e6,
        "gradient_noise_multiplier": 0,
    }
    clipped = noisy(breast_cancer(), loose, environment, model=model)
    plain = train(clipped.job.without_protection, breast_cancer(), environment)
    np.testing.assert_allclose(all_weights(clipped), all_weights(plain), rtol=1e-9)


def test_a_real_job_learns_under_noise(real_data: Callable[..., VerticalDataset]) -> None:
    a9a = real_data("a9a")
    settings: dict[str, Any] = {
        "rounds": 200,
        "batch_size": 256,
        "learning_rate": 0.5,
        "start": "zero",
    }
    result = noisy(
        a9a,
        {"noise_multiplier": 1, "noise_seed": 1},
        Environment(),
        algorithm="fedbcd-p",
        **settings,
    )
    assert 0.87 < result.clear_auc < 0.9
    # Noise on the held-out predictions is what parts the two.
    assert result.scores[-1].auc < result.clear_auc - 0.03


def test_ten_classes_take_noise_for_all_their_outputs() -> None:
    digits = load("digits")
    settings: dict[str, Any] = {"batch_size": "full", "rounds": 1, "local_steps": 1}
    quiet = noisy(digits, {"noise_multiplier": 0}, **settings)
    loud = noisy(digits, {"noise_multiplier": 1}, **settings)
    exact, found = predictions(quiet, digits)[0], predictions(loud, digits)[0]
    assert exact.shape[1] == 10
    # One sample's ten predictions move by up to 2β each, 2β√10 in all.
    # 14,370 draws: within 4 % but once in 10^11.
    assert np.std(found - exact) == pytest.approx(4 * np.sqrt(10), rel=0.04)


def test_a_promise_is_of_all_rounds_also_where_the_data_end_them_before() -> None:
    result = noisy(
        breast_cancer(), {"noise_multiplier": 0.01}, rounds=30, target_auc=0.9, eval_every=1
    )
    assert result.rounds < 30
    assert result.plan.account is not None
    assert result.privacy == result.plan.account.after(30)
