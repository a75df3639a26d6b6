"""Rounds and bytes of L1: the weights followed are those of the parties, also along a path."""

from bench.l1.__main__ import L1Settings, l1
from securevfl.benchmarks.progress import silent


def test_every_lambda_of_a_path_is_followed_to_its_optimum() -> None:
    settings = L1Settings(
        dataset="breast_cancer", l1=(0.1, 0.05, 0.02), parties=(2,), max_rounds=300
    )
    found = list(l1(settings, silent))
    assert [(row["start"], row["l1"]) for row in found] == [
        (start, each) for start in ("cold", "warm") for each in settings.l1
    ]
    for row in found:
        assert row["settled"]
        assert abs(row["gap"]) < 1e-5
        assert row["nonzeros"] == row["reference_nonzeros"]
