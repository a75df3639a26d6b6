"""The sections of a job file, each a validated object; see `securevfl train --example`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from securevfl.errors import ConfigError
from securevfl.recipe import Preprocessing
from securevfl.runtime.line import PRESETS, Line

Hide = Literal["residuals", "both"]
PositiveInt = Annotated[int, Field(ge=1)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Loss = Literal["logistic", "multinomial", "squared", "taylor-logistic", "squared-hinge", "hinge"]
Model = Literal["linear", "mlp", "cnn", "custom"]
Activation = Literal["relu", "tanh", "sigmoid", "gelu", "silu"]
OwnPrediction = Literal["exact", "noisy"]
Precision = Literal["double", "single"]
OneCharacter = Annotated[str, Field(min_length=1, max_length=1)]
Hidden = Annotated[tuple[PositiveInt, ...], Field(min_length=1)]


class Section(BaseModel):
    """What all sections share: unknown keys are errors, and nothing changes once it is read."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class JobSettings(Section):
    """`[job]`: the algorithm and its settings.

    Attributes:
        name: of the job, in messages.
        dataset: a data set by name, with its parties; or give `[[party]]` sections with files.
        parties: K for a data set by name; its usual split by default.
        algorithm: by name; what an algorithm alone has is in a section of its own.
        rounds: at most; 100 where not given, and 20 of exact steps whose parameters stay in
            shares; with learning_rate = "auto" the label party may end training before.
        batch_size: S, or "full"; where not given, full for exact steps and where gradients are
            revealed, and else 128.
        local_steps: Q, or "exact": the minimum of the quadratic that they go towards, for linear
            models. Where not given, exact with learning_rate = "auto" where that can be, else 5,
            or 20 where networks train with "auto".
        acceleration: Nesterov's extrapolation between rounds, or none; where not given, with exact
            steps of all parties at once.
        learning_rate: η0, or "auto": each party's follows from the curvature of its own part, and
            the label party watches its loss.
        tolerance: with "auto", training ends once three rounds together gain less, as a part of
            the loss of the best constant; 0 never ends it.
        l1: λ₁ of λ₁‖θ‖₁ without the intercept, for linear models in clear; scikit-learn's C is
            1/(λ₁N).
        l2: λ; where not given 1/N with learning_rate = "auto" and no l1, as scikit-learn's C = 1,
            else 0.
        schedule: constant η0, or inverse-sqrt: η0/√(i+1) at round i; where not given, constant,
            and inverse-sqrt under fdml unless "auto" finds the steps of linear models, without dp.
        divide_by_sqrt_parties: η0/√K in place of η0, for many parties.
        loss: logistic (multinomial beyond two classes), squared, taylor-logistic, squared-hinge or
            hinge, which bends without bound: it takes a learning_rate and a rule without curvature.
            Squared takes real targets too, in units of their deviation within the job, so for l1.
        proximal: μ of μ/2·‖θ − θ_last‖², the pull towards the last exchanged weights.
        local_rule: curvature follows the party's own changes within a bound on what the loss bends,
            frozen repeats the residual, and exact follows the loss itself, for which feature
            parties are told labels and the sum of the others' predictions, under plain alone;
            gauss-newton is curvature on a network's linearization, as encryption has it.
        sampling: partition draws from fixed batches of the data set, shuffle reshuffles.
        head: what the label party makes of the others' numbers: their sum, or logistic: a layer of
            its own over vectors u_k that local models give in place of predictions.
        representation: w, the numbers in each u_k; 64 where not given.
        model: the local model of parties that name none: linear, mlp, cnn, or custom, a module
            from Python.
        hidden: units of each hidden layer of an mlp, one of 64 where not given; dense layers after
            the convolutions of a cnn, none where not given.
        activation: between the layers of a network; relu where not given.
        channels: of each 3 x 3 convolution of a cnn; two of 64 where not given.
        image_width: a cnn's columns are an image, line by line, of so many pixels each (28 for
            mnist, whose lines are columns of the image).
        precision: networks compute in float64, or in float32 at half the time and memory or less;
            what they hand on is float64 either way.
        start: random hides the first residuals, by θ⁰ with std(H⁰) = 1 at the label party, or for
            gradient steps of linear models by an offset that it adds to every row's H for the
            whole job; or zero. Where not given, zero if parameters stay in shares, or all parties
            hold the labels and train no network, and else random.
        intercept: a constant column at the label party.
        standardize: features to mean 0 and deviation 1 at each party; where not given, as is
            usual for the data set.
        seed: of batches, starts and the held-out fifth; never of keys, masks or noise.
        target_auc: stop once the held-out AUC reaches it.
        eval_every: rounds between scorings on the held-out rows; "doubling" scores after 1, 2, 4,
            8, 16 and 32 rounds and then every 20th, 0 after the last only, as fdml does anyway,
            and "never" not at all. Where not given, doubling, but 0 where rounds hide residuals or
            single predictions, as scorings are counted there; 1 with target_auc.
        label_guard: what the guard counts of a linear model: batches counts the gradients of one
            batch once, visits every time, as a cheating peer could make use of it.
        allow_label_leak: run although the aggregated gradients carry too much about the labels.
        allow_feature_leak: run although scorings show too much of held-out rows' features.
    """

    name: str = "job"
    dataset: str | None = None
    parties: Annotated[int, Field(ge=2)] | None = None
    algorithm: str = "fedbcd-p"
    rounds: PositiveInt = 100
    batch_size: PositiveInt | Literal["full"] | None = None
    local_steps: PositiveInt | Literal["exact"] | None = None
    acceleration: Literal["none", "nesterov"] | None = None
    learning_rate: PositiveFloat | Literal["auto"] = "auto"
    tolerance: NonNegative = 1e-4
    schedule: Literal["constant", "inverse-sqrt"] | None = None
    divide_by_sqrt_parties: bool = False
    loss: Loss = "logistic"
    l1: NonNegative = 0.0
    l2: NonNegative | None = None
    proximal: NonNegative = 0.0
    local_rule: Literal["curvature", "gauss-newton", "frozen", "exact"] = "curvature"
    sampling: Literal["partition", "shuffle"] = "partition"
    head: Literal["sum", "logistic"] = "sum"
    representation: PositiveInt | None = None
    model: Model = "linear"
    hidden: Hidden | None = None
    activation: Activation | None = None
    channels: Hidden | None = None
    image_width: PositiveInt | None = None
    precision: Precision = "double"
    start: Literal["random", "zero"] | None = None
    intercept: bool = True
    standardize: bool | None = None
    seed: Annotated[int, Field(ge=0)] = 0
    target_auc: Annotated[float, Field(gt=0, le=1)] | None = None
    eval_every: Annotated[int, Field(ge=0)] | Literal["doubling", "never"] | None = None
    label_guard: Literal["batches", "visits"] = "batches"
    allow_label_leak: bool = False
    allow_feature_leak: bool = False


