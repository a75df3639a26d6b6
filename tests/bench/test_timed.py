"""What of a training by FDML is counted, on a clock that only chosen work moves."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from bench import timed
from securevfl.data.partition import BatchSchedule
from securevfl.models.linear import LinearModel
from securevfl.protocols.session.scoring import Score
from securevfl.protocols.vertical.local_part import LocalPart
from tests.jobs import breast_cancer, job_of

SETUP, ORDER, SCORED, PREDICTED, EPOCHS = 10_000, 1000, 100, 1, 3


@pytest.mark.parametrize(("parties", "staleness", "orders"), [(2, 0, 2), (3, 3, 4)])
def test_all_rounds_and_orders_are_counted_and_neither_setup_nor_scoring(
    parties: int, staleness: int, orders: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    def takes(of: Any, name: str, seconds: float) -> None:  # noqa: ANN401
        done: Callable[..., Any] = getattr(of, name)

        def slow(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401
            nonlocal now
            now += seconds
            return done(*arguments, **named)

        monkeypatch.setattr(of, name, slow)

    takes(LocalPart, "__init__", SETUP)
    takes(BatchSchedule, "_shuffled", ORDER)
    takes(LinearModel, "predict", PREDICTED)
    takes(Score, "of", SCORED)
    for clock in ("process_time", "perf_counter"):
        monkeypatch.setattr(time, clock, lambda: now)
    dataset, size = breast_cancer(parties), 64
    rounds = EPOCHS * BatchSchedule(dataset.row_digests, size, 0, "shuffle").batches
    steps = {"rounds": rounds, "batch_size": size, "sampling": "shuffle", "learning_rate": 0.1}
    job = job_of("plain", algorithm="fdml", **steps, fdml={"staleness": staleness})
    found = timed.timed_rounds(job, dataset)
    assert found.cpu_s == found.wall_s == EPOCHS * orders * ORDER + rounds * parties * PREDICTED
    assert found.setup_s == parties * SETUP
