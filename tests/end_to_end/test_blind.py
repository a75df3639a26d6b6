"""Training in shares beside the same steps in clear: refusals, failures, and what shows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr

from securevfl.arrays import FloatArray
from securevfl.crypto import ring
from securevfl.data.sources import load
from securevfl.data.tables import VerticalDataset, as_classes
from securevfl.errors import (
    FeatureLeakRefused,
    PeerViolation,
    RangeExceeded,
    UnexpectedMessage,
)
from securevfl.models.scores import auc
from securevfl.protocols.blind import residuals
from securevfl.protocols.blind.fixed_point import require_rare, sigmoid_series
from securevfl.protocols.blind.links import Corrections
from securevfl.protocols.blind.relays import HeldOutShares, MaskedResiduals, PredictionShares
from securevfl.protocols.blind.rounds import RevealedShare
from securevfl.protocols.blind.schedule import LARGEST_SCALE, Scales
from securevfl.protocols.exchanges.class_sums import HeldOutMasks
from securevfl.protocols.guards.row_record import RowRecord
from securevfl.protocols.session.gathering import HeldOutPredictions, MaskedHeldOutPredictions
from securevfl.protocols.session.scoring import Score
from securevfl.runtime.costs import Stopwatch
from securevfl.training import Environment, TrainingResult
from tests.exact_reference import Reference
from tests.jobs import Settings, all_weights, breast_cancer, fit, run_job
from tests.made_data import dataset_of, made
from tests.tampering import changed

FIXED_POINT = 3e-3
AFFINE = {"loss": "taylor-logistic"}


def run(dataset: VerticalDataset, *how: Any, **job: object) -> TrainingResult:  # noqa: ANN401
    """`fit`; how: an exchange other than blind, and an environment."""
    return fit(dataset, *(how or ("blind",)), **{"start": "zero", "eval_every": 0, **AFFINE, **job})


def blind(**settings: object) -> Settings:
    return {"scheme": "blind", **settings}


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
    job["allow_label_leak"] = True  # of so few rows
    together, parted = (
        run(dataset, blind(offline_rounds=size, checks=0), **job) for size in (None, 3)
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
    job = fit(made(5), "blind", **AFFINE).plan.job.job
    assert (job.start, job.rounds, job.batch_size, job.local_steps, job.eval_every) == (
        "zero", 20, "full", "exact", 0,
    )  # fmt: skip
    assert fit(made(5), "blind", **AFFINE, rounds=100).plan.rounds == 100


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        ({"local_steps": 1, "learning_rate": 1e-9}, "goes wrong with probability"),
        ({"local_steps": 8, "learning_rate": 1e3}, "take a smaller learning_rate, or 'auto'"),
    ],
    ids=["truncations too likely to fail", "steps without room"],
)
def test_what_fixed_point_cannot_do_is_refused_with_a_remedy(steps: Settings, told: str) -> None:
    with pytest.raises(RangeExceeded, match=told):
        run(made(7), rounds=2, **steps)


def test_one_round_is_not_advised_to_take_fewer() -> None:
    require_rare(2.0**-6, "steps", 1)
    with pytest.raises(RangeExceeded, match="use smaller batches"):
        require_rare(1.0, "steps", 1)
    with pytest.raises(RangeExceeded, match="use fewer rounds or smaller batches"):
        require_rare(1.0, "steps", 2)


@pytest.mark.parametrize(
    ("bit", "error", "told"),
    [(26, RangeExceeded, "revealed weights reach"), (40, UnexpectedMessage, "more than 28 bits")],
)
def test_weights_that_no_job_has_are_no_model(bit: int, error: type[Exception], told: str) -> None:
    def moved(message: RevealedShare) -> RevealedShare:
        return RevealedShare(message.values ^ np.uint64(1 << bit))

    with pytest.raises(error, match=told):
        run(made(8), "blind", Environment(tamper=changed(RevealedShare, moved)))


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
        run(made(8), "blind", Environment(tamper=changed(Scales, change)))


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
    found = all_weights(run(dataset, blind(period=period), **job))
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
        run(dataset, blind(period=24), **job)
    run(dataset, blind(period=100), **job)
    # Where there is no longer one, none is named.
    monkeypatch.setattr("securevfl.protocols.blind.rounds.LARGEST_PERIOD", 24)
    with pytest.raises(RangeExceeded, match="asked for: take fewer rounds"):
        run(dataset, blind(period=24), **job)


def test_heavy_tails_lengthen_the_period_that_their_predictions_would_leave() -> None:
    generator = np.random.default_rng(0)
    features = [generator.standard_t(2, (400, 3)) for _ in range(2)]
    inputs = np.hstack(features)
    scores = np.arcsinh(inputs / np.median(np.abs(inputs), axis=0)).sum(axis=1)
    labels = (scores > np.median(scores)).astype(np.int64)
    dataset = dataset_of(features, labels, standardize=True)
    job: dict[str, Any] = {"loss": "logistic", "rounds": 20}
    found, longer = run(dataset, **job), run(dataset, blind(period=256), **job)
    assert np.abs(longer.predictions).max() > 40
    assert np.std(found.predictions - longer.predictions) < 0.03 * np.std(longer.predictions)
    aucs = [auc(each.predictions, labels) for each in (found, longer, run(dataset, "plain", **job))]
    assert np.ptp(aucs) < 0.002
    # A job that sets the period that otherwise follows from its rounds keeps it.
    with pytest.raises(RangeExceeded, match="left half the period of 72"):
        run(dataset, blind(period=72), **job)


def test_a_period_is_as_long_as_predictions_from_heavy_tails_ask_for() -> None:
    def trained(seed: int) -> TrainingResult:
        generator = np.random.default_rng(seed)
        features = [generator.standard_t(3, (400, 5)) for _ in range(2)]
        inputs = np.hstack(features)
        log_odds = 8 * (inputs / inputs.std(axis=0)) @ generator.standard_normal(10)
        labels = (log_odds + generator.logistic(size=400) > 0).astype(np.int64)
        dataset = dataset_of(features, labels, standardize=True)
        return run(dataset, "plain", loss="logistic", rounds=20)

    results = [trained(seed) for seed in range(8)]
    series = sigmoid_series(results[0].plan)
    assert series is not None
    largest = np.median([np.abs(result.predictions).max() for result in results])
    assert 0.7 * series.range < largest < series.period / 2


# ------------------------------------- two, three and five parties, and what one scoring opens

ROUNDS = 3
SETTINGS: Settings = {
    **{**AFFINE, "rounds": ROUNDS, "local_steps": 5, "batch_size": 64, "start": "zero"},
    **{"eval_every": 0, "allow_label_leak": True},  # these jobs visit few rows
}
# Of predictions, most of it from the grid that weights are opened on; a few times what is found.
OF_PREDICTIONS = 0.03


def among(parties: int, scores: str | None = None, /, **settings: object) -> TrainingResult:
    return run_job(breast_cancer(parties), blind(scores=scores), **{**SETTINGS, **settings})


@pytest.fixture(scope="module", params=[2, 3, 5])
def shared(request: pytest.FixtureRequest) -> TrainingResult:
    return among(request.param)


def test_predictions_and_scores_are_those_of_the_same_steps_in_clear(
    shared: TrainingResult,
) -> None:
    parties = len(shared.outcomes)
    plain = run_job(breast_cancer(parties), **SETTINGS)
    for name, outcome in shared.outcomes.items():
        found = plain.outcomes[name].held_out
        np.testing.assert_allclose(outcome.held_out, found, atol=OF_PREDICTIONS)
    assert plain.predictions.std() > 20 * OF_PREDICTIONS
    assert shared.exact_score.auc == pytest.approx(plain.scores[-1].auc, abs=0.002)
    assert shared.exact_score.auc > 0.95


def test_messages_and_hops_of_a_round(shared: TrainingResult) -> None:
    parties, ledgers = len(shared.outcomes), shared.ledgers
    expected = max(2, 3 * parties - 4)
    kinds = (PredictionShares.__name__, MaskedResiduals.__name__)
    sent = sum(each.messages[kind] for each in ledgers.values() for kind in kinds)
    assert sent == ROUNDS * expected
    # The last round is followed by what is revealed.
    assert max(each.hops for each in ledgers.values()) == ROUNDS * (1 + (parties > 2)) + 1
    assert shared.costs(2).messages - shared.costs(1).messages == expected


@pytest.mark.parametrize("parties", [2, 3])
def test_logistic_residuals_open_phases_on_the_way(parties: int) -> None:
    result = among(parties, loss="logistic", batch_size=16)
    plan, ledgers = result.plan, result.ledgers
    plain = run_job(breast_cancer(parties), **{**SETTINGS, "loss": "logistic", "batch_size": 16})
    # A series stands for σ; without one party's phases steps are twice as long.
    assert np.std(result.predictions - plain.predictions) < 0.3 * np.std(plain.predictions)
    expected = plan.exchange.messages(plan.job.exchange, parties)
    assert expected == 4 * (parties - 1)
    assert result.costs(2).messages - result.costs(1).messages == expected
    assert max(each.hops for each in ledgers.values()) == 2 * ROUNDS + 1
    for view in result.views.values():
        assert not view.received(PredictionShares)


def test_every_word_of_a_round_is_used_once(shared: TrainingResult) -> None:
    words: list[int] = []
    for view in shared.views.values():
        for kind in (PredictionShares, MaskedResiduals, Corrections):
            for entry in view.received(kind):
                arrays = [v for v in vars(entry.message).values() if isinstance(v, np.ndarray)]
                words += np.concatenate(arrays, axis=None).tolist()
    assert len(set(words)) == len(words)
    assert max(words) >> ring.RING_BITS == 0
    # Uniform ones: their mean is in the middle, as that of so many would be.
    spread = 2.0**ring.RING_BITS / np.sqrt(12 * len(words))
    assert abs(np.mean(np.array(words, float)) - 2.0 ** (ring.RING_BITS - 1)) < 6 * spread


def test_scores_are_binormal_and_open_sums_alone(shared: TrainingResult) -> None:
    labels = shared.test_labels

    def binormal(predictions: FloatArray) -> float:
        by_class = [predictions[labels == number] for number in (0, 1)]
        gap = by_class[1].mean() - by_class[0].mean()
        return float(ndtr(gap / np.sqrt(sum(each.var() for each in by_class))))

    assert len(shared.scores) == 1
    score = shared.scores[0]
    assert score.binormal
    assert score.rounds == ROUNDS
    assert score.auc == pytest.approx(binormal(shared.predictions[:, 0]), abs=1e-3)
    # What stands beside it is scored alike: else joining would seem to hurt.
    for own in shared.alone.values():
        assert own.score.binormal
        assert own.score.auc == pytest.approx(binormal(own.predictions[:, 0]), abs=1e-9)
    view = shared.views[shared.plan.facts.label_party]
    assert not view.received(HeldOutPredictions)
    assert not view.received(MaskedHeldOutPredictions)
    assert len(view.received(HeldOutShares)) == len(shared.outcomes) - 2
    assert len(view.received(HeldOutMasks)) == 1


@pytest.mark.parametrize(
    ("parties", "kind"), [(2, HeldOutPredictions), (3, MaskedHeldOutPredictions)]
)
def test_rows_are_opened_where_the_job_says_so(
    parties: int, kind: type[HeldOutPredictions]
) -> None:
    result = among(parties, "rows", rounds=1)
    assert result.scores == [Score.of(1, result.predictions, result.test_labels)]
    view = result.views[result.plan.facts.label_party]
    assert len(view.received(kind)) == parties - 1
    assert not view.received(HeldOutMasks)


def test_the_feature_guard_counts_rows_and_no_sums_and_says_so(tmp_path: Path) -> None:
    dataset, record = made(0, columns=1), tmp_path / "rows.safetensors"
    guarded, settings = Environment(guard_directory=tmp_path), {**SETTINGS, "rounds": 1}
    run_job(dataset, blind(scores=None), guarded, **settings)
    assert not record.exists()
    run_job(dataset, blind(scores="rows"), guarded, **settings)
    assert set(RowRecord.load(record).scored) == {1}
    with pytest.raises(FeatureLeakRefused, match="take scores = 'sums'"):
        run_job(dataset, blind(scores="rows"), guarded, **settings)


def test_real_targets_score_by_the_sum_of_squared_errors() -> None:
    settings = {**SETTINGS, "loss": "squared", "batch_size": "full"}
    result = run_job(load("diabetes", parties=3), {"scheme": "blind"}, **settings)
    (score,), exact = result.scores, result.exact_score
    assert score.rmse == pytest.approx(exact.rmse, rel=1e-3)
    assert score.r2 == pytest.approx(exact.r2, abs=1e-3)
    assert score.mae is None


def test_a_job_that_never_scores_sends_nothing_for_it() -> None:
    result = among(3, rounds=1, eval_every="never")
    assert result.scores == []
    sent = {kind for each in result.ledgers.values() for kind in each.messages}
    assert not sent & {"HeldOutShares", "EncryptedHeldOut", "Verdict"}


@pytest.mark.parametrize("loss", ["logistic", "taylor-logistic"])
def test_blind_tells_how_much_of_its_work_before_rounds_is_done(
    loss: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[float] = []
    monkeypatch.setattr(residuals, "_PIECE", 2000)
    monkeypatch.setattr(Stopwatch, "made", lambda _, parts, of: told.append(parts / of))
    fit(breast_cancer(), "blind", loss=loss, rounds=20)
    assert told[0] == 0
    assert told[-1] == 1
    stages = [each for each in told if each == 0]
    assert len(set(told)) > 4
    assert len(stages) == (4 if loss == "logistic" else 2), "two parties, a stage or two"
    assert all(0 <= each <= 1 for each in told)
