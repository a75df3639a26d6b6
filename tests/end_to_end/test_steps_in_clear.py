"""Steps in clear against the papers' equations, written independently here, on all columns."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.svm import LinearSVC

from securevfl.arrays import FloatArray
from securevfl.auditing.subject import local_part
from securevfl.auditing.views import gradients_of, residuals_of
from securevfl.benchmarks.tradeoff import rounds_to
from securevfl.data.tables import VerticalDataset
from securevfl.errors import ConfigError, RangeExceeded
from securevfl.job import Job
from securevfl.models.losses import SquaredHinge, loss_for
from securevfl.privacy.streams import NoiseStream
from securevfl.protocols.exchanges.plain import Residuals
from securevfl.protocols.plan import ROW_OFFSETS
from securevfl.protocols.session.gathering import Predictions
from securevfl.protocols.vertical import local_part as local_part_module
from securevfl.protocols.vertical.local_part import LocalPart
from securevfl.training import Environment, TrainingResult, plan_for
from tests.jobs import (
    Settings,
    Starts,
    all_weights,
    breast_cancer,
    digits,
    fit,
    job_of,
    received,
    run_job,
    scaled_blocks,
)

# Of the residuals of a loss, by which they are followed where only they are told.
BENDS = {"logistic": 0.25, "squared": 1.0, "squared-hinge": 1.0, "multinomial": 0.5}
EXACT: dict[str, Any] = {
    **{"local_rule": "exact", "learning_rate": 0.05, "l2": 0.01, "local_steps": 4, "rounds": 6},
    **{"batch_size": 64, "start": "zero", "eval_every": 0},
}


def columns_of(
    result: TrainingResult, dataset: VerticalDataset
) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
    """Every party's columns and what its weights decay by; the constant one's weight does not."""
    settings, label = result.job.job, dataset.label_party
    blocks = scaled_blocks(dataset)
    if not settings.intercept:
        blocks[label] = blocks[label][:, :-1]
    decays = {name: np.full((b.shape[1], 1), settings.l2 or 0.0) for name, b in blocks.items()}
    if settings.intercept:
        decays[label][-1] = 0.0
    return blocks, decays


def reference(result: TrainingResult, dataset: VerticalDataset, start: Starts) -> FloatArray:
    """FedBCD on the joint table: others' predictions stale, one's own always fresh.

    The label party comes first. In turns others' are fresh, too, where a party's turn begins;
    under the curvature rule the others follow the residuals that they are told.
    """
    plan, settings, labels = result.plan, result.job.job, dataset.train_labels
    loss, label = loss_for(settings.loss, dataset.classes), dataset.label_party
    offsets = local_part(plan, dataset, label).row_offsets
    blocks, decays = columns_of(result, dataset)
    weights = {name: start[name].copy() for name in blocks}
    steps = 1 if settings.algorithm == "fedsgd" else plan.local_steps
    assert isinstance(steps, int)
    assert isinstance(settings.learning_rate, float)
    for index in range(result.rounds):
        rows = plan.schedule.batch(index)
        eta = settings.learning_rate
        if settings.schedule == "inverse-sqrt":
            eta /= np.sqrt(index + 1)
        given = {name: block[rows] @ weights[name] for name, block in blocks.items()}
        for name in [label, *(each for each in blocks if each != label)]:
            if plan.algorithm.alternating:
                given = {each: block[rows] @ weights[each] for each, block in blocks.items()}
            x, others = blocks[name][rows], sum(given.values()) - given[name]
            others = others + (0 if offsets is None else offsets[rows])
            given_residuals = loss.residuals(others + given[name], labels[rows])
            for _ in range(steps):
                residuals = loss.residuals(others + x @ weights[name], labels[rows])
                if settings.local_rule == "curvature" and name != label:
                    residuals = given_residuals + BENDS[settings.loss] * (
                        x @ weights[name] - given[name]
                    )
                gradient = x.T @ residuals / len(rows) + decays[name] * weights[name]
                weights[name] = weights[name] - eta * gradient
    return np.concatenate([own.ravel() for own in weights.values()])


FEW: dict[str, Any] = {"rounds": 20, "batch_size": 64, "seed": 1, "local_rule": "curvature"}
SGD: dict[str, Any] = {
    **{"algorithm": "fedsgd", "rounds": 200, "batch_size": 64, "learning_rate": 0.2, "l2": 0.01},
    **{"schedule": "inverse-sqrt", "seed": 5, "eval_every": 0},
}


@pytest.mark.parametrize(
    ("dataset", "settings"),
    [
        *(
            (breast_cancer(parties), {**SGD, "sampling": sampling})
            for parties in (2, 3, 17)
            for sampling in ("partition", "shuffle")
        ),
        (digits(), {**SGD, "rounds": 30, "batch_size": 128, "start": "zero"}),
        *(
            (breast_cancer(3), {**FEW, "algorithm": algorithm, "local_steps": 4, **more})
            for algorithm in ("fedbcd-p", "fedbcd-s")
            for more in ({}, {"intercept": False, "start": "zero"})
        ),
        *(
            (data, {**EXACT, "algorithm": algorithm, "loss": loss})
            for algorithm in ("fedbcd-p", "fedbcd-s")
            for data, loss in (
                (breast_cancer(3), "logistic"),
                (breast_cancer(3), "squared-hinge"),
                (digits(3), "multinomial"),
            )
        ),
    ],
)
def test_parties_take_the_papers_steps_on_the_joint_table(
    dataset: VerticalDataset, settings: Settings
) -> None:
    starts = Starts()
    if dataset.classes > 2:
        settings = {**settings, "loss": "multinomial"}
    result = run_job(dataset, None, Environment(wrap_model=starts), **settings)
    expected = reference(result, dataset, starts)
    np.testing.assert_allclose(all_weights(result), expected, rtol=0, atol=1e-12)
    if settings.get("local_rule") != "exact":
        assert result.scores[-1].accuracy > 0.8
    else:
        default = run_job(dataset, **{**settings, "local_rule": "curvature"})
        assert np.abs(all_weights(default) - expected).max() > 1e-6


def test_fedbcd_p_with_one_local_step_is_fedsgd_to_the_bit() -> None:
    common = {"rounds": 50, "batch_size": 64, "learning_rate": 0.3, "seed": 2}
    sgd = run_job(breast_cancer(), algorithm="fedsgd", local_steps=7, **common)
    bcd = run_job(breast_cancer(), algorithm="fedbcd-p", local_steps=1, **common)
    assert all_weights(sgd).tobytes() == all_weights(bcd).tobytes()


def test_many_parties_divide_the_step_size_by_the_root_of_their_number() -> None:
    common = {"rounds": 5, "batch_size": 64, "seed": 3}
    divided = run_job(breast_cancer(4), learning_rate=0.4, divide_by_sqrt_parties=True, **common)
    halved = run_job(breast_cancer(4), learning_rate=0.2, **common)
    assert np.array_equal(all_weights(divided), all_weights(halved))


# ------------------------------------------------------------------- local_rule = "exact"


def test_on_a_quadratic_loss_the_exact_rule_is_the_curvature_rule() -> None:
    exact, curvature = (
        all_weights(run_job(breast_cancer(3), **{**EXACT, "loss": "squared", "local_rule": rule}))
        for rule in ("exact", "curvature")
    )
    np.testing.assert_allclose(exact, curvature, rtol=0, atol=1e-12)


@pytest.mark.parametrize("loss", ["logistic", "squared", "squared-hinge", "hinge"])
def test_a_feature_party_gets_the_sum_beside_residuals(loss: str) -> None:
    result = run_job(breast_cancer(3), loss=loss, **EXACT)
    assert result.costs().messages == EXACT["rounds"] * 3 * 2
    sums, residuals = (received(result, "party2", kind) for kind in (Predictions, Residuals))
    assert len(sums) == len(residuals) == EXACT["rounds"]
    for index, (total, seen) in enumerate(zip(sums, residuals, strict=True)):
        labels = breast_cancer().train_labels[result.plan.schedule.batch(index)]
        expected = loss_for(loss, 2).residuals(total.values, labels)
        np.testing.assert_allclose(expected, seen.values, rtol=0, atol=1e-12)


def test_the_exact_rule_leaves_exact_steps_alone_and_says_what_it_reveals() -> None:
    plain, exact = (
        plan_for(Job.of(job=job), breast_cancer()) for job in ({}, {"local_rule": "exact"})
    )
    assert exact.local_steps == 5
    assert exact.learns.feature_party == f"{plain.learns.feature_party}, sent beside it"


def test_networks_take_the_exact_rule() -> None:
    network = {"start": "random", "model": "mlp", "hidden": [4], "rounds": 40, "eval_every": 40}
    assert run_job(breast_cancer(), **{**EXACT, **network}).scores[-1].auc > 0.95


# ----------------------------------------------------------- squared hinge and hinge

FEW_STEPS: Settings = {"rounds": 6, "batch_size": 152, "learning_rate": 0.02}
SQUARED = {**FEW_STEPS, "loss": "squared-hinge"}
HINGE = {**FEW_STEPS, "loss": "hinge", "local_rule": "frozen"}


@pytest.mark.parametrize("l2", [1e-3, 1e-1])
def test_exact_steps_reach_the_optimum_of_a_linear_support_vector_machine(l2: float) -> None:
    dataset = breast_cancer(3)
    inputs, labels = np.hstack(list(scaled_blocks(dataset).values())), dataset.train_labels
    # Both penalize every weight: no intercept, which LIBLINEAR would penalize and we do not.
    inputs = inputs[:, ~np.isclose(inputs.std(axis=0), 0)]
    reference = LinearSVC(
        C=1 / (len(labels) * l2), dual=False, fit_intercept=False, tol=1e-10, max_iter=10**5
    ).fit(inputs, labels)
    exact = {"learning_rate": "auto", "tolerance": 0.0, "rounds": 400, "intercept": False}
    result = run_job(dataset, loss="squared-hinge", l2=l2, eval_every=0, **exact)
    assert result.plan.rule.exact

    def objective(weights: FloatArray) -> float:
        value = SquaredHinge().value(inputs @ weights[:, None], labels)
        return value + l2 / 2 * float(weights @ weights)

    best = objective(reference.coef_[0])
    assert objective(all_weights(result)) == pytest.approx(best, rel=1e-6)


def test_unbounded_residuals_beyond_the_agreed_bound_are_refused() -> None:
    exchange = {"scheme": "bfv", "prediction_bound": 0.05}
    with pytest.raises(RangeExceeded, match="residuals"):
        run_job(breast_cancer(), exchange, **SQUARED)
    run_job(breast_cancer(), exchange, **HINGE)


def test_hinges_learn_by_falling_steps_of_the_frozen_rule_and_with_networks() -> None:
    settings = {**HINGE, "rounds": 60, "schedule": "inverse-sqrt", "learning_rate": 0.1}
    result = run_job(breast_cancer(), **settings)
    assert result.learned
    assert result.scores[-1].auc > 0.98
    for losses in (SQUARED, HINGE):
        network = {**losses, "model": "mlp", "hidden": [4], "rounds": 60}
        assert run_job(breast_cancer(), **network).scores[-1].auc > 0.95


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"learning_rate": 0.1},
        {"learning_rate": 0.1, "local_rule": "gauss-newton"},
        {"local_rule": "frozen"},
        {"algorithm": "fedsgd", "learning_rate": 0.1},
    ],
    ids=["exact steps", "curvature", "gauss-newton", "auto", "one step"],
)
def test_a_hinge_without_what_it_takes_is_refused_in_one_line(settings: Settings) -> None:
    job = Job.of(job={"loss": "hinge", **settings})
    with pytest.raises(ConfigError, match="'hinge' has unbounded curvature: give a"):
        plan_for(job, breast_cancer())
    plan_for(Job.of(job={**settings, "loss": "squared-hinge"}), breast_cancer())


def test_no_noise_hides_a_label_that_moves_residuals_without_bound() -> None:
    dataset = breast_cancer()
    told = {"noise_multiplier": 1.0, "label_noise_multiplier": 1.0}
    with pytest.raises(ConfigError, match="a label moves this loss's residuals without bound"):
        run_job(dataset, "dp", privacy=told, batch_size=114, loss="squared-hinge")
    plans = [
        plan_for(Job.of(job=job, exchange={"scheme": "dp"}, privacy=told), dataset)
        for job in ({"learning_rate": 0.1}, {**HINGE, "batch_size": 114})
    ]
    scales = [plan.account.label_noise.scale for plan in plans if plan.account]  # type: ignore[union-attr]
    assert scales[1] == pytest.approx(2 * scales[0])


# --------------- row offsets hide residuals whose predictions all are known

FIRST: Settings = {
    **{"rounds": 1, "batch_size": "full", "local_steps": 2, "learning_rate": 0.1, "eval_every": 0}
}
BOTH_HIDDEN = {"scheme": "bfv", "hide": "both"}


@pytest.mark.parametrize(
    ("exchange", "settings"),
    [
        ({"scheme": "plain"}, {}),
        ({"scheme": "plain"}, {"algorithm": "fedbcd-s"}),
        ({"scheme": "bfv", "round_trips": 2}, {}),
        ({"scheme": "bfv", "round_trips": 1}, {}),
        (BOTH_HIDDEN, {"loss": "taylor-logistic"}),
    ],
)
def test_the_first_gradient_is_that_of_predictions_with_offsets(
    exchange: Settings, settings: Settings
) -> None:
    result = fit(breast_cancer(), exchange, **FIRST, **settings, allow_label_leak=True)
    label = breast_cancer().label_party
    parts = {
        t.name: local_part(result.plan, breast_cancer(), t.name) for t in breast_cancer().parties
    }
    (feature,) = parts.keys() - {label}
    inputs, offsets = parts[feature].inputs, parts[label].row_offsets
    assert offsets is not None
    view = result.views[feature]
    in_clear = residuals_of(view)
    seen = inputs.T @ in_clear[0] / len(inputs) if in_clear else gradients_of(view)[0]
    total = parts[feature].model.predict(inputs)
    if result.plan.algorithm.alternating:  # the label party is the first
        total = total + parts[label].inputs @ result.outcomes[label].model.weights
    else:
        total = total + parts[label].model.predict(parts[label].inputs)
    gradients = [
        inputs.T @ result.plan.loss.residuals(each, breast_cancer().train_labels) / len(inputs)
        for each in (total + offsets, total)
    ]
    np.testing.assert_allclose(seen, gradients[0], atol=1e-4)
    assert np.abs(seen - gradients[1]).max() > 2e-3


def test_offsets_stay_for_the_whole_job_and_are_no_part_of_a_model() -> None:
    """Taken away after a round they would show that round's labels."""
    still = {"rounds": 3, "learning_rate": 1e-12, "start": "random"}
    result = fit(breast_cancer(), **{**FIRST, **still})
    label = breast_cancer().label_party
    (feature,) = result.views.keys() - {label}
    first, second, third = residuals_of(result.views[feature])
    np.testing.assert_allclose(first, second, atol=1e-9)
    np.testing.assert_allclose(first, third, atol=1e-9)
    # σ(e) − y, and hardly anything else.
    assert np.std(np.abs(first)) == pytest.approx(ROW_OFFSETS / 4, rel=0.2)
    part = local_part(result.plan, breast_cancer(), label)
    outcome = result.outcomes[label]
    assert outcome.model.weights.shape == part.model.weights.shape
    np.testing.assert_allclose(outcome.held_out, part.model.predict(part.held_out), atol=1e-9)


