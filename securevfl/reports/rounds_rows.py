"""Result rows of `bench rounds`; see `rows`."""

from collections.abc import Sequence

from typing_extensions import TypedDict


class CurvePoint(TypedDict):
    """Held-out AUC after so many rounds, and the mean training loss since the point before.

    The loss is of the rounds' batches, each as it was exchanged.
    """

    rounds: int
    training_loss: float | None
    auc: float


class RoundsRun(TypedDict):
    """One run; `curve` has at most 100 points, evenly over its scorings, the last among them."""

    seed: int
    reached: bool
    rounds: int
    auc: float
    best_auc: float
    messages: int
    curve: Sequence[CurvePoint]


class RoundsRow(TypedDict):
    """One combination of algorithm, Q, K and μ."""

    dataset: str
    algorithm: str
    local_steps: int | str
    parties: int
    proximal: float
    batch_size: int | str
    local_rule: str
    target_auc: float
    target_chosen: str
    reached_target: bool
    rounds: float
    auc: float
    best_auc: float
    learning_rate: float | None
    learning_rate_chosen: str
    repeats: int
    runs: Sequence[RoundsRun]
