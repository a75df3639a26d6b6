import numpy as np
import pytest

from securevfl.auditing.judging import Immune
from securevfl.auditing.measures import transfer as measure_transfer
from securevfl.auditing.measures.labels import residual_labels
from securevfl.auditing.measures.transfer import component_labels, unit_features, unit_labels
from securevfl.auditing.measuring import known_attacks
from securevfl.auditing.subject import Subject
from securevfl.data.sources import load
from securevfl.data.tables import some_rows
from securevfl.job import Job
from tests.unit.auditing.cells import cells_of, finding, reason

ROWS, OVERLAP = 160, 60


def subject(scheme: str = "plain", algorithm: str = "ftl", **ftl: object) -> Subject:
    job = {
        "algorithm": algorithm,
        "batch_size": 20,
        "learning_rate": 0.3,
        "local_steps": 2,
        "rounds": 9,
    }
    exchange = {"scheme": scheme, **({"hide": "both"} if scheme == "bfv" else {})}
    own = {"ftl": {"units": 32, "overlap": OVERLAP, **ftl}} if algorithm == "ftl" else {}
    return Subject(
        Job.of(job=job, exchange=exchange, **own), some_rows(load("breast_cancer"), ROWS), 0
    )


def test_the_recording_has_the_rows_that_both_parties_hold() -> None:
    attacked = subject()
    recording = attacked.record()
    assert len(recording.dataset.train_labels) == OVERLAP
    adversary = recording.adversary(attacked.feature_party)
    assert adversary.labels is None
    assert len(adversary.inputs) == OVERLAP
    weights = recording.weights(attacked.feature_party)
    assert len(weights) == recording.result.rounds == 9
    np.testing.assert_array_equal(weights[0], adversary.model.weights)
    last = recording.result.outcomes[attacked.feature_party].model.weights
    assert not np.allclose(weights[-1], last)
    assert len(recording.trails[attacked.feature_party]) == 1 + 9 * 2


def test_in_clear_every_label_and_all_features_are_read() -> None:
    attacked = subject()
    (labels,) = component_labels(attacked)
    assert finding(labels).value == 1
    features = cells_of(unit_features(attacked))
    assert set(features) == {"the feature party's", "the label party's"}
    for each in map(finding, features.values()):
        assert each.value < 1e-6
        assert each.bar > 0.1
    (gradients,) = unit_labels(attacked)
    finding(gradients)


def test_labels_are_read_from_gradients_under_encryption_as_in_clear() -> None:
    attacked = subject("bfv")
    (hidden,) = unit_labels(attacked)
    assert finding(hidden).value > 0.8
    for measure in (component_labels, unit_features):
        (immune,) = measure(attacked)
        assert immune.outcome == Immune("components travel encrypted")


def test_without_alignment_the_label_partys_units_do_not_travel() -> None:
    features = cells_of(unit_features(subject(alignment=0.0)))
    finding(features["the feature party's"])
    assert "do not contain the label party" in reason(features["the label party's"])


def test_batches_of_no_more_rows_than_their_rank_leave_no_features_to_be_found() -> None:
    attacked = subject()
    small = Subject(attacked.job.with_settings(batch_size=8), attacked.dataset, 0)
    for own in unit_features(small):
        assert "8 rows of rank 8: too few" in reason(own)


def test_batches_that_the_fit_cannot_take_are_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure_transfer, "MOST_ROWS", 19)
    own = cells_of(unit_labels(subject()))["this job's batches"]
    assert "the fit supports at most 19" in reason(own)


def test_other_attacks_say_that_they_are_not_about_components() -> None:
    attacked = subject()
    names = {"labels_from_components", "labels_from_unit_gradients", "features_from_units"}
    for name, measure in known_attacks().items():
        if name not in names:
            (cell,) = measure(attacked)
            assert "about predictions and residuals" in reason(cell)
    other = subject(algorithm="fedbcd-p")
    for name in names:
        (cell,) = known_attacks()[name](other)
        assert cell.outcome == Immune("parties exchange predictions and residuals, no components")
    finding(next(residual_labels(other)))
