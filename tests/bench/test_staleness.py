import pytest

from bench.staleness.__main__ import StalenessSettings, staleness
from securevfl.benchmarks.progress import silent
from securevfl.errors import ConfigError


def test_staleness_shows_who_waits() -> None:
    settings = StalenessSettings(
        dataset="breast_cancer",
        rounds=60,
        batch_size=64,
        staleness=(0, 3, "unbounded"),
        learning_rate=0.3,
        target_auc=0.98,
    )
    rows = list(staleness(settings, silent))
    assert [row["straggler"] for row in rows[::3]] == ["none", "party1", "party2", "turns"]
    bulk, some, free = rows[3:6]
    assert (bulk["largest_lead"], some["largest_lead"]) == (0, 3)
    assert free["largest_lead"] > 3
    assert free["refused_pulls"] == 0 < some["refused_pulls"] <= bulk["refused_pulls"]
    alternating = rows[9:]
    assert alternating[0]["total_s"] > alternating[2]["total_s"]
    for row in rows:
        assert row["seconds_to_target"] is not None
        assert row["seconds_to_target"] <= row["total_s"]
    # R(T) falls: batches are fitted better and better.
    assert bulk["regret"][0] > bulk["regret"][-1]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({"stragglers": "me"}, "expected none, party1"), ({"dataset": "digits"}, "10 classes")],
)
def test_what_it_refuses(changes: dict[str, str], expected: str) -> None:
    settings = StalenessSettings.model_validate({"dataset": "breast_cancer", **changes})
    with pytest.raises(ConfigError, match=expected):
        next(staleness(settings, silent))