def test_offsets_are_drawn_by_the_generator_that_nobody_foretells(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys: list[bytes] = []

    def noted(key: bytes) -> NoiseStream:
        keys.append(key)
        return NoiseStream(key)

    monkeypatch.setattr(local_part_module, "NoiseStream", noted)
    plan = plan_for(job_of(**FIRST), breast_cancer())
    part = LocalPart(plan, breast_cancer().parties[0], np.random.default_rng(7))
    (key,) = keys
    shape = (len(breast_cancer().train_labels), 1)
    expected = ROW_OFFSETS * NoiseStream(key).gaussian(shape)
    np.testing.assert_array_equal(part.row_offsets, expected)


# ------------------------------------------- what local steps buy on real data, as rounds

LoadReal = Callable[..., VerticalDataset]


def test_five_local_steps_need_at_most_a_quarter_of_the_rounds_on_a9a(real_data: LoadReal) -> None:
    dataset = real_data("a9a")
    common = {"batch_size": 256, "learning_rate": 0.1, "start": "zero"}
    common |= {"target_auc": 0.9, "eval_every": 5}
    bcd = run_job(dataset, local_steps=5, rounds=400, **common)
    sgd = run_job(dataset, algorithm="fedsgd", rounds=1500, **common)
    bcd_rounds, sgd_rounds = rounds_to(bcd, 0.9), rounds_to(sgd, 0.9)
    assert bcd_rounds is not None
    assert sgd_rounds is not None
    assert bcd_rounds <= sgd_rounds / 4


def test_a9a_ends_near_the_centralized_auc(real_data: LoadReal) -> None:
    """Centralized logistic regression reaches 0.9022, the best party alone 0.8856."""
    steps = {"batch_size": 256, "local_steps": 5, "schedule": "inverse-sqrt", "start": "zero"}
    result = run_job(real_data("a9a"), rounds=3000, learning_rate=1.0, eval_every=0, **steps)
    assert 0.901 <= result.scores[-1].auc <= 0.903


@pytest.mark.parametrize("parties", [5, pytest.param(17, marks=pytest.mark.slow)])
def test_more_parties_need_hardly_more_rounds_on_intensive_care_data(
    real_data: LoadReal, parties: int
) -> None:
    common = {"batch_size": 256, "local_steps": 5, "learning_rate": 0.001, "start": "zero"}
    common |= {"rounds": 300, "target_auc": 0.82}
    two = rounds_to(run_job(real_data("icu2012-714"), **common), 0.82)
    many = rounds_to(run_job(real_data("icu2012-714", parties=parties), **common), 0.82)
    assert two is not None
    assert many is not None
    assert many <= 1.5 * two
