"""`local_rule = "exact"`: every party steps with the loss itself, and is told what that takes."""

import numpy as np
import pytest

from securevfl.arrays import FloatArray
from securevfl.benchmarks.objective import Objective
from securevfl.data.sources import load
from securevfl.data.tables import VerticalDataset
from securevfl.job import Job
from securevfl.models.losses import Logistic, Loss, Multinomial, SquaredHinge, loss_for
from securevfl.protocols.exchanges.plain import Residuals
from securevfl.protocols.session.gathering import Predictions
from securevfl.runtime.views import Received
from securevfl.training import TrainingResult, plan_for
from tests.end_to_end.test_centralized import schedule_of
from tests.jobs import all_weights, breast_cancer, run_job

ETA, L2, STEPS, ROUNDS = 0.05, 0.01, 4, 6
EXACT: dict[str, object] = {
    "local_rule": "exact",
    "learning_rate": ETA,
    "l2": L2,
    "local_steps": STEPS,
    "rounds": ROUNDS,
    "batch_size": 64,
    "start": "zero",
    "eval_every": 0,
}


def reference(result: TrainingResult, dataset: VerticalDataset, loss: Loss) -> FloatArray:
    """Equation (7) on the joint table: others' predictions stale, one's own always fresh."""
    blocks = Objective.of(dataset).blocks
    decays = [L2 * ~np.isclose(np.std(block, axis=0), 0)[:, None] for block in blocks]
    weights = [np.zeros((block.shape[1], loss.outputs)) for block in blocks]
    names = [table.name for table in dataset.parties]
    label = names.index(dataset.label_party)
    order = [label, *(k for k in range(len(names)) if k != label)]
    schedule = schedule_of(result, dataset)
    for index in range(ROUNDS):
        rows = schedule.batch(index)
        labels = dataset.train_labels[rows]
        predictions = [block[rows] @ own for block, own in zip(blocks, weights, strict=True)]
        total = np.sum(predictions, axis=0)
        for k in order:
            if result.plan.algorithm.in_turns:
                fresh = [block[rows] @ own for block, own in zip(blocks, weights, strict=True)]
                others = np.sum(fresh, axis=0) - fresh[k]
            else:
                others = total - predictions[k]
            for _ in range(STEPS):
                residuals = loss.residuals(others + blocks[k][rows] @ weights[k], labels)
                gradient = blocks[k][rows].T @ residuals / len(rows) + decays[k] * weights[k]
                weights[k] = weights[k] - ETA * gradient
    return np.concatenate([own.ravel() for own in weights])


@pytest.mark.parametrize("algorithm", ["fedbcd-p", "fedbcd-s"])
@pytest.mark.parametrize(
    ("data", "loss"),
    [("breast_cancer", Logistic()), ("breast_cancer", SquaredHinge()), ("digits", Multinomial(10))],
    ids=["logistic", "squared hinge", "multinomial"],
)
def test_it_is_the_paper_s_update(algorithm: str, data: str, loss: Loss) -> None:
    dataset = load(data, parties=3)
    result = run_job(dataset, algorithm=algorithm, loss=loss.name, **EXACT)
    expected = reference(result, dataset, loss)
    np.testing.assert_allclose(all_weights(result), expected, rtol=0, atol=1e-12)
    default = run_job(
        dataset, algorithm=algorithm, loss=loss.name, **{**EXACT, "local_rule": "curvature"}
    )
    assert np.abs(all_weights(default) - expected).max() > 1e-6


def test_on_a_quadratic_loss_it_is_the_curvature_rule() -> None:
    dataset = breast_cancer(3)
    exact, curvature = (
        all_weights(run_job(dataset, loss="squared", **{**EXACT, "local_rule": rule}))
        for rule in ("exact", "curvature")
    )
    np.testing.assert_allclose(exact, curvature, rtol=0, atol=1e-12)


@pytest.mark.parametrize("loss", ["logistic", "squared", "squared-hinge", "hinge"])
def test_a_feature_party_is_told_the_sum_beside_residuals(loss: str) -> None:
    dataset = breast_cancer(3)
    result = run_job(dataset, loss=loss, **EXACT)
    assert result.costs().messages == ROUNDS * 3 * 2
    view = result.views["party2"].entries
    told = [each.message for each in view if isinstance(each, Received)]
    sums = [each.values for each in told if isinstance(each, Predictions)]
    residuals = [each.values for each in told if isinstance(each, Residuals)]
    schedule, f = schedule_of(result, dataset), loss_for(loss, 2)
    assert len(sums) == len(residuals) == ROUNDS
    for index, (total, seen) in enumerate(zip(sums, residuals, strict=True)):
        labels = dataset.train_labels[schedule.batch(index)]
        np.testing.assert_allclose(f.residuals(total, labels), seen, rtol=0, atol=1e-12)


def test_it_leaves_exact_steps_alone() -> None:
    dataset = breast_cancer()
    assert plan_for(Job.of(job={"local_rule": "exact"}), dataset).local_steps == 5


def test_its_description_says_what_it_tells() -> None:
    plain = plan_for(Job.of(), breast_cancer())
    exact = plan_for(Job.of(job={"local_rule": "exact"}), breast_cancer())
    assert exact.learns.feature_party == f"{plain.learns.feature_party}, told beside it"


def test_networks_take_it() -> None:
    settings = {**EXACT, "start": "random", "model": "mlp", "hidden": [4], "rounds": 40}
    assert run_job(breast_cancer(), **{**settings, "eval_every": 40}).scores[-1].auc > 0.95
