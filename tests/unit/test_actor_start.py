"""Where a party's θ⁰ and row offsets come from when it is a process of its own."""

import numpy as np
import pytest

from securevfl.actors.party import start_of
from securevfl.job import Job
from securevfl.privacy.streams import KEY_BYTES


def drawn(start: np.random.Generator) -> list[float]:
    return list(start.standard_normal(4))


@pytest.mark.parametrize("settings", [{}, {"start": "random"}])
def test_nobody_can_repeat_a_start_from_the_job(settings: dict[str, object]) -> None:
    job = Job.of(job={"seed": 3, **settings})
    first, second = start_of(job, 0), start_of(job, 0)
    assert drawn(first["start"]) != drawn(second["start"])
    assert drawn(start_of(job, 0)["start"]) != drawn(np.random.default_rng([3, 0]))
    assert first["offsets_key"] != second["offsets_key"]
    assert len(first["offsets_key"]) == KEY_BYTES


def test_the_key_of_row_offsets_does_not_follow_from_theta0(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who computes θ⁰ from predictions must not get the offsets with it."""
    monkeypatch.setattr("securevfl.actors.party.secrets.randbits", lambda _: 5)
    first, second = start_of(Job.of(), 0), start_of(Job.of(), 0)
    assert drawn(first["start"]) == drawn(second["start"])
    assert first["offsets_key"] != second["offsets_key"]


def test_a_seeded_start_is_that_of_the_simulation() -> None:
    found = start_of(Job.of(job={"seed": 3, "start": "seeded"}), 1)
    assert list(found) == ["start"]
    assert drawn(found["start"]) == drawn(np.random.default_rng([3, 1]))
