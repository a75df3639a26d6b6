"""Scoring by sums over classes: what they make of predictions, and that nothing else shows."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr

from securevfl.arrays import FloatArray, RingArray
from securevfl.crypto.bfv_parameters import BfvParameters
from securevfl.crypto.ckks import CkksLayout
from securevfl.crypto.fixed_point import decode, unmask
from securevfl.data.sources import load
from securevfl.errors import ConfigError, FeatureLeakRefused, RangeExceeded
from securevfl.protocols.exchanges.class_sums import (
    EncryptedHeldOut,
    HeldOutMasks,
    class_sum_format,
    combined,
)
from securevfl.protocols.guards.row_record import RowRecord
from securevfl.protocols.session.gathering import HeldOutPredictions, MaskedHeldOutPredictions
from securevfl.protocols.session.keys import PublicKey
from securevfl.reports import tables
from securevfl.reports.trained import training_row
from securevfl.training import Environment, TrainingResult
from tests.jobs import Settings, breast_cancer, picked, received, run_job

ROUNDS = 3
BOTH = {"scheme": "bfv", "hide": "both"}
ONE_ROUND: dict[str, Any] = {"rounds": 1, "loss": "squared", "batch_size": "full"}
SCHEMES = ["bfv", "paillier", "ckks"]


def run(scheme: str = "bfv", **settings: Any) -> TrainingResult:  # noqa: ANN401
    common = {"rounds": ROUNDS, "loss": "taylor-logistic", "batch_size": 228, "eval_every": 1}
    exchange = {"scheme": scheme, "hide": "both"}
    return run_job(breast_cancer(), exchange, **{**common, **settings})


@pytest.fixture(scope="module", params=SCHEMES)
def result(request: pytest.FixtureRequest) -> TrainingResult:
    return run(request.param)


def last_predictions(result: TrainingResult) -> dict[str, FloatArray]:
    return {name: each.held_out[:, 0] for name, each in result.outcomes.items()}


def test_scores_are_those_of_normal_distributions(result: TrainingResult) -> None:
    total = np.sum(list(last_predictions(result).values()), axis=0)
    negative, positive = (total[result.test_labels == number] for number in (0, 1))
    score = result.scores[-1]
    assert [each.rounds for each in result.scores] == [1, 2, 3]
    assert all(each.binormal for each in result.scores)
    spread = np.sqrt(negative.var() + positive.var())
    assert score.auc == pytest.approx(ndtr((positive.mean() - negative.mean()) / spread), abs=1e-3)
    assert score.class_accuracy is None
    with pytest.raises(ConfigError, match="no accuracy from sums"):
        _ = score.accuracy


def decrypted(result: TrainingResult) -> list[RingArray]:
    entries = result.views["party1"].decrypted()
    return [each.values for each in entries if each.values.shape == (4, 2)]


def masks(result: TrainingResult) -> list[RingArray]:
    return [each.values for each in received(result, "party1", HeldOutMasks)]


def test_the_label_party_learns_four_sums_and_nothing_by_row(result: TrainingResult) -> None:
    view = result.views["party1"]
    assert not view.received(HeldOutPredictions)
    assert not view.received(MaskedHeldOutPredictions)
    assert not result.views["party2"].received(HeldOutMasks)
    products, shown = decrypted(result), masks(result)
    assert len(products) == len(shown) == ROUNDS
    fmt = class_sum_format(result.plan)
    assert fmt.opened
    schemes = {"bfv": BfvParameters.of(fmt).product_bits, "ckks": CkksLayout.of(fmt).modulus_bits}
    bits = schemes.get(result.job.exchange.scheme, 64)
    ours, theirs = last_predictions(result).values()
    bound = result.job.exchange.prediction_bound
    sums = decode(unmask(combined(products[-1]), shown[-1], bits), fmt.product_fraction_bits)
    for number, (first, second) in enumerate(sums):
        rows = result.test_labels == number
        assert first == pytest.approx(theirs[rows].sum() / bound, abs=1e-2)
        both = (theirs[rows] ** 2 + 2 * ours[rows] * theirs[rows]).sum() / bound**2
        assert second == pytest.approx(both, abs=1e-2)


def test_no_single_product_shows_without_its_mask(result: TrainingResult) -> None:
    """A mask of one product alone would open it: what is given is of the class sums only."""
    fraction_bits = class_sum_format(result.plan).product_fraction_bits
    words = []
    for products, shown in zip(decrypted(result), masks(result), strict=True):
        assert products.shape == (4, 2)
        assert shown.shape == (2, 2)
        for mask in shown.ravel():
            words += [int(each) for each in (products[2:] - mask).ravel()]
        # Σ_g H_B² by itself, were the mask of its partner left out.
        words += [int(each) for each in products[:2, 1] - shown[:, 1]]
    values = np.array(words, np.uint64).view(np.int64).astype(float) * 2.0**-fraction_bits
    # Of 113 rows no sum is beyond 339; uniform ones nearly all are.
    assert np.mean(np.abs(values) < 339) < 0.2
    assert len(set(words)) == len(words)


def test_vectors_are_encrypted_afresh_at_every_scoring(result: TrainingResult) -> None:
    sent = received(result, "party2", EncryptedHeldOut)
    vectors = [vector for message in sent for vector in message.vectors]
    assert len(vectors) == len(set(vectors)) == 4 * ROUNDS


def test_scoring_is_no_part_of_a_round() -> None:
    often, once = run(), run(eval_every=0)
    snapshots = (each.ledgers["party2"].snapshots for each in (often, once))
    for one, other in zip(*snapshots, strict=True):
        assert one.traffic == other.traffic
    first, second = (result.outcomes["party2"].model.weights for result in (often, once))
    np.testing.assert_array_equal(first, second)


def test_all_scorings_of_all_held_out_rows_are_sized_for() -> None:
    plan = run(rounds=5, eval_every=2).plan
    fmt = class_sum_format(plan)
    assert (fmt.rows, fmt.rounds, fmt.vectors, fmt.columns, fmt.summands) == (113, 3, 4, 2, 3)


def test_a_class_of_few_rows_is_refused_before_training() -> None:
    whole = breast_cancer()
    rare = np.flatnonzero(whole.test_labels == 0)
    ten, nine = (
        picked(whole, test=np.setdiff1d(np.arange(len(whole.test_labels)), rare[left:]))
        for left in (10, 9)
    )
    assert run_job(ten, BOTH, **ONE_ROUND).scores[-1].binormal
    with pytest.raises(ConfigError, match="held-out rows: 9 of class 0, at least 10"):
        run_job(nine, BOTH, **ONE_ROUND)


def test_targets_far_larger_than_any_prediction_are_refused() -> None:
    whole = load("diabetes")
    labels = 1e9 * whole.test_labels.astype(np.float64)
    with pytest.raises(RangeExceeded, match=r"held-out targets: up to .* deviations"):
        run_job(replace(whole, test_labels=labels), BOTH, **ONE_ROUND)


def test_whoever_shows_a_score_says_that_it_is_binormal(result: TrainingResult) -> None:
    dataset = breast_cancer()
    row = training_row(result, dataset)
    shown = dict(tables.TRADEOFF)["AUC"](row)
    assert row["binormal"]
    assert row["auc"] == result.scores[-1].auc
    assert shown == f"≈{row['auc']:.2f}"
    assert row["accuracy"] is None
    assert any("estimated" in note for note in tables.tradeoff_notes([row]))
    by_row = run_job(dataset, "bfv", rounds=1, batch_size=228)
    assert decrypted(by_row) == []
    assert not any(each.binormal for each in by_row.scores)
    exact = training_row(by_row, dataset)
    assert not exact["binormal"]
    assert not dict(tables.TRADEOFF)["AUC"](exact).startswith("≈")
    assert not any("estimated" in note for note in tables.tradeoff_notes([exact]))


def test_predictions_beyond_their_bound_are_clipped_and_counted() -> None:
    result = run_job(breast_cancer(), {**BOTH, "prediction_bound": 0.01}, **ONE_ROUND)
    assert all(each.operations["clipped_held_out"] > 0 for each in result.ledgers.values())
    assert 0 <= result.scores[-1].auc <= 1


@pytest.mark.parametrize(
    ("parties", "kind"), [(2, HeldOutPredictions), (3, MaskedHeldOutPredictions)]
)
def test_rows_are_opened_and_counted_only_where_the_job_says_so(
    tmp_path: Path, parties: int, kind: type[HeldOutPredictions]
) -> None:
    dataset, settings = breast_cancer(parties), {**ONE_ROUND, "loss": "taylor-logistic"}
    guarded = Environment(guard_directory=tmp_path, record_views=True)
    record = tmp_path / "rows.safetensors"
    closed = run_job(dataset, BOTH, guarded, **settings)
    assert all(each.binormal for each in closed.scores)
    assert len(closed.scores) == (parties == 2)
    assert closed.calibration is None
    assert not record.exists()
    opened = run_job(dataset, {**BOTH, "scores": "rows"}, guarded, **settings)
    assert opened.scores == [opened.exact_score]
    assert opened.calibration is not None
    view = opened.views[opened.plan.facts.label_party]
    assert len(view.received(kind)) == parties - 1
    assert set(RowRecord.load(record).scored.tolist()) == {1}
    assert len(RowRecord.load(record).populations) == parties - 1
    with pytest.raises(FeatureLeakRefused, match="showed up to 1 number of"):
        run_job(dataset, {**BOTH, "scores": "rows"}, guarded, **settings, seed=1)


@pytest.mark.parametrize(
    ("exchange", "settings"),
    [(BOTH, {"eval_every": 0}), ({**BOTH, "scores": "sums"}, {}), (BOTH, {"target_auc": 0.9})],
)
def test_three_parties_have_no_sums_and_score_only_what_they_open(
    exchange: Settings, settings: Settings
) -> None:
    with pytest.raises(ConfigError, match="set scores = 'rows', or eval_every = 'never'"):
        run_job(breast_cancer(3), exchange, **ONE_ROUND, **settings)


def test_a_job_that_never_scores_makes_no_key_for_it() -> None:
    result = run(rounds=1, eval_every="never")
    assert result.scores == []
    assert result.learned
    assert len(result.views["party2"].received(PublicKey)) == 1
    assert len(run(rounds=1).views["party2"].received(PublicKey)) == 2
