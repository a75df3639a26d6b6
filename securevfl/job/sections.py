"""The sections of a job file, each a validated object; see `securevfl train --example`."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator
from typing_extensions import override

from securevfl.errors import ConfigError
from securevfl.recipe import Preprocessing
from securevfl.runtime.line import PRESETS, Line
from securevfl.shown import controls

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


def _ascending(bounds: tuple[float, ...]) -> tuple[float, ...]:
    two = len(bounds) == 2 and all(map(isfinite, bounds))  # noqa: PLR2004
    if not (two and bounds[1] / 2 - bounds[0] / 2 > 0):
        raise ValueError("expected two finite numbers, the lower one first")
    return bounds


def _websocket(address: str) -> str:
    parts = urlsplit(address)  # its own ValueError for brackets that are no IPv6 address
    if not (
        parts.scheme in ("ws", "wss")
        and parts.hostname
        and parts.port != 0
        and parts.username is None
        and not parts.fragment
        and address.isascii()
        and address.isprintable()
        and " " not in address
    ):
        raise ValueError("expected ws://HOST:PORT or wss://HOST:PORT")
    return address


def _without_controls(name: str) -> str:
    if controls([name]) is not None:
        raise ValueError("expected a name without control characters")
    return name


Bounds = Annotated[tuple[float, ...], AfterValidator(_ascending)]
PartyName = Annotated[
    str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_-][A-Za-z0-9_.-]*$")
]
ClassWeights = Annotated[Mapping[str, PositiveFloat], Field(min_length=1)]
WebSocket = Annotated[str, AfterValidator(_websocket)]


class Section(BaseModel):
    """Base of all sections: immutable, and unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class JobSettings(Section):
    """`[job]`: the algorithm, the model and how it is trained.

    Attributes:
        name: name of the job in messages.
        dataset: a built-in data set, which comes with its parties; without it, describe the
            parties' own files in `[[party]]` sections.
        parties: number of parties K to split a built-in data set among; by default the data set's
            usual parties.
        algorithm: the training algorithm. Settings of one algorithm only are in its own section.
        rounds: the most communication rounds. The default is 20 for exact steps on secret-shared
            parameters (`blind`), otherwise 100. With learning_rate = "auto" the label party may
            stop earlier.
        batch_size: rows per batch S, or "full". The default is "full" for exact steps and where
            gradients are revealed, otherwise 128.
        local_steps: local steps per round Q, or "exact" to go straight to the minimum of the
            quadratic that local steps approximate (linear models). With learning_rate = "auto" the
            default is "exact" where it is supported and 20 for networks; otherwise 5.
        acceleration: Nesterov extrapolation between rounds. It is the default for exact steps that
            all parties take at the same time.
        learning_rate: initial learning rate η0. "auto" derives each party's learning rate from the
            curvature of its part of the model, and the label party monitors the training loss.
        tolerance: with learning_rate = "auto", training stops when three consecutive rounds
            together lower the loss by less than this fraction of the best constant prediction's
            loss; 0 disables early stopping.
        l1: λ₁ of the penalty λ₁‖θ‖₁ (intercept excluded), for linear models trained without
            encryption. scikit-learn's C equals 1/(λ₁N).
        l2: weight λ of the L2 penalty. The default is 1/N with learning_rate = "auto" and no l1,
            like C = 1 in scikit-learn; otherwise 0.
        schedule: keep η0 constant, or use η0/√(i+1) in round i. The default is constant, except
            for `fdml`, which uses inverse-sqrt unless it trains linear models with
            learning_rate = "auto" and without `dp`.
        divide_by_sqrt_parties: use η0/√K instead of η0, for many parties.
        loss: the training loss; multiclass logistic becomes multinomial. Squared loss also takes
            real-valued targets, which are divided by their standard deviation during training, so
            l1 refers to these units. Hinge has unbounded curvature, so it needs a numeric
            learning_rate and a local_rule that does not use curvature.
        class_weight: weights of classes in a logistic loss: "balanced", or one by class, as in
            { no = 1, yes = 20 }; as in scikit-learn. Under encryption give weights, as the range of
            residuals follows from them. A gradient then reveals something new of labels each time.
        proximal: μ of the proximal term μ/2·‖θ − θ_last‖², which pulls local steps towards the
            weights of the last exchange.
        local_rule: how local steps update the residual between exchanges. curvature corrects it
            for the party's own changes with an upper bound on the loss's curvature; frozen reuses
            it unchanged; exact recomputes it from the loss, so feature parties receive the labels
            and the sum of the other parties' predictions (scheme `plain` only); gauss-newton
            applies the curvature rule to a network's linearization, as under encryption.
        sampling: draw fixed batches of the data set (partition), or reshuffle the rows every epoch
            (shuffle).
        head: how the label party combines the parties' outputs: their sum, or a trainable logistic
            layer over the representations u_k that the local models then produce.
        representation: length w of each u_k; 64 by default.
        model: local model of every party that does not name its own. custom is a PyTorch module
            passed from Python.
        hidden: units per hidden layer. The default is one layer of 64 for an mlp, and no dense
            layers after the convolutions of a cnn.
        activation: activation function of a network; relu by default.
        channels: channels of each 3 x 3 convolution of a cnn; two convolutions of 64 by default.
        image_width: pixels per row when a cnn reads a party's columns as an image, row by row. For
            mnist this is 28, and a row of pixels is a column of the original image.
        precision: networks compute in float64 (double), or in float32 (single) with at most half
            the time and memory. Exchanged values are float64 either way.
        start: initial weights. random hides the first residuals: the label party starts with
            predictions of standard deviation 1, or, for gradient steps of linear models, adds a
            secret offset to each row's prediction throughout the job. Between processes and on
            Ray each party draws them from its operating system, so that nobody else can repeat
            them; in one process they follow from the seed. seeded is random that follows from the
            seed everywhere: it makes runs comparable and protects nothing. The default is zero if
            parameters stay secret-shared, or if all parties hold the labels and no network is
            trained; otherwise random.
        intercept: add a constant column at the label party.
        standardize: scale each party's features to mean 0 and standard deviation 1; the default
            depends on the data set.
        bounds: by column, its public lowest and highest value, as in { income = [0, 1e5] }, at
            every party that has it. Values beyond them are clipped, and the column is scaled as if
            spread evenly between them, not standardized. All parties see them: do not take them
            from rows.
        seed: seed of the batches, the held-out split and, as `start` says, the initial weights.
            Keys, masks and noise never depend on it.
        target_auc: stop when the held-out AUC reaches this value.
        eval_every: rounds between evaluations on the held-out rows. "doubling" evaluates after 1,
            2, 4, 8, 16 and 32 rounds and then every 20, 0 after the last round only (`fdml` always
            does so), and "never" not at all. The default is 1 with target_auc, 0 where rounds hide
            residuals or individual predictions, because a guard counts evaluations there, and
            otherwise "doubling".
        label_guard: how the label guard counts a linear model's gradients: once per distinct batch
            (batches), or at every visit (visits), which also covers a peer that deviates from the
            protocol.
        allow_label_leak: run even if gradients or the final model reveal too much about the labels.
        allow_feature_leak: run even if evaluations reveal too much about held-out rows' features.
    """

    name: Annotated[str, AfterValidator(_without_controls)] = "job"
    dataset: str | None = None
    parties: Annotated[int, Field(ge=2)] | None = None
    algorithm: str = "fedbcd-p"
    rounds: Annotated[int, Field(ge=1, le=1_000_000)] = 100
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
    class_weight: Literal["balanced"] | ClassWeights | None = None
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
    start: Literal["random", "seeded", "zero"] | None = None
    intercept: bool = True
    standardize: bool | None = None
    bounds: Mapping[str, Bounds] = {}
    seed: Annotated[int, Field(ge=0)] = 0
    target_auc: Annotated[float, Field(gt=0, le=1)] | None = None
    eval_every: Annotated[int, Field(ge=0)] | Literal["doubling", "never"] | None = None
    label_guard: Literal["batches", "visits"] = "batches"
    allow_label_leak: bool = False
    allow_feature_leak: bool = False


