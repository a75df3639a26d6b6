"""A job: everything the parties agree on before they train, as one validated object.

Job files are TOML. An unknown key is an error that names the nearest known one. The job's hash
covers what all parties must agree on; where a party keeps its files is its own affair.
"""

import difflib
import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, SerializeAsAny, ValidationError
from pydantic_core import to_json
from typing_extensions import override

from securevfl.errors import ConfigError, DataError
from securevfl.job.sections import (
    Activation,
    AuditSection,
    DbcdSettings,
    ExchangeSettings,
    FdmlSettings,
    FtlSettings,
    Hide,
    JobSettings,
    LocalModelSettings,
    NetworkSettings,
    OutputSettings,
    OwnPrediction,
    PartySettings,
    PrivacySettings,
    Section,
)
from securevfl.recipe import Preprocessing
from securevfl.shown import Shown

__all__ = [
    "Activation",
    "DbcdSettings",
    "ExchangeSettings",
    "FdmlSettings",
    "FtlSettings",
    "Hide",
    "Job",
    "JobSettings",
    "LocalModelSettings",
    "NetworkSettings",
    "OwnPrediction",
    "PartySettings",
    "PrivacySettings",
    "Section",
    "check_job",
    "check_models",
    "parse_job",
    "read_job",
]


S = TypeVar("S", bound=Section)

RENAMED = {
    "ahead_rounds": "offline_rounds",
    "batches_a_message": "batches_per_message",
    "image_line": "image_width",
    "in_turns": "alternating",
}
"""Keys of version 0.1 under the names that they have now."""

MODEL_KEYS = {
    "hidden": ("mlp", "cnn"),
    "activation": ("mlp", "cnn"),
    "channels": ("cnn",),
    "image_width": ("cnn",),
}

OWN_SECTIONS: dict[str, type[Section]] = {
    "fdml": FdmlSettings,
    "dbcd": DbcdSettings,
    "ftl": FtlSettings,
}
"""What algorithms have of their own; those of other packages say so when they are made known."""


