"""Jobs on sparse rows give what they give on the same rows as arrays."""

from typing import Any

import numpy as np
import pytest

from securevfl.job import Job
from securevfl.training import TrainingResult, train
from tests.sparse_data import few_ones, sparse

CLEAR: dict[str, dict[str, Any]] = {
    "plain": {},
    "plain, steps derived": {"job": {"learning_rate": "auto"}},
    "exact steps": {"job": {"local_steps": "exact", "learning_rate": "auto"}},
    "fedbcd-s": {"job": {"algorithm": "fedbcd-s"}},
    "fedsgd": {"job": {"algorithm": "fedsgd", "local_steps": 1}},
    "raw columns": {"job": {"standardize": False}},
    "masked": {"exchange": {"scheme": "masked"}},
    "fdml": {"job": {"algorithm": "fdml", "local_steps": 1}},
}


def run(binary: bool, sections: dict[str, dict[str, Any]]) -> tuple[TrainingResult, TrainingResult]:
    settings = {
        "algorithm": "fedbcd-p",
        "rounds": 4,
        "batch_size": 16,
        "local_steps": 2,
        "learning_rate": 0.3,
        **sections.get("job", {}),
    }
    others = {name: section for name, section in sections.items() if name != "job"}
    job = Job.of(job=settings, **others)
    dataset = few_ones(binary=binary)
    return train(job, dataset), train(job, sparse(dataset))


def assert_twins(ours: TrainingResult, theirs: TrainingResult) -> None:
    for name, outcome in ours.outcomes.items():
        other = theirs.outcomes[name]
        for what in ("weights", "mean", "scale"):
            np.testing.assert_allclose(
                getattr(other.model, what), getattr(outcome.model, what), rtol=0, atol=1e-9
            )
        np.testing.assert_allclose(other.held_out, outcome.held_out, rtol=0, atol=1e-9)


@pytest.mark.parametrize("binary", [False, True], ids=["values", "0/1"])
@pytest.mark.parametrize("name", CLEAR)
def test_jobs_in_clear_give_the_same_models(name: str, binary: bool) -> None:
    assert_twins(*run(binary, CLEAR[name]))
