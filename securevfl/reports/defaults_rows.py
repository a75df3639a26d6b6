"""Rows of `bench defaults`."""

from collections.abc import Mapping, Sequence

from typing_extensions import TypedDict


class DefaultsRun(TypedDict):
    """One run with nothing set."""

    seed: int
    score: float
    rounds: int
    status: int


class DefaultsRow(TypedDict):
    """One data set: a job with nothing set, tuning by hand in one place, and each party alone.

    `score` is the median, `worst_score` the least of any seed, `usual_score` that of C = 1 in one
    place; `difference` is the median less `tuned_score`.
    """

    dataset: str
    rows: int
    columns: int
    parties: int
    score_name: str
    score: float
    worst_score: float
    rounds: float
    tuned_score: float
    tuned_c: float
    usual_score: float
    difference: float
    label_party: str
    alone: Mapping[str, float]
    repeats: int
    runs: Sequence[DefaultsRun]
