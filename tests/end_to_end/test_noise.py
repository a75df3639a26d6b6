"""The `dp` exchange in whole jobs: what is sent, how often, and what is promised of it."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from securevfl.data.sources import load
from securevfl.data.tables import VerticalDataset
from securevfl.errors import BudgetExhausted, ConfigError
from securevfl.job import Job
from securevfl.models.local_model import LocalModel
from securevfl.privacy.accounting import spent
from securevfl.privacy.mechanisms import Mechanism
from securevfl.protocols.exchanges.plain import Residuals
from securevfl.protocols.session.gathering import HeldOutPredictions, Predictions
from securevfl.protocols.session.privacy_account import PrivacyAccount
from securevfl.training import Environment, TrainingResult, plan_for, train
from tests.end_to_end.conftest import all_weights

FEW: dict[str, Any] = {
    "rounds": 6,
    "batch_size": 114,
    "learning_rate": 0.1,
    "local_steps": 3,
    "eval_every": 0,
}


def noisy(
    dataset: VerticalDataset,
    privacy: Mapping[str, object],
    environment: Environment | None = None,
    /,
    **settings: object,
) -> TrainingResult:
    job = Job.of(job={**FEW, **settings}, exchange={"scheme": "dp"}, privacy=privacy)
    return train(job, dataset, environment or Environment(record_views=True))


def predictions(result: TrainingResult, dataset: VerticalDataset) -> list[NDArray[np.float64]]:
    received = result.views[dataset.label_party].received(Predictions)
    return [e.message.values for e in received if isinstance(e.message, Predictions)]


def test_predictions_are_clipped_and_carry_noise_of_the_stated_scale(
    breast_cancer: VerticalDataset,
) -> None:
    settings: dict[str, Any] = {"batch_size": "full", "rounds": 1}
    clipped = noisy(breast_cancer, {"noise_multiplier": 0, "clip": 0.5}, **settings)
    exact = predictions(clipped, breast_cancer)[0]
    assert np.abs(exact).max() == 0.5
    found = predictions(
        noisy(breast_cancer, {"noise_multiplier": 3, "clip": 0.5}, **settings), breast_cancer
    )[0]
    # 456 draws of deviation 3: within 20 % but once in 10^8.
    assert abs(np.std(found - exact) / 3 - 1) < 0.2
    assert clipped.privacy is not None
    assert clipped.privacy.epsilon_release is None


@pytest.mark.parametrize("parties", [2, 3, 5])
def test_messages_are_those_of_the_exchange_in_clear(parties: int) -> None:
    dataset = load("breast_cancer", parties=parties)
    result = noisy(dataset, {"noise_multiplier": 1, "label_noise_multiplier": 1})
    assert result.costs().messages == 6 * 2 * (parties - 1)
    for name, view in result.views.items():
        kinds = {type(e.message) for e in view.received() if e.message.stage == "round"}
        assert kinds == ({Predictions} if name == dataset.label_party else {Residuals})


def test_noise_is_fresh_unless_an_experiment_fixes_it(breast_cancer: VerticalDataset) -> None:
    first, second = (noisy(breast_cancer, {"noise_multiplier": 1}) for _ in range(2))
    assert not np.any(predictions(first, breast_cancer)[0] == predictions(second, breast_cancer)[0])
    fixed = {"noise_multiplier": 1, "noise_seed": 4}
    one, same = (noisy(breast_cancer, fixed) for _ in range(2))
    np.testing.assert_array_equal(all_weights(one), all_weights(same))
    assert first.privacy is not None
    assert one.privacy is not None
    assert first.privacy.noise.startswith("fresh")
    assert "promises nothing" in one.privacy.noise


@pytest.mark.parametrize("parties", [2, 3, 4])
@pytest.mark.parametrize("algorithm", ["fedsgd", "fedbcd-p", "fedbcd-s"])
def test_the_account_counts_what_views_show(algorithm: str, parties: int) -> None:
    dataset = load("breast_cancer", parties=parties)
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
    dataset = load("breast_cancer", parties=3)
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


def test_the_label_party_steps_from_the_noisy_residual_itself(
    breast_cancer: VerticalDataset,
) -> None:
    label, feature = breast_cancer.parties
    assert label.name == breast_cancer.label_party
    starts: dict[str, NDArray[np.float64]] = {}

    def keep(name: str, model: LocalModel) -> LocalModel:
        starts[name] = model.weights
        return model

    result = noisy(
        breast_cancer,
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


def test_without_gradient_noise_the_end_to_end_promise_is_infinite_in_words(
    breast_cancer: VerticalDataset,
) -> None:
    alone = noisy(breast_cancer, {"noise_multiplier": 2}).privacy
    both = noisy(
        breast_cancer,
        {"noise_multiplier": 2, "gradient_clip": 1, "gradient_noise_multiplier": 4},
    ).privacy
    assert alone is not None
    assert both is not None
    assert alone.epsilon_end_to_end is None
    assert alone.epsilon_end_to_end_text.startswith("infinite")
    assert both.epsilon_end_to_end is not None
    assert both.epsilon_release is not None
    assert both.epsilon_end_to_end > both.epsilon_release


def test_noise_on_gradients_moves_feature_parties_and_nobody_else(
    breast_cancer: VerticalDataset,
) -> None:
    def weights(multiplier: float) -> dict[str, NDArray[np.float64]]:
        privacy = {
            "noise_multiplier": 0,
            "gradient_clip": 1e3,
            "gradient_noise_multiplier": multiplier,
            "noise_seed": 0,
        }
        result = noisy(breast_cancer, privacy, rounds=1)
        return {name: outcome.model.weights for name, outcome in result.outcomes.items()}

    exact, moved = weights(0), weights(1)
    for name, before in exact.items():
        same = np.array_equal(before, moved[name])
        assert same == (name == breast_cancer.label_party)


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_a_clip_that_nothing_reaches_changes_nothing(
    breast_cancer: VerticalDataset, model: str
) -> None:
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
    clipped = noisy(breast_cancer, loose, environment, model=model)
    plain = train(clipped.job.without_protection, breast_cancer, environment)
    np.testing.assert_allclose(all_weights(clipped), all_weights(plain), rtol=1e-9)


def sent_nothing() -> tuple[Environment, list[bytes]]:
    seen: list[bytes] = []

    def watch(sender: str, to: str, data: bytes) -> bytes:
        seen.append(data)
        return data

    return Environment(tamper=watch), seen


@pytest.mark.parametrize(
    ("privacy", "settings", "said"),
    [
        ({"noise_multiplier": 1, "release_budget": 5}, {}, "releases of a sample would be"),
        ({"noise_multiplier": 1, "budget": 5}, {}, "would be inf end to end"),
        (
            {
                "noise_multiplier": 9,
                "gradient_clip": 1,
                "gradient_noise_multiplier": 1,
                "budget": 5,
            },
            {},
            "end to end",
        ),
        (
            {"noise_multiplier": 4, "release_budget": 5},
            {"eval_every": 1, "rounds": 100},
            "held-out",
        ),
    ],
)
def test_a_job_that_would_pass_its_budget_never_starts(
    breast_cancer: VerticalDataset,
    privacy: dict[str, object],
    settings: dict[str, Any],
    said: str,
) -> None:
    environment, seen = sent_nothing()
    with pytest.raises(BudgetExhausted, match=said):
        noisy(breast_cancer, privacy, environment, **{"rounds": 40, **settings})
    assert not seen


def test_a_budget_is_checked_beforehand_and_by_every_party_itself(
    breast_cancer: VerticalDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    privacy = {"noise_multiplier": 1, "release_budget": 5}
    job = Job.of(job={**FEW, "rounds": 40}, exchange={"scheme": "dp"}, privacy=privacy)
    with pytest.raises(BudgetExhausted):
        plan_for(job, breast_cancer)
    # Between real parties nobody checks for the others: let the first check pass.
    checks, check = [], PrivacyAccount.require_budget

    def after_the_first(account: PrivacyAccount) -> None:
        checks.append(account)
        if len(checks) > 1:
            check(account)

    monkeypatch.setattr(PrivacyAccount, "require_budget", after_the_first)
    environment, seen = sent_nothing()
    with pytest.raises(BudgetExhausted):
        train(job, breast_cancer, environment)
    assert not seen


@pytest.mark.parametrize(
    ("privacy", "which"),
    [
        ({"release_budget": 3.34}, "epsilon_release"),
        ({"release_budget": 3.34, "mechanism": "laplace"}, "epsilon_release"),
        ({"budget": 8.0, "gradient_clip": 1.0}, "epsilon_end_to_end"),
    ],
)
def test_noise_that_is_calibrated_spends_the_budget_and_no_more(
    breast_cancer: VerticalDataset, privacy: dict[str, object], which: str
) -> None:
    promise = noisy(breast_cancer, privacy).privacy
    assert promise is not None
    budget = privacy.get("budget", privacy.get("release_budget"))
    assert isinstance(budget, float)
    assert 0.99 * budget <= getattr(promise, which) <= budget


@pytest.mark.parametrize(
    ("privacy", "exchange", "said"),
    [
        ({}, {"scheme": "dp"}, "needs privacy.noise_multiplier, or a budget"),
        (
            {"noise_multiplier": 1},
            {"scheme": "plain"},
            "is for exchanges that add noise",
        ),
        ({"budget": 3}, {"scheme": "dp"}, "infinite end to end without gradient_clip"),
        ({"noise_multiplier": 1, "gradient_clip": 1}, {"scheme": "dp"}, "needs gradient_noise"),
        (
            {"noise_multiplier": 1, "gradient_noise_multiplier": 1},
            {"scheme": "dp"},
            "needs gradient_clip",
        ),
        (
            {"noise_multiplier": 9, "noise_seed": 1, "release_budget": 90},
            {"scheme": "dp"},
            "noise_seed promises nothing",
        ),
        (
            {"mechanism": "laplace", "budget": 3, "gradient_clip": 1},
            {"scheme": "dp"},
            "gaussian only",
        ),
        ({"noise_multiplier": 1}, {"scheme": "dp", "predictions": "masked"}, "at each party"),
        ({"noise_multiplier": 1}, {"scheme": "dp", "hide": "both"}, "homomorphic"),
    ],
)
def test_settings_that_do_not_fit_are_named(
    breast_cancer: VerticalDataset,
    privacy: dict[str, object],
    exchange: dict[str, object],
    said: str,
) -> None:
    with pytest.raises(ConfigError, match=said):
        train(Job.of(job=FEW, exchange=exchange, privacy=privacy), breast_cancer)


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
        load("breast_cancer"), {"noise_multiplier": 0.01}, rounds=30, target_auc=0.9, eval_every=1
    )
    assert result.rounds < 30
    assert result.plan.account is not None
    assert result.privacy == result.plan.account.after(30)