class DataSettings(Section):
    """A party's own data files.

    Attributes:
        data: training rows, as CSV, Parquet or a shard. Without test_data, a fifth of them is held
            out.
        test_data: held-out rows, at every party or at none.
        new_data: rows that `securevfl predict` scores.
        id_column: column that joins the parties' rows.
        id_format: compare ids as text, as numbers (00017 equals 17), or folded (ignoring case and
            surrounding blanks).
        population: name of the people that the table is about, by which this party's guards know
            them again in another table or under other values. By default a table is about people of
            its own, unless a hundredth of them are known from another.
        label_column: the target column, at the label party only.
        weight_column: weights of training rows in a logistic loss under `plain` or `masked`, at the
            label party only; as scikit-learn's sample_weight. Held-out rows count once each.
        features: columns to use; by default all except the id, the label and the weight.
        drop: columns to leave out.
        separator: field separator of a CSV file. This and the next three keys are detected by
            default.
        decimal: decimal mark.
        thousands: thousands separator.
        encoding: text encoding, by its Python name.
    """

    data: Path | None = None
    test_data: Path | None = None
    new_data: Path | None = None
    id_column: str = "id"
    id_format: Literal["text", "number", "folded"] = "text"
    population: Annotated[str, Field(min_length=1)] | None = None
    label_column: str | None = None
    weight_column: str | None = None
    features: tuple[str, ...] | None = None
    drop: tuple[str, ...] = ()
    separator: OneCharacter | None = None
    decimal: Literal[".", ","] | None = None
    thousands: OneCharacter | None = None
    encoding: str | None = None


