"""What the audit says of jobs that differ from most: a head, L1, real targets, shares."""

from typing import Any

import numpy as np
import pytest

from securevfl.auditing.figures import target_finding
from securevfl.auditing.judging import Immune, NotRun, verdict_of
from securevfl.auditing.measures import labels_of_jobs
from securevfl.auditing.measures.labels import read_labels
from securevfl.auditing.measuring import UNDER_A_HEAD, Measurement, known_attacks
from securevfl.auditing.subject import Subject
from securevfl.data.sources import load
from securevfl.job import Job
from tests.unit.auditing.cells import cells_of, finding, reason
from tests.unit.auditing.test_labels_across_jobs import people
from tests.weakened import RingEncryptsNothing

ATTACKS = known_attacks()
HEAD: dict[str, Any] = {
    "head": "logistic", "representation": 16, "model": "mlp", "rounds": 12, "learning_rate": 0.1
}  # fmt: skip
L1: dict[str, Any] = {"l1": 0.01, "rounds": 5}


def subject(scheme: str = "plain", parties: int = 2, **job: object) -> Subject:
    privacy = {"noise_multiplier": 1.0} if scheme == "dp" else {}
    described = Job.of(job=job, exchange={"scheme": scheme}, privacy=privacy)
    return Subject(described, load("breast_cancer", parties=parties), 0, with_curves=False)


def blind() -> Subject:
    return subject("blind", batch_size="full")


def only(attack: str, attacked: Subject) -> Measurement:
    (cell,) = ATTACKS[attack](attacked)
    return cell


@pytest.mark.parametrize("settings", [HEAD, {**L1, "algorithm": "dbcd"}])
def test_residuals_are_labels(settings: dict[str, Any]) -> None:
    assert finding(only("labels_from_residuals", subject(**settings))).value == 1


@pytest.mark.parametrize(("algorithm", "parties"), [("fedbcd-p", 2), ("fedbcd-s", 3)])
def test_representations_tell_features_to_who_knows_some_rows(algorithm: str, parties: int) -> None:
    settings = {**HEAD, "algorithm": algorithm}
    wide, narrow = (
        finding(only("anchors", subject(parties=parties, **{**settings, "representation": each})))
        for each in (32, 1)
    )
    assert wide.model_alone is not None
    assert wide.value < 0.8 * wide.model_alone
    assert wide.value < 0.9 * narrow.value


def test_attacks_on_summed_predictions_are_not_run_under_a_head() -> None:
    attacked = subject(**HEAD)
    for name in ("gram", "components", "rotation_twin", "held_out_features", "equality_solving"):
        assert only(name, attacked).outcome == NotRun(UNDER_A_HEAD)


@pytest.mark.parametrize("algorithm", ["dbcd", "fedbcd-p"])
def test_attacks_that_undo_gradient_steps_are_not_run_under_l1(algorithm: str) -> None:
    for attack in ("gram", "anchors"):
        for found in ATTACKS[attack](subject(**L1, algorithm=algorithm)):
            assert "plain gradient steps without l1" in reason(found)


@pytest.mark.parametrize("settings", [L1, {**L1, "l1": 0.0, "model": "mlp"}], ids=["l1", "network"])
def test_ends_of_other_models_than_linear_ones_without_l1_are_not_read(
    settings: dict[str, Any],
) -> None:
    found = only("labels_from_parameters", subject(**settings))
    assert "linear models without l1" in reason(found)


def test_a_job_whose_sums_come_from_a_server_shows_no_gradient() -> None:
    attacked = subject(algorithm="fdml", rounds=3, learning_rate=0.1)
    for found in ATTACKS["labels_from_gradients"](attacked):
        assert "gradients: 0 rounds" in reason(found)


def test_twins_of_noisy_jobs_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("securevfl.auditing.measures.rotation.ROUNDS", 100)
    found = next(ATTACKS["rotation_twin"](subject("dp", **L1, algorithm="dbcd")))
    # L1 is not the same for turned data.
    assert finding(found).value > 1e-3


