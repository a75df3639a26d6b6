"""A job: everything the parties agree on before they train, as one validated object.

Job files are TOML. An unknown key is an error that names the nearest known one. The job's hash
covers what all parties must agree on; where a party keeps its files is its own affair.
"""

import difflib
import hashlib
import json
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, SerializeAsAny, ValidationError
from pydantic_core import to_json
from typing_extensions import override

from securevfl.errors import ConfigError, DataError
from securevfl.files import reading, toml_tables
from securevfl.job.sections import (
    Activation,
    AuditSection,
    DataSettings,
    DbcdSettings,
    ExchangeSettings,
    FdmlSettings,
    FtlSettings,
    Hide,
    JobSettings,
    LinksSettings,
    LocalModelSettings,
    NetworkSettings,
    OutputSettings,
    OwnPrediction,
    PartyName,
    PartySettings,
    PrivacySettings,
    Section,
)
from securevfl.recipe import Preprocessing
from securevfl.shown import ONE_LINE, Shown

__all__ = [
    "Activation",
    "DataSettings",
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
    "PartyName",
    "PartySettings",
    "PrivacySettings",
    "Section",
    "check_job",
    "check_models",
    "check_network",
    "first_problem",
    "job_text",
    "parse_job",
    "read_job",
    "section_kinds",
]

S = TypeVar("S", bound=Section)

RENAMED = {
    "ahead_rounds": "offline_rounds",
    "batches_a_message": "batches_per_message",
    "image_line": "image_width",
    "in_turns": "alternating",
}
"""Former names of keys, for the error message."""

EACH_PARTY = "start each party's section with [[party]]"
NOT_TOML = {"('party',) twice": f": {EACH_PARTY}", "Invalid value": ": text needs quotes"}

MODEL_KEYS = {
    "hidden": ("mlp", "cnn"),
    "activation": ("mlp", "cnn"),
    "channels": ("cnn",),
    "image_width": ("cnn",),
}

LISTS = ("hidden", "channels")

OWN_SECTIONS: dict[str, type[Section]] = {
    "fdml": FdmlSettings,
    "dbcd": DbcdSettings,
    "ftl": FtlSettings,
}
"""Sections of single algorithms; registering an algorithm adds its section."""


