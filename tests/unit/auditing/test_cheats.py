"""A feature party that multiplies by selection matrices in place of its columns."""

import numpy as np
import pytest

from securevfl.attacks.labels_in_clear import chosen, labels_from_selections, rows_read, selection
from securevfl.auditing.judging import Immune, NotRun, verdict_of
from securevfl.auditing.measures import selection_matrix as measure
from securevfl.auditing.measures.selection_matrix import selection_matrix
from securevfl.auditing.measuring import Measurement
from securevfl.auditing.subject import Subject
from securevfl.data.sources import load
from securevfl.job import Job
from tests.unit.auditing.cells import finding, reason


def cell(
    scheme: str, parties: int = 2, exchange: dict[str, object] | None = None, **settings: object
) -> Measurement:
    job = Job.of(job=settings, exchange={"scheme": scheme, **(exchange or {})})
    (found,) = selection_matrix(Subject(job, load("breast_cancer", parties=parties), 1))
    return found


@pytest.mark.parametrize(
    ("scheme", "parties", "exchange", "settings", "visits"),
    [
        ("bfv", 2, {}, {"batch_size": 115, "rounds": 6}, 6),
        ("bfv", 3, {"predictions": "masked"}, {"batch_size": 115, "rounds": 5}, 5),
        ("bfv", 2, {"round_trips": 1}, {"batch_size": 115, "rounds": 5}, 5),
        ("ckks", 2, {}, {"batch_size": 115, "rounds": 5}, 5),
        ("paillier", 2, {"key_bits": 2048}, {"rounds": 5}, 2),
    ],
)
def test_every_visit_tells_as_many_labels_as_the_cheater_has_columns(
    scheme: str, parties: int, exchange: dict[str, object], settings: dict[str, int], visits: int
) -> None:
    found = finding(cell(scheme, parties, exchange, **settings))
    columns = 30 // parties
    assert found.value == 1
    assert found.detail["visits"] == visits
    assert found.detail["residuals_a_visit"] == columns
    assert found.detail["rows_read"] == visits * columns
    assert found.detail["rows"] == 456
    assert found.detail["equations_over_rows"] == pytest.approx(visits * columns / 456)
    assert verdict_of([found]) == "leaks"


def test_all_rows_fall_within_the_rounds_of_an_ordinary_job() -> None:
    found = finding(cell("bfv", batch_size=115, rounds=100))
    assert found.detail["rows_read_after_all_rounds"] == 456
    # What the guard counts are distinct batches of honest columns.
    assert found.detail["label_guard_ratio"] < found.detail["equations_over_rows"] / 5


def test_columns_as_they_should_be_tell_no_residuals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the cheat the same reading of the same run is no better than guessing."""
    monkeypatch.setattr(measure, "SelectingEvaluator", lambda evaluator, product_format: evaluator)
    assert finding(cell("bfv", batch_size=115, rounds=5)).value < 0.8


@pytest.mark.parametrize(
    ("scheme", "exchange", "settings", "kind", "why"),
    [
        ("plain", {}, {}, Immune, "in clear anyway"),
        ("bfv", {"hide": "both"}, {"loss": "taylor-logistic"}, NotRun, "hide = 'residuals'"),
        ("bfv", {}, {"loss": "squared"}, NotRun, "supports logistic losses"),
        ("bfv", {}, {"model": "mlp"}, NotRun, "linear models"),
    ],
)
def test_what_it_does_not_take_is_not_run(
    scheme: str,
    exchange: dict[str, object],
    settings: dict[str, str],
    kind: type[Immune | NotRun],
    why: str,
) -> None:
    assert why in reason(cell(scheme, 2, exchange, **settings), kind)


def test_a_selection_holds_one_row_a_column() -> None:
    matrix = selection((7, 3), 2, 5)
    np.testing.assert_array_equal(chosen(7, 3, 2), [6, 0, 1])
    np.testing.assert_array_equal(matrix.argmax(axis=0), [6, 0, 1])
    assert matrix.sum() == 15
    wide = selection((2, 3), 1, 1)  # more columns than rows: the last one reads nothing
    np.testing.assert_array_equal(wide, [[0, 1, 0], [1, 0, 0]])


def test_visits_of_a_batch_read_one_row_after_the_other() -> None:
    one, other = np.arange(0, 8), np.arange(8, 16)
    read = rows_read([one, other, one, one], 3)
    np.testing.assert_array_equal(read, [[0, 1, 2], [11, 12, 13], [3, 4, 5], [6, 7, 0]])


def test_residuals_that_show_no_sign_are_left_to_the_own_model() -> None:
    residuals = np.array([[0.2], [-0.3], [1e-4], [-1e-4]])
    own = np.array([[0.9], [0.1], [0.9], [0.1]])
    seen = [residuals * 2.0 / 4]
    found = labels_from_selections(seen, [np.arange(4)], own, entry=2.0, resolution=1e-3)
    np.testing.assert_array_equal(found.scores[:, 0] > 0, [False, True, True, False])