@pytest.mark.parametrize(
    ("attack", "why"),
    [
        ("rotation_twin", "no number of a round is in clear"),
        ("gram", "no single party's predictions"),
        ("anchors", "no single party's predictions"),
        ("components", "no single party's predictions"),
        ("binary_columns", "no single party's predictions"),
        ("held_out_features", "no prediction of a row"),
        ("labels_from_residuals", "in shares"),
        ("labels_from_gradients", "neither gradients nor residuals"),
        ("labels_across_jobs", "neither gradients nor residuals"),
        ("jacobi_symbol", "Paillier's"),
        ("ckks_key", "no approximations"),
    ],
)
def test_what_there_is_nothing_of_says_so(attack: str, why: str) -> None:
    assert why in reason(only(attack, blind()), Immune)


def test_cheating_is_not_said_to_be_resisted() -> None:
    assert "test_blind_cheats" in reason(only("selection_matrix", blind()))


def test_one_round_from_zero_tells_labels_that_are_certain() -> None:
    """As a gradient does: the end of one round is one."""
    cells = cells_of(ATTACKS["integer_decoding"](blind()))
    narrow = cells["theta0 = 0, P = 4, S = 8P"]
    assert narrow.what_if
    assert finding(narrow).value > 16
    assert "depend on all rounds" in reason(cells["this job's first batch"])


def test_c1_of_products_offline_tells_nothing_unless_it_is_not_re_randomized(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert verdict_of([only("ciphertext_ratio", blind()).outcome]) == "no_leak_found"
    monkeypatch.setattr(
        "securevfl.auditing.measures.ciphertexts.RingProductEvaluator", RingEncryptsNothing
    )
    assert finding(only("ciphertext_ratio", blind())).value == 1


@pytest.mark.slow
def test_noise_of_products_offline_tells_nothing() -> None:
    """That it would without masks modulo q: tests/unit/crypto/test_ring_leaks.py."""
    assert verdict_of([only("ciphertext_noise", blind()).outcome]) != "leaks"


def test_the_end_of_one_job_tells_what_the_own_model_does_and_many_on_other_rows_tell_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(labels_of_jobs, "PEOPLE", 48)
    job = Job.of(job={"batch_size": "full", "l2": 0.1, "rounds": 12}, exchange={"scheme": "plain"})
    cells = {
        each.case: each for each in ATTACKS["labels_from_parameters"](Subject(job, people(), 0))
    }
    assert verdict_of([cells["this job"].outcome]) == "no_leak_found"
    found = cells["other rows each job"]
    assert found.what_if
    assert finding(found).detail["jobs"] == 8
    assert not finding(found).within  # of so few people, undecided with one seed


@pytest.fixture(scope="module")
def with_targets() -> Subject:
    job = Job.of(job={"loss": "squared", "rounds": 12})
    return Subject(job, load("diabetes"), 0, with_curves=True)


def test_residuals_in_clear_tell_targets(with_targets: Subject) -> None:
    found = finding(only("labels_from_residuals", with_targets))
    assert found.metric.name == "correlation"
    assert found.value > 0.85
    assert found.model_alone == pytest.approx(0.61, abs=0.02)
    assert not found.within


def test_gradients_of_all_rows_tell_no_more_than_the_own_model(with_targets: Subject) -> None:
    found = finding(next(ATTACKS["labels_from_gradients"](with_targets)))
    assert found.within
    assert found.detail["batch_size"] == "full"


def test_gradients_of_few_rows_tell_targets(with_targets: Subject) -> None:
    recording = with_targets.record(rounds=120, batch_size=8, sampling="shuffle")
    assert not read_labels(recording, with_targets.feature_party).within


def test_what_is_about_classes_says_so(with_targets: Subject) -> None:
    outcomes = [each.outcome for each in ATTACKS["labels_across_jobs"](with_targets)]
    assert all(isinstance(each, NotRun) for each in outcomes)
    reasons = [each.reason for each in outcomes if isinstance(each, NotRun)]
    assert any("labels are real targets" in each for each in reasons)


def test_what_says_nothing_resists(generator: np.random.Generator) -> None:
    inputs, targets = generator.standard_normal((300, 3)), generator.standard_normal(300)
    assert target_finding(np.zeros(300), inputs, targets, {}).value == 0
    assert target_finding(generator.standard_normal(300), inputs, targets, {}).within
    assert not target_finding(targets, inputs, targets, {}).within