class PartySettings(DataSettings):
    """`[[party]]`: one organization, its local model and its data files.

    Paths are relative to the job file. Between organizations, nobody's data are described here: see
    `securevfl party`.

    Attributes:
        name: name of the party and of its model file.
        role: exactly one party holds the labels; the others hold features only.
        identity: public key of the party's organization, as `securevfl party init` shows it.
        address: where the other organizations reach this party, as in ws://bank.example:7000, or
            wss:// behind a gateway. Without it the party only connects to others.
        preprocess: replaces the job's `[preprocess]` section for this party.
        model: local model. This and the keys below default to those of `[job]`.
        hidden: units per hidden layer.
        activation: activation function of a network.
        channels: channels of each convolution of a cnn.
        image_width: pixels per row of a cnn's image.
    """

    name: PartyName
    role: Literal["label", "feature"]
    identity: str | None = None
    address: WebSocket | None = None
    preprocess: Preprocessing | None = None
    model: Model | None = None
    hidden: Hidden | None = None
    activation: Activation | None = None
    channels: Hidden | None = None
    image_width: PositiveInt | None = None


class LinksSettings(Section):
    """`[links]`: how organizations reach one another.

    Attributes:
        relay: address of a `securevfl relay`, as in wss://relay.example, through which parties meet
            that cannot reach each other. It sees the sizes and times of sealed frames.
    """

    relay: WebSocket | None = None


@dataclass(frozen=True)
class LocalModelSettings:
    """One party's local model, with the job's defaults filled in."""

    model: Model
    hidden: tuple[int, ...] = (64,)
    activation: Activation = "relu"
    channels: tuple[int, ...] = (64, 64)
    image_width: int | None = None