class Job(Shown, Section):
    """A whole job file.

    Attributes:
        preprocess: what parties make of text and of missing values, each of its own; not given,
            they are refused.
        own: sections that belong to one algorithm, by its name; in a file they stand like others.
    """

    job: JobSettings = JobSettings()
    party: tuple[PartySettings, ...] = ()
    exchange: ExchangeSettings = ExchangeSettings()
    network: NetworkSettings = NetworkSettings(preset="lan")
    privacy: PrivacySettings = PrivacySettings()
    audit: AuditSection = AuditSection()
    preprocess: Preprocessing | None = None
    output: OutputSettings = OutputSettings()
    own: Mapping[str, SerializeAsAny[Section]] = {}

    @classmethod
    def of(cls, **sections: object) -> "Job":
        """A job from its sections, each a mapping of keys to values.

        Raises:
            ConfigError: an unknown key or a value out of range; the first one is named.
        """
        # By way of JSON, where pydantic can be strict: "5" and true are no numbers, lists and paths
        # still are what they should be.
        given = {**sections, **dict(_mapping(sections.get("own")))}
        own = {name: given.pop(name) for name in OWN_SECTIONS if name in given}
        given.pop("own", None)
        try:
            job = cls.model_validate_json(_json(given), strict=True)
        except ValidationError as error:
            raise ConfigError(_first_problem(error)) from error
        return job.model_copy(update={"own": {n: _own_section(n, each) for n, each in own.items()}})

    def with_settings(self, **changes: object) -> "Job":
        """The same job with other values in `[job]`, validated.

        Raises:
            ConfigError: see `of`.
        """
        said = {name: getattr(self.job, name) for name in self.job.model_fields_set}
        return Job.of(**{**dict(self), "job": {**said, **changes}})

    @override
    def shown(self) -> dict[str, object]:
        """What differs from a job that says nothing."""
        said = self.model_dump(mode="json", exclude_defaults=True)
        parties = said.pop("party", [])
        found: dict[str, object] = (
            {"parties": ", ".join(p["name"] for p in parties)} if parties else {}
        )
        sections = {**said, **said.pop("own", {})}
        for section, keys in sections.items():
            found |= {f"{section}.{key}": value for key, value in keys.items()}
        return found

    @property
    def without_protection(self) -> "Job":
        """The same training, its exchanges without protection."""
        return self.model_copy(
            update={"exchange": ExchangeSettings(), "privacy": PrivacySettings()}
        )

    def section(self, kind: type[S], name: str) -> S:
        """What a job says in an algorithm's own section; its defaults where it says nothing."""
        found = self.own.get(name, kind())
        assert isinstance(found, kind)  # noqa: S101
        return found

    def model_of(self, party: str) -> LocalModelSettings:
        """The local model of a party."""
        job = self.job
        own = next((each for each in self.party if each.name == party), None)
        model = (own and own.model) or job.model
        return LocalModelSettings(
            model,
            (own and own.hidden) or job.hidden or (() if model == "cnn" else (64,)),
            (own and own.activation) or job.activation or "relu",
            (own and own.channels) or job.channels or (64, 64),
            (own and own.image_width) or job.image_width,
        )

    @property
    def is_linear(self) -> bool:
        """Whether every party's local model is linear."""
        models = {self.job.model, *(party.model for party in self.party if party.model)}
        return models == {"linear"}

    def hash(self) -> bytes:
        """SHA-256 over what all parties must agree on; compared before the first round."""
        agreed = {
            "job": self.job.model_dump(mode="json"),
            "exchange": self.exchange.model_dump(mode="json", exclude={"workers"}),
            "privacy": self.privacy.model_dump(mode="json"),
            "network": self.network.model_dump(mode="json"),  # schemes trade bytes by it
            "own": {name: each.model_dump(mode="json") for name, each in self.own.items()},
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
    except OSError as error:
        raise DataError(f"job file {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"job file {path}: not UTF-8 text") from error
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
        raise ConfigError(f"{len(labels)} parties with role = 'label', expected 1")


def check_models(job: Job) -> None:
    """Check that what belongs to networks of a kind stands beside one.

    Raises:
        ConfigError: it does not.
    """
    sections: list[tuple[str, JobSettings | PartySettings, set[str]]] = [
        (f"party {each.name!r}: ", each, {job.model_of(each.name).model}) for each in job.party
    ]
    anywhere = {job.job.model}.union(*(models for _, _, models in sections))
    for where, section, models in (*sections, ("job.", job.job, anywhere)):
        for key, homes in MODEL_KEYS.items():
            if getattr(section, key) is not None and not models & set(homes):
                home = " or ".join(map(repr, homes))
                raise ConfigError(
                    f"{where}{key} = {getattr(section, key)!r} belongs to model = {home}"
                )


def _json(sections: object) -> bytes:
    return to_json(sections, inf_nan_mode="constants")


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _own_section(name: str, values: object) -> Section:
    try:
        return OWN_SECTIONS[name].model_validate_json(_json(values), strict=True)
    except ValidationError as error:
        raise ConfigError(_first_problem(error, (name,))) from error


def _first_problem(error: ValidationError, within: tuple[str, ...] = ()) -> str:
    problem = error.errors()[0]
    where = (*within, *problem["loc"])
    # What follows a key tells branches of its type, which nobody wrote.
    depth = 3 if where[0] == "party" else 2
    place = ".".join(str(part) for part in where[:depth])
    if problem["type"] == "missing":
        return f"{place} is missing"
    if problem["type"] != "extra_forbidden":
        # One problem for each type that a value may be of.
        told = [each["msg"] for each in error.errors() if each["loc"][:2] == problem["loc"][:2]]
        first, *others = dict.fromkeys(told)
        ways = [first, *(other.removeprefix("Input should be ") for other in others)]
        return f"{place} = {problem['input']!r}: {', or '.join(ways)}"
    key, sections = str(where[-1]), _sections()
    if new := RENAMED.get(key):
        return f"unknown key {place!r}: it is {new!r} now"
    home = next((name for name, kind in sections.items() if key in kind.model_fields), None)
    if home is not None:
        heading = "[[party]]" if home == "party" else f"[{home}]"
        return f"unknown key {place!r}: {key} belongs in {heading}"
    if key in sections:
        return f"unknown key {place!r}: [{key}] is a section of its own"
    beside = list(sections if len(where) == 1 else sections[str(where[0])].model_fields)
    nearest = difflib.get_close_matches(key, beside, n=1, cutoff=0.0)
    return f"unknown key {place!r}: nearest known key is {nearest[0]!r}"


def _sections() -> dict[str, type[BaseModel]]:
    return {
        "job": JobSettings,
        "party": PartySettings,
        "exchange": ExchangeSettings,
        "network": NetworkSettings,
        "privacy": PrivacySettings,
        "audit": AuditSection,
        "preprocess": Preprocessing,
        "output": OutputSettings,
        **OWN_SECTIONS,
    }
