"""Result rows of `bench networks`; see `rows`."""

from collections.abc import Sequence

from typing_extensions import TypedDict


class NetworksRun(TypedDict):
    """One run to a target; `aucs` are those after each of its rounds."""

    seed: int
    reached: bool
    rounds: int
    aucs: Sequence[float]
    messages: int


class NetworksRow(TypedDict):
    """One algorithm and Q over networks with a head; `paper_rounds` where the paper has them.

    `linear_auc` is what a logistic regression on all columns in one place reaches on all held-out
    rows, of which training is scored on `scored_rows`.
    """

    dataset: str
    model: str
    algorithm: str
    local_steps: int
    parties: int
    target_auc: float
    reached_target: bool
    rounds: float
    most_rounds: int
    paper_rounds: int | None
    best_auc: float
    linear_auc: float
    scored_rows: int
    learning_rate: float | None
    learning_rate_chosen: str
    wall_s_per_round: float
    repeats: int
    runs: Sequence[NetworksRun]
