"""Training that goes wrong on the way says so, and keeps the best of what it had."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securevfl.data import load
from securevfl.data.tables import VerticalDataset
from securevfl.errors import UnexpectedMessage
from securevfl.job import Job
from securevfl.models.storage import load_model
from securevfl.protocols.session.early_stopping import (
    SelectedCheckpoint,
    SelectedState,
    TrainingHistory,
)
from securevfl.training import Environment, TrainingResult, save_models, train
from tests.jobs import Kept as States
from tests.jobs import Settings, all_weights, fit
from tests.made_data import dataset_of
from tests.tampering import changed

TRAINING, HELD_OUT = 240, 400


def correlated(seed: int = 1, columns: int = 6) -> VerticalDataset:
    """Columns with something in common that labels do not depend on."""
    random = np.random.default_rng(seed)
    rows = TRAINING + HELD_OUT
    own = random.standard_normal((rows, 2 * columns))
    scores = own @ random.standard_normal(2 * columns)
    labels = (scores / scores.std() + 0.3 * random.logistic(size=rows) > 0).astype(np.int64)
    blocks = np.split(own + 0.5 * random.standard_normal((rows, 1)), 2, axis=1)
    made = dataset_of([each[:TRAINING] for each in blocks], labels[:TRAINING], standardize=True)
    parties = tuple(
        replace(table, test=block[TRAINING:])
        for table, block in zip(made.parties, blocks, strict=True)
    )
    return replace(made, parties=parties, test_labels=labels[TRAINING:])


DATA = correlated()
PARTIES = DATA.parties


def trained(*how: Any, **settings: object) -> TrainingResult:  # noqa: ANN401
    """`fit` of these data; how: an exchange and an environment."""
    return fit(DATA, *how, **{"rounds": 60, "batch_size": 64, "local_steps": 5, **settings})


def just_too_far(*how: Any, **settings: object) -> TrainingResult:  # noqa: ANN401
    """One direction grows by 2 % a round from next to nothing, while all others settle."""
    inputs = np.hstack([(each.train - each.train.mean(0)) / each.train.std(0) for each in PARTIES])
    bends = np.linalg.eigvalsh(inputs.T @ inputs / TRAINING)[-1]
    fixed = {"algorithm": "fedsgd", "loss": "squared", "batch_size": "full", "start": "zero"}
    return trained(*how, **{"learning_rate": 2.02 / bends, "rounds": 120, **fixed, **settings})


@pytest.fixture(scope="module")
def gone_wrong() -> TrainingResult:
    return just_too_far()


def test_the_best_state_is_kept_and_said(gone_wrong: TrainingResult, tmp_path: Path) -> None:
    result, label = gone_wrong, gone_wrong.plan.facts.label_party
    kept = result.outcomes[label].selected
    assert kept.rounds < 60 < kept.done == result.rounds == 120
    assert (result.status, result.warnings[0].kind) == (5, "went wrong")
    joint = result.label.joint  # what intervals are of
    assert joint is not None
    assert np.allclose(joint, result.predictions)
    assert f"the state after round {kept.rounds} of 120 is kept" in result.warnings[0].text
    assert "a smaller learning_rate, or 'auto'" in result.warnings[0].text
    assert result.scores[-1].rounds == kept.rounds
    assert result.scores[-1].auc == pytest.approx(result.clear_auc, abs=1e-12)
    headers = [load_model(path).header for path in save_models(result, tmp_path)]
    assert {each.rounds for each in headers} == {kept.rounds}
    # All parties keep the same state: the loss is that of no other.
    shorter = just_too_far(rounds=kept.rounds)
    assert shorter.status == 0
    np.testing.assert_allclose(all_weights(result), all_weights(shorter), rtol=0, atol=1e-12)


def test_without_selection_the_end_is_saved(
    gone_wrong: TrainingResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        TrainingHistory, "select", lambda self, snapshots, done: SelectedState(done, done)
    )
    silent = just_too_far()
    assert silent.kept_rounds == 120
    assert silent.clear_loss > 2 * gone_wrong.clear_loss


def test_a_session_that_goes_on_keeps_what_an_unbroken_one_keeps(
    gone_wrong: TrainingResult,
) -> None:
    kept = States()
    just_too_far(None, Environment(keep_state=kept))
    rest = just_too_far(None, Environment(resume=kept[100]))
    assert rest.kept_rounds == gone_wrong.kept_rounds
    assert rest.scores[-1].auc == gone_wrong.scores[-1].auc
    np.testing.assert_array_equal(all_weights(rest), all_weights(gone_wrong))


def test_where_only_the_end_is_scored_what_is_kept_is() -> None:
    result = just_too_far(eval_every=0)
    assert result.status == 5
    assert [each.rounds for each in result.scores] == [result.kept_rounds]
    assert result.scores[-1].auc == pytest.approx(result.clear_auc, abs=1e-12)


def test_a_state_that_nobody_kept_is_refused() -> None:
    tamper = changed(SelectedCheckpoint, lambda _: SelectedCheckpoint(119))
    with pytest.raises(UnexpectedMessage, match="round 119, of which there is no snapshot"):
        just_too_far(None, Environment(tamper=tamper))


def test_nothing_is_printed_of_labels_under_noise_but_the_warning_stays() -> None:
    noise = {"noise_multiplier": 0.01, "label_noise_multiplier": 0.01, "clip": 1e3}
    result = trained("dp", privacy=noise, **TOO_FAR)
    kinds = {type(entry.message) for view in result.views.values() for entry in view.received()}
    assert SelectedCheckpoint not in kinds
    assert result.kept_rounds == result.rounds
    assert result.status in {3, 4, 5}


TOO_FAR: dict[str, Any] = {"learning_rate": 1000.0, "batch_size": "full"}


@pytest.mark.parametrize(
    ("exchange", "settings"),
    [
        ("plain", TOO_FAR),
        ("plain", {"learning_rate": 1000.0}),
        ("plain", {"learning_rate": 30.0, "batch_size": 16}),
        ("plain", {"learning_rate": 30.0, "algorithm": "fedsgd"}),
        ("plain", {"learning_rate": 30.0, "algorithm": "fedbcd-s"}),
        ("plain", {"learning_rate": 300.0, "algorithm": "fdml"}),
        ("plain", {"learning_rate": 3.0, "model": "mlp", "hidden": [4], "rounds": 20}),
        ("plain", {"learning_rate": 3.0, "loss": "squared"}),
        ("plain", {"learning_rate": 1e6, "algorithm": "ftl"}),
        ("bfv", {"learning_rate": 300.0, "rounds": 8, "batch_size": "full"}),
    ],
)
def test_steps_that_are_too_long_are_never_silent(exchange: str, settings: Settings) -> None:
    result = trained(exchange, **settings)
    assert result.status in {3, 5}
    assert "a smaller learning_rate, or 'auto'" in result.warnings[0].text
    assert np.abs(all_weights(result)).max() < 1e100


def test_transfer_learning_is_not_compared_with_rows_that_its_parties_lack() -> None:
    result = trained(learning_rate=1e4, algorithm="ftl")
    assert result.alone["party0"].score.auc > result.scores[-1].auc + 0.02
    assert result.warnings == ()


def test_too_much_noise_is_never_silent() -> None:
    result = trained("dp", privacy={"noise_multiplier": 1000.0, "clip": 2.0})
    # A model of noise passes for one that learned in one run of forty: each party alone is better.
    assert result.status in {3, 4, 5}
    assert "less noise" in result.warnings[0].text


def test_weights_leave_float64_and_none_of_them_is_kept() -> None:
    result = trained(learning_rate=10.0, loss="squared")
    assert any("overflowed float64" in each.text for each in result.warnings)
    assert np.abs(all_weights(result)).max() < 1e100
    assert result.status in {3, 5}


def test_where_no_loss_is_seen_the_end_is_scored_to_be_compared() -> None:
    result = just_too_far(
        {"scheme": "bfv", "hide": "both"},
        **{"learning_rate": 0.66, "rounds": 28, "eval_every": 6, "start": "random"},
        **{"allow_label_leak": True, "allow_feature_leak": True},
    )
    kept = result.outcomes[result.plan.facts.label_party].selected
    assert (kept.seen, kept.rounds, result.status) == ("score", 6, 5)
    assert [each.rounds for each in result.scores] == [6, 12, 18, 24, 28, 6]
    assert result.scores[0].auc > result.scores[4].auc + 0.2


@pytest.mark.parametrize("seed", range(2))
def test_a_target_that_is_reached_is_something_learned(seed: int) -> None:
    """The losses that the label party has seen by then are still above that of a constant."""
    settings: Settings = {"dataset": "breast_cancer", "loss": "squared", "seed": seed}
    result = train(Job.of(job={**settings, "target_auc": 0.9}), load("breast_cancer"))
    assert (result.ended, result.label.learned) == ("target", False)
    assert result.learned
    assert result.status in {0, 4}
