"""New rows are scored as training scored held-out ones, and nobody learns more than is said."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securevfl import errors
from securevfl.crypto.masks import MaskKey, PairwiseMasks
from securevfl.data.tables import fingerprint
from securevfl.job import Job
from securevfl.models.storage import SavedModel
from securevfl.protocols.guards.feature_guard import require_scoring_guard
from securevfl.protocols.guards.people import CountedJob
from securevfl.protocols.predicting import ScoringHello
from securevfl.protocols.session.gathering import MaskedPredictions, Predictions
from securevfl.scoring import JointModel
from securevfl.scoring.outputs import metrics
from securevfl.training import Environment, train
from tests.jobs import breast_cancer
from tests.scoring_jobs import features_of, parts_of, scored, trained
from tests.tampering import changed

BOTH: dict[str, Any] = {"scheme": "bfv", "hide": "both"}
JOB = CountedJob(name="job", hash="0" * 16, day="2026-11-24")
BLIND: dict[str, Any] = {"scheme": "blind"}
SQUARED = {"loss": "squared"}
FEW = {**SQUARED, "allow_label_leak": True}  # of so few rows the end tells labels
HEAD = {"head": "logistic", "representation": 2, "learning_rate": 0.1, "local_steps": 2}
CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "plain": (2, {}),
    "plain, K = 3": (3, {}),
    "three classes": (2, {"classes": 3}),
    "masked": (3, {"exchange": {"scheme": "masked"}}),
    "bfv": (2, {"exchange": {"scheme": "bfv"}}),
    "bfv, masked": (3, {"exchange": {"scheme": "bfv", "predictions": "masked"}}),
    "bfv, both": (2, {"exchange": BOTH, "job": SQUARED}),
    "bfv, both, K = 3": (3, {"exchange": BOTH, "job": SQUARED}),
    "blind": (2, {"exchange": BLIND, "job": SQUARED}),
    "blind, K = 3": (3, {"exchange": BLIND, "job": FEW}),
    "blind, rows, K = 3": (3, {"exchange": {**BLIND, "scores": "rows"}, "job": FEW}),
    "fdml": (3, {"job": {"algorithm": "fdml", "learning_rate": 0.1}}),
    "dbcd": (2, {"job": {"algorithm": "dbcd", "l1": 0.01}}),
    "head": (2, {"job": HEAD}),
    "mlp": (2, {"job": {"model": "mlp", "hidden": [2], "learning_rate": 0.1, "local_steps": 2}}),
}
SUMS = {"masked", "bfv, masked", "bfv, both, K = 3", "blind, K = 3", "blind, rows, K = 3", "fdml"}


@pytest.mark.parametrize("case", CASES)
def test_rows_score_as_in_training_and_the_label_party_sees_what_is_said(case: str) -> None:
    parties, sections = CASES[case]
    result, dataset = trained(parties, **sections)
    again = scored(result, dataset, record_views=True)
    own = {name: outcome.held_out for name, outcome in result.outcomes.items()}
    expected = result.plan.algorithm.together(result.plan, result.outcomes)
    tolerance = 1e-8 if case in SUMS else 1e-12
    np.testing.assert_allclose(again.predictions, expected, atol=tolerance)
    view = again.views["party0"]
    assert again.plan.shown == ("summed" if case in SUMS else "singly")
    assert {type(entry.message) for entry in view.received()} == {
        ScoringHello,
        MaskedPredictions if case in SUMS else Predictions,
    }
    for entry in view.received(Predictions):
        assert isinstance(entry.message, Predictions)
        np.testing.assert_allclose(entry.message.values, own[entry.sender], atol=1e-12)
    for name in dataset.parties[1:]:
        words = again.views[name.name].received()
        assert {type(entry.message) for entry in words} == {ScoringHello}


def test_accuracy_of_squared_losses_is_that_of_the_classes_that_scores_say() -> None:
    for exchange in ({}, BOTH):
        result, dataset = trained(2, exchange=exchange, job=SQUARED)
        again = scored(result, dataset)
        names = [str(label) for label in dataset.test_labels]
        header = parts_of(result)["party0"].header
        found = metrics(header, again.predictions, names).accuracy
        # The label party of BOTH knows sums, which say no accuracy.
        seen = None if exchange else pytest.approx(found, abs=1e-9)
        assert result.scores[-1].class_accuracy == seen
        assert result.exact_score.accuracy == pytest.approx(found)


def test_a_masked_part_alone_says_nothing() -> None:
    result, dataset = trained(3, exchange={"scheme": "masked"})
    again = scored(result, dataset, record_views=True)
    for entry in again.views["party0"].received(MaskedPredictions):
        assert isinstance(entry.message, MaskedPredictions)
        # Uniform over 2^64: within 2^40 of zero once in 2^23 numbers.
        small = np.abs(entry.message.values.astype(np.int64)) < 2**40
        assert not small.any()


NOISE: dict[str, Any] = {
    "exchange": {"scheme": "dp"},
    "privacy": {"noise_multiplier": 0.5, "clip": 0.25},
    "job": {"learning_rate": 0.1},
}


def test_noise_is_on_every_part_that_leaves_a_feature_party_and_is_a_release_of_its_own() -> None:
    result, dataset = trained(2, **NOISE)
    first, second = (scored(result, dataset, record_views=True) for _ in range(2))
    assert np.abs(first.predictions - second.predictions).max() > 0.05
    own = np.clip(result.outcomes["party1"].held_out, -0.25, 0.25)
    (entry,) = first.views["party0"].received(Predictions)
    assert isinstance(entry.message, Predictions)
    # 80 draws of deviation 2·0.25·z: half of it or twice that not once in 10^9.
    noise = np.std(entry.message.values - own)
    assert 0.125 < noise < 0.5
    assert first.release is not None
    assert first.release.epsilon is not None
    assert first.release.epsilon > 1


def test_a_budget_holds_for_one_release_and_calibrates_it() -> None:
    result, dataset = trained(2, **NOISE)

    def with_privacy(**changes: object) -> Job:
        privacy = result.job.privacy.model_copy(update=changes)
        return result.job.model_copy(update={"privacy": privacy})

    with pytest.raises(errors.BudgetExhausted, match="1 releases of a new row"):
        scored(result, dataset, job=with_privacy(release_budget=0.1))
    within: dict[str, Any] = {"release_budget": 2.0, "noise_multiplier": None}
    release = scored(result, dataset, job=with_privacy(**within)).release
    assert release is not None
    assert release.epsilon is not None
    assert 1.99 < release.epsilon <= 2.0
    with pytest.raises(errors.ConfigError, match="noise_seed promises nothing"):
        scored(result, dataset, job=with_privacy(**within, noise_seed=1))


def test_parts_of_different_models_are_refused_by_the_parties_themselves() -> None:
    result, dataset = trained()
    parts = parts_of(result)
    for change, words in (
        ({"job_hash": "cd" * 32}, "another model"),
        ({"rounds": 2}, "rounds, here"),
    ):
        header = replace(parts["party1"].header, **change)
        mixed = {**parts, "party1": replace(parts["party1"], header=header)}
        with pytest.raises(errors.PeerViolation, match=words):
            scored(result, dataset, parts=mixed)
        with pytest.raises(errors.DataError, match="parts of different models"):
            JointModel(mixed)


@pytest.mark.parametrize("field", ["rows", "proof_of_rows"])
def test_other_rows_or_another_order_of_them_are_refused(field: str) -> None:
    result, dataset = trained()

    def other(message: ScoringHello) -> ScoringHello:
        values: dict[str, Any] = {"rows": message.rows + 1, "proof_of_rows": bytes(32)}
        return replace(message, **{field: values[field]})

    with pytest.raises(errors.PeerViolation, match=r"party1 (scores|holds the same)"):
        scored(result, dataset, tamper=changed(ScoringHello, other, sender="party1"))


def test_scores_of_transferred_models_are_refused_with_a_reason() -> None:
    result, dataset = trained(
        job={"algorithm": "ftl", "loss": "taylor-logistic", "learning_rate": 0.1}
    )
    with pytest.raises(errors.ConfigError, match="ftl"):
        scored(result, dataset)
    # Where all parts lie in one place nobody has to be asked.
    model = JointModel(parts_of(result))
    expected = result.plan.algorithm.together(result.plan, result.outcomes)[:, 0]
    phi = model.parts["party0"].phi
    assert phi is not None
    np.testing.assert_allclose(result.outcomes["party1"].held_out @ phi, expected, atol=1e-12)
    np.testing.assert_allclose(model.decision_function(features_of(dataset)), expected, atol=1e-12)


def test_the_same_model_may_score_the_same_rows_again_and_another_one_is_counted(
    tmp_path: Path,
) -> None:
    masked: dict[str, Any] = {"exchange": {"scheme": "masked"}}
    result, dataset = trained(3, guard=tmp_path, **masked)
    for _ in range(2):  # training has scored them
        scored(result, dataset, guard_directory=tmp_path)
    other, _ = trained(3, **masked, job={"seed": 1})
    with pytest.raises(
        errors.FeatureLeakRefused,
        match=r"\(the last: .*\) already showed up to 1 .* show 1 more number",
    ):
        scored(other, dataset, guard_directory=tmp_path)
    fresh = {name: values + 1.0 for name, values in features_of(dataset).items()}
    for _ in range(2):
        scored(other, dataset, features=fresh, guard_directory=tmp_path)
    with pytest.raises(errors.FeatureLeakRefused):
        scored(result, dataset, features=fresh, guard_directory=tmp_path)
    overruled = other.job.with_settings(allow_feature_leak=True)
    scored(other, dataset, job=overruled, guard_directory=tmp_path)


@pytest.mark.parametrize(
    ("rows", "rank", "allowed"), [(40, 3, 2), (40, 2, 1), (40, 1, 1), (2, 1, 2)]
)
def test_rows_may_be_shown_by_fewer_models_than_their_columns_have_rank(
    tmp_path: Path, generator: np.random.Generator, rows: int, rank: int, allowed: int
) -> None:
    """So few rows that they cannot have that rank count as if they had it; means say nothing."""
    result, _ = trained(2)
    part = parts_of(result)["party1"]
    factors = generator.standard_normal((rows, rank)), generator.standard_normal((rank, 3))
    features = factors[0] @ factors[1] + 5.0
    for shown in range(allowed + 1):
        model = replace(part, weights=part.weights + shown)

        def check(model: SavedModel = model) -> Callable[[], None]:
            return require_scoring_guard(
                tmp_path,
                model,
                features,
                features,
                JOB,
                names=tuple("abc"),
                peers=("party0",),
                rounds_show=True,
                allowed=False,
            )

        if shown == allowed:
            with pytest.raises(errors.FeatureLeakRefused, match=f"at most {allowed} expected"):
                check()
            continue
        check()()


def test_rounds_count_when_another_model_scores_rows_that_were_trained_on(tmp_path: Path) -> None:
    """Fourteen rounds and two scores of rank 15; the job's own is what one job may show."""
    dataset = breast_cancer()
    settings: dict[str, Any] = {"rounds": 14, "eval_every": "never", "allow_label_leak": True}
    guarded = Environment(guard_directory=tmp_path)
    own = train(Job.of(job=settings, exchange={"scheme": "bfv"}), dataset, guarded)
    other = train(Job.of(job={**settings, "seed": 1}, exchange={"scheme": "bfv"}), dataset)
    features = {table.name: table.train for table in dataset.parties}
    scored(own, dataset, features=features, guard_directory=tmp_path)
    with pytest.raises(errors.FeatureLeakRefused, match="show 16 columns"):
        scored(other, dataset, features=features, guard_directory=tmp_path)


