"""Squared hinge and hinge through the exchanges: exact, bounded, or refused."""

import numpy as np
import pytest
from sklearn.svm import LinearSVC

from securevfl.arrays import FloatArray
from securevfl.errors import ConfigError, RangeExceeded
from securevfl.job import Job
from securevfl.models.losses import SquaredHinge
from securevfl.training import plan_for
from tests.jobs import all_weights, breast_cancer, run_job, scaled_blocks

FEW: dict[str, object] = {"rounds": 6, "batch_size": 152, "learning_rate": 0.02}
SQUARED = {**FEW, "loss": "squared-hinge"}
HINGE = {**FEW, "loss": "hinge", "local_rule": "frozen"}


@pytest.mark.parametrize("l2", [1e-3, 1e-1])
def test_exact_steps_reach_the_optimum_of_a_linear_support_vector_machine(l2: float) -> None:
    dataset = breast_cancer(3)
    inputs, labels = np.hstack(list(scaled_blocks(dataset).values())), dataset.train_labels
    # Both penalize every weight: no intercept, which LIBLINEAR would penalize and we do not.
    inputs = inputs[:, ~np.isclose(inputs.std(axis=0), 0)]
    reference = LinearSVC(
        C=1 / (len(labels) * l2), dual=False, fit_intercept=False, tol=1e-10, max_iter=10**5
    ).fit(inputs, labels)
    result = run_job(
        dataset,
        loss="squared-hinge",
        learning_rate="auto",
        l2=l2,
        tolerance=0.0,
        rounds=400,
        intercept=False,
        eval_every=0,
    )
    assert result.plan.rule.exact

    def objective(weights: FloatArray) -> float:
        value = SquaredHinge().value(inputs @ weights[:, None], labels)
        return value + l2 / 2 * float(weights @ weights)

    best = objective(reference.coef_[0])
    assert objective(all_weights(result)) == pytest.approx(best, rel=1e-6)


def test_unbounded_residuals_beyond_the_agreed_bound_are_refused() -> None:
    exchange: dict[str, object] = {"scheme": "bfv", "prediction_bound": 0.05}
    with pytest.raises(RangeExceeded, match="residuals"):
        run_job(breast_cancer(), exchange, **SQUARED)
    run_job(breast_cancer(), exchange, **HINGE)


def test_a_hinge_learns_by_falling_steps_of_the_frozen_rule() -> None:
    settings = {**HINGE, "rounds": 60, "schedule": "inverse-sqrt", "learning_rate": 0.1}
    result = run_job(breast_cancer(), **settings)
    assert result.learned
    assert result.scores[-1].auc > 0.98


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
def test_a_hinge_without_what_it_takes_is_refused_in_one_line(settings: dict[str, object]) -> None:
    job = Job.of(job={"loss": "hinge", **settings})
    with pytest.raises(ConfigError, match="'hinge' has unbounded curvature: give a"):
        plan_for(job, breast_cancer())
    plan_for(Job.of(job={**settings, "loss": "squared-hinge"}), breast_cancer())


def test_no_noise_hides_a_label_that_moves_residuals_without_bound() -> None:
    dataset = breast_cancer()
    noise = {"noise_multiplier": 1.0, "label_noise_multiplier": 1.0}
    with pytest.raises(ConfigError, match="a label moves this loss's residuals without bound"):
        run_job(dataset, "dp", privacy=noise, batch_size=114, loss="squared-hinge")
    plans = [
        plan_for(Job.of(job=job, exchange={"scheme": "dp"}, privacy=noise), dataset)
        for job in ({"learning_rate": 0.1}, {**HINGE, "batch_size": 114})
    ]
    scales = [plan.account.label_noise.scale for plan in plans if plan.account]  # type: ignore[union-attr]
    assert scales[1] == pytest.approx(2 * scales[0])


def test_networks_take_both() -> None:
    for settings in (SQUARED, HINGE):
        network = {**settings, "model": "mlp", "hidden": [4], "rounds": 60, "learning_rate": 0.02}
        assert run_job(breast_cancer(), **network).scores[-1].auc > 0.95
