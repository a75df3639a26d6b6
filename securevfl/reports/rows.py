"""Result rows, as tables and JSON files have them: what a command was told beside what it found.

Times are in seconds and sizes in bytes. Where a command repeats runs, figures are medians over
them unless their comment says otherwise.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NotRequired, cast, get_args

from typing_extensions import TypedDict

if TYPE_CHECKING:
    from securevfl.runtime.costs import JobCosts

Staleness = int | Literal["unbounded"]

HOMOMORPHIC = ("encrypt", "evaluate", "decrypt")
"""The phases of computation that homomorphic work is."""
DERIVED = "from each party's own curvature"
"""How step sizes were chosen that nobody chose."""


AheadFigure = Literal[
    "ahead_compute_s",
    "ahead_communication_s",
    "ahead_bytes",
    "ahead_ciphertext_bytes",
    "ahead_messages",
]


def made_ahead(row: Mapping[str, Any], figure: AheadFigure) -> float:
    """A figure of what a row's job made ahead of its rounds.

    Rows of result files from before there was such work lack it, and rows of what knows no rounds:
    nothing was made ahead there.
    """
    return float(row.get(figure, 0))


def ahead_s(row: Mapping[str, Any]) -> float:
    """Seconds of a row's total that were spent ahead of its rounds."""
    return made_ahead(row, "ahead_compute_s") + made_ahead(row, "ahead_communication_s")