class PartySettings(Section):
    """`[[party]]`: one organization, its local model, and where it keeps its own files.

    Paths are relative to the job file.

    Attributes:
        name: of the party, and of its model file.
        role: one party has the labels, the others features alone.
        address: where it is reached in a real run, which is not part of version 0.1.
        data: its rows, CSV or Parquet; a fifth is held out where there is no test_data.
        test_data: rows to score on, at every party or at none.
        new_data: rows that `securevfl predict` scores.
        id_column: joins the parties' rows.
        id_format: how ids are compared: text, number (00017 is 17) or folded (case, blanks).
        label_column: what is learned, at the label party alone.
        features: columns to use; all but the id and the label where not given.
        drop: columns not to use.
        separator: of a CSV; found out where not given, as the next three are.
        decimal: the sign before decimals.
        thousands: the sign between thousands.
        encoding: of the file.
        preprocess: in place of the job's, as a whole.
        model: its local model; the job's where not given, as what follows is.
        hidden: units of each hidden layer.
        activation: between the layers of a network.
        channels: of each convolution of a cnn.
        image_width: pixels a line of the image that a cnn's columns are.
    """

    name: Annotated[str, Field(min_length=1, pattern=r"^[A-Za-z0-9_-][A-Za-z0-9_.-]*$")]
    role: Literal["label", "feature"]
    address: str | None = None
    data: Path | None = None
    test_data: Path | None = None
    new_data: Path | None = None
    id_column: str = "id"
    id_format: Literal["text", "number", "folded"] = "text"
    label_column: str | None = None
    features: tuple[str, ...] | None = None
    drop: tuple[str, ...] = ()
    separator: OneCharacter | None = None
    decimal: Literal[".", ","] | None = None
    thousands: OneCharacter | None = None
    encoding: str | None = None
    preprocess: Preprocessing | None = None
    model: Model | None = None
    hidden: Hidden | None = None
    activation: Activation | None = None
    channels: Hidden | None = None
    image_width: PositiveInt | None = None


