"""θ⁰ and row offsets: repeated from the seed where the job asks for it, and nowhere else."""

from typing import Any

import pytest

from securevfl.auditing.judging import Immune
from securevfl.auditing.measuring import known_attacks
from securevfl.auditing.subject import Subject
from securevfl.job import Job
from tests.jobs import breast_cancer
from tests.unit.auditing.cells import cells_of, finding, reason

STEPS: dict[str, Any] = {"local_steps": 1, "learning_rate": 0.1, "batch_size": 100}


def cells(scheme: str = "bfv", **settings: Any) -> dict[str, float]:  # noqa: ANN401
    job = Job.of(job=settings, exchange={"scheme": scheme})
    measured = cells_of(known_attacks()["repeated_start"](Subject(job, breast_cancer(), 3)))
    assert measured["start = 'seeded'"].control
    return {case: finding(each).value for case, each in measured.items()}


@pytest.mark.parametrize("settings", [{}, STEPS, {"loss": "multinomial"}])
def test_starts_are_repeated_from_the_seed_alone(settings: dict[str, Any]) -> None:
    assert cells(**settings) == {"this job's start": 0, "start = 'seeded'": 1}
    assert cells("plain", **settings, start="seeded")["this job's start"] == 1


def test_row_offsets_are_among_what_is_repeated() -> None:
    job = Job.of(job=STEPS, exchange={"scheme": "bfv"})
    own, _ = known_attacks()["repeated_start"](Subject(job, breast_cancer(), 0))
    assert finding(own).detail == {"secret_numbers": 486, "row_offsets": 456}


def test_a_start_at_zero_is_no_secret_and_networks_are_not_run() -> None:
    attack, data = known_attacks()["repeated_start"], breast_cancer()
    (zero,) = attack(Subject(Job.of(exchange={"scheme": "blind"}), data, 0))
    assert "no start is secret" in reason(zero, Immune)
    (network,) = attack(Subject(Job.of(job={"model": "mlp", "hidden": [2]}), data, 0))
    assert "linear models" in reason(network)
