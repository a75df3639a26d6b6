"""The `dp` exchange in whole jobs: what is sent, how often, what is promised of it and spent."""

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from securevfl.arrays import FloatArray
from securevfl.data.tables import VerticalDataset, some_rows
from securevfl.errors import BudgetExhausted, ConfigError
from securevfl.job import PartySettings
from securevfl.models.local_model import LocalModel
from securevfl.privacy.accounting import spent
from securevfl.privacy.mechanisms import GradientNoise, Mechanism
from securevfl.privacy.streams import NoiseKey, NoiseStream
from securevfl.protocols.exchanges.plain import Residuals
from securevfl.protocols.session.gathering import HeldOutPredictions, Predictions
from securevfl.protocols.session.privacy_account import PrivacyAccount
from securevfl.recipe import Preprocessing
from securevfl.training import Environment, TrainingResult, plan_for, train
from securevfl.wire.codec import encode
from tests.jobs import Settings, Starts, all_weights, breast_cancer, digits, fit, job_of, received

LABEL = breast_cancer().label_party
FEW: dict[str, Any] = {
    **{"rounds": 6, "batch_size": 114, "learning_rate": 0.1, "local_steps": 3, "eval_every": 0}
}
ONE_STEP: dict[str, Any] = {"batch_size": "full", "rounds": 1, "local_steps": 1}
GRADIENTS = {"gradient_clip": 1, "gradient_noise_multiplier": 1}
ALL_NOISE = {"noise_multiplier": 1, "label_noise_multiplier": 1, **GRADIENTS}


def noisy(
    privacy: Settings,
    dataset: VerticalDataset | None = None,
    environment: Environment | None = None,
    /,
    **settings: object,
) -> TrainingResult:
    environment = environment or Environment(record_views=True)
    data = dataset or breast_cancer()
    return fit(data, "dp", environment, privacy=privacy, **{**FEW, **settings})


def predictions(result: TrainingResult) -> list[FloatArray]:
    label = result.plan.facts.label_party
    return [message.values for message in received(result, label, Predictions)]


def test_predictions_are_clipped_and_carry_noise_of_the_stated_scale() -> None:
    settings: dict[str, Any] = {"batch_size": "full", "rounds": 1}
    clipped = noisy({"noise_multiplier": 0, "clip": 0.05}, **settings)
    exact = predictions(clipped)[0]
    assert np.abs(exact).max() == 0.05
    found = predictions(noisy({"noise_multiplier": 3, "clip": 0.05}, **settings))[0]
    # 456 draws of deviation 0.3: within 20 % but once in 10^8.
    assert abs(np.std(found - exact) / 0.3 - 1) < 0.2
    assert clipped.privacy is not None
    assert clipped.privacy.epsilon_release is None


@pytest.mark.parametrize("parties", [2, 3, 5])
def test_messages_are_those_of_the_exchange_in_clear(parties: int) -> None:
    noise = {"noise_multiplier": 1, "label_noise_multiplier": 1}
    result = noisy(noise, breast_cancer(parties))
    assert result.costs().messages == 6 * 2 * (parties - 1)
    for name, view in result.views.items():
        kinds = {type(e.message) for e in view.received() if e.message.stage == "round"}
        assert kinds == ({Predictions} if name == LABEL else {Residuals})


def test_noise_is_fresh_unless_an_experiment_fixes_it() -> None:
    first, second = (noisy({"noise_multiplier": 1}) for _ in range(2))
    assert not np.any(predictions(first)[0] == predictions(second)[0])
    one, same = (noisy({"noise_multiplier": 1, "noise_seed": 4}) for _ in range(2))
    np.testing.assert_array_equal(all_weights(one), all_weights(same))
    assert first.privacy is not None
    assert one.privacy is not None
    assert first.privacy.noise.startswith("fresh")
    assert "promises nothing" in one.privacy.noise