class Job(Shown, Section):
    """A whole job file.

    Attributes:
        preprocess: how each party encodes text and missing values; without it they are refused.
        own: sections of single algorithms, by algorithm; in a job file they are ordinary sections.
    """

    job: JobSettings = JobSettings()
    party: tuple[PartySettings, ...] = ()
    exchange: ExchangeSettings = ExchangeSettings()
    network: NetworkSettings = NetworkSettings(preset="lan")
    privacy: PrivacySettings = PrivacySettings()
    audit: AuditSection = AuditSection()
    preprocess: Preprocessing | None = None
    links: LinksSettings = LinksSettings()
    output: OutputSettings = OutputSettings()
    own: Mapping[str, SerializeAsAny[Section]] = {}

    @classmethod
    def of(cls, /, **sections: object) -> "Job":
        """A job from its sections, each a mapping of keys to values.

        Raises:
            ConfigError: an unknown key or a value out of range; names the first one.
        """
        # JSON allows pydantic's strict mode ("5" and true are not numbers) with lists and paths.
        given = {**sections, **dict(_mapping(sections.get("own")))}
        for name, section in given.items():
            if isinstance(section, BaseModel):  # what it leaves open stays open
                given[name] = section.model_dump(exclude_unset=True)
        own = {name: given.pop(name) for name in OWN_SECTIONS if name in given}
        given.pop("own", None)
        try:
            job = cls.model_validate_json(_json(given), strict=True)
        except ValidationError as error:
            raise ConfigError(first_problem(error, section_kinds())) from error
        return job.model_copy(update={"own": {n: _own_section(n, each) for n, each in own.items()}})

    @classmethod
    def of_file(cls, tables: Mapping[str, object]) -> "Job":
        """A job from the tables of a file; errors as in `of`.

        `own` is no section of a file: it would silently replace sections that people read there.
        """
        if "own" in tables:
            raise ConfigError("unknown key 'own': sections of algorithms have their names")
        return cls.of(**tables)

    def with_settings(self, **changes: object) -> "Job":
        """The same job with changed values in `[job]`, validated as in `of`."""
        given = {name: getattr(self.job, name) for name in self.job.model_fields_set}
        return Job.of(**{**dict(self), "job": {**given, **changes}})

    @override
    def shown(self) -> dict[str, object]:
        """Settings that differ from their defaults."""
        sections = self.model_dump(mode="json", exclude_defaults=True)
        parties = sections.pop("party", [])
        found: dict[str, object] = (
            {"parties": ", ".join(p["name"] for p in parties)} if parties else {}
        )
        for section, keys in {**sections, **sections.pop("own", {})}.items():
            found |= {f"{section}.{key}": value for key, value in keys.items()}
        return found

    @property
    def without_protection(self) -> "Job":
        """The same training with unprotected exchanges."""
        return self.model_copy(
            update={"exchange": ExchangeSettings(), "privacy": PrivacySettings()}
        )

    def section(self, kind: type[S], name: str) -> S:
        """The settings in an algorithm's own section, or their defaults."""
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
        """SHA-256 over all settings that parties must agree on, compared before the first round."""
        agreed = {
            "job": self.job.model_dump(mode="json"),
            "exchange": self.exchange.model_dump(mode="json", exclude={"workers"}),
            "privacy": self.privacy.model_dump(mode="json"),
            "network": self.network.model_dump(mode="json"),  # round_trips = "auto" depends on it
            "own": {name: each.model_dump(mode="json") for name, each in self.own.items()},
            "parties": [
                (party.name, party.role, asdict(self.model_of(party.name))) for party in self.party
            ],
        }
        return hashlib.sha256(json.dumps(agreed, sort_keys=True).encode()).digest()


def parse_job(text: str, where: str = "job") -> Job:
    """Parse and validate a job in TOML.

    Raises:
        ConfigError: invalid TOML, an unknown key, a value out of range, or inconsistent sections;
            one line that names the first problem.
    """
    try:
        job = Job.of_file(toml_tables(text))
        check_job(job)
    except tomllib.TOMLDecodeError as error:
        hints = (hint for words, hint in NOT_TOML.items() if words in str(error))
        raise ConfigError(f"{where}: not TOML: {error}{next(hints, '')}") from error
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    return job


def read_job(path: Path) -> Job:
    """Read a job file; see `job_text` and `parse_job` for the errors."""
    return parse_job(job_text(path), str(path))


def job_text(path: Path) -> str:
    """The text of a job file, with its line ends; a DataError if it cannot be read."""
    try:
        with reading(f"job file {path}"):
            return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise DataError(f"job file {path}: not UTF-8 text") from error


def check_job(job: Job) -> None:
    """Raise a ConfigError if sections or keys contradict one another."""
    if job.party and job.job.dataset:
        raise ConfigError("give either job.dataset or [[party]] sections, not both")
    if not job.party and not job.job.dataset:
        raise ConfigError("no data: give job.dataset or [[party]] sections")
    if job.party:
        _check_parties(job.party)
    check_models(job)
    check_network(job)


def check_network(job: Job) -> None:
    """Raise a ConfigError unless the network is either a preset or a latency and a bandwidth."""
    custom = (job.network.latency_ms, job.network.bandwidth_mbit)
    if (job.network.preset is not None) == (custom != (None, None)) or (None in custom) != (
        custom == (None, None)
    ):
        raise ConfigError("network: give a preset, or both latency_ms and bandwidth_mbit")


def _check_parties(parties: tuple[PartySettings, ...]) -> None:
    names = [party.name for party in parties]
    if len(parties) < 2:  # noqa: PLR2004
        raise ConfigError(f"{len(parties)} [[party]] section: expected at least 2")
    if len(set(names)) < len(names):
        raise ConfigError(f"party names are not unique: {', '.join(names)}")
    labels = [party.name for party in parties if party.role == "label"]
    if len(labels) != 1:
        raise ConfigError(f"{len(labels)} parties with role = 'label', expected 1")


