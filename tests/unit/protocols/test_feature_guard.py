import numpy as np
import pytest

from securevfl.errors import FeatureLeakRefused
from securevfl.protocols.guards.feature_guard import (
    LIMIT,
    HeldOutCount,
    rank_of,
    reveals,
)


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
    with pytest.raises(FeatureLeakRefused, match=f"at most {allowed} expected in all"):
        count.require_below_limit(allowed + 1, "")


@pytest.mark.parametrize(("rank", "allowed"), [(1, 1), (2, 1), (15, 14)])
def test_where_rounds_show_training_rows_fewer_than_the_rank_are_allowed(
    rank: int, allowed: int
) -> None:
    assert HeldOutCount(1, 1, rank, rounds_show=True).allowed == allowed


@pytest.mark.parametrize(("directions", "known"), [(3, False), (5, True), (6, True)])
def test_rounds_reveal_what_least_squares_finds(
    generator: np.random.Generator, directions: int, known: bool
) -> None:
    """Of five columns, by twelve rounds that converge; one column of zeros is known anyway."""
    inputs = np.hstack([generator.standard_normal((200, 5)), np.zeros((200, 1))])
    weights = generator.standard_normal((6, directions)) @ generator.standard_normal(
        (directions, 12)
    )
    shown = inputs @ weights
    assert reveals(inputs, weights) == known
    found = np.linalg.lstsq(shown[:20], inputs[:20], rcond=1e-9)[0]
    error = np.linalg.norm(shown @ found - inputs) / np.linalg.norm(inputs)
    assert (error < 1e-6) == known


@pytest.mark.parametrize("size", [1e-300, 1e-200, 1.0, 1e200, 1e307])
def test_numbers_whose_squares_overflow_have_the_rank_that_they_have(
    size: float, generator: np.random.Generator
) -> None:
    inputs = generator.uniform(-1, 1, (200, 5))
    assert rank_of(size * inputs) == 5
    one_large = size * inputs * [1e-20, 1, 1e-20, 1e-20, 1e-20]
    assert rank_of(one_large) == 1


@pytest.mark.parametrize("size", [1e-200, 1e200, 1e307])
def test_a_column_whose_squares_overflow_is_not_revealed_by_that(
    size: float, generator: np.random.Generator
) -> None:
    inputs = generator.standard_normal((200, 5)) * [1, 1, 1, 1, size]
    few = generator.standard_normal((5, 3)) * [[1], [1], [1], [1], [1 / size]]
    assert not reveals(inputs, few)
    assert not reveals(inputs, 1e300 * generator.standard_normal((5, 8)))
    all_of_it = np.diag([1, 1, 1, 1, 1 / size])
    assert reveals(inputs, all_of_it)


def test_the_refusal_says_what_earlier_jobs_showed_and_which() -> None:
    said = (
        r"earlier jobs \(the last: job 'a'\) already showed up to 2 numbers of each person scored, "
        r"and this one would show 1 more number \(1 scoring x 1 output\), at most 1 expected in all"
    )
    with pytest.raises(FeatureLeakRefused, match=said):
        HeldOutCount(1, 1, 15).require_below_limit(3, "job 'a'")
