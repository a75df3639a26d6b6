"""A job: everything the parties agree on before they train, as one validated object.

Job files are TOML. An unknown key is an error that names the nearest known one. The job's hash
covers what all parties must agree on; where a party keeps its files is its own affair.
"""

import difflib
import hashlib
import json
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import to_json

from securevfl.errors import ConfigError, DataError
from securevfl.runtime.network import PRESETS, Network

Algorithm = Literal["fedsgd", "fedbcd-p", "fedbcd-s"]
Hide = Literal["residuals", "both"]
PositiveInt = Annotated[int, Field(ge=1)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Model = Literal["linear", "mlp", "custom"]
Activation = Literal["relu", "tanh", "gelu", "silu"]
Hidden = Annotated[tuple[PositiveInt, ...], Field(min_length=1)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class JobSettings(_Section):
    """`[job]`: the algorithm and its settings.

    Attributes:
        dataset: a data set by name, with its parties; or give `[[party]]` sections with files.
        parties: K for a data set by name; its usual split by default.
        algorithm: fedsgd is fedbcd-p at Q = 1.
        batch_size: S, or "full".
        local_steps: Q.
        learning_rate: η0.
        schedule: constant η0, or inverse-sqrt: η0/√(t+1) at round t.
        divide_by_sqrt_parties: η0/√K in place of η0, for many parties.
        loss: logistic (multinomial beyond two classes), squared or taylor-logistic.
        local_rule: curvature follows the party's own changes, frozen repeats the residual;
            gauss-newton is curvature on a network's linearization, as encryption has it.
        sampling: partition draws from fixed batches of the data set, shuffle reshuffles.
        model: the local model of parties that name none: linear, mlp, or custom, a module from
            Python.
        hidden: units of each hidden layer of an mlp; one of 64 where not given.
        activation: between the layers of an mlp; relu where not given.
        start: random θ⁰ with std(H⁰) = 1 at each party, or zero.
        intercept: a constant column at the label party.
        standardize: features to mean 0 and deviation 1 at each party; where not given, as is
            usual for the data set.
        target_auc: stop once the held-out AUC reaches it.
        eval_every: rounds between scorings on the held-out rows; 0 scores after the last only.
        allow_label_leak: run although the aggregated gradients carry too much about the labels.
    """

    name: str = "job"
    dataset: str | None = None
    parties: Annotated[int, Field(ge=2)] | None = None
    algorithm: Algorithm = "fedbcd-p"
    rounds: PositiveInt = 100
    batch_size: PositiveInt | Literal["full"] = 128
    local_steps: PositiveInt = 5
    learning_rate: PositiveFloat = 0.1
    schedule: Literal["constant", "inverse-sqrt"] = "constant"
    divide_by_sqrt_parties: bool = False
    loss: Literal["logistic", "multinomial", "squared", "taylor-logistic"] = "logistic"
    l2: NonNegative = 0.0
    proximal: NonNegative = 0.0
    local_rule: Literal["curvature", "gauss-newton", "frozen"] = "curvature"
    sampling: Literal["partition", "shuffle"] = "partition"
    model: Model = "linear"
    hidden: Hidden | None = None
    activation: Activation | None = None
    start: Literal["random", "zero"] = "random"
    intercept: bool = True
    standardize: bool | None = None
    seed: Annotated[int, Field(ge=0)] = 0
    target_auc: Annotated[float, Field(gt=0, le=1)] | None = None
    eval_every: Annotated[int, Field(ge=0)] = 1
    allow_label_leak: bool = False


class PartySettings(_Section):
    """`[[party]]`: one organization, its local model, and where it keeps its own files.

    `model`, `hidden` and `activation` are the job's where not given.
    """

    name: Annotated[str, Field(min_length=1, pattern=r"^[A-Za-z0-9_-][A-Za-z0-9_.-]*$")]
    role: Literal["label", "feature"]
    address: str | None = None
    data: Path | None = None
    test_data: Path | None = None
    id_column: str = "id"
    label_column: str | None = None
    features: tuple[str, ...] | None = None
    model: Model | None = None
    hidden: Hidden | None = None
    activation: Activation | None = None


@dataclass(frozen=True)
class LocalModelSettings:
    """One party's local model; hidden and activation are an mlp's."""

    model: Model
    hidden: tuple[int, ...] = (64,)
    activation: Activation = "relu"


class ExchangeSettings(_Section):
    """`[exchange]`: how a round's predictions and residuals travel.

    Attributes:
        scheme: plain, masked, or a homomorphic scheme.
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
        workers: processes for a party's own homomorphic products; each party's own affair.
        prediction_bound: public bound on |H_k| for losses whose residuals are unbounded; what
            is beyond is clipped and counted where both sides are hidden, else refused.
    """

    scheme: str = "plain"
    hide: Hide = "residuals"
    predictions: Literal["clear", "masked"] = "clear"
    key_bits: PositiveInt | None = None
    engine: str | None = None
    value_fraction_bits: Annotated[int, Field(ge=8, le=40)] | None = None
    feature_fraction_bits: Annotated[int, Field(ge=4, le=32)] | None = None
    round_trips: Literal["auto", 1, 2] = "auto"
    workers: PositiveInt = 1
    prediction_bound: PositiveFloat = 6.0


class NetworkSettings(_Section):
    """`[network]`: a preset by name, or latency and bandwidth."""

    preset: str | None = None
    latency_ms: NonNegative | None = None
    bandwidth_mbit: PositiveFloat | None = None

    def resolve(self) -> Network:
        """The network these settings name.

        Raises:
            ConfigError: an unknown preset.
        """
        if self.latency_ms is not None and self.bandwidth_mbit is not None:
            return Network(self.latency_ms, self.bandwidth_mbit)
        if self.preset not in PRESETS:
            raise ConfigError(
                f"network = {self.preset!r}: expected {', '.join(PRESETS)}, or latency_ms and "
                "bandwidth_mbit"
            )
        return PRESETS[self.preset]


class OutputSettings(_Section):
    """`[output]`: where models go, and how often they are written on the way."""

    directory: Path = Path("models")
    checkpoint_every: Annotated[int, Field(ge=0)] = 10


class AuditSection(_Section):
    """`[audit]`: attacks that a job must be shown to resist, by name; the audit checks it."""

    must_resist: tuple[str, ...] = ()


class Job(_Section):
    """A whole job file."""

    job: JobSettings = JobSettings()
    party: tuple[PartySettings, ...] = ()
    exchange: ExchangeSettings = ExchangeSettings()
    network: NetworkSettings = NetworkSettings(preset="lan")
    audit: AuditSection = AuditSection()
    output: OutputSettings = OutputSettings()

    @classmethod
    def of(cls, **sections: object) -> "Job":
        """A job from its sections, each a mapping of keys to values.

        Raises:
            ConfigError: an unknown key or a value out of range; the first one is named.
        """
        # By way of JSON, where pydantic can be strict: "5" and true are no numbers, lists and paths
        # still are what they should be.
        data = to_json(sections, inf_nan_mode="constants")
        try:
            return cls.model_validate_json(data, strict=True)
        except ValidationError as error:
            raise ConfigError(_first_problem(error)) from error

    def with_settings(self, **changes: object) -> "Job":
        """The same job with other values in `[job]`, validated.

        Raises:
            ConfigError: see `of`.
        """
        return Job.of(**{**dict(self), "job": {**dict(self.job), **changes}})

    @property
    def local_steps(self) -> int:
        """Q in force: 1 under fedsgd."""
        return 1 if self.job.algorithm == "fedsgd" else self.job.local_steps

    def model_of(self, party: str) -> LocalModelSettings:
        """The local model of a party."""
        job = self.job
        own = next((each for each in self.party if each.name == party), None)
        return LocalModelSettings(
            (own and own.model) or job.model,
            (own and own.hidden) or job.hidden or (64,),
            (own and own.activation) or job.activation or "relu",
        )

    def hash(self) -> bytes:
        """SHA-256 over what all parties must agree on; compared before the first round."""
        agreed = {
            "job": self.job.model_dump(mode="json"),
            "exchange": self.exchange.model_dump(mode="json", exclude={"workers"}),
            "network": self.network.model_dump(mode="json"),  # schemes trade bytes by it
            "parties": [
                (party.name, party.role, asdict(self.model_of(party.name))) for party in self.party
            ],
        }
        return hashlib.sha256(json.dumps(agreed, sort_keys=True).encode()).digest()


def parse_job(text: str, where: str = "job") -> Job:
    """The job that TOML text describes.

    Raises:
        ConfigError: text that is no TOML, an unknown key, a value out of range, or parties that
            make no job; one line that names the first problem.
    """
    try:
        job = Job.of(**tomllib.loads(text))
        check_job(job)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where}: not TOML: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    return job


def read_job(path: Path) -> Job:
    """The job in a file.

    Raises:
        DataError: the file cannot be read.
        ConfigError: see `parse_job`.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"job file {path}: {error}") from error
    return parse_job(text, str(path))


def check_job(job: Job) -> None:
    """Check what no single key can tell.

    Raises:
        ConfigError: parties or network settings that do not fit together.
    """
    if job.party and job.job.dataset:
        raise ConfigError("give either job.dataset or [[party]] sections, not both")
    if not job.party and not job.job.dataset:
        raise ConfigError("no data: give job.dataset or [[party]] sections")
    if job.party:
        _check_parties(job.party)
    check_models(job)
    custom = (job.network.latency_ms, job.network.bandwidth_mbit)
    if (job.network.preset is not None) == (custom != (None, None)) or (None in custom) != (
        custom == (None, None)
    ):
        raise ConfigError("network: give a preset, or both latency_ms and bandwidth_mbit")


def _check_parties(parties: tuple[PartySettings, ...]) -> None:
    names = [party.name for party in parties]
    if len(parties) < 2:  # noqa: PLR2004
        raise ConfigError(f"{len(parties)} party: expected at least 2")
    if len(set(names)) < len(names):
        raise ConfigError(f"party names are not unique: {', '.join(names)}")
    labels = [party.name for party in parties if party.role == "label"]
    if len(labels) != 1:
        raise ConfigError(f"{len(labels)} label parties ({', '.join(labels)}): expected 1")


def check_models(job: Job) -> None:
    """Check that hidden layers and activations belong to an mlp.

    Raises:
        ConfigError: they do not.
    """
    sections: list[tuple[str, JobSettings | PartySettings, bool]] = [
        (f"party {each.name!r}: ", each, job.model_of(each.name).model == "mlp")
        for each in job.party
    ]
    anywhere = job.job.model == "mlp" or any(is_mlp for _, _, is_mlp in sections)
    for where, section, is_mlp in (*sections, ("job.", job.job, anywhere)):
        for key in ("hidden", "activation"):
            if getattr(section, key) is not None and not is_mlp:
                raise ConfigError(
                    f"{where}{key} = {getattr(section, key)!r} belongs to model = 'mlp'"
                )


def _first_problem(error: ValidationError) -> str:
    problem = error.errors()[0]
    # What follows a key tells branches of its type, which nobody wrote.
    depth = 3 if problem["loc"][0] == "party" else 2
    place = ".".join(str(part) for part in problem["loc"][:depth])
    if problem["type"] == "missing":
        return f"{place} is missing"
    if problem["type"] != "extra_forbidden":
        return f"{place} = {problem['input']!r}: {problem['msg']}"
    known = _keys_beside(problem["loc"])
    key = str(problem["loc"][-1])
    nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.0)
    return f"unknown key {place!r}: nearest known key is {nearest[0]!r}"


def _keys_beside(place: tuple[int | str, ...]) -> list[str]:
    sections: dict[str, type[BaseModel]] = {
        "job": JobSettings,
        "party": PartySettings,
        "exchange": ExchangeSettings,
        "network": NetworkSettings,
        "audit": AuditSection,
        "output": OutputSettings,
    }
    section = sections.get(str(place[0]), Job) if len(place) > 1 else Job
    return list(section.model_fields)