def check_models(job: Job) -> None:
    """Raise a ConfigError for settings of a kind of network that no local model is."""
    sections: list[tuple[str, JobSettings | PartySettings, set[str]]] = [
        (f"party {each.name!r}: ", each, {job.model_of(each.name).model}) for each in job.party
    ]
    anywhere = {job.job.model}.union(*(models for _, _, models in sections))
    for where, section, models in (*sections, ("job.", job.job, anywhere)):
        for key, homes in MODEL_KEYS.items():
            value = getattr(section, key)
            if value is not None and not models & set(homes):
                home, value = " or ".join(map(repr, homes)), [*value] if key in LISTS else value
                raise ConfigError(f"{where}{key} = {value!r} needs model = {home}")


def _json(sections: object) -> bytes:
    return to_json(sections, inf_nan_mode="constants")


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _own_section(name: str, values: object) -> Section:
    try:
        return OWN_SECTIONS[name].model_validate_json(_json(values), strict=True)
    except ValidationError as error:
        raise ConfigError(first_problem(error, section_kinds(), (name,))) from error


def first_problem(
    error: ValidationError,
    sections: Mapping[str, type[BaseModel]],
    within: tuple[str, ...] = (),
    top: Collection[str] = (),
) -> str:
    """One line about the first problem of a file of sections.

    Args:
        error: of the file, or of one section.
        sections: all that the file may have, by name.
        within: the section that was validated by itself.
        top: the file's keys outside sections.
    """
    problem = error.errors()[0]
    where = (*within, *problem["loc"])
    # Deeper parts of the location are branches of the key's type.
    depth = 3 if "party" in where[:1] or {"bounds", "monotone"} & {*where} else 2
    place = ".".join(str(part) for part in where[:depth])
    if problem["type"] in ("missing", "json_invalid"):  # such as a number beyond all limits
        return f"{place} is missing" if where else problem["msg"]
    if problem["type"] != "extra_forbidden":
        # pydantic reports one problem for each type that the value may have.
        here = [each for each in error.errors() if each["loc"][:2] == problem["loc"][:2]]
        same = [
            each["msg"].removeprefix("Value error, ").replace("an object", "a table")
            for each in here
        ]
        first, *others = dict.fromkeys(same)
        ways = [first, *(other.removeprefix("Input should be ") for other in others)]
        given = repr(problem["input"])
        given = given if len(given) <= ONE_LINE else f"{given[:ONE_LINE]}…"
        if where == ("party",):
            given, ways = "a table", [EACH_PARTY]
        expected = ", or ".join(ways).replace("an object", "a table")
        return f"{place} = {given}: {expected}"
    key = str(where[-1])
    if new := RENAMED.get(key):
        return f"unknown key {place!r}: renamed to {new!r}"
    home = next((name for name, kind in sections.items() if key in kind.model_fields), None)
    if home is not None:
        listed = key == "parties" and isinstance(problem["input"], list)
        belongs = EACH_PARTY if listed else f"{key} belongs in {_heading(home)}"
        return f"unknown key {place!r}: {belongs}"
    if key in sections:
        return f"unknown key {place!r}: {_heading(key)} is a separate section"
    beside = [*top, *sections] if len(where) == 1 else sections[str(where[0])].model_fields
    nearest = difflib.get_close_matches(key, beside, n=1, cutoff=0.0)
    return f"unknown key {place!r}: nearest known key is {nearest[0]!r}"


def _heading(section: str) -> str:
    return "[[party]]" if section == "party" else f"[{section}]"


def section_kinds() -> dict[str, type[BaseModel]]:
    """The sections of a job file, those of single algorithms last."""
    return {
        "job": JobSettings,
        "party": PartySettings,
        "exchange": ExchangeSettings,
        "network": NetworkSettings,
        "privacy": PrivacySettings,
        "audit": AuditSection,
        "preprocess": Preprocessing,
        "links": LinksSettings,
        "output": OutputSettings,
        **OWN_SECTIONS,
    }
