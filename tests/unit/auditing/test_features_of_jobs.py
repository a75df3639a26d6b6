"""Rows over two jobs: read without the feature guard, and not with it."""

from dataclasses import replace

import numpy as np
import pytest

from securevfl.auditing.judging import Finding
from securevfl.auditing.measuring import known_attacks
from securevfl.auditing.subject import Subject, scaled, with_table
from securevfl.data.tables import VerticalDataset
from securevfl.job import Job
from tests.jobs import breast_cancer
from tests.unit.auditing.cells import finding


def outcomes(name: str, exchange: str, dataset: VerticalDataset) -> tuple[Finding, Finding]:
    """As the guard permits, and the control without it."""
    job, dataset = scaled(Job.of(exchange={"scheme": exchange}), dataset)
    permitted, control = known_attacks()[name](Subject(job, dataset, 0))
    assert control.control
    return finding(permitted), finding(control)


@pytest.mark.parametrize("exchange", ["plain", "bfv"])
def test_two_jobs_give_all_rows_and_the_guard_permits_one(exchange: str) -> None:
    found, without = outcomes("features_across_jobs", exchange, breast_cancer())
    assert without.value < 1e-6
    assert without.detail["jobs"] == 2
    assert found.value > 0.5
    assert found.detail["jobs"] == 1
    assert "feature guard: earlier jobs" in found.detail["refused"]


def test_columns_of_two_values_need_no_known_row() -> None:
    dataset = breast_cancer()
    table = dataset.parties[1]
    bits = (table.train > np.quantile(table.train, 0.8, axis=0)).astype(np.float64)
    changed = replace(table, columns=table.columns[:8], train=bits[:, :8], test=table.test[:, :8])
    found, without = outcomes("binary_columns_across_jobs", "plain", with_table(dataset, changed))
    assert without.value > 0.8
    assert without.detail["jobs"] == 2
    assert found.value == 0
    assert found.detail["jobs"] == 1