class ExchangeSettings(Section):
    """`[exchange]`: how parties exchange predictions and residuals.

    Attributes:
        scheme: the exchange.
        hide: with homomorphic encryption: encrypt the residuals only, or both the residuals and
            the predictions.
        predictions: send predictions in the clear, or masked so that only their sum is visible
            (three or more parties).
        key_bits: size of the Paillier modulus; by default the scheme's size for 128-bit security.
        engine: implementation of the scheme, if it has several.
        value_fraction_bits: fixed-point precision of residuals and predictions; the scheme's
            default if omitted.
        feature_fraction_bits: the most fixed-point precision of features; the scheme's default if
            omitted. Features that need less, such as 0/1 columns, use less.
        round_trips: 2 in general; 1 where the scheme can compute the next predictions under
            encryption, which makes replies larger; auto chooses the faster one.
        he_per_step: for benchmarks: repeat the homomorphic product in every local step, as other
            systems do, instead of once per round. A linear model is the same, at Q times the work.
        workers: the most threads of a party's arithmetic, by default one for each core, and
            processes of Paillier's products, by default 1. The model is the same for any number,
            and each party may choose its own.
        offline_rounds: with `blind`: number of rounds whose pads are generated together; later
            pads are generated while parties wait. By default all are generated before round 1.
        checks: with `blind`: κ, the number of random combinations of pads in every product, by
            which a party that replies with anything but products is caught, but for about one time
            in 2^κ. 8 by default; 0 checks nothing.
        prediction_bound: public bound on |H_k| for losses with unbounded residuals. Values beyond
            it are clipped and counted if both sides are hidden, and refused otherwise.
        period: period of the series that approximates the sigmoid on secret shares. It is accurate
            while |H| stays 4 below half the period. The default follows from the number of rounds,
            and is doubled, in a cheaper series, as often as a party's columns with heavy tails ask
            for; what they ask for is told to all parties.
        scores: what `blind` and hide = "both" reveal about held-out rows to the label party. sums
            reveals only sums per class (of squared errors for real-valued targets). rows reveals
            each row's prediction H, which an exact AUC and log loss require; with two parties this
            reveals the other party's H_k. The default is sums, or with hide = "both" among three
            parties or more no scores.
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
    workers: PositiveInt | None = None
    offline_rounds: PositiveInt | None = None
    checks: Annotated[int, Field(ge=0, le=64)] | None = None
    prediction_bound: PositiveFloat = 6.0
    period: Annotated[int, Field(ge=24, le=512)] | None = None
    scores: Literal["sums", "rows"] | None = None


class NetworkSettings(Section):
    """`[network]`: the simulated network, as a preset or as latency and bandwidth.

    Attributes:
        preset: lan, wan or intercontinental.
        latency_ms: one-way latency of a message, in milliseconds.
        bandwidth_mbit: bandwidth between two parties, in Mbit/s.
    """

    preset: str | None = None
    latency_ms: NonNegative | None = None
    bandwidth_mbit: PositiveFloat | None = None

    @classmethod
    def of(cls, text: str) -> "NetworkSettings":
        """The network that `str` shows so: a preset, or "LATENCY_MS:MBIT_PER_S".

        Raises:
            ConfigError: an unknown preset, or no two numbers.
        """
        latency, colon, bandwidth = text.partition(":")
        try:
            if colon:
                return cls(latency_ms=float(latency), bandwidth_mbit=float(bandwidth))
            found = cls(preset=text)
            found.resolve()
        except ValueError:  # so are pydantic's errors and ours
            raise ConfigError(
                f"network = {text!r}: expected {', '.join(PRESETS)}, or LATENCY_MS:MBIT_PER_S as "
                "in 20:100"
            ) from None
        return found

    @override
    def __str__(self) -> str:
        return self.preset or f"{self.latency_ms:g}:{self.bandwidth_mbit:g}"

    def resolve(self) -> Line:
        """The simulated line between two parties; an unknown preset is a ConfigError."""
        if self.latency_ms is not None and self.bandwidth_mbit is not None:
            return Line(self.latency_ms, self.bandwidth_mbit)
        if self.preset not in PRESETS:
            raise ConfigError(
                f"network = {self.preset!r}: expected {', '.join(PRESETS)}, or latency_ms and "
                "bandwidth_mbit"
            )
        return PRESETS[self.preset]


class OutputSettings(Section):
    """`[output]`: where models are saved, and how often checkpoints are written.

    Attributes:
        directory: folder of the models and checkpoints, relative to the working directory.
        checkpoint_every: rounds between checkpoints, from which `--resume` continues; 0 writes
            none.
    """

    directory: Path = Path("models")
    checkpoint_every: Annotated[int, Field(ge=0)] = 10


class PrivacySettings(Section):
    """`[privacy]`: the noise that the `dp` exchange adds, and its privacy budgets.

    A noise multiplier is the noise's standard deviation (its scale, for Laplace) divided by a
    sensitivity: 2·clip for predictions, 2·gradient_clip for gradients, and the effect of one
    flipped label for residuals.

    Attributes:
        mechanism: noise on predictions and residuals; gradients always use Gaussian noise.
        noise_multiplier: z for predictions; by default the smallest that meets the budget.
        clip: β: predictions are clipped to [−β, β] before noise is added.
        delta: δ of every (ε, δ) guarantee.
        gradient_clip: β_g: the largest norm of one row's gradient at feature parties. Without it,
            feature parties take exact steps and there is no end-to-end guarantee.
        gradient_noise_multiplier: z_g for gradients; by default the smallest that meets the
            budget.
        label_noise_multiplier: z for residuals; 0 adds no noise.
        release_budget: the largest ε of the released values, if the model itself is considered
            public.
        budget: the largest end-to-end ε; it needs `job.bounds` of all columns of the parties that
            add noise, or `standardize = false`, and no [preprocess], because nothing that is
            fitted to a party's own rows has noise.
        noise_seed: makes the noise reproducible for experiments, which voids every privacy
            guarantee.
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
    """`[audit]`: what `securevfl audit` requires of this job.

    Attributes:
        must_resist: names of attacks that must fail against this job.
    """

    must_resist: tuple[str, ...] = ()


