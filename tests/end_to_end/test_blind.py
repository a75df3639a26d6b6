"""Training in shares, beside the same steps in clear, what it refuses and where it fails."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from securevfl.arrays import FloatArray
from securevfl.data.tables import VerticalDataset, as_classes
from securevfl.errors import LabelLeakRefused, PeerViolation, RangeExceeded
from securevfl.job import Job
from securevfl.protocols.blind.fixed_point import require_rare
from securevfl.protocols.blind.rounds import RevealedShare
from securevfl.protocols.blind.schedule import LARGEST_SCALE, Scales
from securevfl.training import Environment, TrainingResult, train
from tests.exact_reference import Reference
from tests.jobs import all_weights
from tests.made_data import dataset_of, made
from tests.tampering import changed

FIXED_POINT = 3e-3
AFFINE = {"loss": "taylor-logistic"}


def run(
    dataset: VerticalDataset,
    scheme: str = "blind",
    environment: Environment | None = None,
    exchange: Mapping[str, Any] | None = None,
    **job: Any,  # noqa: ANN401
) -> TrainingResult:
    settings = {"start": "zero", "eval_every": 0, **AFFINE, **job}
    return train(
        Job.of(job=settings, exchange={"scheme": scheme, **(exchange or {})}), dataset, environment
    )


@pytest.mark.parametrize(
    "more",
    [
        {"local_steps": 5, "batch_size": 40, "rounds": 12},
        {"algorithm": "fedsgd", "batch_size": 40, "sampling": "shuffle", "rounds": 12},
        {"local_steps": 5, "l2": 0.1, "proximal": 0.5, "batch_size": "full", "rounds": 8},
        {"local_steps": 1, "local_rule": "frozen", "loss": "squared", "rounds": 6},
        {"local_steps": 2, "schedule": "inverse-sqrt", "acceleration": "nesterov", "rounds": 9},
    ],
)
def test_gradient_steps_are_those_in_clear(more: dict[str, Any]) -> None:
    dataset, job = made(1), {"learning_rate": 0.1, **more}
    shared, clear = run(dataset, **job), run(dataset, "plain", **job)
    assert np.abs(all_weights(shared) - all_weights(clear)).max() <= FIXED_POINT
    assert np.abs(all_weights(clear)).max() > 20 * FIXED_POINT


def expected_weights(dataset: VerticalDataset, found: TrainingResult) -> FloatArray:
    """Where the same exact steps end in clear."""
    plan = found.plan
    blocks = [table.train for table in dataset.parties]
    blocks[0] = np.hstack([blocks[0], np.ones((len(blocks[0]), 1))])
    reference = Reference(
        blocks,
        as_classes(dataset.train_labels),
        [np.zeros((block.shape[1], 1)) for block in blocks],
        [plan.schedule.batch(index) for index in range(plan.rounds)],
        plan.loss.name,
        plan.l2,
        scale=2,
        most=2,
        proximal=plan.job.job.proximal,
        tolerance=0.0,
        accelerated=plan.job.job.acceleration == "nesterov",
    ).run()
    return np.concatenate([weights.ravel() for weights in reference.weights])


@pytest.mark.parametrize(
    "more", [{}, {"loss": "squared"}, {"acceleration": "none"}, {"l2": 0.05, "proximal": 0.02}]
)
def test_exact_steps_are_those_of_the_reference(more: dict[str, Any]) -> None:
    dataset = made(2)
    found = run(dataset, **more)
    plan, settings = found.plan, found.plan.job.job
    assert (plan.rounds, settings.acceleration) == (20, more.get("acceleration", "nesterov"))
    expected = expected_weights(dataset, found)
    assert np.abs(all_weights(found) - expected).max() <= FIXED_POINT


def test_logistic_exact_steps_are_nearly_those_of_the_sigmoid() -> None:
    dataset = made(4, rows=400)
    found = run(dataset, loss="logistic", rounds=10)
    expected = expected_weights(dataset, found)
    # 0.0083, of which pads move 0.0005; 0.042 with a quarter fewer terms.
    difference = np.linalg.norm(all_weights(found) - expected)
    assert difference < 0.015 * np.linalg.norm(expected)


def test_a_random_start_ends_where_zero_does() -> None:
    dataset = made(3)
    ends = [all_weights(run(dataset, start=start, rounds=40)) for start in ("zero", "random")]
    assert np.abs(ends[0] - ends[1]).max() <= 2 * FIXED_POINT


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_pads_of_a_few_rounds_at_a_time_serve_as_well(loss: str) -> None:
    dataset, job = made(9), dict[str, Any](loss=loss, rounds=7, batch_size=40, local_steps=2)
    together, parted = (
        run(dataset, exchange={"offline_rounds": size}, **job) for size in (None, 3)
    )
    assert np.abs(all_weights(together) - all_weights(parted)).max() <= 2 * FIXED_POINT
    messages = [result.costs(3).offline_messages for result in (together, parted)]
    assert 0 < messages[1] < messages[0] == together.costs().offline_messages


def test_columns_in_unusual_units_train_as_well() -> None:
    dataset = made(4)
    blocks = [table.train for table in dataset.parties]
    units = 10.0 ** np.array([4, -4, 0, 3])
    scaled = dataset_of([blocks[0] * units, blocks[1]], as_classes(dataset.train_labels))
    usual, unusual = run(dataset, l2=0.0), run(scaled, l2=0.0)
    differences = all_weights(unusual)[:4] * units - all_weights(usual)[:4]
    assert np.abs(differences).max() <= 2 * FIXED_POINT


def test_it_starts_at_zero_and_takes_twenty_full_batches_where_nothing_is_said() -> None:
    job = train(Job.of(job=AFFINE, exchange={"scheme": "blind"}), made(5)).plan.job.job
    assert (job.start, job.rounds, job.batch_size, job.local_steps, job.eval_every) == (
        "zero", 20, "full", "exact", 0,
    )  # fmt: skip
    said = train(Job.of(job={**AFFINE, "rounds": 100}, exchange={"scheme": "blind"}), made(5))
    assert said.plan.rounds == 100


def test_so_many_truncations_that_one_is_likely_to_fail_are_refused() -> None:
    with pytest.raises(RangeExceeded, match="goes wrong with probability"):
        run(made(7), rounds=2, local_steps=1, learning_rate=1e-9)


def test_one_round_is_not_advised_to_take_fewer() -> None:
    require_rare(2.0**-6, "steps", 1)
    with pytest.raises(RangeExceeded, match="use smaller batches"):
        require_rare(1.0, "steps", 1)
    with pytest.raises(RangeExceeded, match="use fewer rounds or smaller batches"):
        require_rare(1.0, "steps", 2)


def test_a_job_that_visits_too_few_rows_for_its_columns_is_refused() -> None:
    """Labels have no more bits than the end: of 4 columns and 12 bits, 48."""
    dataset = made(8)
    steps: dict[str, Any] = {
        "rounds": 1,
        "sampling": "shuffle",
        "local_steps": 2,
        "learning_rate": 0.1,
    }
    with pytest.raises(LabelLeakRefused, match="labels of 40 rows can be read from the 4"):
        run(dataset, batch_size=40, **steps)
    run(dataset, batch_size=60, **steps)
    run(made(8, rows=48), batch_size="full", **steps)
    run(dataset, batch_size=40, allow_label_leak=True, **steps)
    # Rows that come again count once.
    steps["rounds"] = 2
    run(dataset, batch_size=40, **steps)
    with pytest.raises(LabelLeakRefused, match="labels of 40 rows"):
        run(made(8, rows=40), batch_size="full", **steps)


def test_steps_that_fixed_point_has_no_room_for_are_refused_with_a_remedy() -> None:
    with pytest.raises(RangeExceeded, match="take a smaller learning_rate, or 'auto'"):
        run(made(7), rounds=2, local_steps=8, learning_rate=1000.0)


def test_weights_that_no_job_has_are_no_model() -> None:
    def moved(message: RevealedShare) -> RevealedShare:
        return RevealedShare(message.values + np.uint64(1 << 40))

    with pytest.raises(RangeExceeded, match="revealed weights reach"):
        run(made(8), environment=Environment(tamper=changed(RevealedShare, moved)))


@pytest.mark.parametrize(
    "change",
    [
        lambda own: Scales(0, own.entry_bits),  # fewer than weights have
        lambda own: Scales(LARGEST_SCALE, own.entry_bits),
        lambda own: Scales(own.step_bits, LARGEST_SCALE),
        lambda own: Scales(own.step_bits, 2**64 - 1),
    ],
)
def test_a_holder_refuses_steps_of_sizes_that_no_owner_has(
    change: Callable[[Scales], Scales],
) -> None:
    with pytest.raises(PeerViolation, match="announces steps of"):
        run(made(8), environment=Environment(tamper=changed(Scales, change)))


@pytest.mark.parametrize(
    ("parties", "period", "more"),
    [
        (3, None, {"local_steps": 5, "batch_size": 40}),
        (2, None, {"local_steps": 1, "acceleration": "nesterov"}),
        (2, 90, {"local_steps": 1, "acceleration": "nesterov"}),
    ],
)
def test_logistic_steps_are_nearly_those_in_clear(
    parties: int, period: int | None, more: dict[str, Any]
) -> None:
    dataset = made(1, parties, rows=200)
    job: dict[str, Any] = {"loss": "logistic", "learning_rate": 0.2, "rounds": 8, **more}
    clear = all_weights(run(dataset, "plain", **job))
    found = all_weights(run(dataset, exchange={"period": period}, **job))
    # The series is within 0.0045 of σ where predictions are.
    assert np.abs(found - clear).max() < 0.012
    assert np.abs(clear).max() > 0.3


def test_predictions_beyond_half_a_period_fail_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(2)
    features = [generator.standard_t(2, (120, 3)) for _ in range(2)]
    labels = (np.hstack(features).sum(axis=1) > 0).astype(np.int64)
    dataset = dataset_of(features, labels)
    job: dict[str, Any] = {"loss": "logistic", "rounds": 25, "l2": 1e-4}
    with pytest.raises(RangeExceeded, match=r"set \[exchange\] period = 48"):
        run(dataset, exchange={"period": 24}, **job)
    run(dataset, exchange={"period": 100}, **job)
    # Where there is no longer one, none is named.
    monkeypatch.setattr("securevfl.protocols.blind.rounds.LARGEST_PERIOD", 24)
    with pytest.raises(RangeExceeded, match="asked for: take fewer rounds"):
        run(dataset, exchange={"period": 24}, **job)
