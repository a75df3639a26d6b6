"""Rounds and bytes of L1: what is followed is what parties had, also where a path goes on."""

from securevfl.benchmarks.l1 import l1
from securevfl.benchmarks.settings.l1 import L1Settings
from securevfl.data.sources import load


def test_every_lambda_of_a_path_is_followed_to_its_optimum() -> None:
    settings = L1Settings(l1=(0.1, 0.05, 0.02), methods=("dbcd",), parties=(2,), max_rounds=300)
    found = list(l1(settings, {2: load("breast_cancer")}))
    assert [(row["start"], row["l1"]) for row in found] == [
        (start, each) for start in ("cold", "warm") for each in settings.l1
    ]
    for row in found:
        assert row["settled"]
        assert abs(row["gap"]) < 1e-5
        assert row["nonzeros"] == row["reference_nonzeros"]