class FdmlSettings(Section):
    """`[fdml]`: asynchronous training with bounded staleness.

    Attributes:
        staleness: τ: how many iterations a party may be ahead of the slowest party, or
            "unbounded".
        own_prediction: which of its own predictions a party adds to the sum of the other parties'
            predictions: the exact one, or the noisy one that it sent, as in the paper. Without
            noise they are equal.
        batches_per_message: n iterations share one message in each direction, with predictions at
            the weights before the first of them. In the last of them, the other parties'
            predictions are n - 1 iterations old, which counts towards staleness.
        precision: send predictions as float64 (double), or as float32 (single) in half the
            bytes.
    """

    staleness: Annotated[int, Field(ge=0)] | Literal["unbounded"] = 0
    own_prediction: OwnPrediction = "exact"
    batches_per_message: PositiveInt = 1
    precision: Precision = "double"


class DbcdSettings(Section):
    """`[dbcd]`: block coordinate descent with an L1 penalty.

    This algorithm requires job.l1 or a path, interprets job.local_steps as passes of coordinate
    descent ("exact" iterates until convergence) and job.tolerance as the largest relative
    suboptimality of the objective, and always starts at zero.

    Attributes:
        working_set: columns that a party updates per round: all of them, or those that violate the
            optimality conditions most (greedy).
        size: number of columns in a greedy working set; 10 by default.
        path: decreasing values of λ₁, each warm-started from the previous solution, instead of
            job.l1. job.rounds limits the whole path.
        momentum: also search along the previous step (not under noise), which takes fewer rounds
            than the paper's search along the new direction alone.
    """

    working_set: Literal["all", "greedy"] = "all"
    size: PositiveInt | None = None
    path: Annotated[tuple[PositiveFloat, ...], Field(min_length=1)] | None = None
    momentum: bool = True


class FtlSettings(Section):
    """`[ftl]`: federated transfer learning.

    Attributes:
        units: width w of the hidden layer that each party trains.
        activation: activation function of the hidden layer; bounded if exchanges are encrypted.
        alignment: weight g of the alignment loss g·‖u_A − u_B‖², averaged over shared rows. The
            default corresponds to κ = 1/64 = 2g in FATE.
        overlap: fraction or number of the shared rows that both parties train on. The remaining
            shared rows belong to the label party alone, like the rows of its file that the other
            party lacks.
        alternating: the label party steps first, and the other party steps on the result
            (FedBCD-s).
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
            raise ValueError("1 means a single row, at least 2 are needed; 1.0 means all rows")
        return overlap
