"""Whether predictions would leave the period: a dry run in clear, before the work."""

from typing import Any

import numpy as np

from securevfl.data.tables import VerticalDataset
from securevfl.job import Job
from securevfl.protocols.blind.dry_run import Beyond, beyond_range
from securevfl.training import plan_for
from tests.made_data import dataset_of


def heavy_tailed() -> VerticalDataset:
    generator = np.random.default_rng(2)
    features = [generator.standard_t(2, (120, 3)) for _ in range(2)]
    labels = (np.hstack(features).sum(axis=1) > 0).astype(np.int64)
    return dataset_of(features, labels)


def outcome(*, scheme: str = "blind", period: int | None = None, **more: Any) -> Beyond | None:  # noqa: ANN401
    settings = {"start": "zero", "eval_every": 0, "rounds": 25, "l2": 1e-4, **more}
    job = Job.of(job=settings, exchange={"scheme": scheme, "period": period})
    dataset = heavy_tailed()
    return beyond_range(plan_for(job, dataset), dataset)


def test_a_job_that_would_end_without_a_model_is_reported_with_a_period_that_carries_it() -> None:
    """The job that test_blind lets fail, and lets pass with a longer period."""
    beyond = outcome(period=24)
    assert beyond is not None
    assert beyond.period / 2 < beyond.end <= beyond.reach < 50
    named = int(beyond.warning.split("period = ")[1].split(",")[0])
    assert 2 * beyond.reach < named <= 120
    assert outcome(period=named) is None


def test_where_no_period_is_long_enough_none_is_named() -> None:
    hopeless = Beyond("shop", 40.0, 300.0, 72.0).warning
    assert "[exchange]" not in hopeless
    assert "clip columns" in hopeless


def test_what_has_no_period_has_no_dry_run() -> None:
    assert outcome(loss="taylor-logistic") is None
    assert outcome(scheme="plain") is None