@dataclass(frozen=True)
class LocalModelSettings:
    """One party's local model; hidden and activation are a network's, the rest a cnn's."""

    model: Model
    hidden: tuple[int, ...] = (64,)
    activation: Activation = "relu"
    channels: tuple[int, ...] = (64, 64)
    image_width: int | None = None


class ExchangeSettings(Section):
    """`[exchange]`: how a round's predictions and residuals travel.

    Attributes:
        scheme: which exchange, by name.
        hide: with a homomorphic scheme: the residuals, or both sides.
        predictions: clear, or masked so that only their sum shows (three parties or more).
        key_bits: Paillier modulus; the scheme's 128-bit default where not given.
        engine: implementation of the scheme; its default where not given.
        value_fraction_bits: fixed point of residuals and predictions; the scheme's where not
            given.
        feature_fraction_bits: the most for features; the scheme's where not given. Features that
            are exact with fewer, as 0/1 columns are, take fewer.
        round_trips: two a round as a rule; one where the scheme can compute the next predictions
            under encryption, at the price of larger replies; auto takes what is faster.
        he_per_step: for benchmarks: repeat the homomorphic product in every local step, as other
            systems do, in place of one a round; Q times the work for the same model.
        workers: processes for a party's own homomorphic products; each party's own affair.
        offline_rounds: of blind: pads of so many rounds are made together, those of the next ones
            while parties wait; all before the first where not given.
        prediction_bound: public bound on |H_k| for losses whose residuals are unbounded; what
            is beyond is clipped and counted where both sides are hidden, else refused.
        period: of the series that stands for σ in logistic residuals in shares, which holds while
            |H| stays 4 below half of it; where not given, as long as rounds ask for.
        scores: what blind opens of held-out rows to the label party, at the end: only sums over
            classes (of squared errors of real targets), or H of every row, which an exact AUC takes
            and between two parties is the other's H_k; sums where not given.
    """

    scheme: str = "plain"
    hide: Hide = "residuals"
    predictions: Literal["clear", "masked"] = "clear"
    key_bits: PositiveInt | None = None
    engine: str | None = None
    value_fraction_bits: Annotated[int, Field(ge=8, le=40)] | None = None
    feature_fraction_bits: Annotated[int, Field(ge=4, le=32)] | None = None
    round_trips: Literal["auto", 1, 2] = "auto"
    he_per_step: bool = False
    workers: PositiveInt = 1
    offline_rounds: PositiveInt | None = None
    prediction_bound: PositiveFloat = 6.0
    period: Annotated[int, Field(ge=24, le=512)] | None = None
    scores: Literal["sums", "rows"] | None = None


class NetworkSettings(Section):
    """`[network]`: a preset by name, or latency and bandwidth.

    Attributes:
        preset: lan, wan or intercontinental.
        latency_ms: of a message, one way, in milliseconds.
        bandwidth_mbit: of the line between two parties, in Mbit/s.
    """

    preset: str | None = None
    latency_ms: NonNegative | None = None
    bandwidth_mbit: PositiveFloat | None = None

    def resolve(self) -> Line:
        """The network these settings name.

        Raises:
            ConfigError: an unknown preset.
        """
        if self.latency_ms is not None and self.bandwidth_mbit is not None:
            return Line(self.latency_ms, self.bandwidth_mbit)
        if self.preset not in PRESETS:
            raise ConfigError(
                f"network = {self.preset!r}: expected {', '.join(PRESETS)}, or latency_ms and "
                "bandwidth_mbit"
            )
        return PRESETS[self.preset]


class OutputSettings(Section):
    """`[output]`: where models go, and how often they are written on the way.

    Attributes:
        directory: of models and of what `--resume` goes on from, from where the command runs.
        checkpoint_every: rounds between two states that are kept; 0 keeps none.
    """

    directory: Path = Path("models")
    checkpoint_every: Annotated[int, Field(ge=0)] = 10


