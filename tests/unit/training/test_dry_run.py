"""What a dry run of a few rounds, or rows, says of the whole job."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securevfl.data.tables import VerticalDataset
from securevfl.errors import LabelLeakRefused
from securevfl.job import Job
from securevfl.reports.training import forecast_notes, forecast_table
from securevfl.runtime.costs import FixedCosts
from securevfl.runtime.line import LinkCosts
from securevfl.training import Environment, TrainingResult, dry_run, plan_for, resolved, train
from tests.jobs import SmallKeys, breast_cancer, job_of, picked

SECONDS = {"local": 1.0, "encrypt": 2.0, "evaluate": 4.0, "decrypt": 8.0, "setup": 16.0}
STEPS = {"rounds": 12, "learning_rate": 0.1, "local_steps": 2, "allow_label_leak": True}
BATCHES = {**STEPS, "batch_size": 60}

SAME_AT_FIRST = 22  # a seed by which batches of the first rounds are of one size


@pytest.fixture(autouse=True)
def as_short_as_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry_run, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(dry_run, "MOST_SECONDS", 60.0)


def environment() -> Environment:
    return Environment(keys=SmallKeys(), stopwatch=FixedCosts(SECONDS), links=LinkCosts(1e-3, 1e-9))


def both(
    parties: int, exchange: str | Mapping[str, Any], **settings: object
) -> tuple[dry_run.Expected, TrainingResult]:
    job = job_of(exchange, **{"tolerance": 0.0, **settings})
    dataset = breast_cancer(parties)
    return forecast(job, dataset), train(job, dataset, environment())


def forecast(job: Job, dataset: VerticalDataset) -> dry_run.Expected:
    return dry_run.dry_run(*resolved(job, dataset, ()), environment())


def sent(result: TrainingResult) -> dict[str, int]:
    return {name: each.snapshots[-1].traffic.bytes_sent for name, each in result.ledgers.items()}


@pytest.mark.parametrize(
    ("parties", "exchange", "settings"),
    [
        (2, "plain", BATCHES),
        (2, "plain", {**BATCHES, "seed": SAME_AT_FIRST}),
        (3, "masked", BATCHES),
        (2, "bfv", STEPS),
        (2, {"scheme": "bfv", "hide": "both"}, {**STEPS, "loss": "taylor-logistic"}),
        (2, "blind", {"rounds": 3}),
        (2, "blind", {"rounds": 6, "batch_size": 100}),
        (3, "blind", {"rounds": 3, "loss": "taylor-logistic"}),
    ],
)
def test_bytes_are_exact_and_seconds_follow_where_rounds_cost_alike(
    parties: int, exchange: str | Mapping[str, Any], settings: dict[str, object]
) -> None:
    expected, result = both(parties, exchange, **settings)
    assert expected.exact_bytes
    assert {each.name: each.bytes_sent for each in expected.parties} == sent(result)
    costs = result.costs()
    assert expected.setup_s == pytest.approx(costs.setup_s)
    assert expected.compute_s == pytest.approx(costs.compute_s, rel=0.1)
    # Batches differ in size, and bytes take time.
    assert expected.communication_s == pytest.approx(costs.communication_s, rel=0.2)


@pytest.mark.parametrize(
    ("steps", "again", "total"),
    [
        ([9, 2, 1], [0, 0, 1, 0, 1, 1], 12 + 2 + 2 * 1),
        ([9, 2, 2], [0, 0, 0, 1, 0], 13 + 2 * 2),  # none came again: those are taken for it
        ([9], [0, 1, 1], 27),
    ],
)
def test_first_visits_of_batches_are_counted_apart(
    steps: list[float], again: list[int], total: float
) -> None:
    found = dry_run.all_seconds(np.array(steps, float)[:, None], np.array(again, bool))
    assert found == pytest.approx([total])


def test_rounds_that_end_together_are_scaled() -> None:
    settings = {**BATCHES, "algorithm": "fdml", "rounds": 40, "local_steps": 1}
    expected, result = both(2, "plain", **settings, fdml={"batches_per_message": 4, "staleness": 3})
    assert not expected.exact_bytes
    assert [each.name for each in expected.parties] == [*result.ledgers]
    assert expected.bytes_sent == pytest.approx(result.costs().bytes_sent, rel=0.2)


def test_a_job_that_ends_after_one_round_is_told_of_at_its_full_length() -> None:
    expected, result = both(2, "plain", **{**STEPS, "target_auc": 0.5})
    assert (result.rounds, expected.rounds) == (1, 12)
    assert expected.bytes_sent == 12 * result.costs().bytes_sent
    assert not expected.exact_bytes


def test_a_party_takes_at_least_the_memory_of_its_columns() -> None:
    expected, _ = both(2, "plain", **STEPS)
    for table, each in zip(breast_cancer(2).parties, expected.parties, strict=True):
        assert (each.memory_bytes or 0) > table.train.nbytes
        assert each.compute_s > 0


def test_memory_is_left_out_where_the_system_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset, told = breast_cancer(2), Path.read_text

    def untold(path: Path, encoding: str | None = None) -> str:
        if path.is_relative_to("/proc"):
            raise FileNotFoundError
        return told(path, encoding)

    monkeypatch.setattr(Path, "read_text", untold)
    monkeypatch.setattr(dry_run, "ctypes", None)  # on Windows, CDLL takes no None
    job = job_of("plain", **STEPS)
    expected = forecast(job, dataset)
    assert [each.memory_bytes for each in expected.parties] == [None, None]
    assert expected.bytes_sent > 0
    notes = forecast_notes(plan_for(job, dataset), expected, 1.0)
    assert "forecast of 12 rounds from" in notes[0]
    assert "does not tell how much memory" in " ".join(map(str.strip, notes))
    assert forecast_table(plan_for(job, dataset), expected).row_count == 3


def test_no_guard_is_asked_and_the_notes_say_so() -> None:
    """The final model of 15 columns tells more than the labels of 40 rows have."""
    job, few = job_of("blind", rounds=2), picked(breast_cancer(), slice(0, 40))
    with pytest.raises(LabelLeakRefused):
        train(job, few, environment())
    expected = forecast(job, few)
    assert any(
        note.startswith("no guard was asked: ")
        for note in forecast_notes(plan_for(job, few), expected, 1.0)
    )
