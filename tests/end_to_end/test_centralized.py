"""The protocols against training on the joint table, written independently here."""

import numpy as np
import pytest

from securevfl.arrays import FloatArray
from securevfl.auditing.subject import local_part
from securevfl.data.partition import BatchSchedule
from securevfl.data.scaling import Scaling
from securevfl.data.sources import load
from securevfl.data.tables import VerticalDataset
from securevfl.training import TrainingResult
from tests.jobs import all_weights, breast_cancer, run_job


def joint(dataset: VerticalDataset) -> FloatArray:
    """All standardized columns side by side, the label party's constant column after its own."""
    blocks = []
    for table in dataset.parties:
        blocks.append(Scaling.fit(table.train).apply(table.train))
        if table.name == dataset.label_party:
            blocks.append(np.ones((len(table.train), 1)))
    return np.hstack(blocks)


def start_of(dataset: VerticalDataset, seed: int) -> FloatArray:
    """θ⁰ of a job: what one round with a step size of almost nothing leaves."""
    result = run_job(dataset, rounds=1, learning_rate=1e-300, batch_size=64, seed=seed)
    return all_weights(result)


def schedule_of(result: TrainingResult, dataset: VerticalDataset) -> BatchSchedule:
    job = result.job.job
    size = result.plan.batch_size
    assert size != "full"
    return BatchSchedule(dataset.row_digests, size, job.seed, job.sampling)


@pytest.mark.parametrize("parties", [2, 3, 17])
@pytest.mark.parametrize("sampling", ["partition", "shuffle"])
def test_fedsgd_in_clear_is_centralized_minibatch_sgd(parties: int, sampling: str) -> None:
    dataset = breast_cancer(parties)
    result = run_job(
        dataset,
        algorithm="fedsgd",
        rounds=200,
        batch_size=64,
        learning_rate=0.2,
        l2=0.01,
        sampling=sampling,
        schedule="inverse-sqrt",
        seed=5,
        eval_every=0,
    )
    inputs, labels = joint(dataset), dataset.train_labels
    weights = start_of(dataset, seed=5)
    part = local_part(result.plan, dataset, dataset.label_party)
    assert part.row_offsets is not None
    offsets = part.row_offsets[:, 0]
    constant = np.isclose(inputs.std(axis=0), 0)
    schedule = schedule_of(result, dataset)
    for t in range(200):
        rows = schedule.batch(t)
        margins = inputs[rows] @ weights + offsets[rows]
        residuals = 1 / (1 + np.exp(-margins)) - labels[rows]
        gradient = inputs[rows].T @ residuals / len(rows) + np.where(constant, 0, 0.01 * weights)
        weights = weights - 0.2 / np.sqrt(t + 1) * gradient
    assert np.max(np.abs(all_weights(result) - weights)) <= 1e-12


def test_fedbcd_p_with_one_local_step_is_fedsgd_to_the_bit() -> None:
    common = {"rounds": 50, "batch_size": 64, "learning_rate": 0.3, "seed": 2}
    sgd = run_job(breast_cancer(), algorithm="fedsgd", local_steps=7, **common)
    bcd = run_job(breast_cancer(), algorithm="fedbcd-p", local_steps=1, **common)
    assert all_weights(sgd).tobytes() == all_weights(bcd).tobytes()


def test_the_softmax_model_is_centralized_softmax_regression() -> None:
    dataset = load("digits")
    result = run_job(
        dataset, algorithm="fedsgd", rounds=30, batch_size=128, learning_rate=0.5, start="zero"
    )
    left, right = dataset.parties
    inputs = np.hstack([left.train, right.train, np.ones((len(left.train), 1))])
    weights = np.zeros((inputs.shape[1], 10))
    schedule = schedule_of(result, dataset)
    for t in range(30):
        rows = schedule.batch(t)
        odds = np.exp(inputs[rows] @ weights)
        residuals = odds / odds.sum(axis=1, keepdims=True)
        residuals -= np.eye(10)[dataset.train_labels[rows]]
        weights -= 0.5 * inputs[rows].T @ residuals / len(rows)
    assert np.max(np.abs(all_weights(result) - weights.ravel())) <= 1e-12
    assert result.scores[-1].accuracy > 0.8


def test_fedbcd_s_lets_each_party_step_on_everyones_newest_predictions() -> None:
    dataset = breast_cancer(3)
    settings = {"rounds": 20, "batch_size": 64, "learning_rate": 0.1, "seed": 1}
    result = run_job(
        dataset, algorithm="fedbcd-s", local_steps=4, intercept=False, start="zero", **settings
    )
    blocks = [Scaling.fit(table.train).apply(table.train) for table in dataset.parties]
    weights = [np.zeros(block.shape[1]) for block in blocks]
    schedule = schedule_of(result, dataset)
    for t in range(20):
        rows = schedule.batch(t)
        labels = dataset.train_labels[rows]
        for turn in range(3):  # the label party is the first
            own = blocks[turn][rows]
            others = sum(blocks[j][rows] @ weights[j] for j in range(3) if j != turn) + np.zeros(
                len(rows)
            )
            start = own @ weights[turn]
            frozen = 1 / (1 + np.exp(-(others + start))) - labels
            for _ in range(4):
                if turn == 0:
                    residuals = 1 / (1 + np.exp(-(others + own @ weights[turn]))) - labels
                else:
                    residuals = frozen + 0.25 * (own @ weights[turn] - start)
                weights[turn] = weights[turn] - 0.1 * own.T @ residuals / len(rows)
    assert np.max(np.abs(all_weights(result) - np.concatenate(weights))) <= 1e-12


def test_many_parties_divide_the_step_size_by_the_root_of_their_number() -> None:
    dataset = breast_cancer(4)
    common = {"rounds": 5, "batch_size": 64, "seed": 3}
    divided = run_job(dataset, learning_rate=0.4, divide_by_sqrt_parties=True, **common)
    halved = run_job(dataset, learning_rate=0.2, **common)
    assert np.array_equal(all_weights(divided), all_weights(halved))
