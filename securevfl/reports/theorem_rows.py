"""Result rows of `bench theorem1` and `bench theorem2`; see `rows`."""

from collections.abc import Sequence
from typing import Literal

from typing_extensions import TypedDict


class Theorem1Row(TypedDict):
    """One pair of runs; deviations are the largest of all messages."""

    dataset: str
    case: str
    expected: Literal["holds", "breaks"]
    rounds: int
    deviation: float
    absolute_deviation: float
    relative_distance: float
    orthogonality_error: float
    free_dimensions: int
    group_dimension: int
    set_up_differs: Sequence[str]
    wall_s: float


class Theorem2Row(TypedDict):
    """Average of ‖∇L‖² over T steps: mean and deviation over seeds, beside the bound.

    `proof_term` is what the theorem's proof has at least 0; where it is, `within` says proof, where
    only the step size is one that the theorem allows, statement.
    """

    table: Literal["bound", "rate"]
    dataset: str
    local_rule: str
    parties: int
    local_steps: int
    batch_size: int
    eta: float
    rounds: int
    steps: int
    measured: float
    spread: float
    bound: float
    holds: bool
    over_limit: float | None
    proof_term: float
    within: Literal["proof", "statement", "neither"]
