"""Result rows of `train`; see `rows`."""

from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import TypedDict

from securevfl.reports.rows import JobRow


class ScoredPoint(TypedDict):
    """The held-out scores after some rounds."""

    rounds: int
    total_s: float
    auc: float | None
    accuracy: float | None
    r2: float | None
    rmse: float | None


class AloneFigures(TypedDict):
    """One party's own model; where labels were lent to it, no party can compute this."""

    auc: float | None
    accuracy: float | None
    r2: float | None
    rmse: float | None
    rows: int
    labels_lent: bool
    binormal: bool


class TrainRow(JobRow):
    """A finished job; `learned`: it is of use, `_exact`: of predictions without noise.

    AUC and accuracy are of classes, `r2`, `rmse` and `mae` of real targets, in their units; null
    of the others. `mae` is null too where only sums are known. Brier score, log loss, the mean
    distance of predicted from observed shares and both by bins (`rows`, `predicted`, `observed`)
    are of probabilities that the label party sees without noise.

    Costs are without those of `rounds_before`, which were done before it was interrupted.
    `losses` are those of each round since, where the label party sees them.
    The model is that after `kept_rounds`; `status` is the command's, `warnings` have kind and text.
    """

    curve: Sequence[ScoredPoint]
    losses: Sequence[float]
    learned: bool
    ended: str
    auc_exact: float | None
    accuracy: float | None
    brier: float | None
    log_loss: float | None
    calibration_error: float | None
    reliability: Sequence[Mapping[str, float]] | None
    r2: float | None
    r2_exact: float | None
    rmse: float | None
    mae: float | None
    job_hash: str
    privacy: Mapping[str, Any] | None
    dropped_rows: Mapping[str, int]
    notes: list[str]
    kept_rounds: int
    status: int
    warnings: Sequence[Mapping[str, str]]
    alone: Mapping[str, AloneFigures]
