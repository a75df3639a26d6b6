"""Blind training among two, three and five parties, and what its one scoring opens."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import ndtr

from securevfl.arrays import FloatArray
from securevfl.crypto import ring
from securevfl.data.sources import load
from securevfl.errors import HeldOutLeakRefused
from securevfl.protocols.blind.links import Corrections
from securevfl.protocols.blind.relays import HeldOutShares, MaskedResiduals, PredictionShares
from securevfl.protocols.exchanges.class_sums import HeldOutMasks
from securevfl.protocols.session.gathering import HeldOutPredictions, MaskedHeldOutPredictions
from securevfl.protocols.session.scoring import Score
from securevfl.training import Environment, TrainingResult
from tests.jobs import breast_cancer, run_job
from tests.made_data import made

ROUNDS = 3
SETTINGS = {
    "rounds": ROUNDS,
    "loss": "taylor-logistic",
    "local_steps": 5,
    "batch_size": 64,
    "start": "zero",
    "eval_every": 0,
    "allow_label_leak": True,  # these jobs visit few rows
}
# Of predictions, most of it from the grid that weights are opened on; a few times what is found.
FIXED_POINT = 0.03


def run(
    parties: int,
    scores: str | None = None,
    **settings: Any,  # noqa: ANN401
) -> TrainingResult:
    exchange: dict[str, object] = {"scheme": "blind", "scores": scores}
    return run_job(breast_cancer(parties), exchange, **{**SETTINGS, **settings})


@pytest.fixture(scope="module", params=[2, 3, 5])
def blind(request: pytest.FixtureRequest) -> TrainingResult:
    return run(request.param)


def test_predictions_and_scores_are_those_of_the_same_steps_in_clear(blind: TrainingResult) -> None:
    parties = len(blind.outcomes)
    plain = run_job(breast_cancer(parties), **SETTINGS)
    for name, outcome in blind.outcomes.items():
        np.testing.assert_allclose(
            outcome.held_out, plain.outcomes[name].held_out, atol=FIXED_POINT
        )
    assert plain.predictions.std() > 20 * FIXED_POINT
    assert blind.exact_score.auc == pytest.approx(plain.scores[-1].auc, abs=0.002)
    assert blind.exact_score.auc > 0.95


def test_messages_and_hops_of_a_round(blind: TrainingResult) -> None:
    parties, ledgers = len(blind.outcomes), blind.ledgers
    expected = max(2, 3 * parties - 4)
    kinds = (PredictionShares.__name__, MaskedResiduals.__name__)
    sent = sum(each.messages[kind] for each in ledgers.values() for kind in kinds)
    assert sent == ROUNDS * expected
    # The last round is followed by what is revealed.
    assert max(each.hops for each in ledgers.values()) == ROUNDS * (1 + (parties > 2)) + 1
    assert blind.costs(2).messages - blind.costs(1).messages == expected


@pytest.mark.parametrize("parties", [2, 3])
def test_logistic_residuals_open_phases_on_the_way(parties: int) -> None:
    result = run(parties, loss="logistic", batch_size=16)
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


def test_every_word_of_a_round_is_used_once(blind: TrainingResult) -> None:
    words: list[int] = []
    for view in blind.views.values():
        for kind in (PredictionShares, MaskedResiduals, Corrections):
            for entry in view.received(kind):
                arrays = [v for v in vars(entry.message).values() if isinstance(v, np.ndarray)]
                words += np.concatenate(arrays, axis=None).tolist()
    assert len(set(words)) == len(words)
    assert max(words) >> ring.RING_BITS == 0
    # Uniform ones: their mean is in the middle, as that of so many would be.
    spread = 2.0**ring.RING_BITS / np.sqrt(12 * len(words))
    assert abs(np.mean(np.array(words, float)) - 2.0 ** (ring.RING_BITS - 1)) < 6 * spread


def test_scores_are_binormal_and_open_sums_alone(blind: TrainingResult) -> None:
    labels = blind.test_labels

    def binormal(predictions: FloatArray) -> float:
        by_class = [predictions[labels == number] for number in (0, 1)]
        gap = by_class[1].mean() - by_class[0].mean()
        return float(ndtr(gap / np.sqrt(sum(each.var() for each in by_class))))

    assert len(blind.scores) == 1
    score = blind.scores[0]
    assert score.binormal
    assert score.rounds == ROUNDS
    assert score.auc == pytest.approx(binormal(blind.predictions[:, 0]), abs=1e-3)
    # What stands beside it is scored alike: else joining would seem to hurt.
    for own in blind.alone.values():
        assert own.score.binormal
        assert own.score.auc == pytest.approx(binormal(own.predictions[:, 0]), abs=1e-9)
    view = blind.views[blind.plan.facts.label_party]
    assert not view.received(HeldOutPredictions)
    assert not view.received(MaskedHeldOutPredictions)
    assert len(view.received(HeldOutShares)) == len(blind.outcomes) - 2
    assert len(view.received(HeldOutMasks)) == 1


@pytest.mark.parametrize(
    ("parties", "kind"), [(2, HeldOutPredictions), (3, MaskedHeldOutPredictions)]
)
def test_rows_are_opened_where_the_job_says_so(
    parties: int, kind: type[HeldOutPredictions]
) -> None:
    result = run(parties, "rows", rounds=1)
    assert result.scores == [Score.of(1, result.predictions, result.test_labels)]
    view = result.views[result.plan.facts.label_party]
    assert len(view.received(kind)) == parties - 1
    assert not view.received(HeldOutMasks)


def guarded(directory: Path, scores: str | None) -> Path:
    environment = Environment(guard_directory=directory)
    exchange: dict[str, object] = {"scheme": "blind", "scores": scores}
    run_job(breast_cancer(), exchange, environment, **{**SETTINGS, "rounds": 1})
    return directory / "party2" / "held-out.json"


def test_the_held_out_guard_counts_rows_and_no_sums(tmp_path: Path) -> None:
    assert not guarded(tmp_path, None).exists()
    assert set(json.loads(guarded(tmp_path, "rows").read_bytes()).values()) == {1}


def test_a_party_that_may_not_show_rows_is_pointed_to_sums(tmp_path: Path) -> None:
    dataset = made(0, columns=1)
    exchange = {"scheme": "blind", "scores": "rows"}
    environment = Environment(guard_directory=tmp_path)
    settings = {**SETTINGS, "rounds": 1, "allow_label_leak": True}
    run_job(dataset, exchange, environment, **settings)
    with pytest.raises(HeldOutLeakRefused, match="take scores = 'sums'"):
        run_job(dataset, exchange, environment, **settings)


def test_real_targets_score_by_the_sum_of_squared_errors() -> None:
    settings = {**SETTINGS, "loss": "squared", "batch_size": "full"}
    result = run_job(load("diabetes", parties=3), {"scheme": "blind"}, **settings)
    (score,), exact = result.scores, result.exact_score
    assert score.rmse == pytest.approx(exact.rmse, rel=1e-3)
    assert score.r2 == pytest.approx(exact.r2, abs=1e-3)
    assert score.mae is None


def test_a_job_that_never_scores_sends_nothing_for_it() -> None:
    result = run(3, rounds=1, eval_every="never")
    assert result.scores == []
    sent = {kind for each in result.ledgers.values() for kind in each.messages}
    assert not sent & {"HeldOutShares", "EncryptedHeldOut", "Verdict"}
