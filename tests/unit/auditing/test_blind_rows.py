"""What every attack of the audit has to say of `blind`."""

import numpy as np
import pytest

from securevfl.auditing.judging import Finding, Immune, NotShown, verdict_of
from securevfl.auditing.measures import labels_of_jobs
from securevfl.auditing.measures.ciphertexts import noise, ratio
from securevfl.auditing.measures.labels_of_jobs import parameter_labels
from securevfl.auditing.measures.zero_start import integer_decoding
from securevfl.auditing.measuring import known_attacks
from securevfl.auditing.subject import Subject
from securevfl.data.sources import load
from securevfl.job import Job
from tests.unit.auditing.test_labels_across_jobs import people
from tests.weakened import RingEncryptsNothing


def subject(scheme: str = "blind", **settings: object) -> Subject:
    job = Job.of(job={"batch_size": "full", **settings}, exchange={"scheme": scheme})
    return Subject(job, load("breast_cancer"), 0)


@pytest.mark.parametrize(
    ("attack", "reason"),
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
def test_what_there_is_nothing_of_says_so(attack: str, reason: str) -> None:
    (cell,) = known_attacks()[attack](subject())
    assert isinstance(cell.outcome, Immune)
    assert reason in cell.outcome.reason


@pytest.mark.parametrize("attack", ["crafted_query", "selection_matrix"])
def test_cheating_is_not_said_to_be_resisted(attack: str) -> None:
    (cell,) = known_attacks()[attack](subject())
    assert isinstance(cell.outcome, NotShown)
    assert "test_blind_cheats" in cell.outcome.reason


def test_one_round_from_zero_tells_labels_that_are_certain() -> None:
    """As a gradient does: the end of one round is one."""
    cells = {each.case: each for each in integer_decoding(subject())}
    narrow = cells["theta0 = 0, P = 4, S = 8P"]
    assert narrow.what_if
    assert isinstance(narrow.outcome, Finding)
    assert narrow.outcome.value > 16
    job = cells["this job's first batch"].outcome
    assert isinstance(job, NotShown)
    assert "of all rounds" in job.reason


def test_c1_of_products_ahead_tells_nothing_unless_it_is_not_re_randomized(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (cell,) = ratio(subject())
    assert verdict_of([cell.outcome]) == "resists"
    monkeypatch.setattr(
        "securevfl.auditing.measures.ciphertexts.RingProductEvaluator", RingEncryptsNothing
    )
    (cell,) = ratio(subject())
    assert isinstance(cell.outcome, Finding)
    assert cell.outcome.value == 1


@pytest.mark.slow
def test_noise_of_products_ahead_tells_nothing() -> None:
    """That it would without flooding: tests/unit/crypto/test_ring_leaks.py."""
    (cell,) = noise(subject())
    assert verdict_of([cell.outcome]) == "resists"


def test_the_end_of_one_job_tells_what_the_own_model_does_and_many_on_other_rows_tell_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(labels_of_jobs, "PEOPLE", 48)
    job = Job.of(job={"batch_size": "full", "l2": 0.1, "rounds": 12}, exchange={"scheme": "plain"})
    cells = {each.case: each for each in parameter_labels(Subject(job, people(), 0))}
    assert verdict_of([cells["this job"].outcome]) == "resists"
    found = cells["other rows each job"]
    assert found.what_if
    assert isinstance(found.outcome, Finding)
    assert found.outcome.detail["jobs"] == 8
    assert verdict_of([found.outcome]) == "leaks"
    assert not np.isnan(found.outcome.value)