def test_masks_are_of_these_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    agreed: list[bytes] = []
    agree = MaskKey.agree

    def noted(key: MaskKey, own: str, others: dict[str, bytes], context: bytes) -> PairwiseMasks:
        agreed.append(context)
        return agree(key, own, others, context)

    result, dataset = trained(3, exchange={"scheme": "masked"})
    monkeypatch.setattr(MaskKey, "agree", noted)
    scored(result, dataset)
    ids = tuple(map(str, range(len(dataset.test_labels))))
    assert agreed == [bytes.fromhex(fingerprint(ids))] * 3


def test_a_refused_scoring_is_not_written_down(tmp_path: Path) -> None:
    result, dataset = trained(3, exchange={"scheme": "masked"})
    parts = parts_of(result)
    header = replace(parts["party2"].header, rounds=1)
    mixed = {**parts, "party2": replace(parts["party2"], header=header)}
    with pytest.raises(errors.PeerViolation):
        scored(result, dataset, parts=mixed, guard_directory=tmp_path)
    # Nor is anything that has noise.
    noisy = trained(2, exchange={"scheme": "dp"}, privacy={"noise_multiplier": 5.0})
    scored(*noisy, guard_directory=tmp_path)
    assert not list(tmp_path.rglob("rows.safetensors"))
