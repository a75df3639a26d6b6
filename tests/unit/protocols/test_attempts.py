"""Where a party's θ⁰ and row offsets come from, in its first attempt and in later ones."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from securevfl.errors import DataError
from securevfl.job import Job
from securevfl.privacy.streams import KEY_BYTES
from securevfl.protocols import attempts
from securevfl.protocols.attempts import beginning, start_of
from securevfl.training import data_of, plan_for
from tests.jobs import breast_cancer

SECRETS = bytes(KEY_BYTES), b"s" * KEY_BYTES


def drawn(start: np.random.Generator) -> list[float]:
    return list(start.standard_normal(4))


@pytest.mark.parametrize("settings", [{}, {"start": "random"}])
def test_nobody_can_repeat_a_start_from_the_job(settings: dict[str, object]) -> None:
    job = Job.of(job={"seed": 3, **settings})
    first, second = (start_of(job, 0, secret) for secret in SECRETS)
    assert drawn(first["start"]) != drawn(second["start"])
    assert drawn(start_of(job, 0, SECRETS[0])["start"]) != drawn(np.random.default_rng([3, 0]))
    assert first["offsets_key"] != second["offsets_key"]
    assert len(first["offsets_key"]) == KEY_BYTES


def test_the_key_of_row_offsets_does_not_follow_from_theta0(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who computes θ⁰ from predictions must not get the offsets with it."""
    monkeypatch.setattr(
        attempts, "_derived", lambda secret, of: SECRETS[0] if of == b"start" else secret
    )
    first, second = (start_of(Job.of(), 0, secret) for secret in SECRETS)
    assert drawn(first["start"]) == drawn(second["start"])
    assert first["offsets_key"] != second["offsets_key"]


def test_a_seeded_start_is_that_of_the_simulation() -> None:
    found = start_of(Job.of(job={"seed": 3, "start": "seeded"}), 1, SECRETS[0])
    assert list(found) == ["start"]
    assert drawn(found["start"]) == drawn(np.random.default_rng([3, 1]))


def test_later_attempts_have_the_first_ones_numbers_and_other_jobs_and_data_others(
    tmp_path: Path,
) -> None:
    dataset, path = breast_cancer(), tmp_path / "of" / "secret"
    job = {"dataset": "breast_cancer", "rounds": 4}
    plan, longer = (plan_for(Job.of(job={**job, "rounds": n}), dataset) for n in (4, 5))
    data = data_of(plan, dataset, dataset.parties[0])
    other = replace(data, table=replace(data.table, columns=data.table.columns[::-1]))
    first, *others = (
        beginning(path, each, own)
        for each, own in ((plan, data), (plan, data), (longer, data), (plan, other))
    )
    keys = [each["offsets_key"] for each in (first, *others)]
    names = [each["answer"] for each in (first, *others)]
    starts = [drawn(each["start"]) for each in (first, *others)]
    for found in (keys, names, starts):
        assert found[0] == found[1]
        assert found[2] not in (found[0], found[3])
        assert found[3] != found[0]
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_bytes(b"")
    with pytest.raises(DataError, match="is damaged"):
        beginning(path, plan, data)


@pytest.mark.parametrize(
    "sections",
    [
        {"exchange": {"scheme": "blind"}},
        {"exchange": {"scheme": "ckks"}},
        {"job": {"algorithm": "fdml"}, "fdml": {"staleness": 4}},
    ],
)
def test_what_differs_from_attempt_to_attempt_counts_anew(
    sections: dict[str, dict[str, object]], tmp_path: Path
) -> None:
    dataset, own = breast_cancer(), sections.pop("job", {})
    job = Job.of(job={"rounds": 4, "learning_rate": 0.1, **own}, **sections)
    plan = plan_for(job, dataset)
    found = beginning(tmp_path / "secret", plan, data_of(plan, dataset, dataset.parties[0]))
    assert found["answer"] is None
    assert found["session"]