def any_ahead(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether something was made ahead in any of the rows."""
    return any(made_ahead(row, figure) for row in rows for figure in get_args(AheadFigure))


class CostFigures(TypedDict):
    """What training cost; compute and communication make up the total.

    Set-up and what was done ahead in waits (`offline_hidden_s`) are not part of it. What was made
    ahead of rounds is part of every figure but `round_trips`; those that begin with `ahead_` say
    how much of it that is: `made_ahead` reads them.
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
    ahead_compute_s: NotRequired[float]
    ahead_communication_s: NotRequired[float]
    ahead_bytes: NotRequired[float]
    ahead_ciphertext_bytes: NotRequired[float]
    ahead_messages: NotRequired[float]


def cost_figures(costs: "JobCosts") -> CostFigures:
    """The costs as fields of a row."""
    return cast("CostFigures", costs.row())


class JobRow(CostFigures):
    """What `train` and `bench tradeoff` say of a job.

    Where scores are `binormal`, AUC and accuracy are those of normal distributions with the
    classes' means and variances. `he_per_step`: homomorphic work is repeated in every local step.
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


class TradeoffRun(CostFigures):
    """One run up to a target."""

    seed: int
    reached: bool
    rounds: int
    auc: float
    accuracy: float
    wall_s: float
    key_fingerprints: Mapping[str, str]


class TradeoffRow(JobRow):
    """One exchange at one Q to one target."""

    target_auc: float
    target_chosen: str
    engine: str | None
    repeats: int
    max_rounds: int
    runs: Sequence[TradeoffRun]


class JointRun(TypedDict):
    """One run; `rounds_to` is null where it never came so near."""

    seed: int
    rounds_to: int | None
    rounds: int
    score: float
    ended: str
    learned: bool


class JointRow(TypedDict):
    """One exchange among K parties against one place that has all columns.

    Rounds to within so much of it are the median and the most, null where half the runs, or one,
    never came so near. The rest is of whole runs, which end by themselves or at the most rounds.
    """

    dataset: str
    parties: int
    exchange: str
    rows: int
    columns: int
    score_name: str
    joint_score: float
    within: float
    rounds_to: float | None
    most_rounds_to: float | None
    rounds: float
    score: float
    ended: str
    label_guard_ratio: float | None
    round_trips: float
    bytes_sent: float
    compute_s: float
    communication_s: float
    total_s: float
    ahead_compute_s: NotRequired[float]
    ahead_communication_s: NotRequired[float]
    ahead_bytes: NotRequired[float]
    wall_s: float
    repeats: int
    runs: Sequence[JointRun]


class CryptoRow(TypedDict):
    """One engine on one shape; NumPy's row lacks what only encryption has."""

    operation: str
    scheme: str
    engine: str
    key_bits: int | None
    workers: int
    samples: int
    features: int
    seconds_median: float
    seconds_min: float
    seconds_encrypt: NotRequired[float]
    seconds_evaluate: NotRequired[float]
    seconds_decrypt: NotRequired[float]
    seconds_offline: NotRequired[float]
    seconds_keys: NotRequired[float]
    seconds_prepare: NotRequired[float]
    extrapolated: bool
    timed_part: NotRequired[tuple[int, int]]
    bytes_up: int
    bytes_down: int
    bytes_key: NotRequired[int]
    exact: bool
    largest_error: NotRequired[float]
    value_fraction_bits: NotRequired[int]
    matrix_fraction_bits: NotRequired[int]
    rounds: NotRequired[int]
    runs: int
    ratio_to_phe_2048: float | None
    ratio_to_phe_3072: float | None


class StalenessRun(TypedDict):
    """One run; `seconds` to the target."""

    seed: int
    seconds: float | None
    total_s: float
    auc: float
    refused: int
    lead: int
    regret_rounds: Sequence[int]
    regret: Sequence[float]
    slope: float | None


class StalenessRow(TypedDict):
    """One τ with one straggler, in virtual time; `largest_lead` is the largest of all runs."""

    dataset: str
    straggler: str
    factor: float
    staleness: Staleness
    batch_size: int
    target_auc: float
    reached_target: bool
    seconds_to_target: float | None
    total_s: float
    auc: float
    refused_pulls: float
    largest_lead: int
    regret_rounds: Sequence[int]
    regret: Sequence[float]
    regret_slope: float | None
    repeats: int
    runs: Sequence[StalenessRun]


class FdmlRow(TypedDict):
    """One model trained one way.

    `machinery_s` is wall time of an iteration of one party beside the parties' computation;
    what is compared with one place is fdml's.
    """

    dataset: str
    model: str
    training: str
    epochs: int
    batch_size: int
    learning_rate: float
    staleness: Staleness
    batches_a_message: NotRequired[int]
    precision: NotRequired[str]
    repeats: int
    auc: float
    aucs: Sequence[float]
    log_loss: float
    log_losses: Sequence[float]
    wall_s_per_epoch: float
    ratio_to_one_place: NotRequired[float]
    virtual_s_per_epoch: float | None
    machinery_s: float | None


class CostLawRow(TypedDict):
    """One scheme at one Q; operations are of the first run."""

    scheme: str
    key_bits: int | None
    local_steps: int
    homomorphic_s_per_round: float
    ratio_to_first: float
    local_s_per_round: float
    encryptions_per_round: float
    products_per_round: float
    decryptions_per_round: float
    rounds: int
    repeats: int


class OverheadRow(TypedDict):
    """Real time a round, the parties' own computation, and the rest."""

    parties: int
    samples: int
    features: int
    wall_s_per_round: float
    compute_s_per_round: float
    overhead_s_per_round: float
    rounds: int
    repeats: int


class L1Row(TypedDict):
    """One method at one λ₁; `warm` rows are of a path, from where the λ₁ before ended.

    Gaps are relative to the objective at scikit-learn's weights; the certified one is what the
    parties knew. `differing_zeros` are columns that are 0 at one of the two only, which says
    something where the optimum is `unique`. Where a row is warm, bytes are those of its λ₁ alone.
    """

    dataset: str
    loss: str
    parties: int
    method: str
    start: str
    l1: float
    rounds: int
    settled: bool
    rounds_to_gap: int | None
    gap: float
    certified_gap: float | None
    objective: float
    reference_objective: float
    nonzeros: int
    reference_nonzeros: int
    differing_zeros: int
    unique: bool
    messages: int
    bytes_sent: float
    bytes_to_gap: float | None
    auc: float | None
    wall_s: float


class LabelGuardRow(TypedDict):
    """What a feature party reads at one ratio: means over seeds.

    `own_` is the best model of its columns, figure by figure; `bound_` an attacker that knows all
    predictions as well; `rarest` the share of the rarest class.
    """

    dataset: str
    rows: int
    columns: int
    rarest: float
    ratio: float
    batch_size: int
    sampling: str
    rounds: int
    auc: float
    auc_std: float
    own_auc: float
    bound_auc: float
    top_precision: float
    own_top_precision: float
    bound_top_precision: float
    true_positives: float
    own_true_positives: float
    bound_true_positives: float
    accuracy: float
    own_accuracy: float
    exposed_rows: int


class NoiseRow(TypedDict):
    """One model at one noise multiplier: means and deviations over seeds, and the promise.

    `own_prediction` is fdml's, null of other algorithms. `auc_centralized` is of one model over all
    columns with a step size of its own, `auc_sum_in_one_place` of the sum of the parties' models;
    the same of linear ones. Of a job file both are the job's own, without noise. Learning rates are
    null where steps follow from each party's own curvature.
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
