"""The row on zero starts: real runs, in clear and under encryption."""

from dataclasses import replace

import numpy as np
import pytest

from securevfl.auditing.judging import verdict_of
from securevfl.auditing.measures import zero_start
from securevfl.auditing.measures.zero_start import integer_decoding
from securevfl.auditing.subject import Subject
from securevfl.data.sources import load
from securevfl.data.tables import VerticalDataset, some_rows
from securevfl.errors import LabelLeakRefused
from securevfl.job import Job
from tests.unit.auditing.cells import Cells, cells_of, finding, reason

JOB, CATEGORIES = "this job's first batch", "theta0 = 0, categories"
NARROW = "theta0 = 0, P = 4, S = 8P"


def cells(scheme: str, dataset: VerticalDataset | None = None, **settings: object) -> Cells:
    job = Job.of(job=settings, exchange={"scheme": scheme})
    data = some_rows(load("breast_cancer"), 128) if dataset is None else dataset
    return cells_of(integer_decoding(Subject(job, data, 4)))


@pytest.mark.parametrize("scheme", ["bfv", "ckks", "plain"])
def test_a_zero_start_at_an_eighth_tells_every_label_of_the_first_batch(scheme: str) -> None:
    cell = cells(scheme)[NARROW]
    found = finding(cell)
    assert cell.what_if
    assert found.value == found.detail["rows"] == 32
    assert found.detail["columns"] == 4
    assert found.beside[0].value == 1
    assert verdict_of([found]) == "leaks"


def test_a_job_that_starts_at_zero_is_attacked_as_it_is() -> None:
    found = cells("bfv", batch_size=32, start="zero")
    assert not found[JOB].what_if
    assert finding(found[JOB]).value == 32
    assert not found[CATEGORIES].what_if


def test_what_meeting_in_the_middle_does_not_reach_is_not_run() -> None:
    large, random = cells("bfv", start="zero")[JOB], cells("bfv")[JOB]
    assert "128 rows: meeting in the middle supports 44" in reason(large)
    assert "theta0 is random" in reason(random)


def with_bits(standardize: bool) -> VerticalDataset:
    """Twelve columns at the feature party are one bit each, some of them of few rows."""
    dataset = some_rows(load("breast_cancer"), 300)
    label, feature = dataset.parties
    marks = np.quantile(feature.train, np.linspace(0.1, 0.99, 15), axis=0).diagonal()
    bits = replace(
        feature,
        train=(feature.train > marks).astype(np.float64),
        test=(feature.test > marks).astype(np.float64),
    )
    return replace(dataset, parties=(label, bits), standardize=standardize)


@pytest.mark.parametrize("standardize", [False, True])
def test_categories_are_counted_and_some_labels_follow(standardize: bool) -> None:
    cell = cells("bfv", with_bits(standardize), batch_size="full")[CATEGORIES]
    found = finding(cell)
    assert cell.what_if
    assert found.value > 0
    assert found.detail["counted_rightly"] == found.detail["categories"] >= 15
    assert found.detail["wrong"] == 0
    assert verdict_of([found]) == "leaks"


def test_real_columns_have_no_categories() -> None:
    assert "two values" in reason(cells("bfv")[CATEGORIES])


def test_a_zero_start_that_is_refused_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: Subject, **changes: object) -> None:
        raise LabelLeakRefused("start = 'zero' is refused")

    monkeypatch.setattr(Subject, "record", refused)
    for cell in cells("bfv", start="zero").values():
        assert "refused" in reason(cell)


@pytest.mark.parametrize(
    ("scheme", "settings", "why"),
    [
        ("bfv", {"loss": "multinomial"}, "two classes"),
        ("bfv", {"model": "mlp"}, "linear models"),
        ("plain", {"algorithm": "fdml"}, "neither a gradient nor residuals"),
    ],
)
def test_settings_that_it_does_not_take(scheme: str, settings: dict[str, object], why: str) -> None:
    dataset = some_rows(load("digits"), 128) if "loss" in settings else None
    assert why in reason(cells(scheme, dataset, **settings)[NARROW])


def test_columns_of_the_most_bits_are_kept() -> None:
    few, many = np.repeat([0.0, 1.0], 50), np.arange(100.0)
    rare = np.zeros(100)
    rare[:5] = np.arange(1, 6)
    bits = [zero_start._entropy(each) for each in (few, many, rare)]
    assert bits[1] > bits[0] > bits[2]
    assert bits[0] == pytest.approx(1)