@pytest.mark.parametrize("parties", [2, 3, 4])
@pytest.mark.parametrize("algorithm", ["fedsgd", "fedbcd-p", "fedbcd-s"])
def test_the_account_counts_what_views_show(algorithm: str, parties: int) -> None:
    noise = {"noise_multiplier": 1, "label_noise_multiplier": 1}
    settings: dict[str, Any] = {"algorithm": algorithm, "rounds": 9, "eval_every": 2}
    result = noisy(noise, breast_cancer(parties), **settings)
    turns = parties if algorithm == "fedbcd-s" else 1
    account, promise = result.plan.account, result.privacy
    assert account is not None
    assert promise is not None
    releases: Counter[tuple[str, int]] = Counter()
    for name in result.outcomes:
        for message in received(result, LABEL, Predictions, name):
            releases.update((name, int(row)) for row in account.batch(message.step // turns))
    scored = Counter(e.sender for e in result.views[LABEL].received(HeldOutPredictions))
    assert promise.releases == max(releases.values())
    assert promise.held_out_releases == max(scored.values())
    others = (name for name in result.views if name != LABEL)
    steps = {message.step for name in others for message in received(result, name, Residuals)}
    # In turns the label party steps from a noisy residual of its own that nobody is sent.
    steps |= set(range(0, 9 * turns, turns) if turns > 1 else [])
    residuals: Counter[int] = Counter()
    for step in steps:
        residuals.update(account.batch(step // turns).tolist())
    assert promise.label_releases == max(residuals.values())
    expected = spent(Mechanism("gaussian", 1, 2.0), promise.releases, 1e-5).release
    assert promise.epsilon_release == pytest.approx(expected)


def test_all_receivers_get_the_same_noisy_residual() -> None:
    noise = {"noise_multiplier": 0, "label_noise_multiplier": 2, "clip": 100}
    result = noisy(noise, breast_cancer(3))
    given = [
        np.vstack([message.values for message in received(result, name, Residuals)])
        for name in result.views
        if name != LABEL
    ]
    np.testing.assert_array_equal(given[0], given[1])
    # |d| < 1 without noise; of 684 draws of deviation 2 some pass 3.
    assert np.abs(given[0]).max() > 3
    # Noise of 2 on residuals of 0.3 or so: within 20 % but once in 10^9.
    assert np.std(given[0]) == pytest.approx(2, rel=0.2)


def test_the_label_party_steps_from_the_noisy_residual_itself() -> None:
    label, feature = breast_cancer().parties
    assert label.name == LABEL
    starts, noise = Starts(), {"noise_multiplier": 0, "label_noise_multiplier": 5}
    environment = Environment(record_views=True, wrap_model=starts)
    settings: dict[str, Any] = {**ONE_STEP, "standardize": False, "learning_rate": 1e-6}
    result = noisy(noise, None, environment, **settings)
    (message,) = received(result, feature.name, Residuals)
    account = result.plan.account
    assert account is not None
    columns = np.hstack([label.train, np.ones((len(label.train), 1))])[account.batch(0)]
    stepped = starts[LABEL] - 1e-6 * columns.T @ message.values / len(columns)
    np.testing.assert_allclose(result.outcomes[LABEL].model.weights, stepped, rtol=1e-9)


def test_a_label_of_ten_moves_two_outputs() -> None:
    (feature,) = (t.name for t in digits().parties if t.name != digits().label_party)
    for mechanism, deviation in (("gaussian", np.sqrt(2)), ("laplace", 2 * np.sqrt(2))):
        noise = {"noise_multiplier": 0, "label_noise_multiplier": 50, "mechanism": mechanism}
        (message,) = received(noisy(noise, digits(), **ONE_STEP), feature, Residuals)
        # Residuals themselves are below 1, noise of 70 and 141; a Laplace deviates by √2 scales.
        # 14,370 draws: within 7 % but once in 10^13.
        assert np.std(message.values) == pytest.approx(50 * deviation, rel=0.07)


def test_ten_classes_take_noise_for_all_their_outputs() -> None:
    exact, found = (
        predictions(noisy({"noise_multiplier": z}, digits(), **ONE_STEP))[0] for z in (0, 1)
    )
    assert exact.shape[1] == 10
    # One sample's ten predictions move by up to 2β each, 2β√10 in all.
    # 14,370 draws: within 4 % but once in 10^11.
    assert np.std(found - exact) == pytest.approx(4 * np.sqrt(10), rel=0.04)


def test_without_gradient_noise_the_end_to_end_promise_is_infinite_in_words() -> None:
    alone = noisy({"noise_multiplier": 2}).privacy
    gradients = {"gradient_clip": 1, "gradient_noise_multiplier": 4}
    both = noisy({"noise_multiplier": 2, **gradients}, standardize=False).privacy
    fitted = noisy({"noise_multiplier": 2, **gradients}).privacy
    assert alone is not None
    assert both is not None
    assert fitted is not None
    assert alone.epsilon_end_to_end is None
    assert alone.epsilon_end_to_end_text.startswith("infinite")
    assert fitted.epsilon_end_to_end is None
    assert "standardizes 15 of its columns by its own rows" in fitted.epsilon_end_to_end_text
    assert both.epsilon_end_to_end is not None
    assert both.epsilon_release is not None
    assert both.epsilon_end_to_end > both.epsilon_release


def test_what_one_party_alone_fits_to_its_rows_counts_too() -> None:
    noise = {"noise_multiplier": 2, "gradient_clip": 1, "gradient_noise_multiplier": 4}
    plan = plan_for(job_of("dp", privacy=noise, **FEW, standardize=False), breast_cancer())
    party = PartySettings(name="party2", role="feature", preprocess=Preprocessing())
    fitted = replace(plan, job=plan.job.model_copy(update={"party": (party,)}))
    found = [each.account.after(2) for each in (plan, fitted) if each.account is not None]
    assert [each.epsilon_end_to_end is None for each in found] == [False, True]
    assert "preprocess is fitted" in found[1].epsilon_end_to_end_text


def test_noise_on_gradients_moves_feature_parties_and_nobody_else() -> None:
    fixed = {"noise_multiplier": 0, "gradient_clip": 1e3, "noise_seed": 0}
    exact, moved = (
        noisy({**fixed, "gradient_noise_multiplier": z}, rounds=1).outcomes for z in (0, 1)
    )
    for name, before in exact.items():
        same = np.array_equal(before.model.weights, moved[name].model.weights)
        assert same == (name == LABEL)


def test_a_feature_partys_gradient_steps_are_private_and_the_label_partys_are_exact() -> None:
    """A clip of next to nothing leaves a feature party where it starts."""
    result = noisy({"noise_multiplier": 1, **GRADIENTS, "gradient_clip": 1e-12}, start="zero")
    moved = {name: np.abs(each.model.weights).max() for name, each in result.outcomes.items()}
    assert moved["party1"] > 1e-3
    assert 0 < moved["party2"] < 1e-9


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_a_clip_that_nothing_reaches_changes_nothing(model: str) -> None:
    def same_start(name: str, start: LocalModel) -> LocalModel:
        start.weights = np.random.default_rng(5).standard_normal(start.weights.shape) / 10
        return start

    environment = Environment(wrap_model=same_start)
    gradients = {"gradient_clip": 1e6, "gradient_noise_multiplier": 0}
    loose = {"noise_multiplier": 0, "clip": 1e6, **gradients}
    clipped = noisy(loose, None, environment, model=model)
    plain = train(clipped.job.without_protection, breast_cancer(), environment)
    np.testing.assert_allclose(all_weights(clipped), all_weights(plain), rtol=1e-9)


def test_a_real_job_learns_under_noise(real_data: Callable[..., VerticalDataset]) -> None:
    steps = {"rounds": 200, "batch_size": 256, "learning_rate": 0.5, "start": "zero"}
    noise = {"noise_multiplier": 1, "noise_seed": 1}
    result = noisy(noise, real_data("a9a"), Environment(), algorithm="fedbcd-p", **steps)
    assert 0.87 < result.clear_auc < 0.9
    # Noise on the held-out predictions is what parts the two.
    assert result.scores[-1].auc < result.clear_auc - 0.03


def test_a_promise_is_of_all_rounds_also_where_the_data_end_them_before() -> None:
    result = noisy({"noise_multiplier": 0.01}, rounds=30, target_auc=0.9, eval_every=1)
    assert result.rounds < 30
    assert result.plan.account is not None
    assert result.privacy == result.plan.account.after(30)


# -------------------------------------------------------------------------------- budgets


@pytest.fixture
def silence() -> Environment:
    """A network on which nothing may be sent."""

    def refuse(sender: str, to: str, data: bytes) -> bytes:
        raise AssertionError((sender, to, data))

    return Environment(tamper=refuse)


@pytest.mark.parametrize(
    ("privacy", "settings", "error_text"),
    [
        ({"noise_multiplier": 1, "release_budget": 5}, {}, "releases of a sample would be"),
        ({"noise_multiplier": 1, "budget": 5}, {}, "would be inf end to end"),
        (
            {"noise_multiplier": 9, **GRADIENTS, "budget": 5},
            {"standardize": False},
            r"\d end to end",
        ),
        (
            {"noise_multiplier": 4, "release_budget": 5},
            {"eval_every": 1, "rounds": 100},
            "held-out",
        ),
    ],
)
def test_a_job_that_would_pass_its_budget_never_starts(
    silence: Environment, privacy: Settings, settings: Settings, error_text: str
) -> None:
    with pytest.raises(BudgetExhausted, match=error_text):
        noisy(privacy, None, silence, **{"rounds": 40, **settings})


def test_a_budget_is_checked_beforehand_and_by_every_party_itself(
    silence: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = {"noise_multiplier": 1, "release_budget": 5}
    job = job_of("dp", privacy=budget, **{**FEW, "rounds": 40})
    with pytest.raises(BudgetExhausted):
        plan_for(job, breast_cancer())
    # Between real parties nobody checks for the others: let the first check pass.
    checks, check = [], PrivacyAccount.require_budget

    def after_the_first(account: PrivacyAccount) -> None:
        checks.append(account)
        if len(checks) > 1:
            check(account)

    monkeypatch.setattr(PrivacyAccount, "require_budget", after_the_first)
    with pytest.raises(BudgetExhausted):
        train(job, breast_cancer(), silence)


@pytest.mark.parametrize(
    ("privacy", "which"),
    [
        ({"release_budget": 3.34}, "epsilon_release"),
        ({"release_budget": 3.34, "mechanism": "laplace"}, "epsilon_release"),
        ({"budget": 8.0, "gradient_clip": 1.0}, "epsilon_end_to_end"),
    ],
)
def test_noise_that_is_calibrated_spends_the_budget_and_no_more(
    privacy: dict[str, Any], which: str
) -> None:
    budget: float = privacy.get("budget") or privacy["release_budget"]
    found = noisy(privacy, standardize="budget" not in privacy).privacy
    assert 0.99 * budget <= getattr(found, which) <= budget


@pytest.mark.parametrize("privacy", [{}, {"noise_multiplier": 9, "gradient_noise_multiplier": 9}])
def test_no_budget_covers_what_is_fitted_to_rows(
    silence: Environment, privacy: dict[str, float]
) -> None:
    budget = {"budget": 8.0, "gradient_clip": 1.0, **privacy}
    with pytest.raises(
        ConfigError, match="infinite end to end, as party 'party2' standardizes 15 of its columns"
    ):
        noisy(budget, None, silence)


# --------------------------------------------- whose noise: keys of its parties' own alone


def secretly(algorithm: str = "fedbcd-p") -> TrainingResult:
    """All noise that an algorithm has, among three parties."""
    fdml = algorithm == "fdml"
    noise = {**ALL_NOISE, **({"label_noise_multiplier": 0} if fdml else {})}
    steps = {"rounds": 3, "batch_size": "full", "learning_rate": 0.1, "local_steps": 2 - fdml}
    environment = Environment(record_views=True)
    settings: dict[str, Any] = {"algorithm": algorithm, **steps}
    return fit(breast_cancer(3), "dp", environment, privacy=noise, **settings)


def messages(result: TrainingResult) -> list[bytes]:
    """In an order of their own: when they come follows from the clock of this machine."""
    every = [entry.message for view in result.views.values() for entry in view.received()]
    return sorted(encode(message) for message in every if message.stage != "setup")


@pytest.mark.parametrize("algorithm", ["fedbcd-p", "fdml"])
def test_all_noise_follows_from_the_operating_system(
    algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = []
    for name in ("one", "one", "other"):
        asked = iter(range(1000))

        def known(count: int, name: str = name, asked: Any = asked) -> bytes:  # noqa: ANN401
            return hashlib.shake_256(f"{name} {next(asked)}".encode()).digest(count)

        # In this module alone: Hello's secrets come from the same function, in any order.
        system = SimpleNamespace(token_bytes=known)
        monkeypatch.setattr("securevfl.privacy.streams.secrets", system)
        results.append(secretly(algorithm))
    one, same, other = results
    assert messages(one) == messages(same)
    np.testing.assert_array_equal(all_weights(one), all_weights(same))
    assert not np.any(all_weights(one) == all_weights(other))


def test_no_noise_is_drawn_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over purposes, parties, rounds and runs."""
    drawn: list[FloatArray] = []
    draw = NoiseStream.gaussian

    def kept(stream: NoiseStream, shape: tuple[int, ...]) -> FloatArray:
        drawn.append(draw(stream, shape))
        return drawn[-1]

    monkeypatch.setattr(NoiseStream, "gaussian", kept)
    # Row offsets are part of the start, which repeats with the seed of an experiment.
    offsets = type("OffsetStream", (NoiseStream,), {"gaussian": draw})
    monkeypatch.setattr("securevfl.protocols.vertical.local_part.NoiseStream", offsets)
    for _ in range(2):
        secretly()
    # 3 rounds: 2 parties' predictions of 114 rows, the label party's residuals, both held out.
    together = np.concatenate([each.ravel() for each in drawn])
    assert len(together) >= 2 * 3 * (3 * 114)
    assert len(np.unique(together)) == len(together)


@pytest.mark.parametrize("algorithm", ["fedbcd-p", "fdml"])
def test_each_purpose_draws_from_its_own_stream(
    algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_stream: dict[int, set[str]] = {}
    names: dict[int, str] = {}
    kept: list[NoiseStream] = []
    stream_of, perturb, noise = NoiseKey.stream, Mechanism.perturb, GradientNoise.noise

    def named(key: NoiseKey, purpose: Any) -> NoiseStream:  # noqa: ANN401
        kept.append(stream_of(key, purpose))
        names[id(kept[-1])] = purpose
        return kept[-1]

    def on_values(mechanism: Mechanism, values: FloatArray, stream: NoiseStream) -> FloatArray:
        # Residuals have half of 1 for their clip, predictions the job's 2.
        what = "residuals" if mechanism.clip == 0.5 else f"predictions of {len(values)}"
        by_stream.setdefault(id(stream), set()).add(what)
        return perturb(mechanism, values, stream)

    def on_gradients(
        self: GradientNoise, shape: tuple[int, ...], stream: NoiseStream
    ) -> FloatArray:
        by_stream.setdefault(id(stream), set()).add("gradients")
        return noise(self, shape, stream)

    monkeypatch.setattr(NoiseKey, "stream", named)
    monkeypatch.setattr(Mechanism, "perturb", on_values)
    monkeypatch.setattr(GradientNoise, "noise", on_gradients)
    secretly(algorithm)
    served = {(names[each], *sorted(what)) for each, what in by_stream.items()}
    expected = {
        ("predictions", "predictions of 456"),
        ("held-out predictions", "predictions of 113"),
        ("gradients", "gradients"),
    }
    assert served == expected | ({("residuals", "residuals")} if algorithm != "fdml" else set())


# ----------------------------------- θ⁰, on which the promise end to end rests, tells no row


def starts_of(dataset: VerticalDataset, privacy: Settings, **settings: object) -> Starts:
    """Every party's θ⁰ in a job under `dp`."""
    starts = Starts()
    noise, steps = {"noise_multiplier": 1.0, **privacy}, {"rounds": 1, "batch_size": "full"}
    noisy(noise, dataset, Environment(wrap_model=starts), **{**steps, "local_steps": 5, **settings})
    return starts


def with_another_row(dataset: VerticalDataset, party: str) -> VerticalDataset:
    """The same data but for the first row of one party, 50 times as large."""
    tables = {table.name: table for table in dataset.parties}
    rows = tables[party].train.copy()
    rows[0] *= 50
    tables[party] = replace(tables[party], train=rows)
    return replace(dataset, parties=tuple(tables.values()))


@pytest.mark.parametrize("model", ["linear", "mlp"])
@pytest.mark.parametrize("standardize", [True, False])
def test_a_start_under_gradient_clip_depends_on_no_row_and_else_it_does(
    model: str, standardize: bool
) -> None:
    """An audit found it: a θ⁰ scaled by the rows' spread told a large record from a small one."""
    dataset = some_rows(breast_cancer(), 40)
    settings = {"model": model, "standardize": standardize}
    for party in (table.name for table in dataset.parties):
        other = with_another_row(dataset, party)
        one, same = (starts_of(each, GRADIENTS, **settings) for each in (dataset, other))
        for name, weights in one.items():
            np.testing.assert_allclose(same[name], weights, rtol=1e-12)
        # Known to be told: with exact gradients a start is scaled over the party's own rows.
        one, changed = (starts_of(each, {}, **settings) for each in (dataset, other))
        assert not np.allclose(changed[party], one[party], rtol=1e-3)
