import numpy as np
import pytest

from securevfl.errors import HeldOutLeakRefused
from securevfl.protocols.guards.feature_guard import LIMIT, HeldOutCount


@pytest.mark.parametrize(
    ("outputs", "rank", "allowed"),
    [(1, 4, 1), (1, 63, 1), (1, 64, 2), (1, 320, 10), (10, 27, 10), (10, 640, 20)],
)
def test_one_scoring_is_always_allowed_and_a_share_of_the_rank(
    outputs: int, rank: int, allowed: int
) -> None:
    count = HeldOutCount(1, outputs, rank)
    assert count.allowed == allowed == max(outputs, int(LIMIT * rank))
    count.require_below_limit(allowed, "")
    with pytest.raises(HeldOutLeakRefused, match=f"show {allowed + 1} columns"):
        count.require_below_limit(allowed + 1, "")


@pytest.mark.parametrize(("rank", "allowed"), [(1, 1), (2, 1), (15, 14)])
def test_where_rounds_show_training_rows_fewer_than_the_rank_are_allowed(
    rank: int, allowed: int
) -> None:
    assert HeldOutCount(1, 1, rank, rounds_show=True).allowed == allowed


def test_a_job_that_goes_on_counts_once() -> None:
    count, earlier = HeldOutCount(3, 2, 100), np.array([0, 5])
    first = count.planned(earlier, resumes=False)
    assert first.tolist() == [6, 11]
    assert count.planned(first, resumes=True).tolist() == [6, 11]
    # Nor is it let off where its record is not there.
    assert count.planned(np.array([0, 0]), resumes=True).tolist() == [6, 6]


def test_the_refusal_says_what_earlier_jobs_showed_and_which() -> None:
    with pytest.raises(HeldOutLeakRefused, match=r"after 2 of earlier jobs \(the last: job 'a'\)"):
        HeldOutCount(1, 1, 15).require_below_limit(3, "job 'a'")
