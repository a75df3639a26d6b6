import re
from collections.abc import Mapping

import numpy as np
import pytest
from typing_extensions import override

from securevfl.data.sources import load
from securevfl.job import Job
from securevfl.shown import Shown
from securevfl.training import train

MOST = 1000


class Named(Shown):
    def __init__(self, **facts: object) -> None:
        self._facts = facts

    @override
    def shown(self) -> Mapping[str, object]:
        return self._facts


def test_what_does_not_say_its_facts_cannot_be_shown() -> None:
    with pytest.raises(NotImplementedError):
        repr(Shown())


def test_few_facts_are_one_line_and_more_are_a_line_each() -> None:
    assert repr(Named(rows=3, party="bank")) == "Named(rows: 3, party: bank)"
    assert repr(Named(rows="x" * 60, party="y" * 60)).splitlines() == [
        "Named",
        "  rows: " + "x" * 60,
        "  party: " + "y" * 60,
    ]


def test_what_a_notebook_shows_is_escaped() -> None:
    page = Named(**{"<b>party": "<script>alert(1)</script>"})._repr_html_()
    assert set(re.findall(r"</?(\w+)", page)) == {"table", "caption", "tr", "th", "td"}
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_results_models_jobs_and_data_show_a_few_lines_whatever_their_size() -> None:
    dataset = load("breast_cancer")
    job = Job.of(job={"rounds": 2, "dataset": "breast_cancer"}, exchange={"scheme": "masked"})
    assert repr(job) == "Job(job.dataset: breast_cancer, job.rounds: 2, exchange.scheme: masked)"
    result = train(Job.of(job={"rounds": 2}), dataset)
    outcome = result.outcomes[dataset.label_party]
    results = (result, result.plan, result.costs(), outcome, outcome.model)
    for each in (dataset, dataset.parties[0], job, *results):
        assert len(repr(each)) < MOST, each
        assert repr(each) == str(each)
        assert not re.search(r"array|\d\.\d{9}", repr(each))
    assert "rounds: 2, ended: rounds" in repr(result)
    assert f"AUC: {result.scores[-1].auc:.4g}" in repr(result)
    assert "<td" in result._repr_html_()
    assert repr(np.float64(0.5)) not in repr(result)
