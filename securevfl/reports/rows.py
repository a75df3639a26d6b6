"""Result rows, as tables and JSON files have them: a command's settings beside its findings.

Times are in seconds and sizes in bytes. Where a command repeats runs, figures are medians over
them unless their comment says otherwise.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal, NotRequired, cast, get_args

from typing_extensions import TypedDict

if TYPE_CHECKING:
    from securevfl.models.ranking import Ranking
    from securevfl.models.scores import Calibration
    from securevfl.runtime.costs import JobCosts

DERIVED = "from each party's own curvature"
"""How step sizes were chosen that nobody chose."""


OfflineFigure = Literal[
    "offline_compute_s",
    "offline_communication_s",
    "offline_bytes",
    "offline_ciphertext_bytes",
    "offline_messages",
]


def made_offline(row: Mapping[str, Any], figure: OfflineFigure) -> float:
    """A figure of what a row's job made before its rounds.

    Rows of result files from before there was such work lack it, and rows of what knows no rounds:
    nothing was made offline there.
    """
    return float(row.get(figure, 0))


def offline_s(row: Mapping[str, Any]) -> float:
    """Seconds of a row's total that were spent before its rounds."""
    return made_offline(row, "offline_compute_s") + made_offline(row, "offline_communication_s")


def any_offline(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether something was made offline in any of the rows."""
    return any(made_offline(row, figure) for row in rows for figure in get_args(OfflineFigure))


class CostFigures(TypedDict):
    """What training cost; compute and communication make up the total.

    Set-up and what was done offline in waits (`offline_hidden_s`) are not part of it. What was made
    before rounds is part of every figure but `round_trips`; those that begin with `offline_` say
    how much of it that is: `made_offline` reads them.
    """

    compute_s: float
    communication_s: float
    total_s: float
    compute_by_phase_s: Mapping[str, float]
    setup_s: float
    round_trips: float
    bytes_sent: float
    ciphertext_bytes: float
    messages: float
    offline_hidden_s: NotRequired[float]
    offline_compute_s: NotRequired[float]
    offline_communication_s: NotRequired[float]
    offline_bytes: NotRequired[float]
    offline_ciphertext_bytes: NotRequired[float]
    offline_messages: NotRequired[float]


def cost_figures(costs: "JobCosts") -> CostFigures:
    """The costs as fields of a row."""
    return cast("CostFigures", costs.row())


class CalibrationFigures(TypedDict):
    """Of probabilities that the label party sees without noise; null where there are none.

    Brier score, log loss, the mean distance of predicted from observed shares, and both by bins
    (`rows`, `predicted`, `observed`).
    """

    brier: float | None
    log_loss: float | None
    calibration_error: float | None
    reliability: Sequence[Mapping[str, float]] | None


def calibration_figures(calibration: "Calibration | None") -> CalibrationFigures:
    """The calibration as fields of a row."""
    return {
        "brier": calibration.brier if calibration else None,
        "log_loss": calibration.log_loss if calibration else None,
        "calibration_error": calibration.expected_error if calibration else None,
        "reliability": [asdict(each) for each in calibration.curve] if calibration else None,
    }


class JobRow(CostFigures):
    """What `train` and `bench tradeoff` say of a job.

    A `binormal` AUC is that of normal distributions with the classes' means and variances, to about
    two digits, and there is no accuracy. `he_per_step`: every local step has homomorphic work.
    """

    dataset: str
    exchange: str
    hide: str | None
    algorithm: str
    local_steps: int | str
    he_per_step: bool
    parties: int
    batch_size: int | str
    rounds: float
    reached_target: bool
    rounds_before: NotRequired[int]
    auc: float | None
    binormal: NotRequired[bool]
    label_guard_ratio: float | None
    learning_rate: float | None
    learning_rate_chosen: str
    key_bits: int | None
    key_fingerprints: Mapping[str, str]
    wall_s: float


class Figures(TypedDict):
    """Held-out scores: of classes the first two, of real targets the others."""

    auc: float | None
    accuracy: float | None
    r2: float | None
    rmse: float | None


class ScoredPoint(Figures):
    """The held-out scores after some rounds."""

    rounds: int
    total_s: float


class AloneFigures(Figures):
    """One party's own model; where labels were lent to it, no party can compute this."""

    rows: int
    labels_lent: bool
    binormal: bool
    average_precision: float | None


class TrainRow(JobRow, CalibrationFigures):
    """A finished job; `learned`: it is of use, `_exact`: of predictions without noise.

    AUC and accuracy are of classes, `r2`, `rmse` and `mae` of real targets, in their units; null
    of the others. `mae` is null too where only sums are known.

    Costs are without those of `rounds_before`, which were done before it was interrupted.
    `losses` are those of each round since, where the label party sees them.
    `before` says what was to be done and who would learn what, `brought` what parties hold, and
    `notes` what was noticed in files.
    `links` says what messages cost besides their lines, where a simulated network counted that.
    `ranking` is `models.ranking.Ranking` of two classes whose scores the label party sees.
    The model is that after `kept_rounds`; `status` is the command's, `warnings` have kind and text.
    """

    links: NotRequired[Mapping[str, float] | None]
    curve: Sequence[ScoredPoint]
    losses: Sequence[float]
    learned: bool
    ended: str
    ranking: "Ranking | None"
    class_weight: str | Mapping[str, float] | None
    weighted_rows: bool
    auc_exact: float | None
    accuracy: float | None
    r2: float | None
    r2_exact: float | None
    rmse: float | None
    mae: float | None
    job_hash: str
    privacy: Mapping[str, Any] | None
    dropped_rows: Mapping[str, int]
    notes: list[str]
    before: list[str]
    brought: Sequence[Sequence[str]]
    kept_rounds: int
    status: int
    warnings: Sequence[Mapping[str, str]]
    alone: Mapping[str, AloneFigures]


class CurvePoint(TypedDict):
    """Held-out AUC after a number of rounds, and the mean training loss since the point before.

    The loss is that of the rounds' batches, each as it was exchanged.
    """

    rounds: int
    training_loss: float | None
    auc: float


class TradeoffRun(CostFigures):
    """One run up to a target; `best_auc` and `curve` (at most 100 points) are of the whole run."""

    seed: int
    reached: bool
    rounds: int
    auc: float
    best_auc: float
    accuracy: float | None
    curve: Sequence[CurvePoint]
    wall_s: float
    key_fingerprints: Mapping[str, str]


class TradeoffRow(JobRow):
    """One cell of a grid to one target; `varied` has the cell's values by key."""

    varied: NotRequired[Mapping[str, Any]]
    proximal: float
    best_auc: float
    target_auc: float
    target_chosen: str
    engine: str | None
    repeats: int
    max_rounds: int
    runs: Sequence[TradeoffRun]


class NoiseRow(TypedDict):
    """One model at one noise multiplier: means and deviations over seeds, and the promise.

    `own_prediction` is fdml's, null of other algorithms. `auc_centralized` is of one model over all
    columns with a step size of its own, `auc_sum_in_one_place` of the sum of the parties' models;
    the same of linear ones. Of a job file both are the job's own, without noise. Learning rates are
    null where steps follow from each party's own curvature. `auc_noisy_mean` is of released
    predictions. `over_rounds` has the means and both ε after fewer rounds, the most last; those at
    `settled` are the fewest that come within 0.005 of the best released AUC.
    """

    dataset: str
    model: str
    algorithm: str
    mechanism: str
    own_prediction: str | None
    noise_multiplier: float
    clip: float
    releases: int
    delta: float
    epsilon_release: float | None
    epsilon_end_to_end: float | None
    epsilon_end_to_end_text: str
    gradient_clip: float | None
    gradient_noise_multiplier: float | None
    auc_mean: float
    auc_std: float | None
    auc_noisy_mean: float
    auc_noisy_std: float | None
    settled: int
    over_rounds: Sequence[Mapping[str, Any]]
    auc_local_only: float
    local_only_party: str
    auc_centralized: float
    auc_sum_in_one_place: float
    learning_rate: float | None
    learning_rate_centralized: float | None
    repeats: int
    aucs: Sequence[float]
    aucs_noisy: Sequence[float]
    noise: str