class PrivacySettings(Section):
    """`[privacy]`: noise on what the `dp` exchange shares, and what it may spend.

    Noise multipliers are in units of a sensitivity: of 2·clip for predictions, 2·gradient_clip for
    gradients, and of one flipped label for residuals.

    Attributes:
        mechanism: of the noise on predictions and residuals; gradients take gaussian noise.
        noise_multiplier: z on predictions; the least that keeps the budget where not given.
        clip: β; predictions are clipped to [−β, β] before noise.
        delta: of every (epsilon, delta).
        gradient_clip: β_g, the largest length of a sample's gradient at feature parties; not
            given, their steps are exact and nothing is promised end to end.
        gradient_noise_multiplier: z_g; the least that keeps the budget where not given.
        label_noise_multiplier: z on residuals; 0 leaves them exact.
        release_budget: the most epsilon of the releases, the model taken as given.
        budget: the most epsilon end to end.
        noise_seed: repeatable noise, for experiments: it promises nothing.
    """

    mechanism: Literal["gaussian", "laplace"] = "gaussian"
    noise_multiplier: NonNegative | None = None
    clip: PositiveFloat = 2.0
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    gradient_clip: PositiveFloat | None = None
    gradient_noise_multiplier: NonNegative | None = None
    label_noise_multiplier: NonNegative = 0.0
    release_budget: PositiveFloat | None = None
    budget: PositiveFloat | None = None
    noise_seed: Annotated[int, Field(ge=0)] | None = None


class AuditSection(Section):
    """`[audit]`: what the audit of this job checks.

    Attributes:
        must_resist: attacks that the job must be shown to resist, by name.
    """

    must_resist: tuple[str, ...] = ()


class FdmlSettings(Section):
    """`[fdml]`.

    Attributes:
        staleness: τ: how many iterations a party may be ahead of the slowest; unbounded lets it
            run.
        own_prediction: what a party adds to the sum of the others' that it pulls: its exact
            prediction, or the noisy one that it pushed, as the paper has it; without noise they
            are the same.
        batches_per_message: n iterations share one push and one pull, their predictions at the
            weights before the first of them; others' are then n - 1 iterations old at the last,
            which is part of staleness.
        precision: predictions travel in float64, or in float32 at half the bytes.
    """

    staleness: Annotated[int, Field(ge=0)] | Literal["unbounded"] = 0
    own_prediction: OwnPrediction = "exact"
    batches_per_message: PositiveInt = 1
    precision: Precision = "double"


class DbcdSettings(Section):
    """`[dbcd]`.

    Of `[job]` it takes l1, or a path; local_steps as passes of coordinate descent, "exact" going on
    until they have converged; tolerance as the part of the objective that it may be above its
    least; and starts at zero whatever start says.

    Attributes:
        working_set: the columns that a party moves in a round: all, or greedily those that break
            the conditions of optimality most.
        size: how many of them, where it is greedy; 10 where not given.
        path: λ₁ one after another, falling, each from where the last one ended, in place of
            job.l1; rounds are those of the whole path.
        momentum: search along the last step too, but for noise, which takes fewer rounds than the
            paper's search along the new direction alone.
    """

    working_set: Literal["all", "greedy"] = "all"
    size: PositiveInt | None = None
    path: Annotated[tuple[PositiveFloat, ...], Field(min_length=1)] | None = None
    momentum: bool = True


class FtlSettings(Section):
    """`[ftl]`: federated transfer learning.

    Attributes:
        units: w, of the hidden layer that each party trains.
        activation: of these units; a bounded one under encryption.
        alignment: g of g·‖u_A − u_B‖², the mean over rows that both hold; by default 2g = 1/64,
            FATE's κ.
        overlap: how many of the rows that both hold both train on: a part, or a number of rows;
            the others are the label party's alone, as are rows of its file that the other lacks.
        alternating: the label party steps first, and the other from what it then has (FedBCD-s).
    """

    units: PositiveInt = 64
    activation: Literal["tanh", "sigmoid", "relu"] = "tanh"
    alignment: NonNegative = 1 / 128
    overlap: Annotated[float, Field(gt=0, le=1)] | Annotated[int, Field(ge=2)] = 1.0
    alternating: bool = False

    @field_validator("overlap", mode="before")
    @classmethod
    def _more_than_one_row(cls, overlap: object) -> object:
        if type(overlap) is int and overlap == 1:
            raise ValueError("1 is one row, which is too few; 1.0 is all of them")
        return overlap
